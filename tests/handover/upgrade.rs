//! `fanfs upgrade`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::load::Load;
use super::{Listing, daemon, room, unmount};

#[test]
fn an_upgrade_fails_nothing_and_keeps_files_open() {
    let room = room(3, "ro");
    fs::write(room.path("tree/gone"), "still here\n").unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    let mut gone = File::open(room.path("mnt/gone")).unwrap();
    fs::remove_file(room.path("tree/gone")).unwrap();
    let mut listings: Vec<_> = (0..3).map(|_| Listing::begin(&room.path("mnt"))).collect();
    let load = Load::begin(&room);
    for _ in 0..3 {
        let before = daemon(&room);
        std::thread::sleep(Duration::from_millis(300));
        let said = room.expect(&["upgrade", "mnt"]).stdout;
        assert!(String::from_utf8_lossy(&said).starts_with("served by process "));
        assert_ne!(daemon(&room), before);
        listings.pop().unwrap().end(&room.path("tree"));
    }
    load.end_well();
    let mut text = String::new();
    gone.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here\n");
    drop(gone);
    room.eventually("nothing is open any more", || {
        let status = room.expect(&["status", "mnt", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        status["gauges"]["handles"] == 0
    });
    room.eventually("the daemons before have ended", || room.daemons().len() == 1);
    unmount(&room);
}

#[test]
fn writers_and_locks_survive_an_upgrade() {
    let room = room(2, "rw");
    room.expect(&["mount", "v.toml", "mnt"]);
    let locked = File::create_new(room.path("mnt/locked")).unwrap();
    fcntl_lock(&locked, FlockOperation::LockExclusive).unwrap();
    let nameless = File::create_new(room.path("mnt/nameless")).unwrap();
    nameless.write_all_at(b"one ", 0).unwrap();
    fs::remove_file(room.path("mnt/nameless")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicUsize::new(0));
    let (own, path) = (Arc::clone(&stop), room.path("mnt/log"));
    let count = Arc::clone(&written);
    let writer = std::thread::spawn(move || {
        let mut log = File::options().create(true).append(true).open(path).unwrap();
        let mut lines = 0;
        while !own.load(Ordering::Relaxed) {
            writeln!(log, "line {lines}").unwrap();
            lines += 1;
            count.store(lines, Ordering::Relaxed);
            if lines % 100 == 0 {
                log.sync_all().unwrap();
            }
        }
        lines
    });
    let beside = File::options().read(true).write(true).open(room.path("tree/locked")).unwrap();
    let is_locked = || fcntl_lock(&beside, FlockOperation::NonBlockingLockExclusive).is_err();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(200));
        room.expect(&["upgrade", "mnt"]);
        assert!(is_locked());
    }
    room.eventually("lines are written", || written.load(Ordering::Relaxed) > 10);
    stop.store(true, Ordering::Relaxed);
    let lines: usize = writer.join().unwrap();
    let expected: String = (0..lines).map(|i| format!("line {i}\n")).collect();
    assert_eq!(fs::read_to_string(room.path("tree/log")).unwrap(), expected);
    assert!(lines > 10, "{lines}");
    nameless.write_all_at(b"two", 4).unwrap();
    assert_eq!(nameless.metadata().unwrap().len(), 7);
    fcntl_lock(&locked, FlockOperation::Unlock).unwrap();
    assert!(!is_locked());
    drop((locked, nameless));
    unmount(&room);
}

#[test]
fn a_failed_successor_changes_nothing() {
    let room = room(2, "ro");
    room.expect(&["mount", "v.toml", "mnt"]);
    let before = daemon(&room);
    let load = Load::begin(&room);
    for (program, why) in [("/nonexistent", "No such file"), ("/bin/true", "the new daemon ended")]
    {
        let refused = room.fanfs(&["upgrade", "mnt", "--program", program]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(why) && said.contains("the old daemon still serves it"), "{said}");
    }
    assert_eq!(daemon(&room), before);
    load.end_well();
    unmount(&room);
    let unmounted = room.fanfs(&["upgrade", "mnt"]).output().unwrap();
    assert_eq!(unmounted.status.code(), Some(1));
}
