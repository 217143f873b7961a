//! Replicas that are out of service for a while, and return.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use fanfs::replicas::health::{HealthReason, HealthState};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};

use crate::machine::{attempts, timed};
use crate::needs;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

fn always(rig: &Rig, replica: usize, op: FaultOp, fault: Fault) {
    rig.scripts[replica].add(FaultRule::always(op, fault));
}

/// Reads all of `name` and checks that it is `content`.
fn read(rig: &Rig, name: &str, content: &[u8]) {
    assert!(fs::read(rig.at(name)).unwrap() == content, "wrong bytes");
}

/// A directory that shows another one, until this is dropped.
struct Bind(PathBuf);

impl Bind {
    fn new(of: &Path, at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        mount_bind(of, &at).unwrap();
        Self(at)
    }

    fn detach(&self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        while unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

#[test]
fn a_replica_without_its_mount_is_absent_until_it_returns() {
    if !needs::root() {
        return;
    }
    let room = tree();
    let content = bytes(8 * MIB, 31);
    fs::write(root(&room).join("f"), &content).unwrap();
    let second = Bind::new(&root(&room), room.path().join("copy1"));
    let setup = Setup { copies: true, read: "cache = \"direct\"", ..Setup::default() };
    let rig = mount(room, &setup);
    read(&rig, "f", &content);
    second.detach();
    // The directory in its place looks like a copy.
    fs::write(second.0.join("f"), vec![7; content.len()]).unwrap();
    let same = File::options().write(true).open(second.0.join("f")).unwrap();
    same.set_modified(fs::metadata(rig.source(0, "f")).unwrap().modified().unwrap()).unwrap();
    let status =
        rig.eventually("it is absent", |status| status.replicas[1].health == HealthState::Absent);
    assert_eq!(status.replicas[1].health_reason, HealthReason::Gone);
    let before = status.replicas[1].counters.bytes;
    // Longer than its backoff, so that its place has been checked.
    std::thread::sleep(Duration::from_millis(2500));
    for _ in 0..5 {
        read(&rig, "f", &content);
    }
    let status = rig.status();
    assert_eq!(status.replicas[1].health, HealthState::Absent);
    assert_eq!(status.replicas[1].counters.bytes, before, "it was asked");
    assert_eq!(status.counters.read_errors, 0);
    mount_bind(root_of(&rig), &second.0).unwrap();
    let until = Instant::now() + PATIENCE;
    while rig.status().replicas[1].counters.bytes == before {
        assert!(Instant::now() < until, "it never came back: {:?}", rig.status().replicas[1]);
        read(&rig, "f", &content);
        std::thread::sleep(Duration::from_millis(50));
    }
    rig.expect_quiet();
    drop(rig);
}

fn root_of(rig: &Rig) -> PathBuf {
    rig.source(0, "")
}

#[test]
fn a_very_slow_replica_is_ejected_and_returns() {
    let room = tree();
    let content = bytes(96 * MIB, 32);
    fs::write(root(&room).join("f"), &content).unwrap();
    let read_keys = "cache = \"direct\"";
    let rig = mount(room, &Setup { rates: [60; 3], read: read_keys, ..Setup::default() });
    always(&rig, 2, FaultOp::Read, Fault::Delay(Duration::from_millis(1500)));
    let until = Instant::now() + 2 * PATIENCE;
    // It may be back between two looks.
    while rig.status().replicas[2].ejections == 0 {
        assert!(Instant::now() < until, "{:?}", rig.status().replicas[2]);
        read(&rig, "f", &content);
    }
    rig.scripts[2].heal();
    while rig.status().replicas[2].health != HealthState::Healthy {
        assert!(Instant::now() < until + 2 * PATIENCE, "{:?}", rig.status().replicas[2]);
        read(&rig, "f", &content);
    }
    assert_eq!(rig.status().counters.read_errors, 0);
}

/// Another copy does not become the right one because the first copy's disk is slow.
#[test]
fn a_slow_first_copy_still_decides() {
    attempts(|| {
        let room = tree();
        let content = bytes(96 * MIB, 32);
        fs::write(root(&room).join("f"), &content).unwrap();
        fs::write(root(&room).join("g"), "first").unwrap();
        let setup = Setup {
            copies: true,
            rates: [60; 3],
            read: "cache = \"direct\"",
            rest: "[fuse]\nattribute_ttl = \"0s\"\n",
            ..Setup::default()
        };
        let rig = mount(room, &setup);
        for other in [1, 2] {
            fs::write(rig.source(other, "g"), "of another size").unwrap();
        }
        always(&rig, 0, FaultOp::Read, Fault::Delay(Duration::from_millis(1500)));
        let ejection = || {
            let first = &rig.status().replicas[0];
            let is_slow = first.health_reason == HealthReason::Slow;
            (first.health == HealthState::Ejected && is_slow).then_some(first.ejections)
        };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    read(&rig, "f", &content);
                }
            });
            let until = Instant::now() + 2 * PATIENCE;
            while Instant::now() < until && ejection().is_none() {
                thread::sleep(Duration::from_millis(5));
            }
            let ejected = ejection();
            let size = fs::metadata(rig.at("g")).unwrap().len();
            let still_ejected = ejection();
            let content = fs::read(rig.at("g")).unwrap();
            is_over.store(true, Ordering::Relaxed);
            assert!(ejected.is_some() && ejected == still_ejected, "{ejected:?}");
            assert_eq!((size, content), (5, b"first".to_vec()));
        });
    });
}

#[test]
fn a_hung_replica_is_ejected_and_returns_with_its_threads() {
    let room = tree();
    let content = bytes(24 * MIB, 33);
    fs::write(root(&room).join("f"), &content).unwrap();
    let keys = "cache = \"direct\"\nattempt_deadline = \"500ms\"\nthreads_per_replica = 4";
    let rig = mount(room, &Setup { rates: [100; 3], read: keys, ..Setup::default() });
    read(&rig, "f", &content);
    always(&rig, 1, FaultOp::Any, Fault::Hang);
    for _ in 0..3 {
        read(&rig, "f", &content);
    }
    let status = rig.eventually("its threads are stuck, and its root is silent", |status| {
        status.replicas[1].hung_threads > 0 && status.replicas[1].ejections > 0
    });
    assert!(status.replicas[1].hung_threads <= 4, "no more than it has");
    assert_eq!(status.counters.read_errors, 0);
    let before = status.replicas[1].counters.bytes;
    rig.scripts[1].heal();
    rig.eventually("they have come back", |status| status.replicas[1].hung_threads == 0);
    let until = Instant::now() + PATIENCE;
    while rig.status().replicas[1].counters.bytes < before + 4 * MIB as u64 {
        assert!(Instant::now() < until, "it is not asked again: {:?}", rig.status().replicas[1]);
        read(&rig, "f", &content);
    }
    rig.expect_quiet();
}

#[test]
fn the_last_replica_is_always_used() {
    let room = tree();
    let content = bytes(4 * MIB, 34);
    fs::write(root(&room).join("f"), &content).unwrap();
    let rig = mount(room, &Setup { read: "cache = \"direct\"", ..Setup::default() });
    for replica in 0..3 {
        always(&rig, replica, FaultOp::Read, Fault::Errno(Errno::TIMEDOUT));
    }
    for _ in 0..10 {
        let error = fs::read(rig.at("f")).unwrap_err().raw_os_error();
        assert_eq!(error, Some(Errno::TIMEDOUT.raw_os_error()));
    }
    let is_in = |state| matches!(state, HealthState::Healthy | HealthState::Suspect);
    assert!(rig.status().replicas.iter().any(|replica| is_in(replica.health)));
    rig.scripts.iter().for_each(|script| script.heal());
    read(&rig, "f", &content);
}

#[test]
fn the_root_is_visible_while_all_replicas_hang() {
    let room = tree();
    let rig = mount(room, &Setup { rest: "[fuse]\nattribute_ttl = \"0s\"", ..Setup::default() });
    let known = fs::metadata(rig.at("")).unwrap();
    for replica in 0..3 {
        always(&rig, replica, FaultOp::Any, Fault::Hang);
    }
    let looks = (0..5).map(|_| {
        let (seen, took) = timed(|| fs::metadata(rig.at("")).unwrap());
        assert_eq!(seen.modified().unwrap(), known.modified().unwrap());
        took
    });
    // The promise is a tenth of a second; a busy machine delays some lookups, not all.
    let took = looks.min().unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
    // umount(8) asks for it.
    let sizes = (0..5).map(|_| timed(|| rustix::fs::statfs(rig.at("")).unwrap()).1);
    let took = sizes.min().unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_file_forgotten_by_its_server_is_reopened() {
    let room = tree();
    let content = bytes(4 * MIB, 35);
    fs::write(root(&room).join("f"), &content).unwrap();
    let rig = mount(room, &Setup { read: "cache = \"direct\"", ..Setup::default() });
    let file = File::open(rig.at("f")).unwrap();
    for replica in 0..3 {
        let stale = Fault::Errno(Errno::STALE);
        rig.scripts[replica].add(FaultRule { count: 1, ..FaultRule::always(FaultOp::Read, stale) });
    }
    let mut whole = vec![0; content.len()];
    file.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == content);
    let status = rig.status();
    for replica in &status.replicas {
        assert_eq!((replica.counters.errors, replica.counters.disagreements), (0, 0));
    }
    assert_eq!((status.counters.retries, status.counters.read_errors), (0, 0));
}

/// Every replica that answers shows another file by now; only the hung one could still have the
/// opened one.
#[test]
fn no_call_waits_for_a_version_only_a_hung_replica_has() {
    a_changed_file_is_read_while_one_hangs(None);
    a_changed_file_is_read_while_one_hangs(Some(Fault::Errno(Errno::IO)));
}

fn a_changed_file_is_read_while_one_hangs(third: Option<Fault>) {
    let room = tree();
    let name = |i: usize| format!("f{i}");
    let content = |i: usize| bytes(MIB, 36 + i as u64);
    for i in 0..12 {
        fs::write(root(&room).join(name(i)), content(i)).unwrap();
    }
    let keys = "cache = \"direct\"\nattempt_deadline = \"300ms\"\ndeadline = \"60s\"";
    let rig = mount(room, &Setup { read: keys, ..Setup::default() });
    let files: Vec<_> = (0..12).map(|i| File::open(rig.at(name(i))).unwrap()).collect();
    always(&rig, 1, FaultOp::Any, Fault::Hang);
    if let Some(fault) = third {
        always(&rig, 2, FaultOp::Read, fault);
    }
    for i in 0..12 {
        fs::write(rig.source(0, name(i)), &content(i + 12)[..MIB - 5000]).unwrap();
    }
    let started = Instant::now();
    thread::scope(|scope| {
        for (i, file) in files.iter().enumerate() {
            scope.spawn(move || {
                let mut block = vec![0; MIB / 2];
                file.read_exact_at(&mut block, 1000).unwrap();
                assert!(block == content(i + 12)[1000..][..block.len()], "wrong bytes");
            });
        }
    });
    let stuck = rig.status().replicas[1].active_threads;
    assert!(stuck > 0 && started.elapsed() < PATIENCE, "{stuck}, {started:?}");
}

#[test]
fn a_server_that_lost_the_file_is_left_out() {
    let room = tree();
    let content = bytes(4 * MIB, 36);
    fs::write(root(&room).join("f"), &content).unwrap();
    let rig = mount(room, &Setup { read: "cache = \"direct\"", ..Setup::default() });
    always(&rig, 0, FaultOp::Read, Fault::Errno(Errno::STALE));
    read(&rig, "f", &content);
    let status = rig.status();
    let own = &status.replicas[0];
    assert_eq!((own.counters.errors, own.ejections), (0, 0), "it is no fault of the replica");
    assert_eq!(status.counters.read_errors, 0);
}

#[test]
fn a_file_lost_on_one_replica_is_read_from_others() {
    attempts(|| {
        let room = tree();
        let content = bytes(MIB, 37);
        for i in 0..30 {
            fs::write(root(&room).join(format!("f{i}")), &content).unwrap();
        }
        let rest = "[fuse]\nattribute_ttl = \"0s\"";
        let rig = mount(room, &Setup { rest, ..Setup::default() });
        // Opened by a path, so that the kernel asks for attributes by the inode it knows.
        let files: Vec<_> = (0..30).map(|i| File::open(rig.at(format!("f{i}"))).unwrap()).collect();
        always(&rig, 1, FaultOp::Any, Fault::Errno(Errno::NOENT));
        for i in 0..30 {
            read(&rig, &format!("f{i}"), &content);
        }
        for file in &files {
            assert_eq!(file.metadata().unwrap().len(), MIB as u64);
            let mut buf = vec![0; MIB];
            file.read_exact_at(&mut buf, 0).unwrap();
            assert!(buf == content);
        }
        for replica in [0, 2] {
            always(&rig, replica, FaultOp::Metadata, Fault::Errno(Errno::NOENT));
        }
        let gone = fs::metadata(rig.at("f0")).unwrap_err().raw_os_error();
        assert_eq!(gone, Some(Errno::NOENT.raw_os_error()), "where all say so it is");
    });
}

/// Like a server that has withdrawn its export.
#[test]
fn a_call_refused_by_one_replica_uses_another() {
    attempts(|| {
        let room = tree();
        let content = bytes(MIB, 41);
        for i in 0..30 {
            fs::write(root(&room).join(format!("f{i}")), &content).unwrap();
        }
        let rig = mount(room, &Setup::default());
        always(&rig, 1, FaultOp::Any, Fault::Errno(Errno::ACCESS));
        for i in 0..30 {
            read(&rig, &format!("f{i}"), &content);
        }
        assert_eq!(fs::read_dir(rig.at("")).unwrap().count(), 30);
        for replica in [0, 2] {
            always(&rig, replica, FaultOp::Any, Fault::Errno(Errno::ACCESS));
        }
        let refused = File::open(rig.at("f0")).unwrap_err().raw_os_error();
        assert_eq!(refused, Some(Errno::ACCESS.raw_os_error()), "where all say so it is");
    });
}

#[test]
fn local_resource_shortage_does_not_count_as_a_failure() {
    let room = tree();
    let content = bytes(MIB, 38);
    for i in 0..20 {
        fs::write(root(&room).join(format!("f{i}")), &content).unwrap();
    }
    let rig = mount(room, &Setup::default());
    always(&rig, 0, FaultOp::Open, Fault::Errno(Errno::MFILE));
    for i in 0..20 {
        read(&rig, &format!("f{i}"), &content);
    }
    let status = rig.status();
    assert_eq!((status.replicas[0].ejections, status.replicas[0].counters.errors), (0, 0));
    assert_eq!(status.counters.read_errors, 0);
}

#[test]
fn a_bad_block_of_one_file_does_not_eject_its_replica() {
    attempts(|| {
        let room = tree();
        let content = bytes(16 * MIB, 39);
        fs::write(root(&room).join("f"), &content).unwrap();
        let rig = mount(room, &Setup { read: "cache = \"direct\"", ..Setup::default() });
        always(&rig, 1, FaultOp::Read, Fault::Errno(Errno::IO));
        read(&rig, "f", &content);
        let status = rig.status();
        assert!(status.replicas[1].counters.errors > 0, "it was never asked");
        assert_eq!(status.replicas[1].ejections, 0);
        assert_eq!(status.counters.read_errors, 0);
    });
}

/// One replica delivers from its page cache a hundred times as fast as the others.
#[test]
fn page_cache_speed_of_one_replica_ejects_no_other() {
    attempts(|| {
        let room = tree();
        let content = bytes(64 * MIB, 40);
        for name in ["cached", "cold"] {
            fs::write(root(&room).join(name), &content).unwrap();
        }
        let rates = [0, 100, 100];
        let rig = mount(room, &Setup { rates, read: "cache = \"direct\"", ..Setup::default() });
        // A link of some 160 MiB/s: four segments of 1 MiB in flight.
        let slow = FaultRule::always(FaultOp::Read, Fault::Delay(Duration::from_millis(25)));
        rig.scripts[0].add(slow.beneath("cold"));
        let until = Instant::now() + Duration::from_secs(4);
        while Instant::now() < until {
            read(&rig, "cached", &content);
        }
        let before = rig.status();
        for replica in &before.replicas {
            assert_eq!(replica.ejections, 0, "{replica:?}");
        }
        for _ in 0..2 {
            read(&rig, "cold", &content);
        }
        let after = rig.status();
        for (before, after) in before.replicas.iter().zip(&after.replicas) {
            assert_eq!(after.ejections, 0, "{after:?}");
            let brought = after.counters.bytes - before.counters.bytes;
            assert!(brought as usize > 4 * MIB, "{} of 128 MiB by {after:?}", brought >> 20);
        }
    });
}
