//! The mount enforces the access control lists of a replica.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::needs;
use crate::room::Room;

/// Denied by the lists.
const DENIED: u32 = 4321;
/// Not mentioned in them.
const ALLOWED: u32 = 4322;

fn tool(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// The output of `acl.py` for a user in a directory.
fn looks(dir: &Path, user: u32) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/acl.py");
    let output =
        Command::new("python3").arg(script).arg(dir).arg(user.to_string()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A mounted tree with access control lists; `None` without support for them or without
/// root.
fn room(access: &str) -> Option<Room> {
    if !needs::root() || !needs::program("python3") || !needs::program("setfacl") {
        return None;
    }
    let room = Room::new();
    let tree = room.path("tree");
    let at = |name: &str| tree.join(name).display().to_string();
    fs::create_dir(tree.join("denied")).unwrap();
    for file in ["denied/file", "file", "plain"] {
        fs::write(tree.join(file), "text\n").unwrap();
        if !needs::machine(python_xattr(&at(file), "user.secret"), "extended attributes") {
            return None;
        }
    }
    let _ = python_xattr(&at("plain"), "trusted.name");
    std::os::unix::fs::symlink("target", tree.join("denied/link")).unwrap();
    fs::write(tree.join("program"), "#!/bin/sh\necho ran\n").unwrap();
    for name in ["program", "denied", "file"] {
        fs::set_permissions(tree.join(name), PermissionsExt::from_mode(0o755)).unwrap();
        let is_set = tool("setfacl", &["-m", &format!("u:{DENIED}:---"), &at(name)]);
        if !needs::machine(is_set, "access control lists") {
            return None;
        }
    }
    fs::set_permissions(room.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    room.volume("v.toml", "", "[fuse]\nallow_other = true\n");
    let text = fs::read_to_string(room.path("v.toml")).unwrap();
    let text = text.replace("mode = \"shared\"\n", &format!("mode = \"shared\"\n{access}"));
    fs::write(room.path("v.toml"), text).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    Some(room)
}

fn python_xattr(path: &str, name: &str) -> bool {
    let set = format!("import os; os.setxattr({path:?}, {name:?}, b'value')");
    tool("python3", &["-c", &set])
}

#[test]
fn replica_acls_apply_with_cold_and_warm_caches() {
    let Some(room) = room("") else { return };
    let (tree, mnt) = (room.path("tree"), room.path("mnt"));
    let right = looks(&tree, DENIED);
    assert!(right.contains("stat in 13\n") && right.contains("plain text"), "{right}");
    assert!(!right.contains("trusted."), "{right}");
    // First with cold caches, then after the kernel has cached answers for an allowed user
    // and for root.
    assert_eq!(looks(&mnt, DENIED), right, "cold");
    for other in [ALLOWED, 0] {
        assert_eq!(looks(&mnt, other), looks(&tree, other), "user {other}");
        assert_eq!(looks(&mnt, DENIED), right, "after user {other}");
    }
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn acl_changes_through_the_mount_apply_at_once() {
    let Some(room) = room("access = \"rw\"\n") else { return };
    let (tree, mnt) = (room.path("tree"), room.path("mnt"));
    let file = mnt.join("file").display().to_string();
    let same = |what: &str| {
        for user in [DENIED, ALLOWED, 0] {
            assert_eq!(looks(&mnt, user), looks(&tree, user), "{what}: user {user}");
        }
    };
    same("as they are");
    assert!(tool("setfacl", &["-x", &format!("u:{DENIED}"), &file]));
    assert!(looks(&mnt, DENIED).contains("read text"), "the list no longer denies");
    same("without the entry");
    assert!(tool("setfacl", &["-m", &format!("u:{ALLOWED}:---"), &file]));
    assert!(looks(&mnt, ALLOWED).contains("read 13"), "the list denies");
    same("with another entry");
    fs::set_permissions(mnt.join("file"), PermissionsExt::from_mode(0o700)).unwrap();
    same("after a chmod, which is the list's mask");
    assert!(tool("setfacl", &["-b", &file]));
    same("without a list");
    // A new file may reuse the inode number of one with a list, and must not inherit the list.
    fs::remove_file(mnt.join("program")).unwrap();
    for number in 0..5 {
        fs::write(mnt.join("program"), format!("#!/bin/sh\necho {number}\n")).unwrap();
        fs::set_permissions(mnt.join("program"), PermissionsExt::from_mode(0o755)).unwrap();
        same("a new file");
        fs::remove_file(mnt.join("program")).unwrap();
    }
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}
