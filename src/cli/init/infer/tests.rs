use std::collections::BTreeMap;

use super::*;
use crate::mount_table::MountTable;
use crate::survey::{EntryKind, ProbeResult, ReplicaSpec, RootListingEntry, SurveyRequest};

const V3: &str = "rw,vers=3,hard,addr=10.0.0.1";

/// The mount point; type, source and options; and the root.
type MountedRoot<'a> = (&'a str, [&'a str; 3], RootInfo);

/// A root with these names and inode numbers.
fn root(minor: u32, ino: u64, ctime: (i64, u32), names: &[(&str, u64)]) -> RootInfo {
    let entry = |(name, ino): &(&str, u64)| {
        (name.into(), RootListingEntry { ino: *ino, kind: Some(EntryKind::File), size: Some(1) })
    };
    let entries: BTreeMap<_, _> = names.iter().map(entry).collect();
    RootInfo {
        canonical: "/".into(),
        servers: Vec::new(),
        terms: None,
        mount_id: None,
        dev: (0, minor),
        ino,
        ctime,
        mode: 0o40755,
        size: 1 << 40,
        free: 1 << 39,
        is_read_only: false,
        listing: Some(RootListing { entries, complete: true }),
    }
}

fn survey(seen: Vec<MountedRoot<'_>>) -> Survey {
    let mut table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n".to_owned();
    for (i, (point, [fs_type, source, options], root)) in seen.iter().enumerate() {
        let dev = format!("{}:{}", root.dev.0, root.dev.1);
        table += &format!("{} 1 {dev} / {point} rw - {fs_type} {source} {options}\n", i + 2);
    }
    let table = MountTable::parse(table.as_bytes());
    let sight = |(point, _, root): MountedRoot<'_>| {
        let mount = table.containing(point.as_ref()).unwrap();
        Observation {
            spec: ReplicaSpec {
                name: point.into(),
                location: std::path::PathBuf::from(point).into(),
                require_mount: true,
            },
            probe_result: ProbeResult::Directory(Box::new(root)),
            mount: Some(mount.clone()),
            nfs: table.nfs(mount),
        }
    };
    let question = SurveyRequest {
        replicas: Vec::new(),
        mode: VolumeMode::Copies,
        segment_size: 1 << 20,
        deadline: std::time::Duration::from_secs(30),
        write_replica: None,
        lag: std::time::Duration::from_secs(65),
        mount_point: None,
    };
    Survey {
        request: question,
        limit: std::time::Duration::from_secs(5),
        replicas: seen.into_iter().map(sight).collect(),
        table_error: None,
    }
}

fn nfs<'a>(point: &'a str, source: &'a str, root: RootInfo) -> MountedRoot<'a> {
    (point, ["nfs", source, V3], root)
}

fn infer(seen: Vec<MountedRoot<'_>>) -> InferredVolume {
    infer_volume(&survey(seen), &[])
}

#[test]
fn gateways_with_the_same_inodes_are_one_file_system() {
    let names = [("a", 11), ("b", 12)];
    let guess = infer(vec![
        nfs("/mnt/n1", "10.0.0.1:/vol/genomes", root(40, 2, (9, 9), &names)),
        nfs("/mnt/n2", "10.0.0.2:/vol/genomes", root(41, 2, (9, 9), &names)),
    ]);
    assert_eq!((guess.mode, guess.certainty), (VolumeMode::Shared, Certainty::Seen));
    assert!(guess.reasons[0].contains("each of the 2 names"), "{:?}", guess.reasons);
    let nodes: Vec<_> = guess.replicas.iter().map(|r| r.node.as_deref().unwrap()).collect();
    assert_eq!(nodes, ["10.0.0.1", "10.0.0.2"]);
}

#[test]
fn trees_with_one_root_number_differ_by_their_names() {
    // The roots of two ext4: inode 2.
    let guess = infer(vec![
        nfs("/mnt/n1", "a:/data", root(40, 2, (9, 9), &[("x", 11), ("y", 12)])),
        nfs("/mnt/n2", "b:/data", root(41, 2, (8, 9), &[("x", 21), ("y", 22)])),
    ]);
    assert_eq!((guess.mode, guess.certainty), (VolumeMode::Copies, Certainty::Seen));
    assert!(guess.reasons[0].contains("different inode numbers"), "{:?}", guess.reasons);
}

#[test]
fn unknown_relations_get_the_strictest_comparison() {
    // A root that changed during the survey, or a byte-for-byte copy that changed later.
    let partly = infer(vec![
        nfs("/mnt/n1", "a:/data", root(40, 2, (9, 9), &[("x", 11), ("y", 12)])),
        nfs("/mnt/n2", "b:/data", root(41, 2, (8, 9), &[("x", 11), ("y", 22)])),
    ]);
    assert_eq!((partly.mode, partly.certainty), (VolumeMode::Shared, Certainty::Unknown));
    let empty = infer(vec![
        nfs("/mnt/n1", "a:/data", root(40, 2, (9, 9), &[])),
        nfs("/mnt/n2", "b:/data", root(41, 2, (8, 9), &[])),
    ]);
    assert_eq!((empty.mode, empty.certainty), (VolumeMode::Shared, Certainty::Unknown));
}

#[test]
fn differing_fsids_leave_the_relation_unknown() {
    let volumes = "NV SERVER   PORT DEV          FSID                              FSC\n\
                   v3 0a000001  801 0:40         fb4b5cc2:0                        no\n\
                   v3 0a000002  801 0:41         11111111:0                        no\n\
                   v4 0a000003  801 0:42         0:0                               no\n";
    let ids = parse_nfs_fsids(volumes);
    let fsid = |minor, fsid: &str| NfsFsid { dev: (0, minor), fsid: fsid.to_owned() };
    assert_eq!(ids, [fsid(40, "fb4b5cc2:0"), fsid(41, "11111111:0")]);
    let names = [("x", 11)];
    let both = || {
        survey(vec![
            nfs("/mnt/n1", "a:/data", root(40, 2, (9, 9), &names)),
            nfs("/mnt/n2", "b:/data", root(41, 2, (9, 9), &names)),
        ])
    };
    assert_eq!(infer_volume(&both(), &ids).certainty, Certainty::Unknown);
    assert_eq!(infer_volume(&both(), &ids[..1]).certainty, Certainty::Seen);
}

#[test]
fn local_file_systems_are_distinguished_by_device() {
    let local = |a: RootInfo, b: RootInfo| {
        let of = |point, root| (point, ["ext4", "/dev/x", "rw"], root);
        infer_volume(&survey(vec![of("/mnt/a/data", a), of("/mnt/b/data", b)]), &[])
    };
    let names = [("x", 11)];
    let copies = local(root(40, 2, (9, 9), &names), root(41, 2, (9, 9), &names));
    assert_eq!((copies.mode, copies.certainty), (VolumeMode::Copies, Certainty::Seen));
    let names_of: Vec<_> = copies.replicas.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names_of, ["a", "b"], "named by the part in which the paths differ");
    let bound = local(root(40, 5, (9, 9), &names), root(40, 5, (9, 9), &names));
    assert_eq!((bound.mode, bound.certainty), (VolumeMode::Shared, Certainty::Seen));
}

#[test]
fn one_server_mounted_twice_is_two_replicas_on_one_node() {
    let names = [("x", 11)];
    let guess = infer(vec![
        nfs("/mnt/n1", "filer:/a", root(40, 2, (9, 9), &names)),
        nfs("/mnt/n2", "filer:/a", root(40, 2, (9, 9), &names)),
    ]);
    let named: Vec<_> = guess.replicas.iter().map(|r| (&*r.name, r.node.as_deref())).collect();
    assert_eq!(named, [("filer", Some("filer")), ("filer-2", Some("filer"))]);
}

#[test]
fn cluster_types_are_recognized_by_their_mounts() {
    let names = [("user", 1), ("tmp", 2)];
    let of_one = |fs_type, source, options| {
        let seen = vec![("/mnt/x", [fs_type, source, options], root(40, 2, (9, 9), &names))];
        infer_volume(&survey(seen), &[]).cluster.map(|cluster| cluster.provider)
    };
    assert_eq!(of_one("nfs", "n1:/mapr/my.cluster.com", V3), Some("maprfs"));
    assert_eq!(of_one("nfs", "nn:/", "rw,vers=3,nolock"), Some("hdfs"));
    assert_eq!(of_one("nfs", "nn:/", V3), None, "an ordinary server");
    assert_eq!(of_one("ceph", "10.0.0.1:6789:/", "rw"), Some("cephfs"));
    assert_eq!(of_one("ext4", "/dev/sda1", "rw"), None);
}

#[test]
fn a_volume_is_named_after_its_export() {
    let names = [("x", 11)];
    let two = |a, b| {
        infer_volume_name(&survey(vec![
            nfs("/mnt/n1", a, root(40, 2, (9, 9), &names)),
            nfs("/mnt/n2", b, root(41, 2, (9, 9), &names)),
        ]))
    };
    assert_eq!(two("a:/vol/genomes", "b:/vol/genomes").as_deref(), Some("genomes"));
    assert_eq!(two("a:/vol/x", "b:/vol/y"), None);
}
