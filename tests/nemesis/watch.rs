//! Ends a run that hangs, and shows where it hangs.

use std::fmt::Write as _;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::judge::Judge;
use crate::world;

/// The time that a round may take in addition to its length: its set-up, the recovery of all
/// replicas, the program's commands, its unmount.
const BEYOND_LENGTH: Duration = Duration::from_secs(300);

/// Gives the run up if a call does not end while `work` runs. `work` includes the end of every
/// thread that makes calls: a call may hang after the last event.
pub(crate) fn watch_calls<T>(
    judge: &Judge,
    give_up: impl Fn() + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                if !judge.look() {
                    abort_soon();
                    println!("nemesis: given up\n{}", threads());
                    give_up();
                    std::process::exit(1);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let _end = SetOnDrop(&is_over);
        work()
    })
}

/// Aborts the mounts of this process a little later, also if this thread hangs meanwhile.
fn abort_soon() {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(10));
        world::abort_all();
    });
}

/// Sets a flag for other threads, also if its scope panics.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Ends this process if it still exists after the limit: something hangs that the judge does not
/// know as a call.
pub(crate) struct TimeLimit {
    cancel: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TimeLimit {
    pub(crate) fn for_round(seed: u64, length: Duration) -> Self {
        let limit = length + BEYOND_LENGTH;
        let (cancel, cancelled): (_, Receiver<()>) = channel();
        let thread = std::thread::spawn(move || {
            if cancelled.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                abort_soon();
                println!("nemesis: seed {seed} did not end within {limit:?}\n{}", threads());
                world::abort_all();
                std::process::exit(1);
            }
        });
        Self { cancel: Some(cancel), thread: Some(thread) }
    }
}

impl Drop for TimeLimit {
    fn drop(&mut self) {
        drop(self.cancel.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it only waits");
        }
    }
}

/// Each thread of this process: its name, its system call, and where it waits in the kernel.
fn threads() -> String {
    let mut text = String::new();
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stack = read("stack");
        let frames: Vec<_> = stack.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        let (name, call) = (read("comm"), read("syscall"));
        let _ = writeln!(text, "  {}: {}: {}", name.trim(), call.trim(), frames.join(" < "));
    }
    text
}
