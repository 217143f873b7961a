//! Set-id bits of files that are changed through a descriptor that root opened.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use rustix::thread::CapabilitySet;

use super::caller::Caller;
use super::{KERNEL, volume};

use crate::needs;

/// A change of a file through one descriptor; the other descriptor is the source of a copy.
type Change = fn(&File, &File);

const CHANGES: &[(&str, Change)] = &[
    ("fallocate", |file, _| fallocate(file, FallocateFlags::empty(), 0, 65536).unwrap()),
    ("keep size", |file, _| fallocate(file, FallocateFlags::KEEP_SIZE, 0, 65536).unwrap()),
    ("punch hole", |file, _| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, 0, 4096).unwrap();
    }),
    ("zero range", |file, _| fallocate(file, FallocateFlags::ZERO_RANGE, 0, 4096).unwrap()),
    ("copy", |file, from| {
        assert_eq!(copy_file_range(from, None, file, None, 4096), Ok(4096));
    }),
    ("write", |file, _| file.write_all_at(b"new", 0).unwrap()),
    ("ftruncate", |file, _| file.set_len(100).unwrap()),
];

/// Permissions before a change, and after one by a caller without CAP_FSETID.
const MODES: &[(u32, u32)] = &[(0o6755, 0o755), (0o4711, 0o711), (0o2755, 0o755), (0o644, 0o644)];

#[test]
fn a_change_without_cap_fsetid_clears_set_id_bits() {
    if !needs::root() {
        return;
    }
    let rig = volume(3, KERNEL);
    let callers = [Caller::Root, Caller::Without(CapabilitySet::FSETID), Caller::User];
    let mut wrong = Vec::new();
    let probe = File::create(rig.source(0, "probe")).unwrap();
    let zeroed = fallocate(&probe, FallocateFlags::ZERO_RANGE, 0, 1);
    // tmpfs has none.
    let has_zeroed_ranges = needs::machine(zeroed.is_ok(), "zeroed ranges in its /tmp");
    for (i, (what, change)) in CHANGES.iter().enumerate() {
        if *what == "zero range" && !has_zeroed_ranges {
            continue;
        }
        for (j, caller) in callers.into_iter().enumerate() {
            if *what == "ftruncate" && matches!(caller, Caller::Without(_)) {
                // The FUSE library does not report that its caller lacks the capability.
                continue;
            }
            for (before, cleared) in MODES {
                let name = format!("f{i}-{j}-{before:o}");
                let (path, from) = (rig.at(&name), rig.at("from"));
                fs::write(&path, vec![1; 8192]).unwrap();
                fs::write(&from, vec![2; 8192]).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(*before)).unwrap();
                let file = File::options().read(true).write(true).open(&path).unwrap();
                let from = File::open(&from).unwrap();
                caller.does(|| change(&file, &from));
                drop(file);
                let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
                let left = mode(rig.source(0, &name));
                let expected = if caller == Caller::Root { before } else { cleared };
                if left != *expected {
                    wrong.push(format!("{what} by {caller:?}: {before:o} became {left:o}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    rig.expect_quiet();
}
