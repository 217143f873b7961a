//! How tests that share a process start programs, and end mounts.
//!
//! A new process has copies of all open files of its parent until execve(2) closes them. Two
//! things must not happen in that time:
//!
//! - A test takes or gives up a lock: a lock lasts as long as any copy of its file.
//! - A mount ends. The new process may have a file of the mount and the mount's /dev/fuse.
//!   To close the file it sends a flush, which the ended daemon does not answer, and waits
//!   forever: its own copy of /dev/fuse keeps the connection alive.
//!
//! So a program starts only while no other thread has the guard of [`no_start`], and
//! [`Command::spawn`] returns when the new process has closed its copies. tests/tidy.rs checks
//! that tests on mounts start programs and end mounts only through this file.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, Child, ExitStatus, Output, Stdio};
use std::time::Duration;

use fanfs::daemon::Mount;
use fanfs::fuse::MountError;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, getrlimit};

static STARTS: RwLock<()> = RwLock::new(());

/// How long a new process may take to close its copies.
const PATIENCE: Duration = Duration::from_secs(25);

/// No program starts while the caller has the guard. The caller must not start one or unmount
/// meanwhile: a program that waits to start comes before later guards, so that the many tests
/// that unmount do not delay it for long.
pub(crate) fn no_start() -> RwLockReadGuard<'static, ()> {
    STARTS.read()
}

/// For a test whose daemon starts programs itself: the caller has the guard until these
/// programs run. It must not start a program or end a mount.
pub(crate) fn daemon_starts() -> RwLockWriteGuard<'static, ()> {
    STARTS.write()
}

/// Unmounts while no program starts.
pub(crate) fn stop(mount: Mount) -> Result<(), MountError> {
    let _no_start = no_start();
    mount.stop()
}

/// Shows when a new process has closed its copies of this process's files: a pipe whose write
/// end is the last descriptor that execve(2) closes, because it closes them in ascending order.
struct Copies {
    read: OwnedFd,
    write: OwnedFd,
}

impl Copies {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // Tests have fewer files open. A higher number costs more: the kernel copies the table.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let last = limit.min(4096) as i32 - 8;
        Ok(Self { read, write: fcntl_dupfd_cloexec(write, last)? })
    }

    /// Waits until only this process has its files.
    fn wait_until_closed(self) {
        drop(self.write);
        let mut end = [PollFd::new(&self.read, PollFlags::IN)];
        let limit = Timespec::try_from(PATIENCE).unwrap();
        let ended = loop {
            match poll(&mut end, Some(&limit)) {
                Err(Errno::INTR) => {}
                ended => break ended.unwrap(),
            }
        };
        assert_eq!(ended, 1, "a new process waits to close a file: does a mount of a test hang?");
    }
}

/// [`process::Command`], started as above.
#[derive(Debug)]
pub(crate) struct Command {
    command: process::Command,
    has_stdin: bool,
}

impl Command {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self { command: process::Command::new(program), has_stdin: false }
    }

    pub(crate) fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(&mut self, key: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.command.env(key, value);
        self
    }

    pub(crate) fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.command.current_dir(dir);
        self
    }

    /// Its user and group.
    pub(crate) fn ids(&mut self, uid: u32, gid: u32) -> &mut Self {
        self.command.uid(uid).gid(gid);
        self
    }

    pub(crate) fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.command.stdin(stdin);
        self.has_stdin = true;
        self
    }

    pub(crate) fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.command.stdout(stdout);
        self
    }

    pub(crate) fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.command.stderr(stderr);
        self
    }

    /// Returns when the program runs and has closed its copies of this process's files.
    pub(crate) fn spawn(&mut self) -> io::Result<Child> {
        let _alone = STARTS.write();
        let copies = Copies::new()?;
        let child = self.command.spawn();
        copies.wait_until_closed();
        child
    }

    /// Standard input is empty unless [`Command::stdin`] set another one.
    pub(crate) fn output(&mut self) -> io::Result<Output> {
        if !self.has_stdin {
            self.stdin(Stdio::null());
        }
        self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?.wait_with_output()
    }

    pub(crate) fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }
}
