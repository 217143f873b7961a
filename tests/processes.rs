//! How tests that share a process start programs.
//!
//! A program begins with copies of all files that its parent has open, and exec(2) closes
//! them: the kernel flushes a copy of a file on a mount, for which exec waits, and until then
//! a lock of that file is not given up. So each start excludes what [`no_start`] was called
//! for, and tests/tidy.rs looks that nothing else starts programs there.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{self, Child, ExitStatus, Output, Stdio};

use parking_lot::{RwLock, RwLockReadGuard};

static STARTS: RwLock<()> = RwLock::new(());

/// No program is started while this is held. The holder must not start one.
pub(crate) fn no_start() -> RwLockReadGuard<'static, ()> {
    STARTS.read_recursive()
}

/// [`process::Command`], started as above.
#[derive(Debug)]
pub(crate) struct Command(process::Command);

impl Command {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self(process::Command::new(program))
    }

    pub(crate) fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.0.arg(arg);
        self
    }

    pub(crate) fn args<S: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        self.0.args(args);
        self
    }

    pub(crate) fn env(&mut self, key: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.0.env(key, value);
        self
    }

    pub(crate) fn current_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.0.current_dir(dir);
        self
    }

    /// Its user and group.
    pub(crate) fn ids(&mut self, uid: u32, gid: u32) -> &mut Self {
        self.0.uid(uid).gid(gid);
        self
    }

    pub(crate) fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.0.stdin(stdin);
        self
    }

    pub(crate) fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.0.stdout(stdout);
        self
    }

    pub(crate) fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.0.stderr(stderr);
        self
    }

    /// Returns when the program runs, and has closed what it does not need.
    pub(crate) fn spawn(&mut self) -> io::Result<Child> {
        let _alone = STARTS.write();
        self.0.spawn()
    }

    pub(crate) fn output(&mut self) -> io::Result<Output> {
        self.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?.wait_with_output()
    }

    pub(crate) fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }
}
