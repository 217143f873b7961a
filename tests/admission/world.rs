//! A volume with three replicas of one tree, and the failures of one of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::room::Room;
use crate::signals;

/// The failure at the time when a daemon begins to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// None.
    Healthy,
    /// `n2` is not mounted: its path shows the empty directory below.
    Absent,
    /// `n3` does not answer.
    Hung,
    /// Another file system is mounted at `n2`.
    Wrong,
    /// `n1`, the write replica, is not mounted.
    NoWriter,
}

/// The replicas `n1` and `n2` are bind mounts of `tree`, `n3` a FUSE mount of it.
pub(crate) struct World {
    pub(crate) room: Room,
    fuse: Child,
    state: State,
}

const FILES: usize = 20;

fn content(i: usize) -> Vec<u8> {
    format!("file {i}\n").repeat(3000 * (i + 1)).into_bytes()
}

impl World {
    /// A writable volume `v.toml` with `more` in `[volume]`.
    pub(crate) fn new(more: &str) -> Self {
        let room = Room::new();
        for i in 0..FILES {
            fs::write(room.path(&format!("tree/f{i:02}")), content(i)).unwrap();
        }
        let mut text =
            format!("[volume]\nname = \"v\"\nmode = \"shared\"\naccess = \"rw\"\n{more}\n");
        for name in ["n1", "n2", "n3"] {
            fs::create_dir(room.path(name)).unwrap();
            let path = room.path(name);
            text += &format!("[[replica]]\nname = \"{name}\"\npath = \"{}\"\n", path.display());
        }
        // All replicas show a change at once.
        text += "[write]\nlag = \"0s\"\n[read]\ndeadline = \"10s\"\nattempt_deadline = \"1s\"\n";
        fs::write(room.path("v.toml"), text).unwrap();
        let fuse = Command::new("bindfs")
            .arg("-f")
            .args([room.path("tree"), room.path("n3")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let world = Self { room, fuse, state: State::Healthy };
        world.bind("tree", "n1");
        world.bind("tree", "n2");
        world.eventually("the FUSE replica is there", || world.path("n3/hello").exists());
        world
    }

    /// Waits until `holds`; the limit allows for a busy machine.
    pub(crate) fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !holds() {
            assert!(Instant::now() < until, "it never came to this: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.room.path(name)
    }

    fn bind(&self, from: &str, at: &str) {
        mount_bind(self.path(from), self.path(at)).unwrap();
    }

    fn detach(&self, at: &str) {
        unmount(self.path(at), UnmountFlags::DETACH).unwrap();
    }

    fn signal_fuse(&self, signal: Signal) {
        signals::send(Pid::from_child(&self.fuse), signal);
    }

    /// Causes the failure.
    pub(crate) fn becomes(&mut self, state: State) {
        self.state = state;
        match state {
            State::Healthy => {}
            State::Absent => self.detach("n2"),
            State::Hung => self.signal_fuse(Signal::STOP),
            State::Wrong => {
                self.detach("n2");
                let at = self.path("n2");
                mount("tmpfs", &at, "tmpfs", MountFlags::empty(), None).unwrap();
                fs::write(at.join("f00"), "of another file system").unwrap();
            }
            State::NoWriter => self.detach("n1"),
        }
    }

    /// Repairs the failure.
    pub(crate) fn heals(&mut self) {
        match std::mem::replace(&mut self.state, State::Healthy) {
            State::Healthy => {}
            State::Absent => self.bind("tree", "n2"),
            State::Hung => self.signal_fuse(Signal::CONT),
            State::Wrong => {
                self.detach("n2");
                self.bind("tree", "n2");
            }
            State::NoWriter => self.bind("tree", "n1"),
        }
    }

    /// The replica with the failure.
    pub(crate) fn ailing(&self) -> Option<&'static str> {
        match self.state {
            State::Healthy => None,
            State::Absent | State::Wrong => Some("n2"),
            State::Hung => Some("n3"),
            State::NoWriter => Some("n1"),
        }
    }

    /// Runs the program; it must end within 60 s.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut command = self.room.program(Path::new("timeout"), &["60"]);
        command.arg(env!("CARGO_BIN_EXE_fanfs")).args(args).stdin(Stdio::null());
        command.output().unwrap()
    }

    pub(crate) fn expect(&self, args: &[&str]) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "fanfs {args:?}: {said}\n{}", self.log());
    }

    /// The daemons' log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The volume's status; `None` while no daemon answers.
    pub(crate) fn status(&self) -> Option<Value> {
        serde_json::from_slice(&self.run(&["status", "mnt", "--json"]).stdout).ok()
    }

    /// Process id of the daemon.
    pub(crate) fn daemon(&self) -> i64 {
        self.status().and_then(|status| status["pid"].as_i64()).expect("a daemon that answers")
    }

    /// Health of each replica, by name.
    pub(crate) fn health(&self) -> BTreeMap<String, String> {
        let status = self.status().unwrap_or_default();
        let replicas = status["replicas"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        replicas.iter().map(|r| (text(&r["name"]), text(&r["health"]))).collect()
    }

    /// Every file is listed and has its content.
    pub(crate) fn expect_whole(&self) {
        let names = |path: &Path| {
            let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{e}\n{}", self.log()));
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&self.path("mnt")), names(&self.path("tree")), "{}", self.log());
        for i in 0..FILES {
            let name = format!("mnt/f{i:02}");
            let read = fs::read(self.path(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(read == content(i), "{name} has other bytes\n{}", self.log());
        }
    }

    /// A write goes to the tree or fails; never to the disk below a mount point.
    pub(crate) fn expect_writes_well(&self, name: &str) {
        let written = fs::write(self.path(&format!("mnt/{name}")), "written");
        match self.state {
            State::NoWriter => {}
            _ => written.unwrap_or_else(|e| panic!("a write failed: {e}\n{}", self.log())),
        }
        if fs::read(self.path("mnt").join(name)).is_ok_and(|bytes| bytes == b"written") {
            assert_eq!(fs::read(self.path("tree").join(name)).unwrap(), b"written");
        }
        match self.state {
            State::Absent => self.expect_empty("n2"),
            State::NoWriter => self.expect_empty("n1"),
            State::Wrong => assert_eq!(fs::read_dir(self.path("n2")).unwrap().count(), 1),
            State::Healthy | State::Hung => {}
        }
    }

    fn expect_empty(&self, name: &str) {
        let entries = fs::read_dir(self.path(name)).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.is_empty(), "on the disk below the mount point {name}: {names:?}");
    }

    /// All replicas come into service.
    pub(crate) fn expect_all_in_service(&self) {
        let mut last = BTreeMap::new();
        for _ in 0..60 {
            last = self.health();
            let is_in = |state: &String| matches!(&**state, "healthy" | "probing" | "suspect");
            if last.len() == 3 && last.values().all(is_in) {
                return;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        panic!("not all are in service: {last:?}\n{}", self.log());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.fuse), Signal::CONT);
        let _ = self.room.fanfs(&["umount", "mnt"]).output();
        let _ = Command::new("umount").arg("-l").arg(self.path("mnt")).output();
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
        for name in ["n1", "n2", "n3"] {
            while unmount(self.path(name), UnmountFlags::DETACH).is_ok() {}
        }
    }
}
