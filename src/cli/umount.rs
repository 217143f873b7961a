//! `fanfs umount`: unmounts a volume and waits for its daemon.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::{CommandResult, Failure, mount_lookup, utab, volume};
use crate::control;
use crate::fuse::{MountError, unmount};
use crate::mount_table::MountTable;

/// Arguments of `fanfs umount`.
#[derive(clap::Args)]
#[command(after_help = "\
While a file on the mount is open, fanfs umount fails. --lazy detaches the mount at once, and does \
not wait for the daemon. The command also removes the mount of a daemon that has died.

Examples:
  fanfs umount genomes
  fanfs umount --lazy /genomes      detach the mount while files are open

Exit status: 0 unmounted; 1 not mounted, or files are open; 2 wrong usage or configuration.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// Detach the mount at once; open files stay readable until they are closed
    #[arg(long, short = 'l')]
    lazy: bool,
}

/// How long to retry an unmount that is busy: a file that was just closed, or whose process is
/// exiting, may hold the mount for a moment.
const BUSY_RETRY_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the daemon may take to end after its mount is gone.
const DAEMON_EXIT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> CommandResult {
    let mount_point = find_mount(&args.volume)?;
    let socket = control::socket_path(&mount_point);
    let until = Instant::now() + BUSY_RETRY_TIMEOUT;
    let mut detached = unmount(&mount_point, args.lazy);
    while matches!(detached, Err(MountError::Busy(_))) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        detached = unmount(&mount_point, args.lazy);
    }
    detached.map_err(|error| match mount_lookup::unmount_denied_reason(&mount_point) {
        Some(whose) if !matches!(error, MountError::Busy(_)) => Failure::failed(whose),
        _ => Failure::failed(error),
    })?;
    if rustix::process::geteuid().is_root() {
        utab::remove_utab_entry(&mount_point);
    }
    // The daemon removes its socket at the end of its shutdown. A daemon that was killed leaves
    // the socket, but no process listens on it.
    let until = Instant::now() + DAEMON_EXIT_TIMEOUT;
    while !args.lazy && Instant::now() < until && control::query_daemon(&socket).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    if !args.lazy {
        let _ = std::fs::remove_file(&socket);
    }
    Ok(ExitCode::SUCCESS)
}

/// The mount point of the volume. The mount may be dead: then only the mount table has it.
fn find_mount(volume: &Path) -> Result<PathBuf, Failure> {
    let named = volume::mount_point(volume)?;
    let table = MountTable::read()
        .map_err(|e| Failure::failed(format!("cannot read the mount table: {e}")))?;
    let mount = table.top_mount_at(&named);
    match mount {
        Some(mount) if mount.fs_type == "fuse.fanfs" => Ok(named),
        Some(mount) => Err(Failure::failed(format!(
            "{} is a mount of type {}, not of fanfs; use umount(8)",
            named.display(),
            mount.fs_type
        ))),
        None => Err(Failure::failed(format!("{} is not mounted", named.display()))),
    }
}
