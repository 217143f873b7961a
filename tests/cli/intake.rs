//! The bytes that requests carry stay within the budget while the write replica, a process of its
//! own, is stopped.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::process::Signal;

use super::limits::resident;
use super::served::Server;
use crate::room::{Room, in_a_process};

/// One request.
const MIB: usize = 1 << 20;

/// Without a bound the daemon would take this many MiB.
const WRITERS: usize = 200;

/// The budget, and half of it for all other memory, KiB.
const MOST: u64 = 24 << 10;

/// The part of the budget of 16 MiB that writes may take.
const SHARE: u64 = 5 << 20;

/// The time in which a daemon without a bound would take all sent bytes.
const A_WHILE: Duration = Duration::from_secs(2);

/// Runs `body` in a process of its own. A program that another test of this process starts
/// has this test's files open until its exec(2), and waits there for the stopped replica;
/// each reader of its `/proc` entry waits with it.
fn alone(test: &str, body: impl FnOnce()) {
    in_a_process(&format!("cli::intake::{test}"), |program| Some(Command::new(program)), body);
}

/// A replica that is read, another one that is written, and a volume over both.
struct Volume {
    outer: Room,
    _read: Server,
    written: Server,
    before: u64,
    /// Writes that have failed. A writer still closes its file then.
    failed: Arc<AtomicUsize>,
}

impl Volume {
    fn new(files: usize, patience: &str) -> Self {
        let outer = Room::new();
        (0..files).for_each(|i| fs::write(outer.path(&format!("tree/{i}")), "").unwrap());
        fs::write(outer.path("tree/other"), vec![1; MIB]).unwrap();
        let (read, written) = (Server::new(&outer), Server::writable(&outer));
        let replica = |name: &str, server: &Server| {
            let place = server.room.path("mnt");
            format!(
                "[[replica]]\nname = \"{name}\"\npath = \"{}\"\nrequire_mount = false\n",
                place.display()
            )
        };
        let text = format!(
            "[volume]\nname = \"v\"\nmode = \"shared\"\naccess = \"rw\"\n\
             [memory]\nbudget = \"16MiB\"\n[write]\nreplica = \"w\"\n\
             [read]\ncache = \"direct\"\ndeadline = \"120s\"\nattempt_deadline = \"{patience}\"\n\
             segment_size = \"256KiB\"\n{}{}",
            replica("r", &read),
            replica("w", &written)
        );
        fs::write(outer.path("outer.toml"), text).unwrap();
        outer.expect(&["mount", "outer.toml", "mnt"]);
        let before = resident(&outer);
        Self { outer, _read: read, written, before, failed: Arc::default() }
    }

    fn at(&self, name: impl std::fmt::Display) -> PathBuf {
        self.outer.path(&format!("mnt/{name}"))
    }

    /// Each thread writes 1 MiB to its own file.
    fn writers(&self) -> Vec<JoinHandle<io::Result<()>>> {
        let open = |i| File::options().write(true).open(self.at(i)).unwrap();
        let files: Vec<File> = (0..WRITERS).map(open).collect();
        let bytes = Arc::new(vec![7; MIB]);
        self.written.send(Signal::STOP);
        let writer = |file: File| {
            let (bytes, failed) = (Arc::clone(&bytes), Arc::clone(&self.failed));
            thread::spawn(move || {
                let result = file.write_all_at(&bytes, 0);
                failed.fetch_add(usize::from(result.is_err()), Ordering::Relaxed);
                result
            })
        };
        files.into_iter().map(writer).collect()
    }

    fn expect_little_memory(&self) {
        let (before, held) = (self.before, resident(&self.outer));
        assert!(held < before + MOST, "{before} KiB, then {held} KiB");
    }

    fn is_written(&self, i: usize) -> bool {
        fs::read(self.outer.path(&format!("tree/{i}"))).unwrap() == [7; MIB]
    }

    /// Claimed bytes of the budget.
    fn buffer_used(&self) -> u64 {
        let status = self.outer.expect(&["status", "mnt", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        status["gauges"]["buffer_used"].as_u64().unwrap()
    }

    /// No write stays in memory, and the volume can be written as before.
    fn end(&self) {
        // The replica may still be at work on the writes before.
        self.outer.eventually("it is written", || fs::write(self.at("0"), "again").is_ok());
        self.outer.eventually("all is given back", || self.buffer_used() == 0);
        self.outer.expect(&["umount", "mnt"]);
        self.outer.expect_gone();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Otherwise the stopped replica would block the end of other daemons.
        self.written.send(Signal::CONT);
    }
}

#[test]
fn writers_to_a_stopped_replica_use_no_daemon_memory() {
    alone("writers_to_a_stopped_replica_use_no_daemon_memory", || {
        let volume = Volume::new(WRITERS, "100s");
        let writers = volume.writers();
        thread::sleep(A_WHILE);
        volume.expect_little_memory();
        volume.written.send(Signal::CONT);
        writers.into_iter().for_each(|writer| writer.join().unwrap().unwrap());
        assert!((0..WRITERS).all(|i| volume.is_written(i)));
        volume.expect_little_memory();
        volume.end();
    });
}

#[test]
fn reads_continue_while_writes_without_room_fail() {
    alone("reads_continue_while_writes_without_room_fail", || {
        let volume = Volume::new(WRITERS, "1s");
        let other = File::open(volume.at("other")).unwrap();
        let writers = volume.writers();
        // A write without room delays this no longer than the replica's deadline.
        let mut bytes = vec![0; MIB];
        for _ in 0..10 {
            other.read_exact_at(&mut bytes, 0).unwrap();
            thread::sleep(A_WHILE / 10);
        }
        volume.outer.eventually("a write without room has failed", || {
            volume.failed.load(Ordering::Relaxed) > 0
        });
        assert!(bytes == [1; MIB] && writers.iter().any(|writer| !writer.is_finished()));
        volume.expect_little_memory();
        volume.written.send(Signal::CONT);
        let mut failed = 0;
        for (i, writer) in writers.into_iter().enumerate() {
            match writer.join().unwrap() {
                Ok(()) => assert!(volume.is_written(i), "{i} is not written"),
                Err(error) => {
                    assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
                    failed += 1;
                }
            }
        }
        assert!((1..WRITERS).contains(&failed), "{failed} of {WRITERS} failed");
        drop(other);
        volume.end();
    });
}

#[test]
fn attribute_values_count_against_the_budget() {
    alone("attribute_values_count_against_the_budget", || {
        let (setters, value) = (12 * WRITERS / 2, vec![7; 64 << 10]);
        let volume = Volume::new(setters, "1s");
        (0..setters).for_each(|i| assert!(volume.at(i).exists()));
        volume.written.send(Signal::STOP);
        let value = Arc::new(value);
        let setter = |i| {
            let (path, value) = (volume.at(i), Arc::clone(&value));
            thread::spawn(move || {
                rustix::fs::setxattr(&path, "user.large", &value, XattrFlags::empty())
            })
        };
        let setters: Vec<_> = (0..setters).map(setter).collect();
        thread::sleep(A_WHILE);
        volume.outer.eventually("a value without room is refused", || {
            setters.iter().any(JoinHandle::is_finished)
        });
        volume.expect_little_memory();
        volume.written.send(Signal::CONT);
        // The file system decides whether a file may have such values.
        let refused = |setter: JoinHandle<_>| setter.join().unwrap() == Err(Errno::IO);
        let refused = setters.into_iter().map(refused).filter(|is_refused| *is_refused).count();
        assert!(refused > 0, "there was room for all");
        volume.end();
    });
}

/// Opens the files that its input names, and writes 1 MiB to each on command. It is a separate
/// program: a program that this test starts closes the test's files in its exec(2), and would wait
/// there for the stopped replica.
const WRITER: &str = "
import os, sys, threading
files = [os.open(name, os.O_WRONLY) for name in sys.argv[1:]]
print(flush=True)
sys.stdin.readline()
failed = []
def write(file):
    try:
        os.write(file, bytes([7]) * (1 << 20))
    except OSError as error:
        failed.append(error)
threads = [threading.Thread(target=write, args=[file]) for file in files]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit(str(failed) if failed else 0)
";

#[test]
fn an_upgrade_succeeds_while_writes_wait_for_room() {
    alone("an_upgrade_succeeds_while_writes_wait_for_room", || {
        let volume = Volume::new(WRITERS, "100s");
        let mut command = Command::new("python3");
        command.args(["-c", WRITER]).args((0..WRITERS).map(|i| volume.at(i)));
        let mut writer =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let (mut begin, mut are_open) =
            (writer.stdin.take().unwrap(), writer.stdout.take().unwrap());
        are_open.read_exact(&mut [0]).expect("the files are open");
        volume.written.send(Signal::STOP);
        writeln!(begin).unwrap();
        volume.outer.eventually("there is no room", || volume.buffer_used() > SHARE - MIB as u64);
        volume.outer.expect(&["upgrade", "mnt"]);
        volume.written.send(Signal::CONT);
        assert!(writer.wait().unwrap().success());
        assert!((0..WRITERS).all(|i| volume.is_written(i)));
        volume.end();
    });
}
