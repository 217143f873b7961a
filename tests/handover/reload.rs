//! `fanfs reload`, and the end of a mount.

use std::fs;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Signal, kill_process};

use super::load::{LONG, Load};
use super::{daemon, room, unmount, volume};
use crate::machine::timed;
use crate::room::Room;

fn replicas(room: &Room) -> usize {
    let status = room.expect(&["status", "mnt", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    status["replicas"].as_array().unwrap().len()
}

#[test]
fn replicas_can_be_added_and_removed_during_reads() {
    let room = room(2, "ro");
    room.expect(&["mount", "v.toml", "mnt"]);
    let load = Load::begin(&room);
    volume(&room, "v.toml", "v", 3, "ro");
    room.expect(&["reload", "mnt"]);
    assert_eq!(replicas(&room), 3);
    std::thread::sleep(Duration::from_millis(300));
    volume(&room, "other.toml", "v", 1, "ro");
    room.expect(&["reload", "mnt", "other.toml"]);
    assert_eq!(replicas(&room), 1);
    // A repeated reload without a file reads the file named last.
    volume(&room, "other.toml", "v", 2, "ro");
    let before = daemon(&room);
    kill_process(before, Signal::HUP).unwrap();
    room.eventually("it has two replicas", || replicas(&room) == 2);
    load.end_well();
    unmount(&room);
}

#[test]
fn an_invalid_configuration_keeps_the_old_one() {
    let room = room(2, "ro");
    room.expect(&["mount", "v.toml", "mnt"]);
    let before = daemon(&room);
    let load = Load::begin(&room);
    let refused = |file: &str, status: i32, why: &str| {
        let output = room.fanfs(&["reload", "mnt", file]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(why) && said.lines().count() == 1, "{said}");
    };
    fs::write(room.path("bad.toml"), "[volume]\nnmae = \"v\"\n").unwrap();
    refused("bad.toml", 2, "nmae");
    refused("none.toml", 2, "none.toml");
    volume(&room, "bad.toml", "w", 2, "ro");
    refused("bad.toml", 2, "its name cannot change");
    volume(&room, "bad.toml", "v", 2, "rw");
    refused("bad.toml", 1, "access cannot be changed");
    let text = fs::read_to_string(room.path("v.toml")).unwrap();
    let immutable = text.replacen("[volume]\n", "[volume]\nimmutable = true\n", 1);
    fs::write(room.path("bad.toml"), immutable).unwrap();
    refused("bad.toml", 1, "immutable cannot be changed");
    fs::write(room.path("bad.toml"), format!("{text}[fuse]\nmax_background = 99\n")).unwrap();
    refused("bad.toml", 1, "other FUSE parameters than the mount");
    fs::write(room.path("bad.toml"), text.replace("/seen1", "/nowhere")).unwrap();
    refused("bad.toml", 1, "nowhere");
    assert_eq!(daemon(&room), before);
    load.end_well();
    unmount(&room);
}

#[test]
fn a_reload_keeps_the_replica_of_open_writers() {
    let room = room(2, "rw");
    room.expect(&["mount", "v.toml", "mnt"]);
    let file = fs::File::create(room.path("mnt/open")).unwrap();
    let text = fs::read_to_string(room.path("v.toml")).unwrap();
    fs::write(room.path("v.toml"), format!("{text}[write]\nreplica = \"r2\"\n")).unwrap();
    let refused = room.fanfs(&["reload", "mnt"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("files are open for writing"), "{said}");
    std::io::Write::write_all(&mut &file, b"written").unwrap();
    drop(file);
    room.eventually("the file is closed", || {
        room.fanfs(&["reload", "mnt"]).output().unwrap().status.success()
    });
    assert_eq!(fs::read(room.path("mnt/open")).unwrap(), b"written");
    unmount(&room);
}

#[test]
fn a_reload_keeps_the_replica_that_holds_locks() {
    let room = room(2, "rw");
    fs::write(room.path("tree/locked"), "").unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    let file = fs::File::open(room.path("mnt/locked")).unwrap();
    flock(&file, FlockOperation::LockShared).unwrap();
    let text = fs::read_to_string(room.path("v.toml")).unwrap();
    fs::write(room.path("v.toml"), format!("{text}[write]\nreplica = \"r2\"\n")).unwrap();
    let refused = room.fanfs(&["reload", "mnt"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("hold file locks on another replica"), "{said}");
    drop(file);
    room.eventually("the lock is given up", || {
        room.fanfs(&["reload", "mnt"]).output().unwrap().status.success()
    });
    unmount(&room);
}

#[test]
fn sigterm_ends_the_mount_during_reads() {
    let room = room(3, "ro");
    room.expect(&["mount", "v.toml", "mnt"]);
    let load = Load::begin(&room);
    std::thread::sleep(Duration::from_millis(300));
    let served = daemon(&room);
    let ((), took) = timed(|| {
        kill_process(served, Signal::TERM).unwrap();
        room.eventually("the mount is gone", || room.mounted().is_none());
        room.eventually("the daemon has ended", || room.daemons().is_empty());
    });
    let outcome = load.end();
    assert!(outcome.wrong == 0 && outcome.longest < LONG, "{outcome:?}");
    assert!(took < LONG, "{took:?}");
}
