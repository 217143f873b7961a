//! A mount that outlives its daemon: handover, keeper, recovery.

mod exports;
mod journal;
mod kept;
mod load;
mod reload;
mod reused;
mod unopened;
mod upgrade;

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::needs;
use crate::room::Room;

/// The process that serves the mount.
fn daemon(room: &Room) -> Pid {
    let status = room.expect(&["status", "mnt", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    Pid::from_raw(status["pid"].as_i64().unwrap() as i32).unwrap()
}

/// Kills it and waits until another one serves the mount.
fn kill(room: &Room) {
    let dead = daemon(room);
    kill_process(dead, Signal::KILL).unwrap();
    room.eventually("another daemon serves the mount", || {
        let status = room.fanfs(&["status", "mnt", "--json"]).output().unwrap();
        let status = serde_json::from_slice::<serde_json::Value>(&status.stdout);
        status.is_ok_and(|status| status["pid"] != dead.as_raw_nonzero().get())
    });
}

fn unmount(room: &Room) {
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

/// Whether the kernel resends requests (Linux 6.9). Otherwise requests in flight in a killed daemon
/// are never answered.
fn kernel_resends() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse::<u32>().unwrap_or(0));
    let is_there = (numbers.next(), numbers.next()) >= (Some(6), Some(9));
    needs::machine(is_there, "Linux 6.9")
}

/// A room with a volume over `replicas` names of one tree, and files in it.
fn room(replicas: usize, access: &str) -> Room {
    let room = Room::new();
    volume(&room, "v.toml", "v", replicas, access);
    let bytes: Vec<u8> =
        (0..48u64 << 20 >> 3).flat_map(|i| (i * 0x9e37_79b9).to_le_bytes()).collect();
    fs::write(room.path("tree/large"), &bytes).unwrap();
    for i in 0..300 {
        fs::write(room.path(&format!("tree/file-{i:03}")), format!("{i}\n")).unwrap();
    }
    room
}

/// Writes a volume called `name` over this many names of the tree.
fn volume(room: &Room, file: &str, name: &str, replicas: usize, access: &str) {
    let mut text =
        format!("[volume]\nname = \"{name}\"\nmode = \"shared\"\naccess = \"{access}\"\n");
    for i in 0..replicas {
        let link = room.path(&format!("seen{i}"));
        if !link.exists() {
            std::os::unix::fs::symlink(room.path("tree"), &link).unwrap();
        }
        text.push_str(&format!(
            "[[replica]]\npath = \"{}\"\nrequire_mount = false\n",
            link.display()
        ));
    }
    fs::write(room.path(file), text).unwrap();
}

/// Names in a directory that is read in small steps: a part now, the rest later.
struct Listing {
    dir: std::os::fd::OwnedFd,
    names: Vec<String>,
}

impl Listing {
    fn begin(path: &Path) -> Self {
        use rustix::fs::{Mode, OFlags, open};
        let dir = open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut listing = Self { dir, names: Vec::new() };
        listing.step().unwrap();
        assert!((3..200).contains(&listing.names.len()), "{}", listing.names.len());
        listing
    }

    /// Reads some more; false at the end.
    fn step(&mut self) -> rustix::io::Result<bool> {
        let mut space = [std::mem::MaybeUninit::uninit(); 2048];
        let mut raw = rustix::fs::RawDir::new(&self.dir, &mut space);
        let mut any = false;
        // One system call's worth of names.
        while let Some(entry) = raw.next() {
            self.names.push(entry?.file_name().to_str().unwrap().to_owned());
            any = true;
            if raw.is_buffer_empty() {
                break;
            }
        }
        Ok(any)
    }

    /// Reads the rest and compares with the tree.
    fn end(mut self, tree: &Path) {
        while self.step().unwrap() {}
        let mut expected: Vec<_> = fs::read_dir(tree)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .chain([".".to_owned(), "..".to_owned()])
            .collect();
        expected.sort();
        self.names.sort();
        assert_eq!(self.names, expected);
    }
}
