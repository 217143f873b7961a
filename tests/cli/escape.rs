//! No path leads out of a replica: an attacker who may change the replica's tree keeps changing it,
//! so that paths which led inside lead outside.
//!
//! The planted links lead out of the replica, and to nothing from the mount's users' point of view.
//! So any outside content that a user gets came through the daemon.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::room::Room;

/// The least time during which paths change while they are used.
const RACE: Duration = Duration::from_millis(1500);

/// The least number of uses, however long they take: a busy machine delays either side.
const SWAPS: usize = 1000;

/// Even a busy machine has swapped and used the paths often enough by then.
const PATIENCE: Duration = Duration::from_secs(120);

const INSIDE: &str = "inside, as everything should be\n";
const OUTSIDE: &str = "outside the replica\n";

/// A replica beside the directory that it must not lead to; from the mount point, which is less
/// deep, the same links lead to nothing.
fn room(mode: &str, write: bool, more: &str) -> (Room, PathBuf) {
    let room = Room::new();
    let (tree, outside) = (room.path("tree/replica"), room.path("tree/outside"));
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::create_dir(&outside).unwrap();
    for name in ["file", "large"] {
        let times = if name == "large" { 40_000 } else { 1 };
        fs::write(tree.join("dir").join(name), INSIDE.repeat(times)).unwrap();
        fs::write(outside.join(name), OUTSIDE.repeat(times)).unwrap();
    }
    fs::write(outside.join("known-only-outside"), "").unwrap();
    symlink("../outside", tree.join("dir-link")).unwrap();
    fs::write(tree.join("file"), INSIDE).unwrap();
    symlink("../outside/file", tree.join("file-link")).unwrap();
    symlink("replica", room.path("tree/again")).unwrap();
    let access = if write { "rw" } else { "ro" };
    let replica = |name: &str| {
        let path = room.path("tree").join(name);
        format!("[[replica]]\npath = \"{}\"\nrequire_mount = false\n", path.display())
    };
    let text = format!(
        "[volume]\nname = \"v\"\nmode = \"{mode}\"\naccess = \"{access}\"\n{}{}{more}",
        replica("replica"),
        replica("again")
    );
    fs::write(room.path("v.toml"), text).unwrap();
    let mnt = room.path("mnt");
    (room, mnt)
}

fn mount(room: &Room) {
    room.expect(&["mount", "v.toml", "mnt"]);
}

fn unmount(room: &Room) {
    room.expect(&["umount", "mnt"]);
}

/// Keeps changing `dir` and `file`.
fn swap(tree: &Path, over: &AtomicBool, swapped: &AtomicUsize) {
    while !over.load(Ordering::Relaxed) {
        for (one, other) in [("dir", "dir-link"), ("file", "file-link")] {
            let (one, other) = (tree.join(one), tree.join(other));
            renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
        }
        if swapped.fetch_add(1, Ordering::Relaxed).is_multiple_of(16) {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

/// Has `uses` try while paths change, until enough tries succeeded (`enough`).
fn race(room: &Room, uses: &[&(dyn Fn() -> bool + Sync)], enough: impl Fn(&[usize]) -> bool) {
    let (over, tree) = (AtomicBool::new(false), room.path("tree/replica"));
    let swapped = AtomicUsize::new(0);
    let done: Vec<_> = uses.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| swap(&tree, &over, &swapped));
        let using: Vec<_> = uses
            .iter()
            .zip(&done)
            .map(|(attempt, done)| {
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        done.fetch_add(usize::from(attempt()), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let began = Instant::now();
        let goes_on = || {
            let counts = count(&done);
            let is_enough = swapped.load(Ordering::Relaxed) > SWAPS && enough(&counts);
            let ends = began.elapsed() > if is_enough { RACE } else { PATIENCE };
            !ends && !using.iter().any(|user| user.is_finished())
        };
        while goes_on() {
            std::thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::Relaxed);
        for user in using {
            user.join().unwrap();
        }
    });
    let (swapped, done) = (swapped.into_inner(), count(&done));
    println!("{swapped} swaps, {done:?}");
    assert!(swapped > SWAPS && enough(&done), "hardly anything was done");
}

fn count(done: &[AtomicUsize]) -> Vec<usize> {
    done.iter().map(|done| done.load(Ordering::Relaxed)).collect()
}

/// Reads the whole file; returns whether that was possible. All bytes must be from inside.
fn reads(path: &Path) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    let mut bytes = Vec::new();
    if file.read_to_end(&mut bytes).is_err() {
        return false;
    }
    let inside = bytes.chunks(INSIDE.len()).all(|line| INSIDE.as_bytes().starts_with(line));
    assert!(
        inside,
        "{}: {}",
        path.display(),
        String::from_utf8_lossy(&bytes[..bytes.len().min(40)])
    );
    true
}

fn lists(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    let Ok(names) = entries
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<BTreeSet<OsString>, std::io::Error>>()
    else {
        return false;
    };
    assert!(!names.contains(std::ffi::OsStr::new("known-only-outside")), "{names:?}");
    true
}

fn reading(more: &str) {
    let (room, mnt) = room("shared", false, more);
    mount(&room);
    let kept = File::open(mnt.join("dir/large")).unwrap();
    let [in_dir, large, file, dir] = ["dir/file", "dir/large", "file", "dir"].map(|p| mnt.join(p));
    race(
        &room,
        &[
            &|| reads(&in_dir),
            &|| reads(&large),
            &|| reads(&file),
            &|| lists(&dir),
            &|| fs::metadata(dir.join("known-only-outside")).map(|_| panic!("seen")).is_ok(),
            &|| {
                // The open file is the one that was opened, or it is gone.
                let mut bytes = vec![0; INSIDE.len()];
                let read = kept.read_exact_at(&mut bytes, 0).is_ok();
                assert!(!read || bytes == INSIDE.as_bytes());
                read
            },
        ],
        |counts| counts[0] > 20 && counts[2] > 20 && counts[3] > 20,
    );
    drop(kept);
    unmount(&room);
}

#[test]
fn readers_never_get_outside_the_replica() {
    reading("[fuse]\nattribute_ttl = \"0s\"\n");
}

/// The kernel takes the name for the directory that it was, and asks for an entry two levels below.
/// In `copies` no inode number shows the daemon that another directory is there; only its path
/// does.
#[test]
fn a_directory_replaced_by_a_link_leads_nowhere() {
    for mode in ["shared", "copies"] {
        let (room, mnt) = room(mode, false, "[fuse]\nattribute_ttl = \"1h\"\n");
        let tree = room.path("tree/replica");
        for (parent, content) in [(tree.join("dir"), INSIDE), (room.path("tree/outside"), OUTSIDE)]
        {
            fs::create_dir(parent.join("sub")).unwrap();
            for name in ["first", "second"] {
                fs::write(parent.join("sub").join(name), content).unwrap();
            }
        }
        mount(&room);
        let file = |name: &str| mnt.join("dir/sub").join(name);
        assert!(reads(&file("first")), "{mode}: nothing can be read");
        let [dir, link] = ["dir", "dir-link"].map(|name| tree.join(name));
        renameat_with(CWD, dir, CWD, link, RenameFlags::EXCHANGE).unwrap();
        assert!(!reads(&file("second")), "{mode}: it has gone");
        unmount(&room);
    }
}

#[test]
fn passthrough_readers_never_get_outside_the_replica() {
    reading("[read]\npassthrough = \"whole-file\"\n[fuse]\nattribute_ttl = \"0s\"\n");
}

#[test]
fn writers_never_get_outside_the_replica() {
    let (room, mnt) = room("shared", true, "[fuse]\nattribute_ttl = \"0s\"\n");
    mount(&room);
    let before = listing(&room.path("tree/outside"));
    let [new, deep, file, link] = ["dir/new", "dir/deep", "dir/file", "dir/l"].map(|p| mnt.join(p));
    race(
        &room,
        &[
            &|| fs::write(&new, INSIDE).is_ok(),
            &|| fs::create_dir(&deep).is_ok() | fs::remove_dir(&deep).is_ok(),
            &|| fs::OpenOptions::new().append(true).open(&file).is_ok(),
            &|| symlink("x", &link).is_ok() | fs::remove_file(&link).is_ok(),
            &|| fs::rename(&new, mnt.join("dir/newer")).is_ok(),
            &|| {
                let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
                fs::set_permissions(&file, all).is_ok()
            },
        ],
        |counts| counts.iter().filter(|count| **count > 5).count() >= 4,
    );
    assert_eq!(listing(&room.path("tree/outside")), before, "something was changed outside");
    unmount(&room);
}

/// Names, contents and modes.
fn listing(dir: &Path) -> BTreeSet<(OsString, Vec<u8>, u32)> {
    let one = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&entry.metadata().unwrap());
        (entry.file_name(), fs::read(entry.path()).unwrap_or_default(), mode)
    };
    fs::read_dir(dir).unwrap().map(one).collect()
}
