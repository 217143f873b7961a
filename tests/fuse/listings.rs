//! Which entries of a listing have attributes, and who looks at them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{DirEntryExt, MetadataExt};

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

#[test]
fn names_alone_cost_few_looks() {
    for copies in [false, true] {
        let setup = Setup { copies, rest: LONG_TTL, ..Setup::default() };
        let rig = dirs(&["a", "b"], &setup);
        rig.record();
        for dir in ["a", "b", "a", "b"] {
            names(&rig, dir);
        }
        let (entries, lookups) = looks(&rig);
        // The first entries of each listing, some twice if a replica was late.
        assert!(entries.iter().sum::<usize>() < FILES, "{entries:?}");
        assert!(lookups <= 4, "{lookups}");
        rig.expect_quiet();
    }
}

#[test]
fn listings_have_attributes_once_these_are_in_demand() {
    for copies in [false, true] {
        let setup = Setup { copies, rest: LONG_TTL, ..Setup::default() };
        // The demand lasts ten seconds.
        attempts(|| {
            let rig = dirs(&["a", "b"], &setup);
            look(&rig, "a", &names(&rig, "a"));
            rig.record();
            look(&rig, "b", &names(&rig, "b"));
            let (entries, lookups) = looks(&rig);
            assert!(entries.iter().sum::<usize>() >= FILES, "{entries:?}");
            assert!(lookups <= 2, "{lookups} names were looked up, {entries:?}");
            rig.expect_quiet();
        });
    }
}

#[test]
fn listings_of_an_immutable_volume_have_attributes() {
    let rig = dirs(&["a"], &Setup { volume: "immutable = true\n", ..Setup::default() });
    rig.record();
    look(&rig, "a", &names(&rig, "a"));
    let (entries, lookups) = looks(&rig);
    assert!(entries.iter().sum::<usize>() >= FILES, "{entries:?}");
    assert!(lookups <= 2, "{lookups} names were looked up, {entries:?}");
}

/// A replica that fails, and an entry that no replica can look at, hide no names. Nor does an entry
/// that a replica does not know: it may be new.
#[test]
fn every_name_is_listed_while_looks_fail() {
    for errno in [Errno::IO, Errno::NOENT] {
        let rig = dirs(&["a"], &Setup { volume: "immutable = true\n", ..Setup::default() });
        let failing = FaultRule::always(FaultOp::Metadata, Fault::Errno(Errno::IO));
        rig.scripts[0].add(failing.beneath("a"));
        look(&rig, "a", &names(&rig, "a"));
        let failing = FaultRule::always(FaultOp::Metadata, Fault::Errno(errno));
        rig.scripts.iter().for_each(|script| script.replace(failing.beneath("a/f77")));
        let rig = rig.again();
        let mut all = names(&rig, "a");
        let error = fs::symlink_metadata(rig.at("a/f77")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
        assert!(all.remove(OsStr::new("f77")));
        look(&rig, "a", &all);
    }
}
