//! Earlier daemons of a mount that have not ended.
//!
//! A thread that hangs in a replica keeps its process alive after that was killed or has
//! handed the mount over. When the replica answers, the thread's call is made after all.
//! So the daemon that serves holds descriptors of these processes (pidfd_open(2)): it
//! makes no newer change of a file that such a thread may still change ([`crate::fs`]).
//!
//! *Invariant:* a process counts as one that may change files unless it is seen to have
//! ended, or to have no thread inside the write replica.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::Core;
use super::keeper::is_over;

/// The processes.
#[derive(Debug, Default)]
pub(super) struct Former(Vec<OwnedFd>);

impl Former {
    pub(super) fn of(processes: Vec<OwnedFd>) -> Self {
        Self(processes)
    }

    /// Adds a process that lives.
    pub(super) fn add(&mut self, pid: Pid) -> io::Result<()> {
        self.0.push(pidfd_open(pid, PidfdFlags::empty())?);
        Ok(())
    }

    /// Those that have not ended, and this process.
    pub(super) fn with_this(&self) -> io::Result<Self> {
        let mut all = Self::default();
        for process in self.left() {
            all.0.push(process.try_clone_to_owned()?);
        }
        all.add(getpid())?;
        Ok(all)
    }

    /// Those that have not ended.
    pub(super) fn left(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).filter(|process| !has_ended(*process)).collect()
    }

    /// Forgets those that have ended.
    pub(super) fn tidy(&mut self) {
        self.0.retain(|process| !has_ended(process.as_fd()));
    }

    /// Whether no process has a thread of this name that is inside a call.
    pub(super) fn have_left(&self, thread: &str) -> bool {
        self.0.iter().all(|process| has_left(process.as_fd(), thread))
    }
}

/// Whether all threads of the process have ended, and what they had open is closed.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn has_left(process: BorrowedFd<'_>, thread: &str) -> bool {
    // The number is the process's own if the process has not ended after it was used.
    has_ended(process) || is_nobody_inside(process, thread).unwrap_or(false) || has_ended(process)
}

/// Whether none of its threads of this name is inside a call. One that is ending has come
/// out of it.
fn is_nobody_inside(process: BorrowedFd<'_>, thread: &str) -> Option<bool> {
    let info = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    let pid: u32 = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    let named = format!("({thread}) ");
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that ends meanwhile has no such file any more.
        let Ok(stat) = std::fs::read(entry.ok()?.path().join("stat")) else { continue };
        let stat = String::from_utf8_lossy(&stat);
        if stat.contains(&named) && !is_over(&stat)? {
            return Some(false);
        }
    }
    Some(true)
}

impl Core {
    /// The daemons that a successor follows and that have not ended: this one is the last.
    pub(super) fn former_and_this(&self) -> io::Result<Former> {
        self.former.get().map_or_else(|| Former::default().with_this(), |all| all.with_this())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_has_left_when_its_thread_has_ended_or_it_has() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut former = Former::default();
        former.add(Pid::from_child(&child)).unwrap();
        // The child has its name from execve(2) on.
        while is_nobody_inside(former.left()[0], "sleep") != Some(false) {
            std::thread::yield_now();
        }
        assert!(!former.have_left("sleep") && former.have_left("r:n1"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(former.have_left("sleep") && former.left().is_empty());
        former.tidy();
        assert!(former.0.is_empty());
        assert_eq!(Former::default().with_this().unwrap().left().len(), 1);
    }
}
