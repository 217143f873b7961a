//! A handover, or a restart after a kill, while a change hangs in the write replica.
//!
//! The kernel sends the change to the next daemon, which makes it again or answers
//! ETIMEDOUT. The old process ends when the replica answers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::bare::{expect_replaced, kill_without_journal};
use super::with_mounts;
use super::world::{State, World};
use crate::signals;

/// A volume with the write replica `n3`, which is a FUSE mount, and a file `old`.
fn world() -> World {
    let world = World::new("");
    fs::write(world.path("tree/old"), "old").unwrap();
    let text = fs::read_to_string(world.path("v.toml")).unwrap();
    let text = text.replace("[write]\n", "[write]\nreplica = \"n3\"\n");
    fs::write(world.path("v.toml"), text).unwrap();
    pin_to_n1(&world);
    world.expect(&["mount", "v.toml", "mnt", "-o", "keeper,log=log"]);
    world.expect_whole();
    world
}

/// Lookups go to `n1`: elsewhere only a change hangs, and one replica names the inodes.
fn pin_to_n1(world: &World) {
    let text = fs::read_to_string(world.path("v.toml")).unwrap();
    let text = text + "[[affinity]]\npath = \"/**\"\nreplica = \"n1\"\n";
    fs::write(world.path("v.toml"), text).unwrap();
}

/// Makes one change for each input line, and prints the errno or 0. It is a separate program: a
/// child of a process that has the file open would close it in execve(2), and wait there for the
/// hung change.
const CHANGER: &str = "
import os, sys
place, name, new, flags = sys.argv[1:5]
fd = os.open(name, int(flags), 0o644) if place != 'name' else -1
print(0, flush=True)
at = 0
for line in sys.stdin:
    try:
        if new:
            os.rename(name, new)
        elif place == 'name':
            os.open(name, int(flags), 0o644)
        elif place == 'mode':
            os.fchmod(fd, int(line, 8))
        elif place == 'append':
            os.write(fd, line[:-1].encode())
        else:
            os.pwrite(fd, line[:-1].encode(), at)
            at += len(line) - 1
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
";

struct Changer {
    child: Child,
    answers: Receiver<i32>,
}

impl Changer {
    fn new(world: &World, kind: &str, name: &str, new: &str, flags: OFlags) -> Self {
        let mut command = Command::new("python3");
        let flags = flags.bits().to_string();
        command.args(["-c", CHANGER, kind, name, new, &flags]).current_dir(world.path("mnt"));
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let (send, answers) = channel();
        let said = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            said.lines().map_while(Result::ok).all(|line| send.send(line.parse().unwrap()).is_ok())
        });
        let own = Self { child, answers };
        assert_eq!(own.answer(), 0);
        own
    }

    fn begin(&mut self, text: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    /// The errno, or 0.
    fn answer(&self) -> i32 {
        self.answers.recv_timeout(Duration::from_secs(60)).expect("an answer")
    }

    fn change(&mut self, text: &str) -> i32 {
        self.begin(text);
        self.answer()
    }
}

impl Drop for Changer {
    fn drop(&mut self) {
        // Its end may wait for the replica, which is repaired later.
        let _ = self.child.kill();
    }
}

/// Waits until this many changes hang in the write replica.
fn expect_hung((world, writer): (&World, usize), all: u64) {
    world.eventually("the change hangs there", || {
        let status = world.status().unwrap_or_default();
        status["replicas"][writer]["active_threads"].as_u64() >= Some(all)
    });
}

const TIMED_OUT: i32 = rustix::io::Errno::TIMEDOUT.raw_os_error();
const IO: i32 = rustix::io::Errno::IO.raw_os_error();

fn expect_another(world: &World, before: i64) {
    world.eventually("another daemon serves", || {
        world.status().is_some_and(|status| status["pid"] != before)
    });
}

fn expect_readable(world: &World) {
    let path = world.path("mnt/f03");
    let (done, answer) = channel();
    std::thread::spawn(move || done.send(fs::read(path).map(drop)));
    let read = answer.recv_timeout(Duration::from_secs(60)).expect("an answer");
    read.unwrap_or_else(|e| panic!("{e}\n{}", world.log()));
}

fn expect_ended(world: &World, before: i64) {
    world.eventually("the old process has ended", || {
        !Path::new(&format!("/proc/{before}")).exists()
    });
}

/// The replica is well, and the process `before` has ended.
fn heal(world: &mut World, before: i64) {
    world.heals();
    world.expect_all_in_service();
    expect_ended(world, before);
}

fn expect_nothing_open(world: &World) {
    world.eventually("nothing is open", || {
        let status = world.status().unwrap_or_default();
        status["gauges"]["handles"].as_u64() == Some(0)
    });
    world.expect_whole();
}

#[test]
fn an_upgrade_repeats_a_hung_write() {
    with_mounts("change::an_upgrade_repeats_a_hung_write", || {
        let mut world = world();
        let mut writer =
            Changer::new(&world, "place", "written", "", OFlags::CREATE | OFlags::RDWR);
        assert_eq!(writer.change("before "), 0);
        world.becomes(State::Hung);
        writer.begin("during ");
        expect_hung((&world, 2), 1);
        let before = Way::Upgrade.go(&world);
        heal(&mut world, before);
        assert_eq!(writer.answer(), 0, "{}", world.log());
        assert_eq!(writer.change("after"), 0, "{}", world.log());
        let written = fs::read(world.path("tree/written")).unwrap();
        assert_eq!(String::from_utf8_lossy(&written), "before during after");
        drop(writer);
        expect_nothing_open(&world);
    });
}

#[test]
fn an_upgrade_makes_a_hung_name_change_at_most_once() {
    with_mounts("change::an_upgrade_makes_a_hung_name_change_at_most_once", || {
        let mut world = world();
        // The kernel serializes the changes of one directory.
        fs::create_dir(world.path("mnt/d")).unwrap();
        let exclusive = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mut create = Changer::new(&world, "name", "d/made", "", exclusive);
        let mut rename = Changer::new(&world, "name", "old", "new", OFlags::empty());
        world.becomes(State::Hung);
        create.begin("");
        expect_hung((&world, 2), 1);
        rename.begin("");
        expect_hung((&world, 2), 2);
        let before = Way::Upgrade.go(&world);
        assert_eq!([create.answer(), rename.answer()], [TIMED_OUT; 2], "{}", world.log());
        drop((create, rename));
        heal(&mut world, before);
        let there = |name: &str| world.path("tree").join(name).exists();
        assert!(there("old") != there("new"), "one of the two names");
        let name = if there("old") { "old" } else { "new" };
        world.eventually("it is seen under its name", || {
            fs::read(world.path("mnt").join(name)).is_ok_and(|bytes| bytes == b"old")
        });
        expect_nothing_open(&world);
    });
}

/// A mount inside all replicas that can be made to hang. One FUSE server serves it from the
/// mount of another, which is stopped: the first server has taken the request that hangs, so
/// not even the death of the caller withdraws it.
struct Nested {
    stopped: Child,
    server: Child,
    at: Vec<PathBuf>,
}

fn serve(world: &World, from: &Path, at: &Path) -> Child {
    fs::create_dir_all(at).unwrap();
    let mut command = Command::new("bindfs");
    let server = command.arg("-f").args([from, at]).stdout(Stdio::null()).spawn().unwrap();
    world.eventually("the nested mount is there", || at.join("seen").exists());
    server
}

impl Nested {
    fn new(world: &World) -> Self {
        let (from, between) = (world.path("beside"), world.path("between"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("seen"), "").unwrap();
        let stopped = serve(world, &from, &between);
        let below = world.path("tree/nested");
        let server = serve(world, &between, &below);
        let mut at = vec![between, below.clone()];
        for name in ["n1/nested", "n2/nested"] {
            mount_bind(&below, world.path(name)).unwrap();
            at.push(world.path(name));
        }
        Self { stopped, server, at }
    }

    fn signal(&self, signal: Signal) {
        signals::send(Pid::from_child(&self.stopped), signal);
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        for at in self.at.iter().rev() {
            let _ = unmount(at, UnmountFlags::DETACH);
        }
        for server in [&mut self.server, &mut self.stopped] {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// How another daemon takes over the mount.
#[derive(Clone, Copy)]
enum Way {
    Upgrade,
    /// With the whole write replica hung, `fanfs mount` refuses the volume, and so does a
    /// reload.
    Reload,
    Kill,
}

impl Way {
    fn go(self, world: &World) -> i64 {
        let before = world.daemon();
        match self {
            Self::Upgrade => world.expect(&["upgrade", "mnt"]),
            Self::Reload => world.expect(&["reload", "mnt"]),
            Self::Kill => {
                kill_process(Pid::from_raw(before as i32).unwrap(), Signal::KILL).unwrap();
            }
        }
        expect_another(world, before);
        expect_readable(world);
        before
    }
}

/// A write and an append hang. The old process may make each of them as soon as the nested
/// mount answers, so the next daemon makes no newer change of these files until then.
fn overtake_nothing(way: Way) {
    let world = World::new("");
    pin_to_n1(&world);
    let nested = Nested::new(&world);
    world.expect(&["mount", "v.toml", "mnt", "-o", "keeper,log=log"]);
    let file = OFlags::CREATE | OFlags::RDWR;
    let mut write = Changer::new(&world, "place", "nested/written", "", file);
    let open = || Changer::new(&world, "append", "nested/log", "", file | OFlags::APPEND);
    let (mut append, mut beside) = (open(), open());
    assert_eq!([write.change("before "), append.change("before ")], [0, 0]);
    nested.signal(Signal::STOP);
    write.begin("during ");
    expect_hung((&world, 0), 1);
    append.begin("during ");
    expect_hung((&world, 0), 2);
    let before = way.go(&world);
    assert_eq!(append.answer(), TIMED_OUT, "{}", world.log());
    assert_eq!(beside.change("too early"), IO, "{}", world.log());
    fs::write(world.path("mnt/other"), "other").unwrap();
    assert!(Path::new(&format!("/proc/{before}")).exists(), "it hangs");
    nested.signal(Signal::CONT);
    expect_ended(&world, before);
    assert_eq!(write.answer(), 0, "{}", world.log());
    assert_eq!(write.change("after"), 0, "{}", world.log());
    assert_eq!(beside.change("after"), 0, "{}", world.log());
    let text = |name: &str| fs::read_to_string(world.path("beside").join(name)).unwrap();
    assert_eq!(text("written"), "before during after");
    let log = text("log");
    assert!(["before during after", "before after"].contains(&&*log), "{log}");
    drop((write, append, beside));
    expect_nothing_open(&world);
}

#[test]
fn after_an_upgrade_no_change_overtakes_an_older_one() {
    let name = "change::after_an_upgrade_no_change_overtakes_an_older_one";
    with_mounts(name, || overtake_nothing(Way::Upgrade));
}

#[test]
fn after_a_reload_no_change_overtakes_an_older_one() {
    let name = "change::after_a_reload_no_change_overtakes_an_older_one";
    with_mounts(name, || overtake_nothing(Way::Reload));
}

#[test]
fn after_a_kill_no_change_overtakes_an_older_one() {
    let name = "change::after_a_kill_no_change_overtakes_an_older_one";
    with_mounts(name, || overtake_nothing(Way::Kill));
}

/// A change hangs, and the next daemon has another write replica: the two do not order their
/// changes. So that daemon makes none until the old process has finished.
fn change_nothing_through_another_replica(way: Way) {
    let world = World::new("");
    pin_to_n1(&world);
    let nested = Nested::new(&world);
    world.expect(&["mount", "v.toml", "mnt", "-o", "keeper,log=log"]);
    let mut mode = Changer::new(&world, "mode", "nested/seen", "", OFlags::RDONLY);
    assert_eq!(mode.change("604"), 0);
    nested.signal(Signal::STOP);
    mode.begin("600");
    expect_hung((&world, 0), 1);
    let text = fs::read_to_string(world.path("v.toml")).unwrap();
    let text = text.replace("[write]\n", "[write]\nreplica = \"n2\"\n");
    fs::write(world.path("v.toml"), text).unwrap();
    let before = way.go(&world);
    assert_eq!(mode.answer(), IO, "{}", world.log());
    let create = || fs::write(world.path("mnt/other"), "other");
    let errno = create().map_err(|error| error.raw_os_error());
    // On a busy machine the nested mount may not have begun to read the change: then the kernel
    // withdraws it, and the old process ends at once.
    let has_ended = !Path::new(&format!("/proc/{before}")).exists();
    assert!(errno == Err(Some(IO)) || errno.is_ok() && has_ended, "{errno:?}: {}", world.log());
    nested.signal(Signal::CONT);
    expect_ended(&world, before);
    world.eventually("changes are made again", || create().is_ok());
    let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert!([0o600, 0o604].contains(&mode_of(&world.path("beside/seen"))));
    drop(mode);
    expect_nothing_open(&world);
}

#[test]
fn after_an_upgrade_another_write_replica_overtakes_nothing() {
    let name = "change::after_an_upgrade_another_write_replica_overtakes_nothing";
    with_mounts(name, || change_nothing_through_another_replica(Way::Upgrade));
}

#[test]
fn after_a_reload_another_write_replica_overtakes_nothing() {
    let name = "change::after_a_reload_another_write_replica_overtakes_nothing";
    with_mounts(name, || change_nothing_through_another_replica(Way::Reload));
}

#[test]
fn after_a_kill_another_write_replica_overtakes_nothing() {
    let name = "change::after_a_kill_another_write_replica_overtakes_nothing";
    with_mounts(name, || change_nothing_through_another_replica(Way::Kill));
}

/// The daemon that replaces a dead mount has no list of the files that an earlier daemon may still
/// change, so it changes nothing until that daemon has finished.
#[test]
fn after_a_mount_is_replaced_no_change_is_overtaken() {
    with_mounts("change::after_a_mount_is_replaced_no_change_is_overtaken", || {
        let world = World::new("");
        pin_to_n1(&world);
        let nested = Nested::new(&world);
        world.expect(&["mount", "v.toml", "mnt", "-o", "keeper,log=log"]);
        let mut mode = Changer::new(&world, "mode", "nested/seen", "", OFlags::RDONLY);
        assert_eq!(mode.change("604"), 0);
        nested.signal(Signal::STOP);
        mode.begin("600");
        expect_hung((&world, 0), 1);
        let before = kill_without_journal(&world);
        expect_another(&world, before);
        expect_replaced(&world);
        expect_readable(&world);
        assert_ne!(mode.answer(), 0, "{}", world.log());
        let create = || fs::write(world.path("mnt/other"), "other");
        let errno = create().map_err(|error| error.raw_os_error());
        assert_eq!(errno, Err(Some(IO)), "{}", world.log());
        nested.signal(Signal::CONT);
        expect_ended(&world, before);
        world.eventually("changes are made again", || create().is_ok());
        drop(mode);
        expect_nothing_open(&world);
    });
}
