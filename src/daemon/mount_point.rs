//! Whether a directory can be mounted on.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::StartError;
use crate::control;
use crate::fuse::{MountTarget, unmount};
use crate::mount_table::fanfs_mounts::FS_TYPE;
use crate::mount_table::{Mount, MountTable};

/// The mount point's own path, if a volume can be mounted there. A dead mount of fanfs
/// stays there until then.
pub(super) fn check_mount_point(path: &Path) -> Result<MountTarget, StartError> {
    let wrong = |reason: String| StartError::MountPoint { path: path.to_owned(), reason };
    let path = match path.canonicalize() {
        Err(error) if Errno::from_io_error(&error).is_some_and(is_dead_mount_error) => {
            std::path::absolute(path)
        }
        found => found,
    };
    let path = path.map_err(|error| wrong(error.to_string()))?;
    if has_dead_mount(&path) && unmount_all_but_one(&path).map_err(wrong)? {
        return Ok(MountTarget { path, has_dead_mount: true });
    }
    let s = statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)
        .map_err(|errno| wrong(errno.to_string()))?;
    if !rustix::fs::FileType::from_raw_mode(s.stx_mode.into()).is_dir() {
        return Err(wrong("not a directory".to_owned()));
    }
    if s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !is_automounted(&path) {
        return Err(wrong(describe_existing_mount(&path)));
    }
    Ok(MountTarget { path, has_dead_mount: false })
}

/// The same for the mount with this device number, whose daemon is dead. Makes no call on
/// it, which could hang: threads of the dead daemon may keep its connection.
pub(super) fn dead_mount_target(
    path: &Path,
    number: (u32, u32),
) -> Result<MountTarget, StartError> {
    match find_fanfs_mount(path) {
        Some((path, found)) if found == number => Ok(MountTarget { path, has_dead_mount: true }),
        _ => Err(StartError::MountPoint {
            path: path.to_owned(),
            reason: "the dead mount that was there is unmounted".to_owned(),
        }),
    }
}

/// The fanfs mount there: its canonical mount point and its device number.
pub(super) fn find_fanfs_mount(path: &Path) -> Option<(PathBuf, (u32, u32))> {
    let path = path.canonicalize().or_else(|_| std::path::absolute(path)).ok()?;
    let table = MountTable::read().ok()?;
    let number =
        table.top_mount_at(&path).filter(|mount| is_fanfs_mount(mount)).map(|mount| mount.dev)?;
    Some((path, number))
}

fn is_fanfs_mount(mount: &Mount) -> bool {
    mount.fs_type == FS_TYPE
}

/// Whether autofs waits there for a mount: systemd's automount units, automount(8). Then
/// only the process group that the kernel has told of it gets past the mount point until
/// it says that it is done; others wait for that.
pub fn is_automounted(path: &Path) -> bool {
    let table = MountTable::read().unwrap_or_default();
    table.top_mount_at(path).is_some_and(|mount| mount.fs_type == "autofs")
}

/// Whether the kernel says that of a mount that nobody serves any more: nobody has its
/// device open, or has since a moment ago.
fn is_dead_mount_error(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Whether a dead mount is there. The kernel is to ask for its attributes now: for a
/// while it would go by those that it has.
fn has_dead_mount(path: &Path) -> bool {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::BASIC_STATS).is_err_and(is_dead_mount_error)
}

/// Dead mounts, one over the other, that are cleaned up.
const MAX_DEAD_MOUNTS: usize = 16;

/// Unmounts all dead mounts of fanfs at `path` but the last one. False if the mount below
/// them is not dead.
fn unmount_all_but_one(path: &Path) -> Result<bool, String> {
    for _ in 0..MAX_DEAD_MOUNTS {
        let table = MountTable::read().map_err(|error| format!("the mount table: {error}"))?;
        if !table.top_mount_at(path).is_some_and(is_fanfs_mount) {
            return Err("a dead FUSE mount is in the way; unmount it".to_owned());
        }
        let here = |mount: &&Mount| mount.mount_point == path && is_fanfs_mount(mount);
        if table.iter().filter(here).count() == 1 {
            return Ok(true);
        }
        unmount(path, true).map_err(|error| error.to_string())?;
        tracing::warn!(at = %path.display(), "a dead mount was in the way and is unmounted");
        if !has_dead_mount(path) {
            return Ok(false);
        }
    }
    Err("dead FUSE mounts are in the way; unmount them".to_owned())
}

/// Says what is in the way at a mount point, which somebody serves.
fn describe_existing_mount(path: &Path) -> String {
    let table = MountTable::read().unwrap_or_default();
    let ours = table.containing(path).is_some_and(is_fanfs_mount);
    if !ours {
        return "already a mount point; unmount what is there or choose another".to_owned();
    }
    match control::query_status(&control::socket_path(path)) {
        Ok(status) => format!("already a mount point, of volume {}", status.volume),
        Err(_) => "already a mount point, of a volume of fanfs that does not say which; \
                   its daemon is another user's, or has no control socket"
            .to_owned(),
    }
}
