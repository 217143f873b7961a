//! Whether a directory can be mounted on.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::device_number::DeviceNumber;
use super::error::{MountPointError, StartError};
use crate::control;
use crate::fuse::{MountTarget, unmount};
use crate::mount_table::fanfs_mounts::FS_TYPE;
use crate::mount_table::{Mount, MountTable};

/// The mount point's canonical path, if a volume can be mounted there. A dead mount of fanfs
/// stays until the new mount replaces it.
pub(super) fn check_mount_point(path: &Path) -> Result<MountTarget, StartError> {
    let wrong = |error| StartError::MountPoint { path: path.to_owned(), error };
    let path = match path.canonicalize() {
        Err(error) if Errno::from_io_error(&error).is_some_and(is_dead_mount_error) => {
            std::path::absolute(path)
        }
        found => found,
    };
    let path = path.map_err(|error| wrong(error.into()))?;
    if has_dead_mount(&path) && unmount_all_but_one(&path).map_err(wrong)? {
        return Ok(MountTarget { path, has_dead_mount: true });
    }
    let s = statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)
        .map_err(|errno| wrong(MountPointError::Look(errno.into())))?;
    if !rustix::fs::FileType::from_raw_mode(s.stx_mode.into()).is_dir() {
        return Err(wrong(MountPointError::NotADirectory));
    }
    if s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !is_automounted(&path) {
        return Err(wrong(describe_existing_mount(&path)));
    }
    Ok(MountTarget { path, has_dead_mount: false })
}

/// The same for the mount with this device number, whose daemon is dead. This makes no call on
/// the mount: it could hang, as threads of the dead daemon may keep the connection open.
pub(super) fn dead_mount_target(
    path: &Path,
    number: DeviceNumber,
) -> Result<MountTarget, StartError> {
    match find_fanfs_mount(path).filter(|found| found.device_number == number) {
        Some(FanfsMount { path, .. }) => Ok(MountTarget { path, has_dead_mount: true }),
        None => Err(StartError::MountPoint {
            path: path.to_owned(),
            error: MountPointError::DeadMountGone,
        }),
    }
}

/// A fanfs mount in the mount table.
pub(super) struct FanfsMount {
    /// The canonical mount point.
    pub(super) path: PathBuf,
    pub(super) device_number: DeviceNumber,
}

/// The fanfs mount at `path`, if there is one.
pub(super) fn find_fanfs_mount(path: &Path) -> Option<FanfsMount> {
    let path = path.canonicalize().or_else(|_| std::path::absolute(path)).ok()?;
    let table = MountTable::read().ok()?;
    let mount = table.top_mount_at(&path).filter(|mount| is_fanfs_mount(mount))?;
    Some(FanfsMount { path, device_number: mount.dev.into() })
}

fn is_fanfs_mount(mount: &Mount) -> bool {
    mount.fs_type == FS_TYPE
}

/// Whether autofs (systemd's automount units, automount(8)) waits at `path` for a mount. Until
/// automount(8) reports that it is done, only its process group gets past the mount point;
/// other processes wait.
pub(super) fn is_automounted(path: &Path) -> bool {
    let table = MountTable::read().unwrap_or_default();
    table.top_mount_at(path).is_some_and(|mount| mount.fs_type == "autofs")
}

/// Whether the kernel reports a dead mount: no process has its device open, or the last one
/// closed it during the call.
fn is_dead_mount_error(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Whether a dead mount is at `path`. STATX_FORCE_SYNC makes the kernel ask the daemon now: for
/// a while it would answer from cached attributes.
fn has_dead_mount(path: &Path) -> bool {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::BASIC_STATS).is_err_and(is_dead_mount_error)
}

/// At most this many dead mounts, one over the other, are cleaned up.
const MAX_DEAD_MOUNTS: usize = 16;

/// Unmounts all dead mounts of fanfs at `path` but the last one. Returns false if the mount
/// below them is not dead.
fn unmount_all_but_one(path: &Path) -> Result<bool, MountPointError> {
    for _ in 0..MAX_DEAD_MOUNTS {
        let table = MountTable::read().map_err(MountPointError::MountTable)?;
        if !table.top_mount_at(path).is_some_and(is_fanfs_mount) {
            return Err(MountPointError::ForeignDeadMount);
        }
        let here = |mount: &&Mount| mount.mount_point == path && is_fanfs_mount(mount);
        if table.iter().filter(here).count() == 1 {
            return Ok(true);
        }
        unmount(path, true)?;
        tracing::warn!(at = %path.display(), "unmounted a dead mount");
        if !has_dead_mount(path) {
            return Ok(false);
        }
    }
    Err(MountPointError::DeadMounts)
}

/// The error for a mount point that already has a live mount.
fn describe_existing_mount(path: &Path) -> MountPointError {
    let table = MountTable::read().unwrap_or_default();
    let ours = table.containing(path).is_some_and(is_fanfs_mount);
    if !ours {
        return MountPointError::Occupied;
    }
    match control::query_daemon(&control::socket_path(path)) {
        Ok(status) => MountPointError::OccupiedByVolume(status.volume),
        Err(_) => MountPointError::OccupiedBySilentVolume,
    }
}
