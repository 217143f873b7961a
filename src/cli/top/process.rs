//! Maps a thread ID, as the kernel reports it, to its process and command.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// A process that reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProcessInfo {
    /// Its process ID; the thread's ID if the process has ended.
    pub(super) pid: u32,
    /// Its command, at most 15 bytes; [`ENDED`] if the process has ended.
    pub(super) command: String,
}

/// Stands for the command of a process that has ended.
const ENDED: &str = "(ended)";

/// A cache of processes. The kernel reuses IDs, so entries expire.
#[derive(Default)]
pub(super) struct ProcessCache {
    entries: HashMap<u32, (ProcessInfo, Instant)>,
}

/// How long an entry is used.
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
    // Reading these files never blocks, even if the process itself is blocked.
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let pid = field("Tgid:").and_then(|pid| pid.parse().ok()).unwrap_or(thread);
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let command = match comm.trim_end() {
        "" => ENDED.to_owned(),
        name => name.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
    };
    ProcessInfo { pid, command }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_maps_to_its_process() {
        let me = std::process::id();
        let thread = rustix::thread::gettid().as_raw_pid() as u32;
        let found = ProcessCache::default().lookup(thread);
        assert_eq!(found.pid, me);
        assert_ne!(found.command, ENDED);
    }

    #[test]
    fn an_ended_process_keeps_its_id() {
        let gone = ProcessCache::default().lookup(u32::MAX - 1);
        assert_eq!(gone, ProcessInfo { pid: u32::MAX - 1, command: ENDED.to_owned() });
    }
}
