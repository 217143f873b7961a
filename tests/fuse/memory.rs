//! Limits on an ordinary user's share of the daemon's memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::rig::{Rig, Setup, mount, root, tree};

/// A volume with the smallest permitted budget.
fn small(files: usize) -> Rig {
    let room = tree();
    (0..files).for_each(|i| fs::write(root(&room).join(i.to_string()), "f").unwrap());
    let (read, rest) = ("segment_size = \"64KiB\"", "[memory]\nbudget = \"1MiB\"");
    mount(room, &Setup { write: true, read, rest, ..Setup::default() })
}

/// A user's locks take half of a sixteenth of the budget: 32 of 1 KiB.
const LOCKS: usize = 32;

#[test]
fn the_locks_of_one_user_are_limited() {
    let rig = small(LOCKS + 8);
    let open = |i: usize| File::open(rig.at(i.to_string())).unwrap();
    let mut files: Vec<File> = (0..LOCKS + 8).map(open).collect();
    let lock = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    for file in &files[..LOCKS] {
        lock(file).unwrap();
    }
    for file in &files[LOCKS..] {
        assert_eq!(lock(file), Err(Errno::NOLCK));
    }
    // Locks that are held stay, and each released one frees its place.
    assert_eq!(lock(&open(0)), Err(Errno::NOLCK), "no place even to ask");
    rustix::fs::flock(&files[0], FlockOperation::Unlock).unwrap();
    drop(files.drain(..4));
    rig.eventually("places are free", |_| lock(&files[LOCKS]).is_ok());
    assert_eq!(lock(&open(4)), Err(Errno::AGAIN));
    drop(files);
    rig.expect_quiet();
}

/// The kernel asks for no more at once: an eighth of the budget.
const REQUEST: u64 = 128 << 10;

#[test]
fn reads_of_a_written_file_claim_budget() {
    let room = tree();
    fs::write(root(&room).join("f"), vec![7; 4 * REQUEST as usize]).unwrap();
    let (read, rest) =
        ("segment_size = \"64KiB\"", "cache = \"direct\"\n[memory]\nbudget = \"1MiB\"");
    let rig = mount(room, &Setup { write: true, read, rest, replicas: 1, ..Setup::default() });
    let file = File::options().read(true).write(true).open(rig.at("f")).unwrap();
    rig.scripts[0].add(FaultRule::always(FaultOp::Read, Fault::Hang));
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut bytes = vec![0; REQUEST as usize];
            file.read_exact_at(&mut bytes, 0).map(|()| bytes)
        });
        rig.eventually("its memory is claimed", |status| status.gauges.buffer_used == REQUEST);
        rig.scripts[0].heal();
        assert!(read.join().unwrap().unwrap() == vec![7; REQUEST as usize]);
    });
    drop(file);
    rig.expect_quiet();
}
