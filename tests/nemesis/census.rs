//! Resources of this process: threads, descriptors, memory, mounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Resources whose number must be the same after a round as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) threads: usize,
    pub(crate) descriptors: usize,
}

impl Census {
    pub(crate) fn take() -> Self {
        let entries = |dir| fs::read_dir(dir).into_iter().flatten().flatten();
        // A mount keeps one descriptor as long as its process runs (see `fuse::raw_reply`). It
        // is the device, or /dev/null if the daemon let go of the device before the mount ended.
        let kept = [Path::new("/dev/fuse"), Path::new("/dev/null")];
        let counts = |at: &PathBuf| fs::read_link(at).is_ok_and(|to| !kept.contains(&&*to));
        Self {
            threads: entries("/proc/self/task").count(),
            descriptors: entries("/proc/self/fd").filter(|entry| counts(&entry.path())).count(),
        }
    }

    /// Waits until there are no more than these; returns any excess.
    pub(crate) fn expect(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(5);
        loop {
            let now = Self::take();
            if now.threads <= self.threads && now.descriptors <= self.descriptors {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("{self:?} before, {now:?} after; {}", names().join(" ")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut names: Vec<String> = tasks
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect();
    names.sort();
    names
}

/// Resident memory of this process, bytes.
pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Whether anything is mounted below `dir`.
pub(crate) fn has_mounts(dir: &Path) -> bool {
    let mounts = fs::read("/proc/self/mountinfo").unwrap();
    let mounts = String::from_utf8_lossy(&mounts);
    let dir = dir.display().to_string();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| at.starts_with(&dir)))
}
