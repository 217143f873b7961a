//! Signals to processes.
//!
//! SIGSTOP reaches one thread of a process, which stops the others when it runs. On a busy machine
//! that takes a while, and until then the other threads go on. So a test must not assume that a
//! process is stopped when the signal is sent; tests/tidy.rs checks that tests stop processes only
//! through this file.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a process may take to stop.
const PATIENCE: Duration = Duration::from_secs(25);

/// Sends a signal. A process that is stopped by it runs no more when this returns.
pub(crate) fn send(process: Pid, signal: Signal) {
    try_send(process, signal).unwrap();
}

/// The same, for a process that may have ended.
pub(crate) fn try_send(process: Pid, signal: Signal) -> rustix::io::Result<()> {
    kill_process(process, signal)?;
    let until = Instant::now() + PATIENCE;
    while signal == Signal::STOP && !is_stopped(process) {
        assert!(Instant::now() < until, "process {process:?} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Whether no thread of the process runs. One that waits uninterruptibly stops when its wait ends,
/// before it runs.
fn is_stopped(process: Pid) -> bool {
    let is_at_rest = |task: io::Result<fs::DirEntry>| {
        let status = task.and_then(|task| fs::read_to_string(task.path().join("status")));
        // It may have ended.
        status.map_or(true, |status| {
            ["T", "D", "Z", "X"].iter().any(|state| status.contains(&format!("State:\t{state}")))
        })
    };
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    tasks.map_or(true, |mut tasks| tasks.all(is_at_rest))
}
