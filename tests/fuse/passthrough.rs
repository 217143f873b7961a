//! Files that the kernel reads from one replica without the daemon.
//!
//! Needs Linux 6.9 and root. Elsewhere each test prints that it was skipped; only the test of the
//! fallback runs everywhere.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::mapped::{Mapper, Mapping};
use crate::needs;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

fn setup(replicas: usize, copies: bool) -> Setup {
    Setup {
        replicas,
        copies,
        read: "passthrough = \"whole-file\"",
        rest: "[fuse]\nattribute_ttl = \"100ms\"",
        plain: true,
        ..Setup::default()
    }
}

/// A volume with one file; `None`, with a printed note, where this machine cannot run it.
fn rig(setup: &Setup) -> Option<(Rig, Vec<u8>)> {
    let room = tree();
    let content = bytes(3 * MIB + 77, 3);
    fs::write(root(&room).join("f"), &content).unwrap();
    fs::write(root(&room).join("probe"), "probe").unwrap();
    let rig = mount(room, setup);
    drop(File::open(rig.at("probe")).unwrap());
    let status = rig.eventually("the probe is closed", |status| status.gauges.handles == 0);
    if status.passthrough.opens == 0 {
        needs::machine(false, &format!("passthrough: {:?}", status.passthrough.obstacles));
        let works = rustix::process::getuid().is_root() && kernel_has_it();
        assert!(!works, "root on Linux 6.9 or later should have passthrough");
        return None;
    }
    Some((rig, content))
}

fn kernel_has_it() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (parts.next(), parts.next()) >= (Some(6), Some(9))
}

/// Descriptors of this process on `path`.
fn descriptors(path: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    links.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == path)).count()
}

#[test]
fn passthrough_reads_bypass_the_daemon_and_are_correct() {
    for copies in [false, true] {
        let Some((rig, content)) = rig(&setup(3, copies)) else { return };
        let before = rig.status();
        assert!(fs::read(rig.at("f")).unwrap() == content);
        let file = File::open(rig.at("f")).unwrap();
        let mut part = vec![0; 100_000];
        file.read_exact_at(&mut part, 1_234_567).unwrap();
        assert!(part == content[1_234_567..][..100_000]);
        let status = rig.status();
        assert_eq!(status.passthrough.opens, before.passthrough.opens + 2);
        assert_eq!(status.passthrough.files, 1);
        assert_eq!((rig.delivered(), status.counters.reads), (0, 0));
        drop(file);
        rig.expect_quiet();
        rig.eventually("it is given back", |status| status.passthrough.files == 0);
    }
}

#[test]
fn a_mapped_passthrough_file_has_the_same_content() {
    let Some((rig, content)) = rig(&setup(2, false)) else { return };
    if !needs::program("python3") {
        return;
    }
    for kind in [Mapping::Private, Mapping::Shared] {
        let mut mapper = Mapper::of(&rig.at("f"), kind).unwrap();
        assert!(mapper.read(0, content.len() as u64).unwrap() == content, "{kind:?}");
    }
    assert_eq!(rig.delivered(), 0);
}

#[test]
fn all_opens_of_a_file_agree_about_passthrough() {
    let Some((rig, content)) = rig(&setup(3, false)) else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (rig, content) = (&rig, &content);
            scope.spawn(move || {
                for round in 0..50 {
                    let file = File::open(rig.at("f")).unwrap();
                    let other = File::open(rig.at("f")).unwrap();
                    let at = (thread * 397 + round * 31) * 100;
                    let mut part = [0; 1000];
                    file.read_exact_at(&mut part, at as u64).unwrap();
                    drop(file);
                    assert!(part == content[at..][..1000]);
                    other.read_exact_at(&mut part, 0).unwrap();
                    assert!(part == content[..1000]);
                }
            });
        }
    });
    rig.expect_quiet();
    assert_eq!(rig.delivered(), 0);
}

/// An inode that is open without passthrough stays so until its last handle is closed.
#[test]
fn a_file_open_through_the_daemon_stays_that_way() {
    let room = tree();
    fs::write(root(&room).join("f"), "").unwrap();
    let rig = mount(room, &setup(2, false));
    // An empty file has no passthrough.
    let empty = File::open(rig.at("f")).unwrap();
    fs::write(rig.source(0, "f"), "not empty").unwrap();
    rig.eventually("the size is known", |_| empty.metadata().unwrap().len() == 9);
    let opens = rig.status().passthrough.opens;
    assert_eq!(fs::read(rig.at("f")).unwrap(), b"not empty");
    assert_eq!(rig.status().passthrough.opens, opens);
    drop(empty);
    rig.expect_quiet();
    assert_eq!(fs::read(rig.at("f")).unwrap(), b"not empty");
}

#[test]
fn a_closed_file_leaves_no_descriptor_on_its_replica() {
    let Some((rig, _)) = rig(&setup(2, true)) else { return };
    let files: Vec<_> = (0..4).map(|_| File::open(rig.at("f")).unwrap()).collect();
    let open = || descriptors(&rig.source(0, "f")) + descriptors(&rig.source(1, "f"));
    assert!(open() > 0);
    drop(files);
    rig.eventually("its descriptors are closed", |_| open() == 0);
}

#[test]
fn passthrough_continues_after_a_lazy_unmount() {
    let Some((rig, content)) = rig(&setup(2, false)) else { return };
    let file = File::open(rig.at("f")).unwrap();
    assert!(rig.end() < PATIENCE);
    let mut got = vec![0; content.len()];
    file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == content);
}

#[test]
fn passthrough_follows_an_in_place_rewrite() {
    for copies in [false, true] {
        // One replica: in copies the others would be rewritten later.
        let Some((rig, _)) = rig(&setup(1, copies)) else { return };
        let file = File::open(rig.at("f")).unwrap();
        let source = File::options().append(true).open(rig.source(0, "f")).unwrap();
        (&source).write_all(b"the end").unwrap();
        let len = source.metadata().unwrap().len();
        rig.eventually("the size is known", |_| file.metadata().unwrap().len() == len);
        let mut end = [0; 7];
        file.read_exact_at(&mut end, len - 7).unwrap();
        assert_eq!(&end, b"the end");
        assert_eq!(fs::read(rig.at("f")).unwrap().len() as u64, len);
        assert_eq!(rig.delivered(), 0);
    }
}

#[test]
fn passthrough_never_confuses_a_file_with_its_replacement() {
    for copies in [false, true] {
        let Some((rig, content)) = rig(&setup(1, copies)) else { return };
        let old = File::open(rig.at("f")).unwrap();
        fs::write(rig.source(0, "new"), "newer").unwrap();
        fs::rename(rig.source(0, "new"), rig.source(0, "f")).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let opened = fs::read(rig.at("f"));
        assert_eq!(opened.unwrap(), b"newer", "{copies}");
        let mut got = vec![0; content.len()];
        old.read_exact_at(&mut got, 0).unwrap();
        assert!(got == content);
        drop(old);
        rig.expect_quiet();
        assert_eq!(fs::read(rig.at("f")).unwrap(), b"newer");
    }
}

#[test]
fn a_replica_without_descriptors_is_read_normally() {
    // The rig's own replicas are behind decorators, which have no descriptor.
    let room = tree();
    let content = bytes(2 * MIB, 1);
    fs::write(root(&room).join("f"), &content).unwrap();
    let rig = mount(room, &Setup { plain: false, ..setup(2, false) });
    for _ in 0..3 {
        assert!(fs::read(rig.at("f")).unwrap() == content);
    }
    let status = rig.status();
    assert_eq!(status.passthrough.opens, 0);
    assert!(rig.delivered() >= content.len() as u64);
    let obstacles = &status.passthrough.obstacles;
    assert!(!obstacles.is_empty() && obstacles.len() <= 2, "said once each: {obstacles:?}");
}

/// A pinned file is passed through from its replica, other files from all replicas.
#[test]
fn a_pinned_file_is_passed_through_from_its_replica() {
    let more = "[[affinity]]\npath = \"/f\"\nreplica = \"r2\"\n".to_owned();
    let Some((rig, content)) = rig(&Setup { more, ..setup(3, true) }) else { return };
    let file = File::open(rig.at("f")).unwrap();
    assert_eq!(rig.status().passthrough.files, 1);
    // Only that copy's bytes change, not its size or time.
    let source = rig.source(1, "f");
    let times = fs::metadata(&source).unwrap().modified().unwrap();
    let pinned = File::options().write(true).open(source).unwrap();
    pinned.write_all_at(b"here", 0).unwrap();
    pinned.set_modified(times).unwrap();
    let mut got = [0; 4];
    file.read_exact_at(&mut got, 0).unwrap();
    assert_eq!(&got, b"here");
    assert!(content[..4] != got);
}
