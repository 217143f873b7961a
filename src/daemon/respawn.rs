//! How this program is started again for a mount: as its daemon, its supervised daemon or
//! the successor of its daemon.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments of `fanfs mount` for one mount.
#[derive(Clone, Debug)]
pub struct RespawnCommand {
    /// The options, which come before the volume's file.
    pub options: Vec<OsString>,
    /// The volume's file.
    pub volume: PathBuf,
    /// The mount point.
    pub mount_point: PathBuf,
}

/// Why a process of this program was started by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildRole {
    /// The command waits until the mount answers.
    Launched,
    /// A supervisor sends its orders on standard input.
    Supervised,
    /// A daemon hands its mount over on standard input.
    Successor,
}

impl ChildRole {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Launched, Self::Supervised, Self::Successor];

    /// The hidden argument of `fanfs mount` for this role. Daemons of other versions use the
    /// same arguments.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Launched => "--ready",
            Self::Supervised => "--kept",
            Self::Successor => "--successor",
        }
    }
}

/// The path of this program, even if its file has been replaced or removed.
pub(super) fn current_program() -> PathBuf {
    match std::env::current_exe() {
        // The kernel marks the name of a removed file as deleted, so no such path exists.
        Ok(program) if program.exists() => program,
        _ => "/proc/self/exe".into(),
    }
}

impl RespawnCommand {
    /// The command that starts `program`, which is this one or another fanfs, in `role`. Its
    /// name is `fanfs`: by its file's name, the program could take itself for mount(8)'s
    /// helper.
    pub(super) fn command(&self, program: &Path, role: ChildRole) -> Command {
        let mut command = Command::new(program);
        command.arg0("fanfs").args(self.args(role));
        command
    }

    /// The arguments of that command.
    pub fn args(&self, role: ChildRole) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["mount".into(), role.argument().into()];
        args.extend(self.options.iter().cloned());
        args.extend(["--".into(), self.volume.clone().into(), self.mount_point.clone().into()]);
        args
    }
}
