//! `fanfs mount`: in the foreground, or as a daemon that is waited for until
//! the mount answers.
//!
//! The mount's processes are this command with hidden arguments; what each of them does is
//! in [`crate::daemon`]. This module parses the arguments, and prints.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::cancellation::print_message;
use super::mount_options::ParsedMountOptions;
use super::{CommandResult, Failure, absolute, utab, volume};
use crate::config::{self, Access};
use crate::daemon::{
    ChildRole, DaemonProcess, ProcessError, ProcessRole, RespawnCommand, has_fd_store,
};

/// Arguments of `fanfs mount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    pub(super) volume: PathBuf,
    /// The directory to mount it on; what is in it is hidden meanwhile
    #[arg(value_name = "MOUNTPOINT", value_hint = clap::ValueHint::DirPath)]
    pub(super) mount_point: PathBuf,
    /// Mount options, comma-separated, as in /etc/fstab: allow_other, noexec, suid, dev,
    /// keeper, log=FILE; ro, noauto, _netdev, x-systemd.* and other standard ones are accepted
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
    /// Stay in the foreground and log to standard error; SIGTERM and SIGINT unmount
    #[arg(long, short = 'f')]
    pub(super) foreground: bool,
    /// Log to this file [default: MOUNTPOINT's name with .log in the run-time directory]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    #[command(flatten)]
    pub(super) hidden: HiddenArgs,
    /// Called as mount(8)'s helper
    #[arg(skip)]
    pub(super) by_mount: bool,
}

/// The arguments with which other processes of the mount, and mount(8), start this one.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(super) struct HiddenArgs {
    /// Say on standard output how starting went, then detach
    #[arg(long, hide = true)]
    ready: bool,
    /// Ignore options that are not known
    #[arg(long, hide = true)]
    pub(super) sloppy: bool,
    /// Started by a keeper, which says on standard input what to do
    #[arg(long, hide = true)]
    kept: bool,
    /// Started by a daemon, which hands its mount over by standard input
    #[arg(long, hide = true)]
    successor: bool,
}

impl HiddenArgs {
    /// Those of mount(8)'s helper.
    pub(super) fn of_helper(sloppy: bool) -> Self {
        Self { sloppy, ..Self::default() }
    }

    /// The role that another process of the mount wants.
    fn child_role(self) -> Option<ChildRole> {
        match self {
            Self { successor: true, .. } => Some(ChildRole::Successor),
            Self { kept: true, .. } => Some(ChildRole::Supervised),
            Self { ready: true, .. } => Some(ChildRole::Launched),
            _ => None,
        }
    }
}

pub(super) fn run(mut args: Args) -> CommandResult {
    let options = ParsedMountOptions::parse(&args.options, args.hidden.sloppy)?;
    let role = ProcessRole::new(args.hidden.child_role(), args.foreground, options.keeper);
    // mount(8)'s helper and the process that started this one have found the file.
    if role.is_first_process() && !args.by_mount {
        args.volume = volume::config_file_to_mount(&args.volume)?;
    }
    let config = config::load(&args.volume);
    let is_read_only = config.as_ref().is_ok_and(|config| config.volume.access == Access::ReadOnly);
    if role.is_first_process() && options.wants_write && is_read_only {
        check_rw_contradiction(&args)?;
    }
    let mount_point = absolute(&args.mount_point);
    let done = args.into_process(role, &options).run(config)?;
    if role == ProcessRole::Command && options.netdev && rustix::process::geteuid().is_root() {
        utab::add_netdev(&mount_point);
    }
    Ok(done)
}

impl From<ProcessError> for Failure {
    fn from(error: ProcessError) -> Self {
        if error.is_usage() { Self::usage(error) } else { Self::failed(error) }
    }
}

/// Handles `rw` for a read-only volume: mount(8) gets a warning, `fanfs mount` an error.
fn check_rw_contradiction(args: &Args) -> Result<(), Failure> {
    let file = args.volume.display();
    if args.by_mount {
        // mount(8) passes `rw` also by default, so the user may not have asked for it. Its
        // own warning about a write-protected device has the same words.
        print_message(&format!(
            "mount.fanfs: WARNING: {file} has [volume] access = \"ro\", mounted read-only"
        ));
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{file}: mount option `rw` contradicts [volume] access = \"ro\"; set access = \"rw\" there, or leave the option out"
    )))
}

impl Args {
    fn into_process(self, role: ProcessRole, options: &ParsedMountOptions) -> DaemonProcess {
        let mut overrides = options.overrides.clone();
        overrides.is_supervised = options.keeper || has_fd_store();
        let log = self.log.as_ref().or(options.log.as_ref()).cloned();
        DaemonProcess {
            role,
            respawn: self.respawn_command(log.as_deref()),
            mount_point: self.mount_point,
            overrides,
            log,
            is_foreground: self.foreground,
        }
    }

    /// How to start this program again for this mount, from any directory.
    fn respawn_command(&self, log: Option<&Path>) -> RespawnCommand {
        let mut options: Vec<OsString> = Vec::new();
        if self.foreground {
            options.push("--foreground".into());
        }
        if self.hidden.sloppy {
            options.push("--sloppy".into());
        }
        for list in &self.options {
            options.extend(["-o".into(), list.into()]);
        }
        if let Some(log) = log {
            options.extend(["--log".into(), absolute(log).into()]);
        }
        RespawnCommand {
            options,
            volume: absolute(&self.volume),
            mount_point: absolute(&self.mount_point),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(args: &[OsString]) -> Args {
        let cli = Cli::try_parse_from([OsString::from("fanfs")].iter().chain(args)).ok().unwrap();
        match cli.command {
            Command::Mount(args) => args,
            _ => panic!("it is a mount"),
        }
    }

    #[test]
    fn a_child_process_is_parsed_from_the_arguments_that_start_it() {
        let words = ["mount", "-f", "-o", "keeper,log=l", "v.toml", "mnt"].map(OsString::from);
        let options = ParsedMountOptions { log: Some("l".into()), ..Default::default() };
        let first = parse(&words).into_process(ProcessRole::Foreground, &options);
        for role in ChildRole::ALL {
            let args = parse(&first.respawn.args(role));
            assert_eq!(args.hidden.child_role(), Some(role));
            assert!(args.foreground && args.options == ["keeper,log=l"]);
            assert!(args.log.as_ref().is_some_and(|log| log.is_absolute()));
            let next = args.into_process(ProcessRole::Successor, &options);
            assert_eq!(next.respawn.args(role), first.respawn.args(role));
        }
        assert!(parse(&words).hidden.child_role().is_none());
    }
}
