//! What a daemon's log tells, and what it keeps to itself: no name of a file, whatever
//! went wrong with it, at the level that is usual and at `info` of everything.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::process::Command;

use crate::room::Room;

/// In every name.
const NAME: &str = "telltale";

/// Everything that goes wrong with a file below `dir` of the mount, and with what is
/// asked about it.
fn mishaps(room: &Room, dir: &str) {
    let at = |name: &str| room.path("mnt").join(dir).join(name);
    let below = |name: &str| room.path("tree").join(dir).join(name);
    assert!(fs::read(at("telltale-missing")).is_err());
    assert!(fs::read_link(at("telltale-file")).is_err());
    assert!(fs::read_dir(at("telltale-file")).is_err());
    assert!(fs::read(at(&format!("telltale-{}", "x".repeat(300)))).is_err());
    assert!(
        fs::write(at("telltale-new"), "").is_err() || fs::remove_file(at("telltale-new")).is_ok()
    );
    // Cut off under who reads it, and gone.
    let file = File::open(at("telltale-large")).unwrap();
    fs::OpenOptions::new().write(true).open(below("telltale-large")).unwrap().set_len(100).unwrap();
    let _ = file.read_at(&mut vec![0; 1 << 20], 4 << 20);
    fs::remove_file(below("telltale-large")).unwrap();
    let _ = file.read_at(&mut vec![0; 1 << 20], 8 << 20);
    let _ = fs::metadata(at("telltale-large"));
    // What the FUSE library knows, and fanfs does not offer.
    let isatty = "import sys\nfor n in sys.argv[1:]: open(n).isatty()";
    let _ = Command::new("python3").args(["-c", isatty]).arg(at("telltale-file")).status();
    let _ = rustix::fs::getxattr(at("telltale-file"), "user.telltale", &mut [0u8; 10][..]);
    // Asked about by others, well or not.
    let explained = room.fanfs(&["explain"]).arg(at("telltale-file")).output().unwrap();
    assert!(String::from_utf8_lossy(&explained.stdout).contains(NAME));
    let socket = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    let socket = socket.into_iter().find(|p| p.extension().is_some_and(|e| e == "sock")).unwrap();
    for request in
        ["{\"ask\":\"telltale\"}\n", "{\"ask\":\"explain\",\"path\":\"telltale/../..\"}\n"]
    {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_string(&mut String::new()).unwrap();
    }
}

fn fill(room: &Room, dir: &str) {
    let tree = room.path("tree").join(dir);
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("telltale-file"), vec![1; 9 << 20]).unwrap();
    fs::write(tree.join("telltale-large"), vec![1; 9 << 20]).unwrap();
}

/// Runs the daemon through the mishaps and returns its log.
fn logged(room: &Room, level: Option<&str>) -> String {
    fill(room, "telltale-dir");
    let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
    match level {
        Some(level) => mount.env("FANFS_LOG", level),
        None => mount.env_remove("FANFS_LOG"),
    };
    assert!(mount.status().unwrap().success());
    mishaps(room, "telltale-dir");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    room.log()
}

#[test]
fn no_file_is_named_in_the_log() {
    for level in [None, Some("info")] {
        let room = Room::new();
        let tool = room.path("tool");
        fs::write(&tool, "#!/bin/sh\necho \"no placement of $1 at all\" >&2\nexit 1\n").unwrap();
        fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        let placement = format!(
            "[placement]\nprovider = \"exec\"\ncommand = [\"{}\", \"{{path}}\"]\n",
            tool.display()
        );
        room.write_volume("v.toml", &placement);
        let text = logged(&room, level);
        assert!(!text.contains(NAME), "{text}");
        // It says that something went wrong, and does not say more than once that a
        // call is not known.
        assert!(text.contains("mounted") && text.contains("no placement"), "{text}");
        assert!(!text.contains("Not Implemented"), "{text}");
    }
}

#[test]
fn copies_that_differ_are_told_without_their_names() {
    let room = Room::new();
    fill(&room, "telltale-dir");
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(room.path("tree")).arg(room.path("copy"));
    assert!(copy.status().unwrap().success());
    fs::write(room.path("copy/telltale-dir/telltale-file"), "other").unwrap();
    fs::remove_file(room.path("copy/telltale-dir/telltale-large")).unwrap();
    let text = format!(
        "[volume]\nname = \"v\"\nmode = \"copies\"\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n",
        room.path("tree").display(),
        room.path("copy").display()
    );
    fs::write(room.path("v.toml"), text).unwrap();
    let mut mount = room.fanfs(&["mount", "v.toml", "mnt"]);
    assert!(mount.env("FANFS_LOG", "info").status().unwrap().success());
    for name in ["telltale-file", "telltale-large"] {
        let path = room.path("mnt/telltale-dir").join(name);
        assert!(fs::read(path).unwrap() == vec![1; 9 << 20]);
    }
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
    let text = room.log();
    assert!(!text.contains(NAME), "{text}");
    assert!(text.contains("another version of a file"), "{text}");
}

#[test]
fn who_asks_for_names_gets_them() {
    // Else the tests above would show nothing.
    let room = Room::new();
    room.volume("v.toml", "", "");
    assert!(logged(&room, Some("debug")).contains(NAME));
}
