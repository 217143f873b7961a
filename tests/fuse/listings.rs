//! Listings: which entries have attributes, and that each name is listed once.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::time::Duration;

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::io::Errno;

use crate::machine::attempts;
use crate::recorder::Call;
use crate::rig::{Rig, Setup, mount, root, tree};

/// The kernel caches names and attributes for longer than a test runs.
const LONG_TTL: &str = "[fuse]\nattribute_ttl = \"60s\"";

const FILES: usize = 500;

/// Directories of [`FILES`] files, each of another size.
fn dirs(names: &[&str], setup: &Setup) -> Rig {
    let room = tree();
    for dir in names {
        fs::create_dir(root(&room).join(dir)).unwrap();
        for i in 0..FILES {
            let file = File::create(root(&room).join(dir).join(format!("f{i}"))).unwrap();
            file.set_len(i as u64).unwrap();
        }
    }
    mount(room, setup)
}

/// The names in the directory, as `readdir(3)` shows them: each once, with its inode number.
fn names(rig: &Rig, dir: &str) -> BTreeSet<OsString> {
    let listed: Vec<_> = fs::read_dir(rig.at(dir)).unwrap().map(Result::unwrap).collect();
    let names: BTreeSet<_> = listed.iter().map(|entry| entry.file_name()).collect();
    assert_eq!((listed.len(), names.len()), (FILES, FILES));
    let inos: BTreeSet<_> = listed.iter().map(|entry| entry.ino()).collect();
    assert_eq!(inos.len(), FILES);
    assert!(listed.iter().all(|entry| entry.file_type().unwrap().is_file()));
    names
}

/// Asks for the attributes of these files, as `ls -l` does.
fn look(rig: &Rig, dir: &str, names: &BTreeSet<OsString>) {
    for name in names {
        let attr = fs::symlink_metadata(rig.at(dir).join(name)).unwrap();
        assert_eq!(format!("f{}", attr.size()), *name.to_str().unwrap());
    }
}

/// The entries that each replica has looked at for listings, and the lookups of single names.
fn looks(rig: &Rig) -> (Vec<usize>, usize) {
    let calls = rig.recorded();
    let entries = |calls: &Vec<Call>| {
        let of = |call: &Call| if let Call::StatEntries(entries) = call { *entries } else { 0 };
        calls.iter().map(of).sum()
    };
    let lookups = calls.iter().flatten().filter(|call| **call == Call::Stat).count();
    (calls.iter().map(entries).collect(), lookups)
}

/// Makes attributes be in demand, by another directory.
fn demand(rig: &Rig) {
    look(rig, "demanded", &names(rig, "demanded"));
}

#[test]
fn names_alone_cost_few_looks() {
    for copies in [false, true] {
        let setup = Setup { copies, rest: LONG_TTL, ..Setup::default() };
        let rig = dirs(&["a", "b"], &setup);
        rig.record();
        for dir in ["a", "b", "a", "b"] {
            names(&rig, dir);
        }
        // The first entries of each listing, by more than one replica if one was late.
        let (entries, _) = looks(&rig);
        assert!(entries.iter().sum::<usize>() < FILES, "{entries:?}");
        rig.expect_quiet();
    }
}

#[test]
fn listings_have_attributes_once_these_are_in_demand() {
    for copies in [false, true] {
        let setup = Setup { copies, rest: LONG_TTL, ..Setup::default() };
        // The demand lasts ten seconds, and a late replica causes a second lookup.
        attempts(|| {
            let rig = dirs(&["a", "demanded"], &setup);
            demand(&rig);
            rig.record();
            look(&rig, "a", &names(&rig, "a"));
            let (entries, lookups) = looks(&rig);
            assert!(entries.iter().sum::<usize>() >= FILES, "{entries:?}");
            assert!(lookups <= 2, "{lookups} names were looked up, {entries:?}");
            rig.expect_quiet();
        });
    }
}

/// Entries that no replica can look at, or that none knows, are listed: they may be new. And they do
/// not multiply the looks.
#[test]
fn every_name_is_listed_while_looks_fail() {
    let entry = |i: usize| &*format!("a/f{i}").leak();
    let odd: Vec<_> = (0..FILES).filter(|i| i % 2 == 1).map(entry).collect();
    for errno in [Errno::IO, Errno::NOENT] {
        for failing in [&["a/f0", "a/f1", "a/f77"][..], &odd] {
            let rig = dirs(&["a", "demanded"], &Setup { rest: LONG_TTL, ..Setup::default() });
            demand(&rig);
            for path in failing {
                let rule = FaultRule::always(FaultOp::Metadata, Fault::Errno(errno)).beneath(path);
                rig.scripts.iter().for_each(|script| script.add(rule));
            }
            rig.record();
            let mut all = names(&rig, "a");
            let (entries, _) = looks(&rig);
            assert!(entries.iter().sum::<usize>() <= 5 * FILES, "{entries:?}");
            for path in failing {
                let error = fs::symlink_metadata(rig.at(path)).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
                assert!(all.remove(OsStr::new(path.strip_prefix("a/").unwrap())));
            }
            look(&rig, "a", &all);
        }
    }
}

/// A known directory fails on one replica, or is missing there for a while.
#[test]
fn a_directory_is_listed_by_the_replicas_that_know_it() {
    for errno in [Errno::IO, Errno::NOENT, Errno::NOTDIR] {
        for failing in 0..3 {
            // The replicas that know the directory must not be late, and the demand has an end.
            attempts(|| {
                let rig = dirs(&["a", "demanded"], &Setup { rest: LONG_TTL, ..Setup::default() });
                demand(&rig);
                fs::metadata(rig.at("a")).unwrap();
                let rule = FaultRule::always(FaultOp::Metadata, Fault::Errno(errno)).beneath("a");
                rig.scripts[failing].add(rule);
                look(&rig, "a", &names(&rig, "a"));
            });
        }
    }
}

/// A replica that does not know a directory answers first; the others take longer for its listing
/// than for other calls.
#[test]
fn a_slow_listing_is_not_empty_because_a_replica_lacks_the_directory() {
    for replicas in [2, 3] {
        for lacking in 0..replicas {
            attempts(|| {
                let rig = dirs(&["a"], &Setup { replicas, rest: LONG_TTL, ..Setup::default() });
                fs::metadata(rig.at("a")).unwrap();
                for (i, script) in rig.scripts.iter().enumerate() {
                    let (fault, count) = match i == lacking {
                        true => (Fault::Errno(Errno::NOENT), u64::MAX),
                        // The listing, and a few of its entries.
                        false => (Fault::Delay(Duration::from_millis(400)), 4),
                    };
                    let rule = FaultRule::always(FaultOp::Metadata, fault).beneath("a");
                    script.add(FaultRule { count, ..rule });
                }
                names(&rig, "a");
            });
        }
    }
}

/// The C library takes ENOENT for the end of a listing.
#[test]
fn no_error_of_looks_ends_a_listing() {
    for errno in [Errno::IO, Errno::NOENT, Errno::NOTDIR, Errno::STALE, Errno::LOOP] {
        let rig = dirs(&["a", "demanded"], &Setup { rest: LONG_TTL, ..Setup::default() });
        demand(&rig);
        let mut listed = fs::read_dir(rig.at("a")).unwrap();
        listed.next().unwrap().unwrap();
        for script in &rig.scripts {
            let failing = FaultRule::always(FaultOp::Metadata, Fault::Errno(errno));
            script.add(failing.beneath("a"));
        }
        assert_eq!(listed.map(Result::unwrap).count(), FILES - 1, "{errno}");
    }
}

/// The kernel passes the size of the process's buffer on since Linux 6.16. A reply without
/// attributes then has many names.
#[test]
fn a_large_buffer_gets_many_names_at_once() {
    let rig = dirs(&["a"], &Setup { rest: LONG_TTL, ..Setup::default() });
    let dir = File::open(rig.at("a")).unwrap();
    let mut buf = vec![0u8; 32 << 10];
    let (mut calls, mut most) = (0, 0);
    loop {
        // SAFETY: the buffer is valid for its length.
        let got = unsafe {
            nix::libc::syscall(
                nix::libc::SYS_getdents64,
                dir.as_raw_fd(),
                buf.as_mut_ptr(),
                buf.len(),
            )
        };
        assert!(got >= 0, "{}", std::io::Error::last_os_error());
        if got == 0 {
            break;
        }
        (calls, most) = (calls + 1, most.max(got));
    }
    let release = rustix::system::uname().release().to_str().unwrap().to_owned();
    let mut version = release.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (version.next().unwrap(), version.next().unwrap());
    // An entry of this directory has 24 or 32 bytes.
    let expected = if version >= (6, 16) { 6 } else { 32 };
    assert!(calls <= expected, "{calls} calls, at most {most} bytes, {release}");
}
