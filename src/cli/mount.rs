//! `fanfs mount`: serves a mount in the foreground, or starts a daemon and waits until the mount
//! answers.
//!
//! All processes of a mount run this command with hidden arguments. This module parses the
//! arguments and prints messages; [`crate::daemon`] does the work of each process.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::cancellation::print_message;
use super::mount_exports::ExportList;
use super::mount_options::ParsedMountOptions;
use super::{CommandResult, Failure, absolute, utab, volume};
use crate::config::{self, Access, Config, ReplicaConfig};
use crate::control;
use crate::daemon::{
    ChildRole, DaemonProcess, ProcessError, ProcessRole, RespawnCommand, has_fd_store,
};

/// Arguments of `fanfs mount`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs mount starts a daemon and returns when the mount answers. If the daemon cannot start, the \
error is shown here and nothing is mounted. fanfs umount unmounts the volume.

A volume is read-only unless its configuration has access = \"rw\". For a list of NFS servers \
of one file system, fanfs mount writes a configuration into the run-time directory and shows it. mount.fanfs(8) describes all \
mount options, and lines for /etc/fstab.

Examples:
  fanfs mount nfs://gw1,gw2,gw3/cluster /data     read three servers, without any other mount
  fanfs mount genomes /genomes -o allow_other     let other users use the mount
  fanfs mount genomes /genomes --foreground       log here; Ctrl-C unmounts
  fanfs mount ./genomes.toml /genomes -o keeper   restart the daemon if it dies

Exit status: 0 the mount answers; 1 mounting failed; 2 wrong usage or configuration.")]
pub(crate) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, where it is mounted, or NFS
    /// servers with one export: nfs://SERVER,SERVER/EXPORT
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    pub(super) volume: PathBuf,
    /// The directory to mount on; the mount hides its contents
    #[arg(value_name = "MOUNTPOINT", value_hint = clap::ValueHint::DirPath)]
    pub(super) mount_point: PathBuf,
    /// Mount options, comma-separated, as in /etc/fstab: allow_other, noexec, suid, dev,
    /// keeper, log=FILE; mount(8)'s own, such as ro, noauto, _netdev and x-systemd.*, are accepted
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
    /// Stay in the foreground, and log to standard error; SIGTERM and SIGINT unmount
    #[arg(long, short = 'f')]
    pub(super) foreground: bool,
    /// Log to FILE [default: a file in the run-time directory, named after MOUNTPOINT]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    #[command(flatten)]
    pub(super) hidden: HiddenArgs,
    /// Whether mount(8) called this program as its helper
    #[arg(skip)]
    pub(super) by_mount: bool,
}

/// Arguments that only other processes of the mount, and mount(8), pass to this one.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(super) struct HiddenArgs {
    /// Report on standard output whether the start succeeded, then detach
    #[arg(long, hide = true)]
    ready: bool,
    /// Ignore unknown mount options
    #[arg(long, hide = true)]
    pub(super) sloppy: bool,
    /// A keeper started this process, and sends its instructions on standard input
    #[arg(long, hide = true)]
    kept: bool,
    /// A daemon started this process, and hands its mount over on standard input
    #[arg(long, hide = true)]
    successor: bool,
}

impl HiddenArgs {
    /// The arguments of mount(8)'s helper.
    pub(super) fn of_helper(sloppy: bool) -> Self {
        Self { sloppy, ..Self::default() }
    }

    /// The role that another process of the mount requested.
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
    // Otherwise mount(8)'s helper, or the process that started this one, has found the file.
    let mut written = None;
    if role.is_first_process() {
        match ExportList::parse(&args.volume) {
            Some(exports) => {
                args.volume = exports?.write_config(&args.mount_point)?;
                written = Some(args.volume.clone());
            }
            None if !args.by_mount => {
                args.volume = volume::config_file_to_mount(&args.volume)?;
            }
            None => {}
        }
    }
    let config = config::load(&args.volume);
    let read_only = config.as_ref().ok().filter(|it| it.volume.access == Access::ReadOnly);
    if role.is_first_process()
        && options.wants_write
        && let Some(config) = read_only
        && let Err(refused) = check_rw_contradiction(&args, config)
    {
        written.iter().for_each(|file| drop(std::fs::remove_file(file)));
        return Err(refused);
    }
    let mount_point = absolute(&args.mount_point);
    let done = args.into_process(role, &options).run(config);
    if let (Err(_), Some(file)) = (&done, written)
        && control::query_daemon(&control::socket_path(&mount_point)).is_err()
    {
        let _ = std::fs::remove_file(file);
    }
    let done = done?;
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
fn check_rw_contradiction(args: &Args, config: &Config) -> Result<(), Failure> {
    let file = args.volume.display();
    let is_export = |replica: &ReplicaConfig| replica.location.export().is_some();
    if args.by_mount {
        // mount(8) also passes `rw` by default, so the user may not have asked for it. The
        // words are those of mount(8)'s own warning about a write-protected device.
        print_message(&format!(
            "mount.fanfs: WARNING: {file} has [volume] access = \"ro\", mounted read-only"
        ));
        return Ok(());
    }
    if config.replicas.iter().any(is_export) {
        return Err(Failure::usage(
            "mount option `rw`: fanfs only reads servers without a mount; mount them to write, or \
             remove the option",
        ));
    }
    Err(Failure::usage(format!(
        "{file}: mount option `rw` contradicts [volume] access = \"ro\"; set access = \"rw\" \
         there, or remove the option"
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

    /// The command that starts this program again for this mount, from any directory.
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
    fn a_child_process_parses_its_own_arguments() {
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
