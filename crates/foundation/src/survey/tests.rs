use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

fn question(mode: VolumeMode, names: &[&str]) -> SurveyRequest {
    let subjects = names.iter().map(|name| ReplicaSpec {
        name: (*name).into(),
        location: PathBuf::from(format!("/mnt/{name}")).into(),
        require_mount: true,
    });
    SurveyRequest {
        replicas: subjects.collect(),
        mode,
        segment_size: 1 << 20,
        deadline: Duration::from_secs(30),
        write_replica: None,
        lag: Duration::from_secs(65),
        mount_point: None,
    }
}

fn root(name: &str, minor: u32, ino: u64) -> RootInfo {
    RootInfo {
        canonical: Path::new("/mnt").join(name),
        servers: Vec::new(),
        terms: None,
        mount_id: None,
        dev: (0, minor),
        ino,
        ctime: (1, minor),
        mode: 0o40755,
        size: 1 << 40,
        free: 1 << 39,
        is_read_only: false,
        listing: None,
    }
}

fn listing(entries: &[(&str, EntryKind, Option<u64>)]) -> Option<RootListing> {
    let entries = entries.iter().map(|(name, kind, size)| {
        ((*name).into(), RootListingEntry { ino: 7, kind: Some(*kind), size: *size })
    });
    Some(RootListing { entries: entries.collect(), complete: true })
}

/// A survey of directories, with mounts given as `(point, type, source, options)`.
fn surveyed(question: SurveyRequest, roots: Vec<RootInfo>, mounts: &[[&str; 4]]) -> Survey {
    surveyed_beside(question, roots, mounts, "")
}

/// The same, with what `/proc/self/mountstats` says.
fn surveyed_beside(
    question: SurveyRequest,
    roots: Vec<RootInfo>,
    mounts: &[[&str; 4]],
    stats: &str,
) -> Survey {
    let mut mountinfo = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
    for (i, [point, fs_type, source, options]) in mounts.iter().enumerate() {
        mountinfo += &format!("{} 1 0:{i} / {point} rw - {fs_type} {source} {options}\n", i + 2);
    }
    let answers = roots.into_iter().map(|root| ProbeResult::Directory(Box::new(root))).collect();
    let table = MountTable::parse(mountinfo.as_bytes()).with_stats(stats.as_bytes());
    assemble(question, LIMIT, answers, Ok(table))
}

fn nfs<'a>(point: &'a str, source: &'a str, options: &'a str) -> [&'a str; 4] {
    [point, "nfs4", source, options]
}

const V3_A: &str = "rw,vers=3,rsize=1048576,hard,addr=10.0.0.1";
const V3_B: &str = "rw,vers=3,rsize=1048576,hard,addr=10.0.0.2";
const V42: &str = "rw,vers=4.2,rsize=1048576,hard,addr=10.0.0.1";

/// The one finding, which must be about `replicas`.
fn only(survey: &Survey, severity: Severity, replicas: &[usize]) -> String {
    let findings = survey.findings();
    let [finding] = findings.as_slice() else { panic!("not one finding: {findings:#?}") };
    let about: Vec<usize> = finding.replicas.iter().map(|id| id.index()).collect();
    assert_eq!((finding.severity, about.as_slice()), (severity, replicas), "{}", finding.text);
    finding.text.clone()
}

#[test]
fn two_gateways_of_one_file_system_are_fine() {
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A), nfs("/mnt/b", "10.0.0.2:/v", V3_B)];
    let survey = surveyed(
        question(VolumeMode::Shared, &["a", "b"]),
        vec![root("a", 40, 2), root("b", 41, 2)],
        &mounts,
    );
    assert_eq!(survey.findings(), []);
    assert!(!survey.has_errors());
}

#[test]
fn the_survey_does_not_wait_for_a_hung_replica() {
    let (block, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Arc::new(std::sync::Mutex::new(blocked));
    let limit = Duration::from_millis(200);
    let start = Instant::now();
    let survey =
        survey_with(question(VolumeMode::Shared, &["a", "hung"]), limit, move |subject, _| {
            if subject.name == "hung" {
                let _ = blocked.lock().expect("one thread").recv();
            }
            ProbeResult::Directory(Box::new(root(&subject.name, 40, 2)))
        });
    assert!(start.elapsed() < Duration::from_secs(10), "waited for the hung replica");
    drop(block);
    assert!(survey.replicas[ReplicaId::new(0)].directory().is_some());
    let findings = survey.findings();
    let silent = findings.iter().find(|f| f.replicas == [ReplicaId::new(1)]).expect("a finding");
    assert_eq!(silent.severity, Severity::Error);
    assert_eq!(
        silent.text,
        "replica hung (/mnt/hung) did not answer within 200ms; check its server"
    );
}

#[test]
fn a_replica_that_is_not_a_directory_is_an_error() {
    let answers = [
        ProbeResult::Absent,
        ProbeResult::NotADirectory,
        ProbeResult::Failed("Stale file handle".into()),
    ];
    let answers = answers.into_iter().collect();
    let question = question(VolumeMode::Shared, &["a", "b", "c"]);
    let survey = assemble(question, LIMIT, answers, Ok(MountTable::default()));
    let texts: Vec<String> = survey.findings().into_iter().map(|f| f.text).collect();
    assert_eq!(
        texts,
        [
            "replica a (/mnt/a) does not exist; create the directory and mount it there",
            "replica b (/mnt/b) is not a directory; set `path` to its mount point",
            "replica c (/mnt/c) cannot be opened: Stale file handle"
        ]
    );
}

#[test]
fn an_unmounted_replica_is_an_error_unless_allowed() {
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A)];
    let roots = || vec![root("a", 40, 2), root("b", 1, 77)];
    let mut question = question(VolumeMode::Copies, &["a", "b"]);
    let text = only(&surveyed(question.clone(), roots(), &mounts), Severity::Error, &[1]);
    assert!(text.contains("/mnt/b") && text.contains("`mount /mnt/b`"), "{text}");
    question.replicas[1].require_mount = false;
    let text = only(&surveyed(question, roots(), &mounts), Severity::Warning, &[1]);
    assert!(text.contains("not on a network file system"), "{text}");
}

#[test]
fn without_a_mount_table_nothing_counts_as_mounted() {
    let answers = [ProbeResult::Directory(Box::new(root("a", 40, 2)))].into_iter().collect();
    let survey = assemble(
        question(VolumeMode::Shared, &["a"]),
        LIMIT,
        answers,
        Err(io::Error::other("denied")),
    );
    assert!(only(&survey, Severity::Error, &[0]).contains("mountinfo: denied"));
}

#[test]
fn roots_of_a_shared_volume_have_one_inode_number() {
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A), nfs("/mnt/b", "10.0.0.2:/v", V3_B)];
    let roots = || vec![root("a", 40, 2), root("b", 41, 5)];
    let survey = surveyed(question(VolumeMode::Shared, &["a", "b"]), roots(), &mounts);
    let text = only(&survey, Severity::Error, &[0, 1]);
    assert!(text.contains("a has root inode 2 ") && text.contains("b has root inode 5 "), "{text}");
    assert!(text.contains("mode = \"copies\""), "{text}");
    let survey = surveyed(question(VolumeMode::Copies, &["a", "b"]), roots(), &mounts);
    assert_eq!(survey.findings(), []);
}

#[test]
fn local_roots_with_one_inode_number_differ_by_device() {
    let mounts = [["/mnt/a", "ext4", "/dev/sdb", "rw"], ["/mnt/b", "ext4", "/dev/sdc", "rw"]];
    let survey = surveyed(
        question(VolumeMode::Shared, &["a", "b"]),
        vec![root("a", 40, 2), root("b", 41, 2)],
        &mounts,
    );
    assert!(survey.has_errors());
}

#[test]
fn listing_one_file_system_twice_is_a_warning() {
    let mounts = [["/mnt/a", "ceph", "m:/", "rw"], ["/mnt/b", "ceph", "m:/", "rw"]];
    let survey = surveyed(
        question(VolumeMode::Shared, &["a", "b"]),
        vec![root("a", 40, 2), root("b", 40, 2)],
        &mounts,
    );
    assert!(
        only(&survey, Severity::Warning, &[0, 1])
            .starts_with("replicas a and b are on one file system")
    );
}

#[test]
fn trunked_mounts_are_reported_with_a_fix() {
    let roots = || vec![root("a", 40, 2), root("b", 41, 2), root("c", 42, 2)];
    let sources = |options| {
        [
            nfs("/mnt/a", "10.0.0.1:/v", options),
            nfs("/mnt/b", "10.0.0.2:/v", options),
            nfs("/mnt/c", "10.0.0.3:/v", V3_B),
        ]
    };
    let volume = || question(VolumeMode::Shared, &["a", "b", "c"]);
    let text = only(&surveyed(volume(), roots(), &sources(V42)), Severity::Warning, &[0, 1]);
    for word in ["a and b share", "vers=3", "vers=4.0", "max_connect=2", "network namespace"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let spread = format!("{V42},max_connect=2");
    assert_eq!(surveyed(volume(), roots(), &sources(&spread)).findings(), []);
}

/// What two NFSv4.1 mounts from two addresses of one server look like without
/// `nosharecache`: one super block, which has the first one's source.
#[test]
fn trunked_mounts_with_one_superblock_get_a_fix() {
    let surveyed_with = |options: &str, ports: &[u16]| {
        let sources =
            [nfs("/mnt/a", "10.0.0.1:/v", options), nfs("/mnt/b", "10.0.0.1:/v", options)];
        let roots = vec![root("a", 40, 2), root("b", 40, 2)];
        let mut stats = String::new();
        for at in ["/mnt/a", "/mnt/b"].iter().filter(|_| !ports.is_empty()) {
            stats += &format!("device 10.0.0.1:/v mounted on {at} with fstype nfs4 statvers=1.1\n");
            for port in ports {
                stats += &format!("\txprt:\ttcp {port} 0 1 0 2 294 294 0 294 0 2 0 0\n");
            }
        }
        let volume = question(VolumeMode::Shared, &["a", "b"]);
        surveyed_beside(volume, roots, &sources, &stats)
    };
    let nconnect = format!("{V42},nconnect=2,max_connect=2");
    let spread = format!("{V42},max_connect=2");
    let cases = [(V42, &[][..]), (V42, &[700]), (&spread, &[700]), (&nconnect, &[700, 701])];
    for (options, ports) in cases {
        let text = only(&surveyed_with(options, ports), Severity::Warning, &[0, 1]);
        let named = ["to 10.0.0.1,", "trunking", "address", "vers=3", "vers=4.0", "max_connect=2"];
        for word in named.into_iter().chain(["network namespace"]) {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
    // The kernel has connected to a second address.
    for (options, ports) in [(&spread, &[][..]), (&spread, &[700, 800]), (&nconnect, &[1, 2, 3])] {
        assert_eq!(surveyed_with(options, ports).findings(), [], "{options}, {ports:?}");
    }
}

#[test]
fn an_address_mounted_twice_gets_a_different_fix() {
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A), nfs("/mnt/b", "10.0.0.1:/v", V3_A)];
    // The same super block, as the kernel shares it, or not (nosharecache).
    for minor in [40, 41] {
        let roots = vec![root("a", 40, 2), root("b", minor, 2)];
        let survey = surveyed(question(VolumeMode::Shared, &["a", "b"]), roots, &mounts);
        let text = only(&survey, Severity::Warning, &[0, 1]);
        assert!(text.contains("to 10.0.0.1") && !text.contains("max_connect"), "{text}");
    }
}

#[test]
fn roots_of_copies_are_compared_by_name_type_and_size() {
    use EntryKind::{Directory, File};
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A), nfs("/mnt/b", "10.0.0.2:/v", V3_B)];
    let compare = |ones, others| {
        let roots = vec![
            super::RootInfo { listing: ones, ..root("a", 40, 2) },
            super::RootInfo { listing: others, ..root("b", 41, 9) },
        ];
        surveyed(question(VolumeMode::Copies, &["a", "b"]), roots, &mounts)
    };
    let ones = || {
        let files =
            [("big", File, Some(10)), ("d", Directory, None), ("lost+found", Directory, None)];
        listing(
            &[&files[..], &[("x", File, None), ("y", File, Some(0)), ("z", File, None)]].concat(),
        )
    };
    assert_eq!(compare(ones(), ones()).findings(), []);
    let others = [("big", File, Some(12)), ("d", File, None), ("x", File, Some(3))];
    let text = only(&compare(ones(), listing(&others)), Severity::Warning, &[0, 1]);
    assert_eq!(
        text,
        "the root directories of replicas a and b differ: \"big\" is 10 bytes in a and 12 bytes in \
         b, \"d\" is a directory in a and a file in b, \"y\" is only in a and 1 more"
    );
    let cut_off = Some(RootListing { complete: false, ..RootListing::default() });
    assert_eq!(compare(ones(), cut_off).findings(), [], "a part of a listing proves nothing");
}

#[test]
fn slow_or_early_failing_mount_options_are_reported() {
    let options = "rw,vers=3,rsize=131072,soft,timeo=50,retrans=1,addr=10.0.0.1";
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", options)];
    let survey = surveyed(question(VolumeMode::Shared, &["a"]), vec![root("a", 40, 2)], &mounts);
    let texts: Vec<String> = survey.findings().into_iter().map(|f| f.text).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("fail after 10s, before the volume's deadline of 30s"), "{texts:?}");
    assert!(texts[1].contains("1.0 MiB, so each segment takes 8 calls"), "{texts:?}");

    let mut large = question(VolumeMode::Shared, &["a"]);
    large.segment_size = 16 << 20;
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A)];
    let survey = surveyed(large, vec![root("a", 40, 2)], &mounts);
    assert_eq!(survey.findings(), [], "no mount option reaches 16 MiB");
}

#[test]
fn attribute_caching_longer_than_the_lag_is_reported() {
    let found = |other: &str, lag: u64, writer: bool| -> Vec<String> {
        let options = ["rw,vers=3,rsize=1048576,hard,addr=10.0.0.1", other];
        let mounts =
            [nfs("/mnt/a", "10.0.0.1:/v", options[0]), nfs("/mnt/b", "10.0.0.2:/v", options[1])];
        let mut asked = question(VolumeMode::Shared, &["a", "b"]);
        asked.lag = Duration::from_secs(lag);
        asked.write_replica = writer.then(|| ReplicaId::new(0));
        let roots = vec![root("a", 40, 2), root("b", 41, 2)];
        surveyed(asked, roots, &mounts).findings().into_iter().map(|f| f.text).collect()
    };
    let with = |more: &str| format!("rw,vers=3,rsize=1048576,hard,{more}addr=10.0.0.2");
    // The default of acregmax and acdirmax is 60 s.
    let texts = found(&with(""), 30, true);
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(
        texts[0].starts_with("replica b (/mnt/b) caches attributes for up to 60 s, longer than"),
        "{texts:?}"
    );
    assert!(texts[0].contains("[write] lag = 30 s"), "{texts:?}");
    assert_eq!(found(&with("acdirmax=90,"), 65, true).len(), 1, "of directories alone");
    assert_eq!(found(&with("acregmax=90,"), 65, true).len(), 1, "of files alone");
    for (options, lag, writer) in [
        ("", 60, true),
        ("acregmax=5,acdirmax=5,", 5, true),
        ("noac,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,", 0, true),
        ("acregmax=90,", 65, false),
    ] {
        assert_eq!(found(&with(options), lag, writer), [""; 0], "{options} {lag} {writer}");
    }
}

#[test]
fn replicas_inside_or_around_the_mount_point_are_reported() {
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A)];
    let mounted_at = |point: &str| {
        let mut question = question(VolumeMode::Shared, &["a"]);
        question.mount_point = Some(point.into());
        surveyed(question, vec![root("a", 40, 2)], &mounts)
    };
    assert!(only(&mounted_at("/mnt"), Severity::Warning, &[0]).contains("will hide it"));
    assert!(only(&mounted_at("/mnt/a/here"), Severity::Warning, &[0]).contains("contain itself"));
    assert_eq!(mounted_at("/mnt/ab").findings(), []);
}

#[test]
fn copies_that_are_the_same_tree_are_reported() {
    let sources = [1, 2, 3].map(|i| format!("10.0.0.{i}:/v"));
    let options = [1, 2, 3].map(|i| format!("rw,vers=3,rsize=1048576,hard,addr=10.0.0.{i}"));
    let names = ["a", "b", "c"];
    let points = names.map(|name| format!("/mnt/{name}"));
    let mounts: [_; 3] = std::array::from_fn(|i| nfs(&points[i], &sources[i], &options[i]));
    let found = |mode, ctimes: [(i64, u32); 3]| {
        let root = |(i, ctime): (usize, _)| RootInfo { ctime, ..root(names[i], 40 + i as u32, 2) };
        let roots = ctimes.into_iter().enumerate().map(root).collect();
        surveyed(question(mode, &names), roots, &mounts)
    };
    let one = [(7, 8); 3];
    let text = only(&found(VolumeMode::Copies, one), Severity::Warning, &[0, 1, 2]);
    assert!(text.starts_with("replicas a, b and c appear to be one directory tree"), "{text}");
    assert!(text.contains("inode number, 2,"), "{text}");
    assert!(text.contains("mode = \"shared\""), "{text}");
    let text =
        only(&found(VolumeMode::Copies, [(7, 8), (7, 9), (7, 8)]), Severity::Warning, &[0, 2]);
    assert!(text.starts_with("replicas a and c appear"), "{text}");
    assert_eq!(found(VolumeMode::Copies, [(7, 8), (7, 9), (8, 8)]).findings(), []);
    assert_eq!(found(VolumeMode::Shared, one).findings(), []);
}

#[test]
fn a_read_only_replica_in_a_writable_volume_is_reported() {
    let mounts = [nfs("/mnt/a", "10.0.0.1:/v", V3_A), nfs("/mnt/b", "10.0.0.2:/v", V3_B)];
    let found = |read_only: [bool; 2], writer: Option<usize>| {
        let [one, other] = read_only;
        let one = RootInfo { is_read_only: one, ..root("a", 40, 2) };
        let other = RootInfo { is_read_only: other, ..root("b", 41, 2) };
        let mut asked = question(VolumeMode::Shared, &["a", "b"]);
        asked.write_replica = writer.map(ReplicaId::new);
        surveyed(asked, vec![one, other], &mounts)
    };
    let text = only(&found([false, true], Some(0)), Severity::Warning, &[1]);
    assert!(text.starts_with("replica b (/mnt/b) is mounted read-only in a volume"), "{text}");
    assert!(text.contains("the write replica a;"), "{text}");
    let text = only(&found([true, false], Some(0)), Severity::Error, &[0]);
    assert!(text.contains("is the write replica, but it is mounted read-only"), "{text}");
    assert_eq!(found([true, true], Some(0)).findings().len(), 2);
    assert_eq!(found([true, true], None).findings(), []);
    assert_eq!(found([false, false], Some(0)).findings(), []);
}
