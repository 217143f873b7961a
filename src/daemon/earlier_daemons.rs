//! Earlier daemons of a mount that have not ended.
//!
//! A thread that hangs in a replica keeps its process alive after the process was killed or has
//! handed the mount over. When the replica answers, the thread's call still takes effect. So
//! the daemon that serves holds descriptors of these processes (pidfd_open(2)). It makes no
//! newer change of a file that such a thread may still change ([`crate::fs`]). The daemon knows
//! such threads by their names, which do not depend on the configuration: the write replica may
//! have changed, or been renamed. A session thread that has its usual name counts too: if it is in a
//! replica, it has not been there for long, and no other thread has renamed it yet.
//!
//! *Invariant:* a process counts as able to change files until the daemon sees that it has
//! ended, or that it has no thread inside its write replica.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::process_state::is_exiting;
use crate::backend::WRITE_THREAD_PREFIX;
use crate::fuse::SESSION_THREAD_PREFIX;

/// Descriptors of processes that served the mount.
#[derive(Debug, Default)]
pub(super) struct EarlierDaemons(Vec<OwnedFd>);

impl EarlierDaemons {
    pub(super) fn new(processes: Vec<OwnedFd>) -> Self {
        Self(processes)
    }

    /// Adds a running process.
    pub(super) fn add(&mut self, pid: Pid) -> io::Result<()> {
        self.0.push(pidfd_open(pid, PidfdFlags::empty())?);
        Ok(())
    }

    /// The processes that have not ended, and this process.
    pub(super) fn with_current(&self) -> io::Result<Self> {
        let mut all = Self::default();
        for process in self.running() {
            all.0.push(process.try_clone_to_owned()?);
        }
        all.add(getpid())?;
        Ok(all)
    }

    /// The processes that have not ended.
    pub(super) fn running(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).filter(|process| !has_ended(*process)).collect()
    }

    /// Removes the processes that have ended.
    pub(super) fn remove_ended(&mut self) {
        self.0.retain(|process| !has_ended(process.as_fd()));
    }

    /// Whether no process has a thread that may be inside a change.
    pub(super) fn has_no_change_in_flight(&self) -> bool {
        let in_change = [WRITE_THREAD_PREFIX, SESSION_THREAD_PREFIX];
        self.0.iter().all(|process| has_no_call_in_flight(process.as_fd(), &in_change))
    }
}

/// Whether all threads of the process have ended, and the files they had open are closed.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn has_no_call_in_flight(process: BorrowedFd<'_>, threads: &[&str]) -> bool {
    // The kernel reuses a PID only after its process has ended. So the threads seen are the
    // process's own if it has not ended afterwards.
    has_ended(process)
        || has_no_thread_in_call(process, threads).unwrap_or(false)
        || has_ended(process)
}

/// Whether no thread whose name begins with one of `threads` may be inside a call. A thread that is
/// exiting has left its call.
fn has_no_thread_in_call(process: BorrowedFd<'_>, threads: &[&str]) -> Option<bool> {
    let info = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    let pid: u32 = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    let is_one = |stat: &str| {
        let name = stat.split_once('(').map(|(_, name)| name);
        name.is_some_and(|name| threads.iter().any(|prefix| name.starts_with(prefix)))
    };
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that ended meanwhile has no such file any more.
        let Ok(stat) = std::fs::read(entry.ok()?.path().join("stat")) else { continue };
        let stat = String::from_utf8_lossy(&stat);
        if is_one(&stat) && !is_exiting(&stat)? {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_daemon_is_gone_once_its_thread_or_process_ends() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut daemons = EarlierDaemons::default();
        daemons.add(Pid::from_child(&child)).unwrap();
        // The child has its name from execve(2) on.
        while has_no_thread_in_call(daemons.running()[0], &["sl"]) != Some(false) {
            std::thread::yield_now();
        }
        assert!(daemons.has_no_change_in_flight(), "no thread of it has a name that says so");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            has_no_call_in_flight(daemons.0[0].as_fd(), &["sl"]) && daemons.running().is_empty()
        );
        daemons.remove_ended();
        assert!(daemons.0.is_empty());
        assert_eq!(EarlierDaemons::default().with_current().unwrap().running().len(), 1);
    }
}
