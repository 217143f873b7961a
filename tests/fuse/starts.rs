//! Programs that start while tests have locks, and while mounts end: what
//! tests/processes.rs promises.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};
use tempfile::tempdir;

use crate::processes::{self, Command};
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

/// Descriptors that execve(2) closes before those opened later.
fn spare() -> Vec<File> {
    (0..100).map(|_| File::open("/dev/null").unwrap()).collect()
}

#[test]
fn a_started_program_keeps_no_lock_of_the_test() {
    let room = tempdir().unwrap();
    let path = room.path().join("f");
    fs::write(&path, "x").unwrap();
    let _spare = spare();
    for round in 0..200 {
        let held = File::open(&path).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let no_start = processes::no_start();
        drop(held);
        let other = File::open(&path).unwrap();
        let locked = flock(&other, FlockOperation::NonBlockingLockExclusive);
        drop(no_start);
        child.wait().unwrap();
        locked.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

/// The file has a lower descriptor than the mount's /dev/fuse, so a new process that had both
/// would flush the file after the daemon has ended, and wait for itself.
fn end_with_an_open_file() {
    let room = tree();
    let content = bytes(4096, 1);
    fs::write(root(&room).join("f"), &content).unwrap();
    let below = spare();
    let rig: Rig = mount(room, &Setup { replicas: 1, ..Setup::default() });
    drop(below);
    let file = File::open(rig.at("f")).unwrap();
    let mut start = [0; 16];
    file.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, content[..16]);
    assert!(rig.end() < PATIENCE);
}

#[test]
fn a_mount_ends_while_other_tests_start_programs() {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert!(Command::new("true").status().unwrap().success());
                }
            });
        }
        let rounds = std::panic::catch_unwind(|| (0..10).for_each(|_| end_with_an_open_file()));
        ended.store(true, Ordering::Relaxed);
        rounds.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
