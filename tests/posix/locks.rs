//! Locks that exclude each other between processes, on the mount and beside it.
//!
//! The other processes are `locks.py`, which follows commands, so each of them can be left waiting,
//! interrupted or killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::python::{self, Python};

use crate::processes::Command;

/// Every expected event happens within this time, on a busy machine too.
const SOON: Duration = Duration::from_secs(20);
/// An event that has not happened after this time counts as not happening.
const A_WHILE: Duration = Duration::from_millis(300);

/// Another process.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    fn start(python: Python) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix/locks.py");
        let mut command = Command::new(python.0);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (orders, lines) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, orders, answers }
    }

    /// A process that has the file open for reading and writing, as `f`.
    fn with(python: Python, path: &Path) -> Self {
        let mut process = Self::start(python);
        process.open("f", path, "rw");
        process
    }

    fn tell(&mut self, order: &Value) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&self) -> String {
        // Far longer than any test here takes, but Python must start as well.
        self.answers.recv_timeout(Duration::from_secs(60)).expect("a process does not answer")
    }

    /// It does not answer, because it waits.
    fn expect_waiting(&self) {
        let answer = self.answers.recv_timeout(A_WHILE);
        assert_eq!(answer, Err(RecvTimeoutError::Timeout), "it should wait for the lock");
    }

    /// It waited, and ends within this time.
    fn expect_soon(&self, answer: &str) {
        let got = self.answers.recv_timeout(SOON).expect("it still waits");
        assert_eq!(got, answer);
    }

    fn ask(&mut self, order: Value) -> String {
        self.tell(&order);
        self.answer()
    }

    fn open(&mut self, name: &str, path: &Path, how: &str) {
        let path = path.to_str().unwrap();
        assert_eq!(self.ask(json!(["open", name, path, how])), "ok", "open {path}");
    }

    fn close(&mut self, name: &str) {
        assert_eq!(self.ask(json!(["close", name])), "ok");
    }

    /// A lock of this kind (`r`, `w`, or `u` for none) on a range of `f`.
    fn set(&mut self, call: &str, kind: char, start: u64, length: u64) -> String {
        self.ask(order("f", call, kind, start, length))
    }

    fn flock(&mut self, name: &str, flags: &[&str]) -> String {
        let mut order = vec!["flock", name];
        order.extend(flags);
        self.ask(json!(order))
    }

    /// Sends SIGKILL; the process must end soon, whatever it waits for.
    fn kill(mut self) {
        self.child.kill().unwrap();
        let until = Instant::now() + SOON;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "it was killed and is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A process that cannot be killed must not keep the test from reporting it.
        let until = Instant::now() + SOON;
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn order(name: &str, call: &str, kind: char, start: u64, length: u64) -> Value {
    let kind = match kind {
        'r' => "F_RDLCK",
        'w' => "F_WRLCK",
        _ => "F_UNLCK",
    };
    json!(["lock", name, call, kind, start, length])
}

/// Locks that the end of a process or a last close releases may take a moment to go.
fn eventually(mut lock: impl FnMut() -> String) {
    let until = Instant::now() + SOON;
    loop {
        let answer = lock();
        if answer == "ok" {
            return;
        }
        assert!(Instant::now() < until, "the lock is still held: {answer}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One file by two paths: in the mount, and on the backing itself.
struct Places {
    python: Python,
    mount: PathBuf,
    direct: PathBuf,
}

/// Runs all checks for a file in `mount`, whose directory is `direct` on the backing. Returns the
/// number of checks; `None` without Python.
pub(crate) fn run(mount: &Path, direct: &Path) -> Option<usize> {
    let python = python::find()?;
    type Part = (&'static str, fn(&Places));
    let parts: &[Part] = &[
        ("ranges", ranges),
        ("read-only", a_file_opened_for_reading),
        ("at-close", dropped_at_close),
        ("at-exit", dropped_at_the_end),
        ("waits", a_waiting_process_is_woken),
        ("interrupted", a_waiting_process_is_interrupted),
        ("ofd", of_open_file_descriptions),
        ("flock", flocks),
        ("flock-waits", a_process_waits_for_a_flock),
        ("beside", beside_the_mount),
    ];
    for (name, part) in parts {
        std::fs::write(direct.join(name), [7; 1000]).unwrap();
        let started = Instant::now();
        part(&Places { python, mount: mount.join(name), direct: direct.join(name) });
        println!("locks, {name}: {:?}", started.elapsed());
    }
    Some(parts.len())
}

impl Places {
    fn process(&self) -> Process {
        Process::with(self.python, &self.mount)
    }

    fn beside(&self) -> Process {
        Process::with(self.python, &self.direct)
    }
}

fn ranges(at: &Places) {
    let (mut a, mut b) = (at.process(), at.process());
    // Only overlapping ranges exclude each other.
    assert_eq!(a.set("F_SETLK", 'w', 100, 100), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 150, 10), "EAGAIN");
    assert_eq!(b.set("F_SETLK", 'r', 199, 1), "EAGAIN");
    assert_eq!(b.set("F_SETLK", 'w', 200, 100), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 0, 100), "ok");
    assert_eq!(b.set("F_GETLK", 'w', 0, 0), "F_WRLCK 100 100");
    assert_eq!(b.set("F_GETLK", 'w', 0, 100), "F_UNLCK");
    assert_eq!(a.set("F_GETLK", 'r', 250, 1), "F_WRLCK 200 100");
    assert_eq!(b.set("F_SETLK", 'u', 0, 0), "ok");

    // Unlocking the middle leaves two locks.
    assert_eq!(a.set("F_SETLK", 'u', 140, 20), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 140, 20), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 139, 1), "EAGAIN");
    assert_eq!(b.set("F_GETLK", 'w', 100, 50), "F_WRLCK 100 40");
    assert_eq!(b.set("F_GETLK", 'w', 150, 100), "F_WRLCK 160 40");
    assert_eq!(a.set("F_SETLK", 'u', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'u', 0, 0), "ok");

    // Readers share. A lock is upgraded if there is no other reader, and downgraded again.
    assert_eq!(a.set("F_SETLK", 'r', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'r', 0, 0), "ok");
    assert_eq!(a.set("F_SETLK", 'w', 0, 0), "EAGAIN");
    assert_eq!(b.set("F_GETLK", 'w', 0, 0), "F_RDLCK 0 0");
    assert_eq!(b.set("F_GETLK", 'r', 0, 0), "F_UNLCK");
    assert_eq!(b.set("F_SETLK", 'u', 0, 0), "ok");
    assert_eq!(a.set("F_SETLK", 'w', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'r', 0, 1), "EAGAIN");
    assert_eq!(a.set("F_SETLK", 'r', 10, 10), "ok");
    assert_eq!(b.set("F_SETLK", 'r', 10, 10), "ok");
    assert_eq!(b.set("F_SETLK", 'r', 9, 10), "EAGAIN");
    // Far behind the file's end, too.
    assert_eq!(b.set("F_SETLK", 'w', 1 << 40, 1), "EAGAIN");
    assert_eq!(a.set("F_SETLK", 'u', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 1 << 40, 1), "ok");
    assert_eq!(a.set("F_GETLK", 'w', 1000, 0), format!("F_WRLCK {} 1", 1u64 << 40));
}

fn a_file_opened_for_reading(at: &Places) {
    let (mut a, mut b) = (Process::start(at.python), at.process());
    a.open("f", &at.mount, "r");
    assert_eq!(a.set("F_SETLK", 'w', 0, 10), "EBADF");
    assert_eq!(a.set("F_SETLK", 'r', 0, 10), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 0, 10), "EAGAIN");
    assert_eq!(b.set("F_SETLK", 'r', 0, 10), "ok");
}

fn dropped_at_close(at: &Places) {
    let (mut a, mut b) = (at.process(), at.process());
    assert_eq!(a.set("F_SETLK", 'w', 0, 0), "ok");
    a.open("again", &at.mount, "r");
    assert_eq!(b.set("F_SETLK", 'w', 0, 0), "EAGAIN");
    // As POSIX has it: the close of any handle drops the process's locks.
    a.close("again");
    assert_eq!(b.set("F_SETLK", 'w', 0, 0), "ok");
    assert_eq!(a.set("F_SETLK", 'w', 0, 0), "EAGAIN");
    b.close("f");
    assert_eq!(a.set("F_SETLK", 'w', 0, 0), "ok");
}

fn dropped_at_the_end(at: &Places) {
    let (mut a, mut b, mut c) = (at.process(), at.process(), at.process());
    assert_eq!(a.set("F_SETLK", 'w', 0, 100), "ok");
    assert_eq!(b.set("F_OFD_SETLK", 'w', 100, 100), "ok");
    assert_eq!(c.set("F_SETLK", 'w', 0, 200), "EAGAIN");
    a.kill();
    eventually(|| c.set("F_SETLK", 'w', 0, 100));
    b.kill();
    eventually(|| c.set("F_SETLK", 'w', 100, 100));
}

fn a_waiting_process_is_woken(at: &Places) {
    let (mut a, mut b, mut c) = (at.process(), at.process(), at.process());
    assert_eq!(a.set("F_SETLK", 'w', 0, 100), "ok");
    b.tell(&order("f", "F_SETLKW", 'w', 50, 100));
    b.expect_waiting();
    // A waiter holds nothing, and blocks no other process.
    assert_eq!(c.set("F_SETLK", 'w', 100, 50), "ok");
    assert_eq!(c.set("F_SETLK", 'u', 100, 50), "ok");
    assert_eq!(a.set("F_SETLK", 'u', 0, 100), "ok");
    b.expect_soon("ok");
    assert_eq!(a.set("F_SETLK", 'w', 50, 1), "EAGAIN");
    // By a downgrade, by a close, and by the holder's death.
    a.tell(&order("f", "F_SETLKW", 'r', 50, 100));
    a.expect_waiting();
    assert_eq!(b.set("F_SETLK", 'r', 50, 100), "ok");
    a.expect_soon("ok");
    c.tell(&order("f", "F_SETLKW", 'w', 50, 100));
    c.expect_waiting();
    a.close("f");
    c.expect_waiting();
    b.kill();
    c.expect_soon("ok");
    // Several waiters, one after the other.
    let mut row: Vec<_> = (0..6).map(|_| at.process()).collect();
    row.iter_mut().for_each(|one| one.tell(&order("f", "F_SETLKW", 'w', 0, 0)));
    row.iter().for_each(Process::expect_waiting);
    assert_eq!(c.set("F_SETLK", 'u', 0, 0), "ok");
    while !row.is_empty() {
        let until = Instant::now() + SOON;
        let next = loop {
            assert!(Instant::now() < until, "none of {} got the lock", row.len());
            let got = row.iter().position(|one| one.answers.try_recv().is_ok());
            match got {
                Some(next) => break next,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        row.swap_remove(next).close("f");
    }
}

fn a_waiting_process_is_interrupted(at: &Places) {
    let (mut a, mut b) = (at.process(), at.process());
    assert_eq!(a.set("F_SETLK", 'w', 0, 0), "ok");
    for call in ["F_SETLKW", "F_OFD_SETLKW"] {
        assert_eq!(b.ask(json!(["alarm", 0.3])), "ok");
        b.tell(&order("f", call, 'w', 0, 10));
        b.expect_soon("EINTR");
        let mut c = at.process();
        c.tell(&order("f", call, 'w', 0, 10));
        c.expect_waiting();
        c.kill();
    }
    // Neither left a lock behind, nor a wait that gets one.
    assert_eq!(a.set("F_SETLK", 'u', 0, 0), "ok");
    std::thread::sleep(A_WHILE);
    assert_eq!(a.set("F_GETLK", 'w', 0, 0), "F_UNLCK");
    assert_eq!(a.set("F_SETLK", 'w', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 0, 0), "EAGAIN");
}

fn of_open_file_descriptions(at: &Places) {
    let (mut a, mut b) = (at.process(), at.process());
    a.open("other", &at.mount, "rw");
    assert_eq!(a.set("F_OFD_SETLK", 'w', 0, 100), "ok");
    // They exclude locks of the same process, and locks of the other kinds.
    assert_eq!(a.ask(order("other", "F_OFD_SETLK", 'r', 0, 1)), "EAGAIN");
    assert_eq!(a.ask(order("other", "F_SETLK", 'w', 0, 1)), "EAGAIN");
    assert_eq!(b.set("F_SETLK", 'w', 0, 1), "EAGAIN");
    assert_eq!(b.set("F_OFD_GETLK", 'w', 0, 0), "F_WRLCK 0 100");
    b.tell(&order("f", "F_OFD_SETLKW", 'w', 0, 1));
    b.expect_waiting();
    // The close of another handle does not drop them.
    a.close("other");
    b.expect_waiting();
    a.close("f");
    b.expect_soon("ok");
}

fn flocks(at: &Places) {
    let (mut a, mut b) = (at.process(), at.process());
    a.open("other", &at.mount, "rw");
    assert_eq!(a.flock("f", &["LOCK_EX"]), "ok");
    assert_eq!(b.flock("f", &["LOCK_EX", "LOCK_NB"]), "EAGAIN");
    assert_eq!(b.flock("f", &["LOCK_SH", "LOCK_NB"]), "EAGAIN");
    // They belong to the open file, not to the process.
    assert_eq!(a.flock("other", &["LOCK_SH", "LOCK_NB"]), "EAGAIN");
    assert_eq!(a.flock("f", &["LOCK_SH"]), "ok");
    assert_eq!(a.flock("other", &["LOCK_SH", "LOCK_NB"]), "ok");
    assert_eq!(b.flock("f", &["LOCK_SH", "LOCK_NB"]), "ok");
    assert_eq!(a.flock("f", &["LOCK_EX", "LOCK_NB"]), "EAGAIN");
    a.close("other");
    assert_eq!(b.flock("f", &["LOCK_UN"]), "ok");
    eventually(|| a.flock("f", &["LOCK_EX", "LOCK_NB"]));
    a.close("f");
    eventually(|| b.flock("f", &["LOCK_EX", "LOCK_NB"]));
    b.kill();
    let mut c = at.process();
    eventually(|| c.flock("f", &["LOCK_EX", "LOCK_NB"]));
}

fn a_process_waits_for_a_flock(at: &Places) {
    let (mut a, mut b, mut c) = (at.process(), at.process(), at.process());
    assert_eq!(a.flock("f", &["LOCK_EX"]), "ok");
    b.tell(&json!(["flock", "f", "LOCK_EX"]));
    b.expect_waiting();
    assert_eq!(c.ask(json!(["alarm", 0.3])), "ok");
    c.tell(&json!(["flock", "f", "LOCK_SH"]));
    c.expect_soon("EINTR");
    c.tell(&json!(["flock", "f", "LOCK_EX"]));
    c.expect_waiting();
    c.kill();
    assert_eq!(a.flock("f", &["LOCK_UN"]), "ok");
    b.expect_soon("ok");
    // The killed process did not get the lock after all.
    assert_eq!(b.flock("f", &["LOCK_UN"]), "ok");
    std::thread::sleep(A_WHILE);
    assert_eq!(a.flock("f", &["LOCK_EX", "LOCK_NB"]), "ok");
    b.tell(&json!(["flock", "f", "LOCK_SH"]));
    b.expect_waiting();
    a.kill();
    b.expect_soon("ok");
}

fn beside_the_mount(at: &Places) {
    let (mut a, mut b) = (at.process(), at.beside());
    // In both directions.
    assert_eq!(a.set("F_SETLK", 'w', 0, 100), "ok");
    assert_eq!(b.set("F_SETLK", 'r', 99, 1), "EAGAIN");
    assert_eq!(b.set("F_GETLK", 'w', 0, 0), "F_WRLCK 0 100");
    assert_eq!(b.set("F_SETLK", 'w', 100, 100), "ok");
    assert_eq!(a.set("F_SETLK", 'r', 150, 1), "EAGAIN");
    assert_eq!(a.set("F_GETLK", 'r', 150, 0), "F_WRLCK 100 100");
    // A release on the other side wakes a waiter, and a waiter can be interrupted.
    a.tell(&order("f", "F_SETLKW", 'w', 100, 1));
    a.expect_waiting();
    assert_eq!(b.set("F_SETLK", 'u', 100, 100), "ok");
    a.expect_soon("ok");
    b.tell(&order("f", "F_SETLKW", 'w', 0, 1));
    b.expect_waiting();
    assert_eq!(a.set("F_SETLK", 'u', 0, 0), "ok");
    b.expect_soon("ok");
    assert_eq!(a.ask(json!(["alarm", 0.3])), "ok");
    a.tell(&order("f", "F_SETLKW", 'w', 0, 1));
    a.expect_soon("EINTR");
    a.tell(&order("f", "F_SETLKW", 'w', 0, 1));
    a.expect_waiting();
    a.kill();
    assert_eq!(b.set("F_SETLK", 'u', 0, 0), "ok");
    std::thread::sleep(A_WHILE);
    // An abandoned wait does not get the lock on the other side.
    assert_eq!(b.set("F_SETLK", 'w', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'u', 0, 0), "ok");
    // Locks released by a close or a death in the mount are released beside it.
    let mut c = at.process();
    assert_eq!(c.set("F_SETLK", 'w', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 0, 0), "EAGAIN");
    c.close("f");
    assert_eq!(b.set("F_SETLK", 'w', 0, 0), "ok");
    b.kill();
    c.open("f", &at.mount, "rw");
    eventually(|| c.set("F_SETLK", 'r', 0, 0));
    let mut b = at.beside();
    assert_eq!(b.set("F_SETLK", 'r', 0, 0), "ok");
    assert_eq!(b.set("F_SETLK", 'w', 0, 0), "EAGAIN");
    c.kill();
    eventually(|| b.set("F_SETLK", 'w', 0, 0));
}
