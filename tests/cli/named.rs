//! Each command accepts a volume by its name, its file, or its mount point.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount as detach,
};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::needs;
use crate::room::Room;

/// A room with a volume `pets` in an /etc/fanfs of this thread's own; `None` where that is
/// impossible.
fn named() -> Option<Room> {
    if !needs::root() {
        return None;
    }
    let room = Room::new();
    let copied = Command::new("cp").args(["-a", "/etc"]).arg(room.path("etc")).status();
    assert!(copied.unwrap().success());
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let apart = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", apart).unwrap();
    // Otherwise other tests' copies of mounts would keep these mounted.
    let table = crate::room::mount_table();
    for line in table.lines().filter(|line| line.contains(" - fuse.fanfs ")) {
        let _ = detach(line.split(' ').nth(4).unwrap(), UnmountFlags::DETACH);
    }
    mount_bind(room.path("etc"), "/etc").unwrap();
    fs::create_dir_all("/etc/fanfs").unwrap();
    fs::write(room.path("tree/big"), vec![7; 16 << 20]).unwrap();
    fs::copy(room.path("v.toml"), "/etc/fanfs/pets.toml").unwrap();
    rename("/etc/fanfs/pets.toml", "pets-volume");
    Some(room)
}

/// Gives the volume of a file another name.
fn rename(file: impl AsRef<Path>, name: &str) {
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once("name = \"").unwrap();
    let (_, after) = rest.split_once('"').unwrap();
    fs::write(file, format!("{before}name = \"{name}\"{after}")).unwrap();
}

fn said(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

fn mount(room: &Room) {
    room.expect(&["mount", "pets", "mnt"]);
}

fn unmount(room: &Room, volume: &str) {
    room.expect(&["umount", volume]);
    room.expect_gone();
}

/// The volume's name, its file, and its mount point.
fn all_three(room: &Room) -> [String; 3] {
    let mnt = room.path("mnt").display().to_string();
    ["pets".to_owned(), "/etc/fanfs/pets.toml".to_owned(), mnt]
}

/// `line` with `VOLUME` replaced.
fn line(line: &str, volume: &str) -> Vec<String> {
    line.split(' ').map(|word| if word == "VOLUME" { volume } else { word }.to_owned()).collect()
}

#[test]
fn every_command_takes_a_name_a_file_or_a_mount_point() {
    let Some(room) = named() else { return };
    mount(&room);
    for volume in all_three(&room) {
        for command in [
            "check VOLUME",
            "verify VOLUME",
            "verify VOLUME hello",
            "explain big --volume VOLUME",
            "status VOLUME",
            "status VOLUME --check",
            "top VOLUME --once --interval 200ms",
            "trace VOLUME --duration 200ms",
            "upgrade VOLUME",
            "reload VOLUME",
            "reload VOLUME VOLUME",
            "generate units VOLUME /pets",
        ] {
            room.expect(&line(command, &volume));
        }
        let short = "bench VOLUME --json --seconds 1 --rounds 1 --readers 1 --block 64KiB \
                     --random-block 4KiB";
        let report: Value =
            serde_json::from_slice(&room.expect(&line(short, &volume)).stdout).unwrap();
        assert_eq!(report["volume"], "pets-volume", "{volume}");
        let doctor = room.fanfs(&["doctor", &volume, "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
        assert_eq!(report["facts"]["volume"], "pets-volume", "{volume}");
        unmount(&room, &volume);
        mount(&room);
    }
    // A second time, named by its existing mount point.
    fs::create_dir(room.path("second")).unwrap();
    room.expect(&["mount", "mnt", "second"]);
    room.expect(&["umount", "second"]);
    unmount(&room, "mnt");
}

#[test]
fn a_bare_word_is_first_a_name_in_etc() {
    let Some(room) = named() else { return };
    // A file and a directory of that name here, and another mounted volume of that name.
    room.volume("pets", "", "");
    rename(room.path("pets"), "pets");
    room.expect(&["mount", "./pets", "mnt"]);
    let checked = said(&room.expect(&["check", "pets"]));
    assert!(checked.contains("volume pets-volume,"), "{checked}");
    let refused = room.fanfs(&["umount", "pets"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        said(&refused),
        "fanfs: /etc/fanfs/pets.toml: this user has not mounted this volume; fanfs status lists \
         mounted volumes\n"
    );
    let checked = said(&room.expect(&["check", "./pets"]));
    assert!(checked.contains("volume pets,"), "{checked}");
    // No such file, here or in /etc: the name of a mounted volume.
    fs::rename("/etc/fanfs/pets.toml", "/etc/fanfs/cats.toml").unwrap();
    fs::rename(room.path("pets"), room.path("moved")).unwrap();
    room.expect(&["status", "pets"]);
    unmount(&room, "pets");
}

#[test]
fn a_path_below_the_mount_point_is_a_path_of_the_volume() {
    let Some(room) = named() else { return };
    mount(&room);
    let big = room.path("mnt/big").display().to_string();
    let verified = said(&room.expect(&["verify", "pets", &big, "--full"]));
    assert!(verified.contains("16.0 MiB") || verified.contains("32.0 MiB"), "{verified}");
    room.expect(&["explain", &big, "--volume", "pets"]);
    let root = room.path("mnt");
    let root = room.fanfs(&["explain"]).arg(root).output().unwrap();
    let text = String::from_utf8_lossy(&root.stderr);
    assert!(text.contains("this is the root of a volume; name a file on it"), "{text}");
    assert_eq!(root.status.code(), Some(2));
    let short = "bench pets --json --seconds 1 --rounds 1 --readers 1 --block 64KiB \
                 --random-block 4KiB --file VOLUME";
    let report: Value = serde_json::from_slice(&room.expect(&line(short, &big)).stdout).unwrap();
    assert_eq!(report["file"], "big");
    let args = ["doctor", "pets", "--json", "--measure", "--seconds", "0.2", "--file", &big];
    let doctor = room.fanfs(&args).output().unwrap();
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(report["facts"]["measured"]["file"], "big");
    unmount(&room, "pets");
}

#[test]
fn a_dead_mount_is_found_by_name_file_and_mount_point() {
    let Some(room) = named() else { return };
    rename("/etc/fanfs/pets.toml", "pets");
    for volume in all_three(&room) {
        mount(&room);
        let daemon = room.first_process();
        kill_process(daemon, Signal::KILL).unwrap();
        room.eventually("it is dead", || room.daemons().is_empty());
        let status = room.fanfs(&["status", &volume]).output().unwrap();
        assert_eq!(status.status.code(), Some(1));
        assert!(said(&status).contains("its daemon has died"), "{}", said(&status));
        // Its file is the one with its name.
        let checked = said(&room.expect(&["check", &volume]));
        assert!(checked.contains("volume pets,"), "{checked}");
        unmount(&room, &volume);
    }
}

#[test]
fn a_hung_daemon_blocks_no_command() {
    let Some(room) = named() else { return };
    rename("/etc/fanfs/pets.toml", "pets");
    mount(&room);
    let daemon = room.first_process();
    room.stop(daemon);
    let run = |args: &[&str]| {
        let program: OsString = room.fanfs(args).get_program().into();
        let mut command = room.program("timeout".as_ref(), &["60".into(), program]);
        command.args(args).output().unwrap()
    };
    let mnt = room.path("mnt").display().to_string();
    let status = run(&["status", "pets"]);
    let checked = run(&["check", &mnt]);
    let detached = run(&["umount", "--lazy", "/etc/fanfs/pets.toml"]);
    kill_process(daemon, Signal::CONT).unwrap();
    assert_eq!(status.status.code(), Some(1), "{}", said(&status));
    assert!(said(&status).contains("its daemon does not answer"), "{}", said(&status));
    assert!(checked.status.success(), "{}", said(&checked));
    assert!(detached.status.success(), "{}", said(&detached));
    room.expect_gone();
}

#[test]
fn a_volume_mounted_twice_needs_its_mount_point() {
    let Some(room) = named() else { return };
    mount(&room);
    fs::create_dir(room.path("second")).unwrap();
    room.expect(&["mount", "pets", "second"]);
    for args in [["umount", "pets"], ["status", "/etc/fanfs/pets.toml"]] {
        let refused = room.fanfs(&args).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        let points = [room.path("mnt"), room.path("second")];
        let text = said(&refused);
        assert!(text.contains("is mounted more than once; use one of these"), "{text}");
        assert!(points.iter().all(|point| text.contains(point.to_str().unwrap())), "{text}");
    }
    // As a file, a configuration is the same for both.
    room.expect(&["check", "pets"]);
    room.expect(&["umount", "second"]);
    unmount(&room, "pets");
}
