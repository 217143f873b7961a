//! Automounts of systemd's units or automount(8), which mount at the first access: only the process
//! group that mounts gets past the mount point until the mount is done.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::needs;
use crate::room::Room;

#[test]
fn access_to_an_automount_mounts_the_volume() {
    let filesystems = fs::read_to_string("/proc/filesystems").unwrap();
    if !needs::root() || !needs::machine(filesystems.contains("autofs"), "autofs") {
        return;
    }
    let room = Room::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/automount.py");
    for options in ["ro", "keeper"] {
        let mut command = room.program::<&str>(Path::new("python3"), &[]);
        command.arg(&script).arg(room.path("mnt")).args(["20", env!("CARGO_BIN_EXE_fanfs")]);
        command.args(["mount", "v.toml", "mnt", "-o", options]);
        let mut automount =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let mut said = BufReader::new(automount.stdout.take().unwrap()).lines();
        let mut line = || said.next().unwrap().unwrap();
        assert_eq!(line(), "waits");
        // In this test's group, not in the group that mounts.
        let look = Command::new("cat").arg(room.path("mnt/hello")).process_group(0).output();
        assert_eq!(line(), "done", "{options}");
        let look = look.unwrap();
        assert_eq!(String::from_utf8_lossy(&look.stdout), "hello\n", "{options}: {look:?}");
        // No process stays in the group that mounts.
        let group = |pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(2).unwrap().to_owned()
        };
        let mounts = automount.id().to_string();
        room.eventually("all have left the group", || {
            room.daemons().into_iter().all(|pid| group(pid) != mounts)
        });
        room.expect(&["umount", "mnt"]);
        drop(automount.stdin.take());
        assert!(automount.wait().unwrap().success());
        room.expect_gone();
    }
}
