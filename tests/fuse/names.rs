//! A name in an open directory is a name in that directory, even if another client has moved the
//! directory and put another one at its path.
//!
//! The kernel trusts its names and attributes for an hour here. So each operation goes to fanfs with
//! the inode of the directory that was opened.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, RenameFlags, linkat, mkdirat, mknodat, openat,
    renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::{Errno, Result};

use crate::needs;
use crate::processes::Command;
use crate::rig::{Rig, Setup, mount, root, tree};

const HOUR: &str = "[fuse]\nattribute_ttl = \"1h\"\n";

/// Makes a directory with the same names in each, and its own contents.
fn fill(dir: &Path, content: &str) {
    fs::create_dir_all(dir.join("empty")).unwrap();
    for name in ["f", "g"] {
        fs::write(dir.join(name), content).unwrap();
    }
}

/// Another client exchanges two directories.
fn exchange(rig: &Rig, one: &str, other: &str) {
    let (one, other) = (rig.source(0, one), rig.source(0, other));
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
}

fn open_dir(path: PathBuf) -> OwnedFd {
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

/// All names beneath a directory, with the contents of files.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match fs::symlink_metadata(&path).unwrap() {
            meta if meta.is_dir() => found.extend(contents(&path)),
            meta if meta.is_file() => drop(found.insert(path.clone(), fs::read(&path).unwrap())),
            _ => {}
        }
        found.entry(path).or_default();
    }
    found
}

/// An operation on names in `dir`, which is open, or on paths below the mount point.
type Operation = fn(dir: &OwnedFd, path: &str, rig: &Rig) -> Result<()>;

/// An operation, with the names that the kernel must know before it.
struct Case {
    what: &'static str,
    known: &'static [&'static str],
    op: Operation,
}

fn rights() -> Mode {
    Mode::from_raw_mode(0o644)
}

fn at(path: &str, name: &str) -> String {
    format!("{path}{name}")
}

const CASES: &[Case] = &[
    Case {
        what: "lookup",
        known: &[],
        op: |dir, path, _| statat(dir, at(path, "f"), AtFlags::SYMLINK_NOFOLLOW).map(drop),
    },
    Case {
        what: "lookup of a missing name",
        known: &[],
        op: |dir, path, _| match statat(dir, at(path, "none"), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            found => found.map(drop),
        },
    },
    Case {
        what: "create",
        known: &[],
        op: |dir, path, _| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            openat(dir, at(path, "new"), flags, rights()).map(drop)
        },
    },
    Case { what: "mkdir", known: &[], op: |dir, path, _| mkdirat(dir, at(path, "new"), rights()) },
    Case {
        what: "mknod",
        known: &[],
        op: |dir, path, _| mknodat(dir, at(path, "new"), FileType::Fifo, rights(), 0),
    },
    Case {
        what: "symlink",
        known: &[],
        op: |dir, path, _| symlinkat("target", dir, at(path, "new")),
    },
    Case {
        what: "link",
        known: &[],
        op: |dir, path, rig| linkat(CWD, rig.at("file"), dir, at(path, "new"), AtFlags::empty()),
    },
    Case {
        what: "unlink",
        known: &["f"],
        op: |dir, path, _| unlinkat(dir, at(path, "f"), AtFlags::empty()),
    },
    Case {
        what: "rmdir",
        known: &["empty"],
        op: |dir, path, _| unlinkat(dir, at(path, "empty"), AtFlags::REMOVEDIR),
    },
    Case {
        what: "rename out of it",
        known: &["f"],
        op: |dir, path, rig| renameat(dir, at(path, "f"), CWD, rig.at("out")),
    },
    Case {
        what: "rename into it",
        known: &["f"],
        op: |dir, path, rig| renameat(CWD, rig.at("file"), dir, at(path, "f")),
    },
    Case {
        what: "exchange of two names",
        known: &["f"],
        op: |dir, path, rig| {
            renameat_with(CWD, rig.at("file"), dir, at(path, "f"), RenameFlags::EXCHANGE)
        },
    },
];

/// Does each operation after another client has exchanged `d` and `e`, which the kernel
/// does not know. `op` gets the rig, the directory that was `d`, and the case.
fn after_an_exchange(replicas: usize, op: impl Fn(&Rig, &OwnedFd, &Case)) {
    for case in CASES {
        let room = tree();
        fill(&root(&room).join("d"), "d");
        fill(&root(&room).join("e"), "another");
        fs::write(root(&room).join("file"), "file").unwrap();
        let rest = HOUR;
        let setup = Setup { replicas, write: true, plain: true, rest, ..Setup::default() };
        let rig = mount(room, &setup);
        let dir = open_dir(rig.at("d"));
        fs::metadata(rig.at("file")).unwrap();
        for name in case.known {
            statat(&dir, *name, AtFlags::empty()).unwrap();
        }
        exchange(&rig, "d", "e");
        op(&rig, &dir, case);
    }
}

#[test]
fn no_operation_on_a_name_reaches_another_directory() {
    for replicas in [1, 2] {
        let wrong = RefCell::new(Vec::new());
        after_an_exchange(replicas, |rig, dir, case| {
            let before = contents(&rig.source(0, ""));
            let done = (case.op)(dir, "", rig);
            if done != Err(Errno::STALE) || contents(&rig.source(0, "")) != before {
                wrong.borrow_mut().push((case.what, done));
            }
        });
        assert_eq!(wrong.take(), [], "with {replicas} replicas");
    }
}

/// Linux does not repeat these if ESTALE occurs while it checks that the name is free.
const NOT_REPEATED: [&str; 4] = ["mkdir", "mknod", "symlink", "link"];

/// The kernel looks the path up again, and repeats the call in the directory at that path.
#[test]
fn a_path_operation_reaches_the_directory_at_that_path() {
    after_an_exchange(1, |rig, _, case| {
        let before = contents(&rig.source(0, "e"));
        let path = rig.at("d/").to_str().unwrap().to_owned();
        let beneath = open_dir("/".into());
        let mut done = (case.op)(&beneath, &path, rig);
        if NOT_REPEATED.contains(&case.what) && done == Err(Errno::STALE) {
            // Any other lookup in that directory makes the kernel look the path up again.
            fs::metadata(rig.at("d/g")).unwrap();
            done = (case.op)(&beneath, &path, rig);
        }
        assert_eq!(done, Ok(()), "{}", case.what);
        assert_eq!(contents(&rig.source(0, "e")), before, "{}", case.what);
        assert_eq!(fs::metadata(rig.at("d/g")).unwrap().len(), 7, "{}", case.what);
    });
}

#[test]
fn a_directory_without_a_path_reports_no_missing_names() {
    let room = tree();
    fill(&root(&room).join("d"), "d");
    let setup = Setup { replicas: 1, write: true, plain: true, rest: HOUR, ..Setup::default() };
    let rig = mount(room, &setup);
    let dir = open_dir(rig.at("d"));
    fs::rename(rig.source(0, "d"), rig.source(0, "moved")).unwrap();
    let look = |name| statat(&dir, name, AtFlags::empty()).map(|found| found.st_size);
    assert_eq!(look("f"), Err(Errno::STALE));
    // Once its new name is looked up, the same directory is used under that name.
    fs::metadata(rig.at("moved")).unwrap();
    assert_eq!(look("f"), Ok(1));
    assert_eq!(look("none"), Err(Errno::NOENT));
    mkdirat(&dir, "new", Mode::from_raw_mode(0o755)).unwrap();
    assert!(rig.source(0, "moved/new").is_dir());
    assert_eq!(fs::metadata(rig.at("d")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

/// Names of the next entries.
fn entries(dir: &OwnedFd, buf: &mut [MaybeUninit<u8>]) -> Vec<String> {
    let mut all = RawDir::new(dir, buf);
    let mut names = Vec::new();
    while let Some(entry) = all.next() {
        names.push(CStr::to_str(entry.unwrap().file_name()).unwrap().to_owned());
        if all.is_buffer_empty() {
            break;
        }
    }
    names
}

/// The listing is cached, and attributes are requested as a program continues reading it.
#[test]
fn listing_attributes_belong_to_the_listed_directory() {
    let room = tree();
    for (dir, content) in [("d", "d"), ("e", "another")] {
        fs::create_dir(root(&room).join(dir)).unwrap();
        for i in 0..300 {
            fs::write(root(&room).join(dir).join(format!("file-{i}")), content).unwrap();
        }
    }
    let rig = mount(room, &Setup { replicas: 2, plain: true, rest: HOUR, ..Setup::default() });
    let dir = open_dir(rig.at("d"));
    let mut buf = [const { MaybeUninit::uninit() }; 512];
    let mut names = entries(&dir, &mut buf);
    // A lookup makes the kernel ask for attributes with the names that follow.
    let _ = statat(&dir, "none", AtFlags::empty());
    exchange(&rig, "d", "e");
    loop {
        let next = entries(&dir, &mut buf);
        if next.is_empty() {
            break;
        }
        names.extend(next);
    }
    names.retain(|name| name.starts_with("file"));
    assert_eq!(names.len(), 300);
    for name in names {
        let size = statat(&dir, &*name, AtFlags::empty()).map(|found| found.st_size);
        assert!([Ok(1), Err(Errno::STALE)].contains(&size), "{name}: {size:?}");
    }
}

#[test]
fn a_removal_does_not_continue_in_another_directory() {
    const FILES: usize = 60;
    let room = tree();
    for dir in ["d", "e"] {
        fs::create_dir(root(&room).join(dir)).unwrap();
        for i in 0..FILES {
            fs::write(root(&room).join(dir).join(format!("file-{i}")), dir).unwrap();
        }
    }
    let rig = mount(room, &Setup { replicas: 1, write: true, rest: HOUR, ..Setup::default() });
    let files = |dir: &str| fs::read_dir(rig.source(0, dir)).unwrap().count();
    let hang = FaultRule { after: 20, ..FaultRule::always(FaultOp::Mutation, Fault::Hang) };
    rig.scripts[0].add(hang);
    let mut rm = Command::new("rm").arg("-rf").arg(rig.at("d")).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while files("d") > FILES - 20 {
        assert!(Instant::now() < until, "rm does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
    // A removal that fanfs has started is in flight, and waits.
    exchange(&rig, "d", "e");
    rig.scripts[0].heal();
    assert!(!rm.wait().unwrap().success());
    assert_eq!((files("d"), files("e")), (FILES, FILES - 20), "d was e");
}

/// The directory that the user opens decides whether it may be listed.
#[test]
fn an_open_uses_the_directory_that_the_kernel_knows() {
    if !needs::root() {
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    let room = tree();
    fill(&root(&room).join("d"), "d");
    fill(&root(&room).join("e"), "another");
    for dir in ["", "tree", "mnt", "tree/d", "tree/e"] {
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(room.path().join(dir), open).unwrap();
    }
    let rig = mount(room, &Setup { replicas: 1, plain: true, rest: HOUR, ..Setup::default() });
    let dir = openat(CWD, rig.at("d"), OFlags::PATH, Mode::empty()).unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dir));
    let open = || {
        let own = own.clone();
        let opened = std::thread::spawn(move || {
            nix::unistd::setfsgid(65534.into());
            nix::unistd::setfsuid(65534.into());
            openat(CWD, own, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map(drop)
        });
        opened.join().unwrap()
    };
    // The kernel keeps the access control list that it asks for here.
    assert_eq!(open(), Ok(()));
    exchange(&rig, "d", "e");
    assert_eq!(open(), Err(Errno::STALE));
}
