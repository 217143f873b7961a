//! How tests that share a process start programs.
//!
//! A new process has copies of all files that its parent has open, until exec(2) closes them.
//! For a file on a mount that sends a flush, for which exec(2) waits; and a lock of a file
//! lasts as long as any copy. So no program starts while a test holds [`no_start`]'s guard.
//! tests/tidy.rs checks that nothing else starts programs there.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, Child, ExitStatus, Output, Stdio};

use parking_lot::{RwLock, RwLockReadGuard};

static STARTS: RwLock<()> = RwLock::new(());

/// No program is started while this is held. The holder must not start one.
pub(crate) fn no_start() -> RwLockReadGuard<'static, ()> {
    STARTS.read()
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

    /// Returns when the program runs, and has closed what it does not need.
    pub(crate) fn spawn(&mut self) -> io::Result<Child> {
        let _alone = STARTS.write();
        self.command.spawn()
    }

    /// With nothing to read, unless it was given something.
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
