//! The helper of mount(8): its flags, its exit statuses, and mount(8) itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use crate::needs;
use crate::room::Room;

/// A room with `mount.fanfs` in it.
fn room() -> Room {
    let room = Room::new();
    symlink(env!("CARGO_BIN_EXE_fanfs"), room.path("mount.fanfs")).unwrap();
    room
}

fn helper(room: &Room, args: &[&str]) -> Output {
    room.program(&room.path("mount.fanfs"), args).output().unwrap()
}

#[test]
fn the_helper_exits_with_the_statuses_of_mount() {
    let room = room();
    for (args, status, said) in [
        (&["v.toml", "mnt", "-f", "-v"][..], 0, ""),
        (&["none.toml", "mnt", "-f"], 1, "none.toml: cannot be read"),
        (&["v.toml", "mnt", "-o", "remount,ro"], 1, "`remount` is not supported"),
        (&["v.toml", "mnt", "-o", "allow_othr"], 1, "did you mean `allow_other`?"),
        (&["v.toml"], 1, "usage: mount.fanfs VOLUME MOUNTPOINT"),
        (&["v.toml", "mnt", "-x"], 1, "flag `-x` is not known"),
        (&["v.toml", "nowhere"], 32, "nowhere: No such file or directory"),
        (&["v.toml", "mnt", "-N", "/nowhere"], 32, "mount namespace /nowhere: No such file"),
        (&["no-such-volume", "mnt"], 1, "/etc/fanfs/no-such-volume.toml: cannot be read"),
    ] {
        let output = helper(&room, args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        assert!(text.contains(said) && text.lines().count() <= 1, "{args:?}: {text}");
    }
    assert!(room.mounted().is_none());
    let help = helper(&room, &["--help"]);
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).unwrap();
    for word in ["-N NAMESPACE", "allow_other", "keeper", "32 failed", "/etc/fstab"] {
        assert!(help.contains(word), "{word} is missing in\n{help}");
    }
}

#[test]
fn the_helper_mounts_in_another_namespace() {
    if !needs::root() {
        return;
    }
    let room = room();
    // A process with its own mount table; it ends with its standard input.
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo; read _"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read(other.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let pid = other.id().to_string();
    let output = helper(&room, &["v.toml", "mnt", "-nvs", "-N", &pid, "-o", "unheard_of"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(room.mounted().is_none(), "it is seen here");
    let theirs = fs::read(format!("/proc/{pid}/mountinfo")).unwrap();
    let theirs = String::from_utf8_lossy(&theirs);
    assert!(theirs.contains(&format!(" {} ", room.path("mnt").display())), "{theirs}");
    for daemon in room.daemons() {
        let pid = rustix::process::Pid::from_raw(daemon).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
    drop(other.stdin.take());
    other.wait().unwrap();
    room.expect_gone();
}

/// Through mount(8), which finds its helpers in /sbin: in a mount namespace where /sbin has nothing
/// else.
#[test]
fn mount_can_enable_set_id_bits_and_devices() {
    if !needs::root() {
        return;
    }
    let room = Room::new();
    let script = "mount -t tmpfs helpers /sbin && ln -s \"$1\" /sbin/mount.fanfs || exit 3; \
                  mount -t fanfs \"$2\" \"$3\" -o \"$4\" || exit 4; \
                  grep -F \" $3 \" /proc/self/mountinfo; umount \"$3\"";
    let flags = |options: &str| {
        let mut unshare = room.program("unshare".as_ref(), &["--mount", "--propagation"]);
        unshare.args(["private", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_fanfs")]);
        let output = unshare.args([room.path("v.toml"), room.path("mnt")]).arg(options).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {}: {said}", output.status);
        let line = String::from_utf8(output.stdout).unwrap();
        assert!(line.contains("fuse.fanfs"), "{options}: {line}: {said}");
        ["nosuid", "nodev"].map(|flag| line.split([' ', ',']).any(|word| word == flag))
    };
    // Options that mount(8) handles itself change nothing.
    assert_eq!(flags("ro"), [true, true]);
    assert_eq!(flags("ro,suid,dev"), [true, true]);
    assert_eq!(flags("ro,fanfs.suid"), [false, true]);
    assert_eq!(flags("ro,fanfs.suid,fanfs.dev"), [false, false]);
    assert_eq!(flags("ro,nosuid,fanfs.suid,nodev,fanfs.dev"), [true, true]);
    room.expect_gone();
}

#[test]
fn rw_on_a_read_only_volume_is_refused_or_warned_about() {
    let room = Room::new();
    // Set by the user: one error that names the file and the key.
    let refused = room.fanfs(&["mount", "v.toml", "mnt", "-o", "rw"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("v.toml: ") && said.contains("[volume] access = \"ro\""), "{said}");
    assert_eq!((said.lines().count(), room.mounted()), (1, None), "{said}");
    room.expect(&["mount", "v.toml", "mnt", "-o", "rw,ro"]);
    room.expect(&["umount", "mnt"]);
    // From mount(8), which adds `rw` itself.
    let helper = room.path("mount.fanfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fanfs"), &helper).unwrap();
    for (options, warnings) in [("rw", 1), ("ro", 0), ("rw,ro", 0)] {
        let args = ["v.toml", "mnt", "-o", options];
        let output = room.program(&helper, &args).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{options}: {said}");
        assert_eq!(said.matches("mounted read-only").count(), warnings, "{options}: {said}");
        assert!(room.mounted().unwrap().contains(" ro,"), "{options}");
        room.expect(&["umount", "mnt"]);
    }
    room.expect_gone();
}
