//! Whose numbers the kernel gave: the process of a thread, and its command.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// A process that reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    /// Its number; the thread's own where the process has ended.
    pub(super) pid: u32,
    /// Its command, at most 15 bytes of it; empty where it has ended.
    pub(super) command: String,
}

/// What is known of processes. Numbers are used again, so it is not kept for long.
#[derive(Default)]
pub(super) struct ProcessCache {
    entries: HashMap<u32, (ProcessInfo, Instant)>,
}

/// How long a number is taken to stand for the same process.
const CACHE_TTL: Duration = Duration::from_secs(10);

impl ProcessCache {
    /// The process of a thread.
    pub(super) fn lookup(&mut self, thread: u32) -> ProcessInfo {
        let now = Instant::now();
        self.entries.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < CACHE_TTL);
        let (process, _) =
            self.entries.entry(thread).or_insert_with(|| (read_process(thread), now));
        process.clone()
    }
}

fn read_process(thread: u32) -> ProcessInfo {
    // Neither file makes the kernel wait for the process, whatever that one waits for.
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let pid = field("Tgid:").and_then(|pid| pid.parse().ok()).unwrap_or(thread);
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = comm.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    ProcessInfo { pid, command }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_its_processs() {
        let me = std::process::id();
        let thread = rustix::thread::gettid().as_raw_pid() as u32;
        let found = ProcessCache::default().lookup(thread);
        assert_eq!(found.pid, me);
        assert!(!found.command.is_empty());
    }

    #[test]
    fn what_has_ended_keeps_its_number() {
        let gone = ProcessCache::default().lookup(u32::MAX - 1);
        assert_eq!(gone, ProcessInfo { pid: u32::MAX - 1, command: String::new() });
    }
}
