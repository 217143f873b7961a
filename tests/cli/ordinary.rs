//! The program as an ordinary user starts it, with mounts by fusermount3.
//!
//! Each test has its own mount table, where every user may open the FUSE device, as on machines
//! with udev, and where `/etc/fuse.conf` has the content that the test needs. That needs root; the
//! test changes to an ordinary user for each command.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};

use super::privileges::of_all_threads;
use crate::needs;
use crate::room::Room;

/// The user id of `nobody`.
const USER: u32 = 54_321;

/// Shows that the test runs in its own mount table.
const OWN: &str = "/mnt";

/// A room of the user's in a mount table of this thread's; `None` where that is impossible.
fn own_room(fuse_conf: &str) -> Option<Room> {
    if !needs::root() || !needs::program("fusermount3") {
        return None;
    }
    let room = Room::new();
    for path in ["", "mnt", "run"] {
        chown(room.path(path), Some(USER), Some(USER)).unwrap();
    }
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let apart = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", apart).unwrap();
    let own = Path::new(OWN);
    mount("own", own, "tmpfs", MountFlags::empty(), None).unwrap();
    let (kind, all) = (FileType::CharacterDevice, Mode::from_raw_mode(0o666));
    mknodat(CWD, own.join("fuse"), kind, all, makedev(10, 229)).unwrap();
    fs::set_permissions(own.join("fuse"), PermissionsExt::from_mode(0o666)).unwrap();
    mount_bind(own.join("fuse"), "/dev/fuse").unwrap();
    fs::write(own.join("fuse.conf"), fuse_conf).unwrap();
    mount_bind(own.join("fuse.conf"), "/etc/fuse.conf").unwrap();
    // fusermount3 needs an entry for the user.
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let user = format!("{users}fanfs-test:x:{USER}:{USER}::/:/bin/sh\n");
    fs::write(own.join("passwd"), user).unwrap();
    mount_bind(own.join("passwd"), "/etc/passwd").unwrap();
    Some(room)
}

/// `command`, run by the user, who has no supplementary groups.
fn by_user(mut command: Command) -> Output {
    command.uid(USER).gid(USER).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn expect(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

/// The user reads this path of the room.
fn reads(room: &Room, path: &str) -> Output {
    let mut cat = Command::new("cat");
    cat.arg(room.path(path));
    by_user(cat)
}

#[test]
fn an_ordinary_user_mounts_queries_and_unmounts() {
    let Some(room) = own_room("") else { return };
    expect(&by_user(room.fanfs(&["mount", "v.toml", "mnt"])));
    let line = room.mounted().unwrap();
    assert!(line.contains(&format!("user_id={USER},group_id={USER}")), "{line}");
    assert!(line.contains("ro,nosuid,nodev") && line.contains("default_permissions"), "{line}");
    let sets = of_all_threads(room.first_process().as_raw_nonzero().get());
    assert!(sets.iter().all(|[used, permitted, _]| used | permitted == 0), "{sets:x?}");
    assert_eq!(reads(&room, "mnt/hello").stdout, b"hello\n");
    // Not even root is let in.
    let root = fs::read(room.path("mnt/hello")).unwrap_err();
    assert_eq!(root.kind(), std::io::ErrorKind::PermissionDenied);
    let status = by_user(room.fanfs(&["status", "mnt", "--json"]));
    expect(&status);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["counters"]["bytes_delivered"], 6);
    let again = by_user(room.fanfs(&["mount", "v.toml", "mnt"]));
    assert!(said(&again).contains("already a mount point, of volume v"), "{}", said(&again));
    expect(&by_user(room.fanfs(&["umount", "mnt"])));
    room.expect_gone();
    // And once more, ended by a signal.
    expect(&by_user(room.fanfs(&["mount", "v.toml", "mnt"])));
    let daemon = room.first_process();
    rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
    room.expect_gone();
}

#[test]
fn root_sees_the_dead_daemon_of_an_ordinary_user() {
    let Some(room) = own_room("") else { return };
    expect(&by_user(room.fanfs(&["mount", "v.toml", "mnt"])));
    let point = room.path("mnt").display().to_string();
    let check = || room.fanfs(&["status", "--check"]).env("FANFS_RUNTIME_DIR", "run2").output();
    let alive = String::from_utf8(check().unwrap().stdout).unwrap();
    assert!(!alive.contains(&point), "{alive}");
    let daemon = room.first_process();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    room.eventually("it is dead", || room.daemons().is_empty());
    for args in [&["status"][..], &["status", "--check"], &["status", "mnt"]] {
        let output = room.fanfs(args).output().unwrap();
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains(&format!("{point}: its daemon has died")), "{args:?}: {text}");
        let mount = format!("sudo -u '#{USER}' fanfs mount FILE {point}; FILE is the");
        assert!(text.contains(&mount), "{args:?}: {text}");
    }
    room.expect(&["umount", "mnt"]);
}

#[test]
fn an_ordinary_user_writes_with_their_own_identity() {
    let Some(room) = own_room("") else { return };
    chown(room.path("tree"), Some(USER), Some(USER)).unwrap();
    room.write_volume("v.toml", "");
    expect(&by_user(room.fanfs(&["mount", "v.toml", "mnt"])));
    let mut sh = Command::new("sh");
    sh.arg("-c")
        .arg("echo made >mnt/made && mkdir mnt/dir && mv mnt/made mnt/dir && cat mnt/dir/*");
    sh.current_dir(room.path(""));
    let done = by_user(sh);
    expect(&done);
    assert_eq!(done.stdout, b"made\n");
    let made = fs::metadata(room.path("tree/dir/made")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made), USER);
    // The user may not change root's files.
    let mut sh = Command::new("sh");
    sh.arg("-c").arg("echo more >>mnt/hello").current_dir(room.path(""));
    assert!(said(&by_user(sh)).contains("Permission denied"));
    expect(&by_user(room.fanfs(&["umount", "mnt"])));
    room.expect_gone();
}

#[test]
fn access_for_others_needs_user_allow_other() {
    let Some(room) = own_room("") else { return };
    let refused = by_user(room.fanfs(&["mount", "v.toml", "mnt", "-o", "allow_other"]));
    assert_eq!(refused.status.code(), Some(1));
    let text = said(&refused);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("user_allow_other") && text.contains("/etc/fuse.conf"), "{text}");
    room.expect_gone();
    fs::write(Path::new(OWN).join("fuse.conf"), "user_allow_other\n").unwrap();
    expect(&by_user(room.fanfs(&["mount", "v.toml", "mnt", "-o", "allow_other"])));
    assert_eq!(fs::read_to_string(room.path("mnt/hello")).unwrap(), "hello\n");
    expect(&by_user(room.fanfs(&["umount", "mnt"])));
    room.expect_gone();
}

#[test]
fn an_ordinary_users_problem_is_one_error_line() {
    let Some(room) = own_room("") else { return };
    let refused = |output: Output, why: &str| {
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(why) && text.lines().count() == 1, "{text}");
    };
    // A directory that does not belong to the user.
    fs::create_dir(Path::new(OWN).join("mnt")).unwrap();
    refused(by_user(room.fanfs(&["mount", "v.toml", "/mnt/mnt"])), "fusermount3:");
    // No helper.
    let mut command = room.fanfs(&["mount", "v.toml", "mnt"]);
    command.env("PATH", room.path("other"));
    refused(by_user(command), "needs fusermount3 (package fuse3)");
    // A replica that the user may not enter.
    fs::set_permissions(room.path("tree"), PermissionsExt::from_mode(0o700)).unwrap();
    refused(by_user(room.fanfs(&["mount", "v.toml", "mnt"])), "Permission denied");
    fs::set_permissions(room.path("tree"), PermissionsExt::from_mode(0o755)).unwrap();
    // Another user's mount.
    chown(room.path("run"), Some(0), Some(0)).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    let text = said(&by_user(room.fanfs(&["umount", "mnt"])));
    assert!(text.contains("root mounted it, and only root may unmount it"), "{text}");
    room.expect(&["umount", "mnt"]);
    chown(room.path("run"), Some(USER), Some(USER)).unwrap();
    // The device.
    fs::set_permissions(Path::new(OWN).join("fuse"), PermissionsExt::from_mode(0o600)).unwrap();
    refused(by_user(room.fanfs(&["mount", "v.toml", "mnt"])), "may not open /dev/fuse");
    room.expect_gone();
}

#[test]
fn the_runtime_directory_belongs_to_the_user() {
    let Some(room) = own_room("") else { return };
    let run = room.path("run");
    let places = |root: &Path| {
        let found = fs::read_dir(root).map(|entries| {
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        });
        found.unwrap_or_else(|_| Vec::<String>::new())
    };
    let socket = |root: &Path| places(root).into_iter().find(|name| name.ends_with(".sock"));
    let with = |args: &[&str], xdg: Option<&Path>| {
        let mut command = room.fanfs(args);
        command.env_remove("FANFS_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR");
        command.env("FANFS_TEST_ROOM", &run);
        match xdg {
            Some(xdg) => command.env("FANFS_RUNTIME_DIR", "").env("XDG_RUNTIME_DIR", xdg),
            // Set and empty is the same as not set.
            None => command.env("XDG_RUNTIME_DIR", ""),
        };
        by_user(command)
    };
    let fallback = format!("/tmp/fanfs-{USER}");
    let fallback = Path::new(&fallback);
    let _ = fs::remove_dir_all(fallback);
    for (xdg, dir) in [(Some(&*run), run.join("fanfs")), (None, fallback.to_owned())] {
        expect(&with(&["mount", "v.toml", "mnt"], xdg));
        assert!(socket(&dir).is_some(), "{dir:?}: {:?}", places(&dir));
        let mode = fs::metadata(&dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        expect(&with(&["status", "mnt"], xdg));
        expect(&with(&["umount", "mnt"], xdg));
        assert_eq!(socket(&dir), None);
    }
    // A directory made by another user is not used.
    fs::remove_dir_all(fallback).unwrap();
    fs::create_dir(fallback).unwrap();
    let refused = with(&["mount", "v.toml", "mnt"], None);
    fs::remove_dir_all(fallback).unwrap();
    assert!(said(&refused).contains("not a directory that this user owns"), "{}", said(&refused));
    assert!(room.mounted().is_none());
}
