//! `fanfs umount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::{CommandResult, Failure, mount_lookup, utab, volume};
use crate::control;
use crate::fuse::{MountError, unmount};
use crate::mount_table::MountTable;

/// Arguments of `fanfs umount`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// Detach at once, also while files are open; they stay readable until they are closed
    #[arg(long, short = 'l')]
    lazy: bool,
}

/// What has just been closed, or is about to be by a process that ends, may hold the
/// mount for so long.
const BUSY_RETRY_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the daemon may take to end once its mount is gone.
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
    // The daemon removes its socket when it has put everything away. One that
    // was killed cannot; then no process listens there.
    let until = Instant::now() + DAEMON_EXIT_TIMEOUT;
    while !args.lazy && Instant::now() < until && control::query_status(&socket).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    if !args.lazy {
        let _ = std::fs::remove_file(&socket);
    }
    Ok(ExitCode::SUCCESS)
}

/// The volume's mount, which may be a dead one: then it can be found in the mount table
/// only.
fn find_mount(volume: &Path) -> Result<PathBuf, Failure> {
    let named = volume::mount_point(volume)?;
    let table = MountTable::read().map_err(|e| Failure::failed(format!("the mount table: {e}")))?;
    let mount = table.top_mount_at(&named);
    match mount {
        Some(mount) if mount.fs_type == "fuse.fanfs" => Ok(named),
        Some(mount) => Err(Failure::failed(format!(
            "{} is a mount of type {}, not of fanfs; use umount",
            named.display(),
            mount.fs_type
        ))),
        None => Err(Failure::failed(format!("{} is not mounted", named.display()))),
    }
}
