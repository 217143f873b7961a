use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::facts::NetworkInterface;
use super::machine::{ProcessorTicks, SystemRoot};
use super::{checks, collect};
use crate::mount_table::MountTable;

/// `/proc/self/mountstats` of Linux 6.1.
const MOUNTSTATS: &str = "\
device tmpfs mounted on /mnt with fstype tmpfs
device 10.77.1.2:/ mounted on /mnt/n1 with fstype nfs4 statvers=1.1
\topts:\tro,vers=4.2,rsize=524288,wsize=524288,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.77.1.1,local_lock=none
\tage:\t16
\timpl_id:\tname='',domain='',date='0,0'
\tcaps:\tcaps=0xeffbc0bf,wtmult=512,dtsize=524288,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40fdbe3e,bm2=0x60803,acl=0x3,sessions,pnfs=not configured,lease_time=10,lease_expired=0
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t0 0 0 0 0 0 4 0 0 0 0 0 0 0 3 0 0 2 0 0 0 0 0 0 0 0 0 
\tbytes:\t0 0 68157440 0 67108864 0 0 0 
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 2 0 0 159 158 0 357 318 2 0 65
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 1124 1124 0
\t        READ: 130 133 1 23400 67122384 2 74 87 0
\t       WRITE: 0 0 0 0 0 0 0 0 0
\t        OPEN: 9 9 0 2120 1408 0 1 1 7

";

const MOUNTINFO: &str = "\
23 1 0:21 / /mnt rw,relatime - tmpfs tmpfs rw,mode=755
39 23 0:36 / /mnt/n1 ro,relatime - nfs4 10.77.1.2:/ ro,sync,vers=4.2,rsize=4096,wsize=524288,namlen=255,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,soft,noac,nosharecache,proto=tcp,timeo=50,retrans=2,sec=sys,clientaddr=10.77.1.1,local_lock=none,addr=10.77.1.2
40 23 0:37 / /mnt/n2 ro,nosuid,nodev,noexec,noatime shared:7 - nfs4 10.77.1.2:/ rw,vers=3,rsize=524288,hard,nconnect=4,proto=tcp,local_lock=all,addr=10.77.1.2
";

#[test]
fn mount_table_and_statistics_become_facts() {
    let table = MountTable::parse(MOUNTINFO.as_bytes()).with_stats(MOUNTSTATS.as_bytes());
    let mount = table.containing(Path::new("/mnt/n1")).expect("a mount");
    let nfs = collect::nfs_facts(mount, &table.nfs(mount).expect("NFS"), &table);
    assert_eq!((nfs.version.as_deref(), nfs.recovery), (Some("4.2"), "soft"));
    assert_eq!((nfs.rsize, nfs.rsize_of_server), (Some(4096), Some(524_288)));
    assert_eq!((nfs.sync, nfs.noac, nfs.nosharecache), (true, true, true));
    assert_eq!((nfs.attribute_times_s, nfs.fails_after_s), ([0; 4], Some(15.0)));
    let line = "ro,sync,vers=4.2,rsize=4096,wsize=524288,acregmin=0,acregmax=0,acdirmin=0,\
                acdirmax=0,soft,noac,nosharecache,proto=tcp,timeo=50,retrans=2,sec=sys";
    assert_eq!(nfs.options.join(","), line);
    assert_eq!((nfs.age_s, nfs.calls), (Some(16), 140));
    assert_eq!((nfs.retransmits, nfs.timeouts), (3, 1));
    assert_eq!(nfs.backlog, Some(2.0));
    let reads = nfs.reads.expect("READs");
    assert_eq!((reads.calls, reads.bytes_each), (130, 516_326));
    assert!((reads.round_trip_ms - 74.0 / 130.0).abs() < 1e-9);
    assert!((reads.whole_ms - 87.0 / 130.0).abs() < 1e-9);

    let mount = table.containing(Path::new("/mnt/n2")).expect("a mount");
    let nfs = collect::nfs_facts(mount, &table.nfs(mount).expect("NFS"), &table);
    assert_eq!((nfs.nconnect, nfs.recovery, nfs.age_s), (4, "hard", None));
    let line = "ro,nosuid,nodev,noexec,noatime,vers=3,rsize=524288,hard,nconnect=4,proto=tcp,\
                local_lock=all";
    assert_eq!(nfs.options.join(","), line);
    assert_eq!(nfs.attribute_times_s, [3, 60, 30, 60]);
}

#[test]
fn machine_facts_are_read_below_a_root() {
    let root = tempfile::tempdir().expect("a directory");
    let write = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, text).expect("written");
    };
    let tree = SystemRoot::at(root.path());
    let nothing = tree.machine();
    assert_eq!((nothing.kernel, nothing.fuse_device, nothing.open_files), (None, false, None));
    write("proc/sys/kernel/osrelease", "6.1.0-9-amd64\n");
    write("proc/sys/fs/fuse/max_pages_limit", "256\n");
    write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
    write(
        "proc/self/limits",
        "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024   4096   files\n",
    );
    write("etc/fuse.conf", "# user_allow_other\n");
    write("sys/module/fuse/parameters/max_user_bgreq", "4095\n");
    write("sys/class/bdi/0:36/read_ahead_kb", "128\n");
    write("sys/class/net/v1/speed", "10000\n");
    write("sys/class/net/v1/mtu", "9000\n");
    write("sys/class/net/eth0/speed", "-1\n");
    write("sys/class/net/eth0/device/vendor", "");
    write("proc/stat", "cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1 1 1 1 1 1 1\n");
    let machine = tree.machine();
    assert_eq!(machine.kernel.as_deref(), Some("6.1.0-9-amd64"));
    assert_eq!((machine.fuse_max_pages, machine.open_files), (Some(256), Some(4096)));
    assert_eq!(machine.tcp_receive_buffer, Some(6_291_456));
    assert!(!machine.user_allow_other, "a comment");
    write("etc/fuse.conf", "user_allow_other\n");
    assert!(tree.machine().user_allow_other);
    assert_eq!(machine.fuse_max_user_background, Some(4095));
    assert_eq!((tree.read_ahead("0:36"), tree.read_ahead("0:37")), (Some(128), None));
    let NetworkInterface { speed_mbit, mtu, is_virtual, .. } = tree.interface("v1");
    assert_eq!((speed_mbit, mtu, is_virtual), (Some(10_000), Some(9000), true));
    let eth0 = tree.interface("eth0");
    assert_eq!((eth0.speed_mbit, eth0.is_virtual), (None, false));
    write("sys/class/net/vlan7/speed", "25000\n");
    write("sys/class/net/vlan7/lower_eth0", "");
    let vlan = tree.interface("vlan7");
    assert_eq!((vlan.speed_mbit, vlan.is_virtual), (Some(25_000), false));
    assert_eq!(tree.processor_ticks(), Some(ProcessorTicks { total: 100, idle: 80 }));
}

#[test]
fn every_fact_is_printed() {
    let facts = checks::tests::healthy();
    let json = serde_json::to_value(&facts).expect("JSON");
    for pointer in [
        "/settings/segment_size",
        "/machine/tcp_receive_buffer",
        "/interfaces/0/speed_mbit",
        "/replicas/2/nfs/rsize",
        "/replicas/0/connections/0/out_of_order",
        "/replicas/0/route/large_echo",
        "/measured/alone/2/rate",
        "/measured/together/rate",
    ] {
        assert!(json.pointer(pointer).is_some_and(|value| !value.is_null()), "{pointer}");
    }
}

proptest! {
    #[test]
    fn no_statistics_make_the_parsers_panic(text in "([0-9.:\\[\\]%a-z/ -]|\n|\t|READ: |xprt:\ttcp |age: |device a mounted on /mnt with fstype nfs4\n){0,40}") {
        let _ = MountTable::parse(text.as_bytes()).with_stats(text.as_bytes());
    }

    #[test]
    fn counters_of_any_size_are_evaluated(calls: u64, sent: u64, received: u64, backlog: u64) {
        let stats = format!(
            "device 10.77.1.2:/ mounted on /mnt/n1 with fstype nfs4 statvers=1.1\n\
             \txprt:\ttcp 0 0 2 0 0 {calls} 0 0 0 {backlog} 2 0 0\n\
             \tREAD: {calls} {sent} 0 0 {received} {sent} {sent} {sent} 0\n"
        );
        let table = MountTable::parse(MOUNTINFO.as_bytes()).with_stats(stats.as_bytes());
        let mount = table.containing(Path::new("/mnt/n1")).expect("a mount");
        let mut facts = checks::tests::healthy();
        facts.replicas[0].nfs =
            Some(collect::nfs_facts(mount, &table.nfs(mount).expect("NFS"), &table));
        let findings = checks::run_checks(&facts).findings;
        prop_assert!(findings.iter().all(|f| (0.0..=1.0).contains(&f.cost)));
    }
}
