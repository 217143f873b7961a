//! `fanfs umount`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::{Failure, Outcome, mounted, utab, volume};
use crate::control;
use crate::fuse::{AttachError, detach};
use crate::volume::mounts::MountTable;

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
const CLOSED_WITHIN: Duration = Duration::from_millis(500);

/// How long the daemon may take to end once its mount is gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> Outcome {
    let mount_point = find(&args.volume)?;
    let socket = control::socket_path(&mount_point);
    let until = Instant::now() + CLOSED_WITHIN;
    let mut detached = detach(&mount_point, args.lazy);
    while matches!(detached, Err(AttachError::Busy(_))) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        detached = detach(&mount_point, args.lazy);
    }
    detached.map_err(|error| match mounted::another_users(&mount_point) {
        Some(whose) if !matches!(error, AttachError::Busy(_)) => Failure::failed(whose),
        _ => Failure::failed(error),
    })?;
    if rustix::process::geteuid().is_root() {
        utab::forget(&mount_point);
    }
    // The daemon removes its socket when it has put everything away. One that
    // was killed cannot; then nobody listens there.
    let until = Instant::now() + GONE_WITHIN;
    while !args.lazy && Instant::now() < until && control::ask_status(&socket).is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    if !args.lazy {
        let _ = std::fs::remove_file(&socket);
    }
    Ok(ExitCode::SUCCESS)
}

/// The volume's mount, which may be a dead one: then it can be found in the mount table
/// only.
fn find(volume: &Path) -> Result<PathBuf, Failure> {
    let named = volume::mount_point(volume)?;
    let table = MountTable::read().map_err(|e| Failure::failed(format!("the mount table: {e}")))?;
    let mount = table.at(&named);
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
