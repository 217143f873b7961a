use std::time::Duration;

use super::*;

// Lines of real systems: a container host, the three NFS versions, a bind mount, an automount point
// with its mount on top, and escapes.
const MOUNTINFO: &[u8] = b"\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:50 / /mnt/nas1 rw,relatime shared:60 master:7 - nfs4 10.0.0.5:/srv/nas1 rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.9,local_lock=none,addr=10.0.0.5
41 27 0:51 / /mnt/my\\040share rw,relatime - nfs [fd00::5]:/srv/x\\134y rw,vers=3,rsize=32768,hard,proto=tcp6,mountaddr=fd00::5,mountvers=3,addr=fd00::5
42 27 0:52 / /mnt/auto rw,relatime - autofs systemd-1 rw,fd=56,pgrp=1
43 42 0:53 / /mnt/auto rw,relatime - nfs4 istar:/d/D1 ro,vers=4.1,rsize=131072,soft,proto=tcp,nconnect=4,timeo=600,retrans=2,clientaddr=172.22.22.5,addr=172.22.22.20
44 27 254:0 /srv/data /mnt/bind rw,relatime shared:1 - ext4 /dev/vda rw,discard
45 27 0:54 / /mnt/b\xe9t\\011a rw - fuse.sshfs host:/ rw
46 27 0:55 / /mnt/nosource rw - tmpfs  rw,size=4k
47 27 0:56 / /mnt/hidden/deep rw - tmpfs deep rw
48 27 0:57 / /mnt/hidden rw - tmpfs cover rw
";

const MOUNTSTATS: &[u8] = b"\
device proc mounted on /proc with fstype proc
device 10.0.0.5:/srv/nas1 mounted on /mnt/nas1 with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.9,local_lock=none
\tage:\t3542
\timpl_id:\tname='',domain='',date='0,0'
\tcaps:\tcaps=0x3ffdf,wtmult=512,dtsize=32768,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40f9be3e,bm2=0x803,acl=0x3,sessions,pnfs=not configured
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t114 1579 5 3 132 20 3019 1 2 3 4 5 115 1 4 1 2 4 3 4 5 6 7 8 9 0 1 
\tbytes:\t1 2 3 4 5 6 7 8 
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 909 0 1 0 2 294 294 0 294 0 2 0 0
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0 0
\t        READ: 1 2 3 4 5 6 7 8 0

device [fd00::5]:/srv/x\\134y mounted on /mnt/my\\040share with fstype nfs statvers=1.1
\topts:\trw,vers=3,rsize=32768,hard,proto=tcp6
\tRPC iostats version: 1.1  p/v: 100003/3 (nfs)
\txprt:\ttcp 795 1 2 0 2 15 15 0 15 0 2 0 0
device systemd-1 mounted on /mnt/auto with fstype autofs
device istar:/d/D1 mounted on /mnt/auto with fstype nfs4 statvers=1.1
\txprt:\ttcp 0 1 2 0 0 85480 85380 0 6549783 0 102 166291 6296122
\txprt:\ttcp 0 1 2 0 0 85827 85727 0 6575842 0 102 149914 6322130
\txprt:\ttcp 711 1 2 0 0 85674 85574 0 6577487 0 102 131288 6320278
\txprt:\trdma 0 0 1 0 0 84943 84843 0 6505613 0 0 0 0 0 0 0 0 0 0 0
no device mounted on /mnt/nosource with fstype tmpfs
";

fn table() -> MountTable {
    MountTable::parse(MOUNTINFO).with_stats(MOUNTSTATS)
}

fn id_of(path: &str) -> Option<u64> {
    table().containing(Path::new(path)).map(|mount| mount.id)
}

fn nfs_at(path: &str) -> NfsMount {
    let table = table();
    table.nfs(table.containing(Path::new(path)).expect("in a mount")).expect("NFS")
}

#[test]
fn optional_mountinfo_fields_are_skipped() {
    let table = table();
    let mount = table.by_id(40).expect("parsed");
    assert_eq!((mount.parent, mount.dev), (27, (0, 50)));
    assert_eq!(
        (mount.fs_type.as_str(), mount.source.to_str()),
        ("nfs4", Some("10.0.0.5:/srv/nas1"))
    );
    assert_eq!(mount.option("vers"), Some(OsStr::new("4.2")));
    assert_eq!(mount.option("hard"), Some(OsStr::new("")));
    assert_eq!(mount.option("ver"), None);
    assert_eq!(mount.options.to_str(), Some("rw,relatime"));
    assert_eq!(table.by_id(44).expect("bind mount").root, Path::new("/srv/data"));
}

#[test]
fn an_empty_source_does_not_shift_the_fields() {
    let table = table();
    let mount = table.by_id(46).expect("parsed");
    assert_eq!(
        (mount.source.to_str(), mount.super_options.to_str()),
        (Some(""), Some("rw,size=4k"))
    );
}

#[test]
fn escapes_and_non_utf8_paths_are_parsed() {
    assert_eq!(id_of("/mnt/my share/dir"), Some(41));
    let path = Path::new(OsStr::from_bytes(b"/mnt/b\xe9t\ta/x"));
    assert_eq!(table().containing(path).map(|mount| mount.id), Some(45));
    assert_eq!(unescape(b"a\\134b\\040\\04"), "a\\b \\04");
}

#[test]
fn invalid_lines_are_skipped() {
    for line in
        ["", "1 2", "a b 0:1 / / rw - x y z", "1 2 3 / / rw - x y z", "1 2 0:1 / / rw x y z"]
    {
        assert_eq!(Mount::parse(line.as_bytes()), None, "{line:?}");
    }
}

#[test]
fn a_path_resolves_to_the_mount_that_a_walk_reaches() {
    assert_eq!(id_of("/mnt/nas1/a/b"), Some(40));
    assert_eq!(id_of("/mnt/nas1"), Some(40));
    assert_eq!(id_of("/mnt/nas10"), Some(27), "components, not characters");
    assert_eq!(id_of("/mnt/auto/x"), Some(43), "the last one mounted in a place");
    assert_eq!(id_of("/mnt/hidden/deep"), Some(48), "covered by a later mount above it");
    assert_eq!(id_of("/mnt/bind/x"), Some(44));
    assert_eq!(id_of("relative"), None);
}

#[test]
fn a_mounted_replica_is_a_mount_point_or_on_the_network() {
    let mounted = |path: &str| is_mounted_replica(&table(), Path::new(path));
    assert!(mounted("/mnt/nas1"));
    assert!(mounted("/mnt/nas1/beneath/it"));
    assert!(mounted("/mnt/bind"));
    assert!(!mounted("/mnt/bind/beneath"));
    assert!(!mounted("/mnt/never-mounted"));
    assert!(!is_mounted_replica(&MountTable::default(), Path::new("/mnt")));
}

#[test]
fn network_file_systems_are_recognized() {
    let network = |fs_type: &str| {
        let line = format!("1 0 0:1 / / rw - {fs_type} none rw");
        MountTable::parse(line.as_bytes()).mounts[0].is_network()
    };
    for fs_type in ["nfs", "nfs4", "ceph", "fuse", "fuse.glusterfs", "lustre", "cifs", "smb3", "9p"]
    {
        assert!(network(fs_type), "{fs_type}");
    }
    for fs_type in ["ext4", "tmpfs", "fuseblk", "fusectl", "nfsd", "overlay"] {
        assert!(!network(fs_type), "{fs_type}");
    }
}

#[test]
fn nfs_4_2_mounts_are_parsed() {
    let nfs = nfs_at("/mnt/nas1");
    assert_eq!((nfs.server.as_str(), nfs.export.to_str()), ("10.0.0.5", Some("/srv/nas1")));
    assert_eq!((nfs.version, nfs.rsize, nfs.fails_after), (Some((4, 2)), Some(1 << 20), None));
    assert_eq!(
        (nfs.addr.as_deref(), nfs.client_addr.as_deref()),
        (Some("10.0.0.5"), Some("10.0.0.9"))
    );
    assert_eq!(nfs.transports, [Transport { kind: "tcp".into(), source_port: Some(909) }]);
}

#[test]
fn nfs_3_mounts_over_ipv6_are_parsed() {
    let nfs = nfs_at("/mnt/my share");
    assert_eq!((nfs.server.as_str(), nfs.export.to_str()), ("fd00::5", Some("/srv/x\\y")));
    assert_eq!((nfs.version, nfs.client_addr), (Some((3, 0)), None));
    assert_eq!(nfs.transports[0].source_port, Some(795));
}

#[test]
fn nconnect_connections_and_port_zero_are_parsed() {
    let nfs = nfs_at("/mnt/auto");
    assert_eq!(nfs.fails_after, Some(Duration::from_secs(180)));
    let ports: Vec<_> = nfs.transports.iter().map(|t| t.source_port).collect();
    assert_eq!(ports, [None, None, Some(711), None]);
    assert_eq!(nfs.transports[3].kind, "rdma");
}

#[test]
fn connections_are_shared_by_address_version_and_port() {
    let one = nfs_at("/mnt/nas1");
    let with_port = |port| NfsMount {
        server: "10.0.0.6".into(),
        transports: vec![Transport { kind: "tcp".into(), source_port: port }],
        ..one.clone()
    };
    assert!(one.shares_connection(&with_port(Some(909))), "trunked");
    assert!(!one.shares_connection(&with_port(Some(910))), "another network namespace");
    assert!(one.shares_connection(&with_port(None)), "port unknown");
    let elsewhere = NfsMount { addr: Some("10.0.0.6".into()), ..with_port(Some(909)) };
    assert!(!one.shares_connection(&elsewhere), "a port may serve two addresses");
    let elsewhere = NfsMount { addr: Some("10.0.0.6".into()), ..with_port(None) };
    assert!(!one.shares_connection(&elsewhere), "two unknown ports are not the same");
}
