//! What an ordinary user may have of the daemon's memory.

use std::fs::{self, File};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::rig::{Rig, Setup, mount, root, tree};

/// A volume with the least memory that there may be.
fn small(files: usize) -> Rig {
    let room = tree();
    (0..files).for_each(|i| fs::write(root(&room).join(i.to_string()), "f").unwrap());
    let (read, rest) = ("segment_size = \"64KiB\"", "[memory]\nbudget = \"1MiB\"");
    mount(room, &Setup { write: true, read, rest, ..Setup::default() })
}

/// A user's locks take half of a sixteenth of the budget: 32 of 1 KiB.
const LOCKS: usize = 32;

#[test]
fn a_user_has_so_many_locks_and_no_more() {
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
    // Those that are held are not lost, and each that is given up leaves its place.
    assert_eq!(lock(&open(0)), Err(Errno::NOLCK), "no place even to ask");
    rustix::fs::flock(&files[0], FlockOperation::Unlock).unwrap();
    drop(files.drain(..4));
    rig.eventually("places are free", |_| lock(&files[LOCKS]).is_ok());
    assert_eq!(lock(&open(4)), Err(Errno::AGAIN));
    drop(files);
    rig.expect_quiet();
}
