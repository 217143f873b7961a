//! Names, attributes and directories.

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, fstat, mkdirat, mknodat, openat};

use crate::machine::attempts;
use crate::needs;
use crate::processes::Command;
use crate::rig::{Setup, mount, root, tree};

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// All fields of stat(2) except the time of access.
fn look(path: &Path) -> [i64; 11] {
    let m = fs::symlink_metadata(path).unwrap();
    let numbers = [m.nlink(), m.size(), m.rdev(), m.ino()].map(|number| number as i64);
    let [nlink, size, rdev, ino] = numbers;
    let (mode, uid, gid) = (i64::from(m.mode()), i64::from(m.uid()), i64::from(m.gid()));
    [mode, nlink, uid, gid, size, rdev, m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), ino]
}

#[test]
fn every_kind_of_object_looks_the_same() {
    let room = tree();
    let at = root(&room);
    fs::write(at.join("empty"), "").unwrap();
    fs::write(at.join("file"), "x").unwrap();
    fs::set_permissions(at.join("file"), PermissionsExt::from_mode(0o4711)).unwrap();
    fs::hard_link(at.join("file"), at.join("link")).unwrap();
    fs::create_dir(at.join("dir")).unwrap();
    for (name, target) in [("dangling", "nowhere"), ("up", "../../etc/passwd"), ("abs", "/etc")] {
        symlink(target, at.join(name)).unwrap();
    }
    fs::write(at.join(OsStr::from_bytes(b"\xff\xfe")), "not UTF-8").unwrap();
    fs::write(at.join("n".repeat(255)), "long").unwrap();
    mknodat(CWD, at.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at.join("sock")).unwrap();
    // Needs root; the others are worth testing without it.
    let _ = mknodat(
        CWD,
        at.join("chr"),
        FileType::CharacterDevice,
        Mode::RUSR,
        rustix::fs::makedev(1, 3),
    );
    let _ = mknodat(
        CWD,
        at.join("blk"),
        FileType::BlockDevice,
        Mode::RUSR,
        rustix::fs::makedev(259, 70_000),
    );
    let rig = mount(room, &Setup::default());
    let names: BTreeSet<OsString> =
        fs::read_dir(rig.source(0, "")).unwrap().map(|e| e.unwrap().file_name()).collect();
    let seen: BTreeSet<OsString> =
        fs::read_dir(rig.at("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, seen);
    for name in &names {
        assert_eq!(look(&rig.at(name)), look(&rig.source(0, name)), "{name:?}");
        if let Ok(target) = fs::read_link(rig.source(0, name)) {
            assert_eq!(fs::read_link(rig.at(name)).unwrap(), target);
        }
    }
    let ino = |name: &str| fs::symlink_metadata(rig.at(name)).unwrap().ino();
    assert_eq!(ino("file"), ino("link"), "hard links are one inode");
}

#[test]
fn inode_numbers_and_hard_links_survive_a_remount() {
    for copies in [false, true] {
        let room = tree();
        fs::write(root(&room).join("a"), "1").unwrap();
        fs::create_dir(root(&room).join("d")).unwrap();
        fs::write(root(&room).join("l1"), "2").unwrap();
        fs::hard_link(root(&room).join("l1"), root(&room).join("d/l2")).unwrap();
        let rig = mount(room, &Setup { copies, ..Setup::default() });
        let ino = |name: &str| fs::symlink_metadata(rig.at(name)).unwrap().ino();
        let first = [ino("a"), ino("d"), ino("l1"), ino("d/l2")];
        assert_eq!(first[2], first[3], "copies {copies}");
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 3);
        let rig = rig.again();
        let ino = |name: &str| fs::symlink_metadata(rig.at(name)).unwrap().ino();
        assert_eq!(first, [ino("a"), ino("d"), ino("l1"), ino("d/l2")], "copies {copies}");
    }
}

#[test]
fn a_read_only_mount_refuses_all_changes() {
    const EROFS: i32 = 30;
    let room = tree();
    fs::write(root(&room).join("f"), "x").unwrap();
    fs::create_dir(root(&room).join("d")).unwrap();
    let rig = mount(room, &Setup::default());
    assert_eq!(errno(File::create(rig.at("new"))), EROFS);
    assert_eq!(errno(File::options().write(true).open(rig.at("f"))), EROFS);
    assert_eq!(errno(fs::create_dir(rig.at("new"))), EROFS);
    assert_eq!(errno(fs::remove_file(rig.at("f"))), EROFS);
    assert_eq!(errno(fs::remove_dir(rig.at("d"))), EROFS);
    assert_eq!(errno(fs::rename(rig.at("f"), rig.at("g"))), EROFS);
    assert_eq!(errno(fs::hard_link(rig.at("f"), rig.at("g"))), EROFS);
    assert_eq!(errno(symlink("x", rig.at("g"))), EROFS);
    assert_eq!(errno(fs::set_permissions(rig.at("f"), PermissionsExt::from_mode(0o600))), EROFS);
    let set = rustix::fs::setxattr(rig.at("f"), "user.x", b"1", XattrFlags::empty());
    assert_eq!(set.unwrap_err().raw_os_error(), EROFS);
}

#[test]
fn errors_are_passed_on_from_the_replica() {
    let room = tree();
    fs::write(root(&room).join("f"), "x").unwrap();
    symlink("loop", root(&room).join("loop")).unwrap();
    let rig = mount(room, &Setup::default());
    for path in ["missing", "f/below", "loop", &"n".repeat(256), ""] {
        let (here, there) = (File::open(rig.at(path)), File::open(rig.source(0, path)));
        let code =
            |result: &io::Result<File>| result.as_ref().err().and_then(io::Error::raw_os_error);
        assert_eq!(code(&here), code(&there), "{path}");
    }
}

#[test]
fn extended_attributes_are_readable() {
    let room = tree();
    fs::write(root(&room).join("f"), "x").unwrap();
    let value = vec![7; 3000];
    let is_set =
        rustix::fs::setxattr(root(&room).join("f"), "user.key", &value, XattrFlags::empty());
    if !needs::machine(is_set.is_ok(), "extended attributes in the temporary directory") {
        return;
    }
    let rig = mount(room, &Setup::default());
    let mut buf = vec![0; 4000];
    let n = rustix::fs::getxattr(rig.at("f"), "user.key", &mut buf[..]).unwrap();
    assert_eq!(&buf[..n], &value[..]);
    assert_eq!(
        rustix::fs::getxattr(rig.at("f"), "user.key", &mut [0u8; 10][..]),
        Err(rustix::io::Errno::RANGE)
    );
    assert_eq!(
        rustix::fs::getxattr(rig.at("f"), "user.no", &mut buf[..]),
        Err(rustix::io::Errno::NODATA)
    );
    let mut names = [0u8; 100];
    let n = rustix::fs::listxattr(rig.at("f"), &mut names[..]).unwrap();
    assert_eq!(&names[..n], b"user.key\0");
}

#[test]
fn a_hundred_thousand_entries_are_listed_once_each() {
    let room = tree();
    let dir = root(&room).join("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..100_000 {
        File::create(dir.join(format!("entry-{i}"))).unwrap();
    }
    let rig = mount(room, &Setup::default());
    let names: Vec<OsString> =
        fs::read_dir(rig.at("many")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 100_000);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 100_000);
    for name in names.iter().step_by(9973) {
        assert_eq!(fs::metadata(rig.at("many").join(name)).unwrap().len(), 0);
    }
}

#[test]
fn directory_offsets_stay_valid_and_rewind_lists_again() {
    let room = tree();
    for i in 0..500 {
        File::create(root(&room).join(format!("f{i}"))).unwrap();
    }
    let rig = mount(room, &Setup::default());
    let dir = File::open(rig.at("")).unwrap();
    let mut stream = rustix::fs::Dir::read_from(&dir).unwrap();
    let all: Vec<_> = stream
        .by_ref()
        .map(|e| e.unwrap())
        .map(|e| (e.offset(), e.file_name().to_owned()))
        .collect();
    assert_eq!(all.len(), 502);
    for at in [0, 1, 2, 77, 300, 500] {
        stream.seek(all[at].0).unwrap();
        let next = stream.next().unwrap().unwrap();
        assert_eq!(next.file_name(), all[at + 1].1.as_c_str());
    }
    File::create(rig.source(0, "new")).unwrap();
    stream.rewind();
    let again = stream.by_ref().map(|e| e.unwrap().file_name().to_owned()).collect::<BTreeSet<_>>();
    assert!(again.contains(c"new"));
    assert_eq!(again.len(), 503);
}

/// A listing is read once for each handle and rewind: names that come and go meanwhile leave the
/// offsets of the others unchanged. On a busy machine another replica may be asked for it too.
#[test]
fn a_handle_lists_its_directory_once_until_it_is_rewound() {
    attempts(list_while_names_change);
}

fn list_while_names_change() {
    let room = tree();
    for i in 0..2000 {
        File::create(root(&room).join(format!("file-of-a-long-name-{i}"))).unwrap();
    }
    let rig = mount(room, &Setup::default());
    rig.record();
    let listed = || {
        let calls = rig.recorded().into_iter().flatten();
        calls.filter(|call| *call == crate::recorder::Call::List).count()
    };
    let dir = File::open(rig.at("")).unwrap();
    let mut stream = rustix::fs::Dir::read_from(&dir).unwrap();
    let first = stream.next().unwrap().unwrap().file_name().to_owned();
    for i in (0..2000).step_by(3) {
        fs::remove_file(rig.source(0, format!("file-of-a-long-name-{i}"))).unwrap();
    }
    let mut names: Vec<_> = stream.by_ref().map(|e| e.unwrap().file_name().to_owned()).collect();
    names.push(first);
    assert_eq!(listed(), 1);
    let once: BTreeSet<_> = names.iter().collect();
    assert_eq!(once.len(), names.len(), "a name came twice");
    for i in (1..2000).step_by(3) {
        let left = std::ffi::CString::new(format!("file-of-a-long-name-{i}")).unwrap();
        assert!(once.contains(&left), "{left:?} did not come");
    }
    stream.rewind();
    assert_eq!(stream.by_ref().count(), 1333 + 2);
    assert_eq!(listed(), 2);
}

/// fanfs has neither: the kernel answers for it.
#[test]
fn a_file_has_no_ioctl_and_is_always_ready() {
    use rustix::event::{PollFd, PollFlags, poll};
    let room = tree();
    fs::write(root(&room).join("f"), "x").unwrap();
    let rig = mount(room, &Setup::default());
    let file = File::open(rig.at("f")).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file), Err(rustix::io::Errno::NOTTY));
    let mut ready = [PollFd::new(&file, PollFlags::IN)];
    assert_eq!(poll(&mut ready, None), Ok(1));
    assert_eq!(ready[0].revents(), PollFlags::IN);
}

#[test]
fn paths_longer_than_path_max_are_reachable() {
    let room = tree();
    let name = "d".repeat(200);
    let mut dir = File::open(root(&room)).unwrap();
    for _ in 0..30 {
        rustix::fs::mkdirat(&dir, &*name, Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::RDONLY;
        dir = rustix::fs::openat(&dir, &*name, flags, Mode::empty()).unwrap().into();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    rustix::io::write(rustix::fs::openat(&dir, "deep", flags, Mode::RUSR).unwrap(), b"deep")
        .unwrap();
    let rig = mount(room, &Setup::default());
    let mut dir = File::open(rig.at("")).unwrap();
    for _ in 0..30 {
        let flags = rustix::fs::OFlags::RDONLY;
        dir = rustix::fs::openat(&dir, &*name, flags, Mode::empty()).unwrap().into();
    }
    let file = rustix::fs::openat(&dir, "deep", rustix::fs::OFlags::RDONLY, Mode::empty()).unwrap();
    let mut buf = [0; 10];
    assert_eq!(rustix::io::read(&file, &mut buf[..]).unwrap(), 4);
}

#[test]
fn permissions_are_checked_for_the_caller() {
    if !needs::root() {
        return;
    }
    let room = tree();
    fs::write(root(&room).join("mine"), "x").unwrap();
    fs::set_permissions(root(&room).join("mine"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(root(&room).join("all"), "x").unwrap();
    fs::set_permissions(root(&room).join("all"), PermissionsExt::from_mode(0o644)).unwrap();
    fs::set_permissions(room.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let rig = mount(room, &Setup::default());
    let cat = |name: &str| {
        let mut command = Command::new("cat");
        command.arg(rig.at(name));
        command.ids(12345, 12345).output().unwrap()
    };
    assert!(cat("all").status.success());
    let refused = cat("mine");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Permission denied"));
}

#[test]
fn the_volume_reports_the_size_of_one_replica() {
    let rig = mount(tree(), &Setup { replicas: 5, ..Setup::default() });
    let (here, there) =
        (rustix::fs::statvfs(rig.at("")).unwrap(), rustix::fs::statvfs(rig.source(0, "")).unwrap());
    assert_eq!(here.f_blocks * here.f_frsize, there.f_blocks * there.f_frsize);
    assert_eq!(here.f_namemax, there.f_namemax);
}

/// As on ext4. The kernel holds a directory by a descriptor, with and without read permission, or
/// as the current directory; another one may have its name, or its number, by then.
#[test]
fn a_removed_open_directory_has_no_links_or_entries() {
    for replicas in [1, 3] {
        let rest = "[fuse]\nattribute_ttl = \"0s\"\n";
        let setup = Setup { replicas, rest, write: true, ..Setup::default() };
        let rig = mount(tree(), &setup);
        for (i, how) in ["rmdir", "rename over it", "rmdir and mkdir"].into_iter().enumerate() {
            let name = format!("d{i}");
            let dir = rig.at(&name);
            fs::create_dir(&dir).unwrap();
            let read = OFlags::RDONLY | OFlags::DIRECTORY;
            let held = [read, OFlags::PATH].map(|flags| openat(CWD, &dir, flags, Mode::empty()));
            let held = held.map(Result::unwrap);
            let number = fstat(&held[0]).unwrap().st_ino;
            match how {
                "rename over it" => {
                    fs::create_dir(rig.at("other")).unwrap();
                    fs::rename(rig.at("other"), &dir).unwrap();
                }
                _ => fs::remove_dir(&dir).unwrap(),
            }
            if how == "rmdir and mkdir" {
                fs::create_dir(&dir).unwrap();
                fs::write(dir.join("file"), "").unwrap();
            }
            for (i, held) in held.iter().enumerate() {
                let found = fstat(held).unwrap_or_else(|error| panic!("{how}, {i}: {error}"));
                let mode = FileType::from_raw_mode(found.st_mode);
                let found = (found.st_nlink, found.st_ino, mode);
                assert_eq!(found, (0, number, FileType::Directory), "{how}, {i}");
            }
            let again = rustix::fs::Dir::read_from(&held[0]).unwrap();
            let names: Vec<_> =
                again.map(|entry| entry.map(|e| e.file_name().to_owned())).collect();
            assert!(names.is_empty(), "{how}: {names:?}");
            let made = mkdirat(&held[0], "new", Mode::from_raw_mode(0o755));
            assert_eq!(made, Err(rustix::io::Errno::NOENT), "{how}");
        }
        rig.expect_quiet();
    }
}

/// `struct file_handle` of name_to_handle_at(2), with room for every handle.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; nix::libc::MAX_HANDLE_SZ as usize],
}

/// The kernel finds cached inodes by handle, and asks the daemon for no others: on another mount it
/// has not cached the inode yet.
#[test]
fn a_file_handle_is_stale_once_the_kernel_has_evicted_its_inode() {
    if !needs::root() {
        return;
    }
    let room = tree();
    fs::write(root(&room).join("f"), "content").unwrap();
    let rig = mount(room, &Setup::default());
    let mut handle = Handle { bytes: nix::libc::MAX_HANDLE_SZ as u32, kind: 0, handle: [0; 128] };
    let (path, mut mount_id) = (CString::new(rig.at("f").as_os_str().as_bytes()).unwrap(), 0);
    // SAFETY: the path ends with a NUL; the handle has as much room as it says.
    let found = unsafe {
        let handle = (&raw mut handle).cast();
        nix::libc::name_to_handle_at(nix::libc::AT_FDCWD, path.as_ptr(), handle, &mut mount_id, 0)
    };
    assert_eq!(found, 0, "{}", io::Error::last_os_error());
    let mut open = |at: &Path| {
        let mount = File::open(at).unwrap();
        // SAFETY: the handle is the one that the kernel gave.
        let fd = unsafe {
            let handle = (&raw mut handle).cast();
            nix::libc::open_by_handle_at(mount.as_raw_fd(), handle, nix::libc::O_RDONLY)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error().raw_os_error());
        }
        // SAFETY: it was opened here and has no other owner.
        io::read_to_string(unsafe { File::from_raw_fd(fd) }).map_err(|e| e.raw_os_error())
    };
    assert_eq!(open(&rig.at("")), Ok("content".to_owned()));
    let rig = rig.again();
    assert_eq!(open(&rig.at("")), Err(Some(nix::libc::ESTALE)));
    fs::metadata(rig.at("f")).unwrap();
    assert_eq!(open(&rig.at("")), Ok("content".to_owned()));
    rig.expect_quiet();
}
