//! An operation on an open file reaches that file, even if its name has changed.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, linkat,
};
use rustix::io::Errno;

use crate::needs;
use crate::processes::Command;
use crate::rig::{Rig, Setup, mount, root, tree};

fn attribute(path: impl AsRef<Path>, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 100];
    let len = rustix::fs::getxattr(path.as_ref(), name, &mut value[..]).ok()?;
    Some(value[..len].to_vec())
}

/// Files `a` and `b`, each with its name as an attribute. While `a` is open through the
/// mount, another client renames it to `moved`, and `b` to `a`.
fn renamed(plain: bool, rest: &'static str) -> Option<(Rig, File)> {
    let room = tree();
    for name in ["a", "b"] {
        fs::write(root(&room).join(name), name).unwrap();
        let own = root(&room).join(name);
        let is_set = rustix::fs::setxattr(&own, "user.name", name.as_bytes(), XattrFlags::empty());
        if !needs::machine(is_set.is_ok(), "extended attributes in the temporary directory") {
            return None;
        }
    }
    // A single replica, so it is the one with the open file.
    let rig = mount(room, &Setup { replicas: 1, write: true, plain, rest, ..Setup::default() });
    let file = File::open(rig.at("a")).unwrap();
    fs::rename(rig.source(0, "a"), rig.source(0, "moved")).unwrap();
    fs::rename(rig.source(0, "b"), rig.source(0, "a")).unwrap();
    Some((rig, file))
}

#[test]
fn attributes_follow_an_open_file_renamed_remotely() {
    let Some((rig, file)) = renamed(true, "") else { return };
    let mut value = [0; 10];
    assert_eq!(fgetxattr(&file, "user.name", &mut value[..]), Ok(1));
    assert_eq!(&value[..1], b"a", "of the file that has the name now");
    fsetxattr(&file, "user.new", b"1", XattrFlags::empty()).unwrap();
    assert_eq!(attribute(rig.source(0, "moved"), "user.new").as_deref(), Some(&b"1"[..]));
    assert_eq!(attribute(rig.source(0, "a"), "user.new"), None);
    let mut names = [0; 1000];
    let len = flistxattr(&file, &mut names[..]).unwrap();
    assert!(String::from_utf8_lossy(&names[..len]).contains("user.new"));
    fremovexattr(&file, "user.name").unwrap();
    assert_eq!(attribute(rig.source(0, "moved"), "user.name"), None);
    assert_eq!(attribute(rig.source(0, "a"), "user.name").as_deref(), Some(&b"b"[..]));
}

#[test]
fn links_and_modes_follow_an_open_file_renamed_remotely() {
    let Some((rig, file)) = renamed(true, "") else { return };
    let number = |name: &str| fs::metadata(rig.source(0, name)).unwrap().ino();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    linkat(CWD, &own, CWD, rig.at("link"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(number("link"), number("moved"));
    let other = fs::metadata(rig.source(0, "a")).unwrap().mode();
    file.set_permissions(fs::Permissions::from_mode(0o604)).unwrap();
    assert_eq!(fs::metadata(rig.source(0, "moved")).unwrap().mode() & 0o777, 0o604);
    assert_eq!(fs::metadata(rig.source(0, "a")).unwrap().mode(), other);
}

/// Without a descriptor fanfs asks the replica by path, which must lead to the same file.
#[test]
fn without_a_descriptor_a_replaced_name_is_left_alone() {
    let Some((rig, file)) = renamed(false, "") else { return };
    let mut value = [0; 10];
    let stale = Err(Errno::STALE);
    assert_eq!(fgetxattr(&file, "user.name", &mut value[..]), stale);
    assert_eq!(fsetxattr(&file, "user.name", b"x", XattrFlags::empty()).err(), stale.err());
    assert_eq!(fremovexattr(&file, "user.name").err(), stale.err());
    assert_eq!(attribute(rig.source(0, "a"), "user.name").as_deref(), Some(&b"b"[..]));
    assert_eq!(attribute(rig.source(0, "moved"), "user.name").as_deref(), Some(&b"a"[..]));
}

/// fanfs does not list a directory that has replaced the open one.
#[test]
fn a_listing_shows_the_opened_directory() {
    let room = tree();
    for dir in ["d", "e"] {
        fs::create_dir(root(&room).join(dir)).unwrap();
        fs::write(root(&room).join(dir).join(format!("in-{dir}")), "").unwrap();
    }
    let rig = mount(room, &Setup { replicas: 2, write: true, ..Setup::default() });
    use rustix::fs::{Mode, OFlags, open};
    let dir = open(rig.at("d"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    fs::rename(rig.source(0, "d"), rig.source(0, "moved")).unwrap();
    fs::rename(rig.source(0, "e"), rig.source(0, "d")).unwrap();
    let names = rustix::fs::Dir::new(dir)
        .unwrap()
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    let names: Result<Vec<_>, _> = names.collect();
    assert_eq!(names, Err(Errno::STALE));
}

/// Files on two file systems have the same inode numbers.
#[test]
fn below_a_nested_mount_no_other_file_is_changed() {
    if !needs::root() {
        return;
    }
    let room = tree();
    let nested = root(&room).join("nested");
    fs::create_dir(&nested).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&nested).status().unwrap();
    assert!(mounted.success());
    struct Unmount(std::path::PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _unmount = Unmount(nested.clone());
    for name in ["a", "b"] {
        fs::write(nested.join(name), "old").unwrap();
    }
    let rest = "[fuse]\nattribute_ttl = \"1h\"\n";
    let rig = mount(room, &Setup { replicas: 1, write: true, rest, ..Setup::default() });
    assert_eq!(fs::metadata(rig.at("nested/a")).unwrap().len(), 3);
    fs::rename(nested.join("a"), nested.join("moved")).unwrap();
    fs::rename(nested.join("b"), nested.join("a")).unwrap();
    let of_file = |name: &str| {
        let found = fs::metadata(nested.join(name)).unwrap();
        (found.mode() & 0o777, found.len())
    };
    let before = of_file("a");
    use rustix::fs::{Mode, OFlags};
    let open = rustix::fs::open(rig.at("nested/a"), OFlags::PATH, Mode::empty()).unwrap();
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    let set = fs::set_permissions(&own, fs::Permissions::from_mode(0o600));
    assert_eq!(set.unwrap_err().raw_os_error(), Some(Errno::STALE.raw_os_error()));
    let cut = nix::unistd::truncate(own.as_str(), 1);
    assert_eq!(cut, Err(nix::errno::Errno::ESTALE));
    assert_eq!(of_file("a"), before);
}

/// The kernel opens the file that it knows. It must look the name up again.
#[test]
fn a_remotely_removed_file_can_be_created_again() {
    let rest = "[fuse]\nattribute_ttl = \"1h\"\n";
    let rig = mount(tree(), &Setup { replicas: 2, write: true, rest, ..Setup::default() });
    let made = || fs::OpenOptions::new().create(true).clone();
    let opens = [
        ("O_CREAT", made().write(true).clone()),
        ("O_CREAT and O_TRUNC", made().write(true).truncate(true).clone()),
        ("O_CREAT and O_APPEND", made().append(true).clone()),
    ];
    let known_and_removed = |name: &str| {
        fs::write(rig.source(0, name), "old").unwrap();
        fs::metadata(rig.at(name)).unwrap();
        fs::remove_file(rig.source(0, name)).unwrap();
    };
    for (at, (what, how)) in opens.iter().enumerate() {
        let name = format!("f{at}");
        known_and_removed(&name);
        let opened = how.open(rig.at(&name));
        assert!(opened.is_ok(), "{what}: {opened:?}");
        assert_eq!(fs::read(rig.source(0, &name)).unwrap(), b"", "{what}");
    }
    known_and_removed("read");
    known_and_removed("write");
    let is_missing =
        |opened: std::io::Result<File>| opened.unwrap_err().kind() == std::io::ErrorKind::NotFound;
    assert!(is_missing(File::open(rig.at("read"))));
    assert!(is_missing(fs::OpenOptions::new().write(true).open(rig.at("write"))));
}
