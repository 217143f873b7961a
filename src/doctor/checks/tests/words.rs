use super::*;
use crate::volume::shell_word;

#[test]
fn a_smaller_mtu_is_proposed_if_one_is_known() {
    let dropped = |interface: u64, path: u64| {
        let mut facts = healthy();
        facts.interfaces[0].mtu = Some(interface);
        let connection = connection(&mut facts, 1);
        (connection.mss, connection.received_mss) = (Some(536), Some(536));
        route(&mut facts, 1).large_echo = Some(false);
        (0..3).for_each(|i| route(&mut facts, i).mtu = Some(interface));
        route(&mut facts, 1).mtu = Some(path);
        let findings = run_checks(&facts).findings;
        assert_eq!(findings[0].id, "net.mtu");
        findings[0].remedy.clone()
    };
    assert!(dropped(9000, 9000).contains("ip route replace 10.0.2.2 dev eth0 mtu 1500 "));
    assert!(dropped(9000, 4000).contains("ip route replace 10.0.2.2 dev eth0 mtu 4000 "));
    assert!(dropped(1500, 1400).contains("ip route replace 10.0.2.2 dev eth0 mtu 1400 "));
    for small in [1500, 1400] {
        let remedy = dropped(small, small);
        assert!(remedy.contains("ping -M do") && !remedy.contains("ip route"), "{remedy}");
    }
}

#[test]
fn a_saturated_interface_is_named_for_its_replicas() {
    let mut facts = healthy();
    facts.interfaces[0].speed_mbit = Some(1000);
    facts.interfaces.push(NetworkInterface { name: "eth1".into(), ..facts.interfaces[0].clone() });
    measured(&mut facts).together.rate = Some(150e6);
    let text = |facts: &DoctorFacts| {
        let findings = run_checks(facts).findings;
        findings.into_iter().find(|f| f.id == "measure.together").expect("found").text.evidence
    };
    assert!(text(&facts).contains("eth0 is full"));
    route(&mut facts, 2).interface = Some("eth1".into());
    assert!(!text(&facts).contains("is full"), "each has a part of it");
}

#[test]
fn low_readahead_has_a_cost_only_with_passthrough() {
    let mut facts = healthy();
    facts.replicas[1].read_ahead_kib = Some(128);
    assert_eq!(run_checks(&facts).findings[0].cost, 0.0);
    (facts.volume, facts.settings.passthrough) = (Some("v".into()), true);
    assert_eq!(run_checks(&facts).findings[0].cost, 0.1);
}

#[test]
fn replicas_that_do_not_answer_are_reported() {
    let mut facts = healthy();
    let [one, two, three] = &mut facts.replicas[..] else { panic!("three") };
    (one.is_mounted, one.nfs) = (false, None);
    (one.mount_point, one.fs_type) = (Some("/".into()), Some("ext4".into()));
    (two.state, two.failure) = ("failed", Some("Stale file handle (os error 116)".into()));
    (two.path, two.mount_point) = ("/mnt/n2/sub".into(), Some("/mnt/n2".into()));
    three.state = "silent";
    let findings = run_checks(&facts).findings;
    let [one, two, three] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!(
        one.text.to_string(),
        "replica n1 is not mounted: /mnt/n1 is a directory in /, ext4 (mount table)"
    );
    assert_eq!(one.remedy, "mount /mnt/n1");
    assert!(two.text.evidence.ends_with(": Stale file handle (os error 116)"), "{two:?}");
    assert!(two.remedy.contains("umount -l /mnt/n2 and"), "{two:?}");
    assert!(three.remedy.contains("nc -z -w3 10.0.3.2 2049;"), "{three:?}");
    // A volume's configuration says which replicas must be mounts.
    facts.volume = Some("v".into());
    assert_eq!(run_checks(&facts).findings.len(), 2);
}

#[test]
fn unmounted_replicas_are_one_finding_with_their_share() {
    let mut facts = healthy();
    facts.volume = Some("v".into());
    facts.source = Some("/etc/fanfs/my v.toml".into());
    for (i, name) in [(1, "n2"), (2, "n3")] {
        facts.refused.push((vec![i], format!("replica {name} is not a mount point"), false));
    }
    let findings = run_checks(&facts).findings;
    let [one] = &findings[..] else { panic!("{findings:#?}") };
    assert_eq!((one.cost, &one.replicas[..]), (0.67, &["n2".to_owned(), "n3".to_owned()][..]));
    assert_eq!(one.text.problem, "fanfs check reports errors for replicas n2 and n3");
    let evidence = "replica n2 is not a mount point; replica n3 is not a mount point";
    assert_eq!(one.text.evidence, evidence);
    assert!(one.remedy.ends_with("then run fanfs check '/etc/fanfs/my v.toml'"), "{one:?}");
    // An error for which fanfs refuses to mount costs everything.
    facts.refused[0].2 = true;
    let findings = run_checks(&facts).findings;
    let costs: Vec<f64> = findings.iter().map(|finding| finding.cost).collect();
    assert_eq!(costs, [1.0, 0.33]);
    let refused = "fanfs refuses to mount this volume: fanfs check reports an error for replica n2";
    assert_eq!(findings[0].text.problem, refused);
}

#[test]
fn fixes_are_commands() {
    let mut facts = healthy();
    nfs(&mut facts, 1).rsize = Some(4096);
    nfs(&mut facts, 1).options = vec!["ro".into(), "vers=4.2".into(), "rsize=4096".into()];
    facts.replicas[1].mount_point = Some("/mnt/my data".into());
    let findings = run_checks(&facts).findings;
    assert_eq!(
        findings[0].remedy,
        "umount '/mnt/my data' && mount -t nfs -o ro,vers=4.2,rsize=1048576 10.0.2.2:/ '/mnt/my \
         data'; grep '/mnt/my data' /proc/mounts  (unmount the volume first, with fanfs umount; \
         put the same options in /etc/fstab or the .mount unit)"
    );
    assert_eq!(shell_word("it's"), "'it'\\''s'");
}

#[test]
fn mounts_with_differing_options_are_reported() {
    let said = |plant: fn(&mut DoctorFacts)| -> Vec<String> {
        let mut facts = healthy();
        plant(&mut facts);
        let CheckReport { rows, findings } = run_checks(&facts);
        let row = rows.iter().find(|row| row.id == "nfs.alike").expect("its row");
        assert_eq!(row.state == CheckStatus::Ok, findings.iter().all(|f| f.id != "nfs.alike"));
        findings.into_iter().filter(|f| f.id == "nfs.alike").map(|f| f.text.to_string()).collect()
    };
    let begins = |texts: &[String], beginning: &str| {
        assert_eq!(texts.len(), 1, "{texts:?}");
        let expected = format!("the replicas are mounted with different values of {beginning}");
        assert!(texts[0].starts_with(&expected), "{texts:?}");
    };
    let soft = said(|f| nfs(f, 1).recovery = "soft");
    begins(&soft, "hard/soft: hard on n1 and n3, soft on n2 (");
    let times = said(|f| {
        nfs(f, 0).attribute_times_s = [0; 4];
        nfs(f, 1).attribute_times_s = [600; 4];
    });
    begins(&times, "actimeo: 0-0 s, 0-0 s for directories on n1, 3-60 s, ");
    let sizes = said(|f| {
        nfs(f, 0).rsize = Some(4096);
        nfs(f, 1).rsize = Some(512 << 10);
    });
    begins(&sizes, "rsize: 1.0 MiB on n3, 4.0 KiB on n1, 512.0 KiB on n2 (");
    // Two servers that clamp to different sizes.
    assert_eq!(said(|f| nfs(f, 1).rsize = Some(512 << 10)), [""; 0]);
    assert_eq!(said(|f| (0..3).for_each(|i| nfs(f, i).rsize = Some(4096))), [""; 0]);
}

#[test]
fn all_findings_about_a_mount_propose_one_command() {
    let mut facts = healthy();
    written(&mut facts);
    let other = nfs(&mut facts, 0);
    let options = "ro,nosuid,nodev,noexec,vers=4.2,rsize=4096,soft,timeo=50,retrans=1,acregmin=600,\
                   acregmax=600,acdirmin=600,acdirmax=600";
    other.options = options.split(',').map(str::to_owned).collect();
    (other.rsize, other.recovery, other.fails_after_s) = (Some(4096), "soft", Some(10.0));
    other.attribute_times_s = [600; 4];
    let line = "umount /mnt/n1 && mount -t nfs -o \
                nosuid,nodev,noexec,vers=4.2,rw,hard,rsize=1048576 10.0.1.2:/ /mnt/n1";
    let findings = run_checks(&facts).findings;
    let ids: Vec<&str> =
        findings.iter().filter(|f| f.mounts == [line]).map(|finding| finding.id).collect();
    assert_eq!(ids, ["nfs.rsize", "nfs.soft", "nfs.attributes", "nfs.read_only"], "{findings:#?}");
    let lines = findings.iter().map(|f| f.remedy.matches("mount -t nfs").count());
    let with_it = findings.iter().filter(|f| f.remedy.contains(line)).count();
    assert_eq!(lines.sum::<usize>(), with_it, "there is another mount command: {findings:#?}");
}

#[test]
fn the_most_costly_finding_comes_first() {
    let mut facts = healthy();
    nfs(&mut facts, 0).recovery = "soft";
    nfs(&mut facts, 1).rsize = Some(4096);
    measured(&mut facts).together.rate = Some(100e6);
    let findings = run_checks(&facts).findings;
    let ids: Vec<_> = findings.iter().map(|finding| finding.id).collect();
    let worst = ["measure.together", "nfs.rsize", "nfs.soft", "nfs.alike", "nfs.alike"];
    assert_eq!(ids, worst);
    assert!(findings[0].text.problem.contains("is hardly faster"), "{findings:#?}");
    assert!(findings[0].text.evidence.contains("replication 1"), "{findings:#?}");
}
