//! A journal that is rewritten during an ordinary user's call.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{kernel_resends, kill, room, unmount};
use crate::needs;
use crate::room::Room;

/// An ordinary user.
const USER: u32 = 65_534;

/// With so many files the daemon rewrites its journal.
const FILES: usize = 4_000;

/// An ordinary user makes files in `dir` of the mount.
fn make_files(room: &Room, dir: &str) {
    let script = format!("i=0; while [ $i -lt {FILES} ]; do : > f$i; i=$((i+1)); done");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(room.path(dir));
    assert!(shell.uid(USER).gid(USER).status().unwrap().success());
}

#[test]
fn after_load_and_a_kill_descriptors_read_their_own_files() {
    if !kernel_resends() || !needs::root() {
        return;
    }
    let room = room(2, "rw");
    fs::write(room.path("tree/secret"), "secret").unwrap();
    fs::set_permissions(room.path("tree/secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(room.path("tree/theirs")).unwrap();
    for dir in [room.path(""), room.path("tree/theirs")] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    room.expect(&["mount", "v.toml", "mnt", "-o", "keeper,allow_other"]);
    make_files(&room, "mnt/theirs");
    let open: Vec<_> =
        (0..20).map(|i| File::open(room.path(&format!("mnt/file-{i:03}"))).unwrap()).collect();
    kill(&room);
    let read = |i: usize| {
        let mut bytes = [0; 16];
        let n = open[i].read_at(&mut bytes, 0)?;
        std::io::Result::Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
    };
    // These opens get their numbers from the successor.
    for _ in 0..FILES {
        let _secret = File::open(room.path("mnt/secret")).unwrap();
        let found = read(0);
        assert!(found.as_ref().map_or(true, |found| found == "0\n"), "another file's: {found:?}");
    }
    for i in 0..open.len() {
        assert_eq!(read(i).unwrap(), format!("{i}\n"));
    }
    drop(open);
    unmount(&room);
}
