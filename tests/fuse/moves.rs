//! Calls in a directory that is renamed at the same time, through the same mount.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags, chmodat,
    fgetxattr, fsetxattr, linkat, mkdirat, mknodat, openat, readlinkat, renameat, statat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, Result};

use crate::rig::{Rig, Setup, mount, root, tree};

/// The calls that are repeated in the directory, in this order.
type Call = fn(dir: &OwnedFd) -> Result<()>;

fn open(dir: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd> {
    openat(dir, name, flags, Mode::from_raw_mode(0o644))
}

/// The names that are listed, without `.` and `..`.
fn listed(dir: impl AsFd) -> Result<Vec<Vec<u8>>> {
    let names = Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_bytes().to_vec()));
    let mut names: Vec<_> = names.collect::<Result<_>>()?;
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    Ok(names)
}

const CALLS: &[(&str, Call)] = &[
    ("lookup of a missing name", |dir| match statat(dir, "new", AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        found => found.map(drop),
    }),
    ("create", |dir| {
        let file = open(dir, "new", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
        rustix::io::write(&file, b"content").map(drop)
    }),
    ("stat", |dir| statat(dir, "new", AtFlags::empty()).map(drop)),
    ("stat of the directory", |dir| rustix::fs::fstat(dir).map(drop)),
    ("read", |dir| {
        let file = open(dir, "new", OFlags::RDONLY)?;
        let mut bytes = [0; 16];
        let got = rustix::io::pread(&file, &mut bytes[..], 0)?;
        assert_eq!(&bytes[..got], b"content");
        Ok(())
    }),
    ("write", |dir| {
        let file = open(dir, "new", OFlags::RDWR)?;
        rustix::io::pwrite(&file, b"CONTENT", 0)?;
        fsetxattr(&file, "user.name", b"value", XattrFlags::empty())?;
        let mut value = [0; 16];
        assert_eq!(fgetxattr(&file, "user.name", &mut value[..])?, 5);
        rustix::fs::fsync(&file)
    }),
    ("truncate", |dir| open(dir, "new", OFlags::WRONLY | OFlags::TRUNC).map(drop)),
    ("chmod", |dir| chmodat(dir, "new", Mode::from_raw_mode(0o600), AtFlags::empty())),
    ("utimes", |dir| {
        let at = Timespec { tv_sec: 1, tv_nsec: 0 };
        let times = Timestamps { last_access: at, last_modification: at };
        utimensat(dir, "new", &times, AtFlags::empty())
    }),
    ("link", |dir| linkat(dir, "new", dir, "link", AtFlags::empty())),
    ("rename", |dir| renameat(dir, "new", dir, "renamed")),
    ("symlink", |dir| symlinkat("target", dir, "symlink")),
    ("readlink", |dir| readlinkat(dir, "symlink", Vec::new()).map(drop)),
    ("mknod", |dir| mknodat(dir, "fifo", FileType::Fifo, Mode::from_raw_mode(0o644), 0)),
    ("mkdir", |dir| mkdirat(dir, "dir", Mode::from_raw_mode(0o755))),
    ("listing", |dir| {
        let open = open(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let names = ["dir", "fifo", "keep", "link", "renamed", "symlink"];
        assert_eq!(listed(open)?, names.map(|name| name.as_bytes().to_vec()));
        Ok(())
    }),
    ("rmdir", |dir| unlinkat(dir, "dir", AtFlags::REMOVEDIR)),
    ("unlink", |dir| {
        for name in ["renamed", "link", "symlink", "fifo"] {
            unlinkat(dir, name, AtFlags::empty())?;
        }
        Ok(())
    }),
];

/// Each call is made this many times, with at least this many renames meanwhile.
const ROUNDS: u64 = 150;

/// Makes the calls while `rename` is called again and again; returns the errors.
fn while_renaming(rig: &Rig, rename: impl Fn(u64) + Sync) -> BTreeMap<String, u64> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = openat(CWD, rig.at("a/x/y"), flags, Mode::empty()).unwrap();
    let (over, renames) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut errors = BTreeMap::new();
    std::thread::scope(|scope| {
        let renamer = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                rename(renames.load(Ordering::Relaxed));
                renames.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut round = 0;
        let is_enough = |round| round >= ROUNDS && renames.load(Ordering::Relaxed) >= ROUNDS;
        while !is_enough(round) && !renamer.is_finished() && errors.is_empty() {
            for (what, call) in CALLS {
                if let Err(error) = call(&dir) {
                    *errors.entry(format!("{what}: {error}")).or_default() += 1;
                }
            }
            round += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
    errors
}

#[test]
fn calls_in_a_renamed_directory_use_its_new_path() {
    // One replica, and several: then a file may be read from another one than it is made on.
    for (replicas, parent) in [(1, ""), (3, ""), (3, "a/")] {
        let room = tree();
        fs::create_dir_all(root(&room).join("a/x/y/keep")).unwrap();
        let rig = mount(room, &Setup { replicas, write: true, plain: true, ..Setup::default() });
        // The directory above, or the one above that.
        let one = if parent.is_empty() { "a" } else { "x" };
        let names = [one, "b"].map(|name| rig.at(format!("{parent}{name}")));
        let errors = while_renaming(&rig, |i| {
            let (from, to) = (i % 2, (i + 1) % 2);
            fs::rename(&names[from as usize], &names[to as usize]).unwrap();
        });
        assert!(errors.is_empty(), "{replicas} replicas, {parent:?}: {errors:#?}");
        rig.expect_quiet();
    }
}
