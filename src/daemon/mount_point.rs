//! Whether a directory can be mounted on.

use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::StartError;
use crate::control;
use crate::fuse::detach;
use crate::volume::mounts::MountTable;

/// The mount point's own path, if a volume can be mounted there. A dead mount of fanfs
/// is cleaned up first.
pub(super) fn check(path: &Path) -> Result<PathBuf, StartError> {
    let wrong = |reason: String| StartError::MountPoint { path: path.to_owned(), reason };
    let path = match path.canonicalize() {
        Err(error) if Errno::from_io_error(&error).is_some_and(says_dead) => {
            clean_up(path).map_err(wrong)?;
            path.canonicalize()
        }
        found => found,
    };
    let path = path.map_err(|error| wrong(error.to_string()))?;
    if has_dead_mount(&path) {
        clean_up(&path).map_err(wrong)?;
    }
    let s = statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)
        .map_err(|errno| wrong(errno.to_string()))?;
    if !rustix::fs::FileType::from_raw_mode(s.stx_mode.into()).is_dir() {
        return Err(wrong("not a directory".to_owned()));
    }
    if s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) && !is_automounted(&path) {
        return Err(wrong(what_is_mounted(&path)));
    }
    Ok(path)
}

/// Whether autofs waits there for a mount: systemd's automount units, automount(8). Then
/// only the process group that the kernel has told of it gets past the mount point until
/// it says that it is done; others wait for that.
pub fn is_automounted(path: &Path) -> bool {
    let table = MountTable::read().unwrap_or_default();
    table.at(path).is_some_and(|mount| mount.fs_type == "autofs")
}

/// Whether the kernel says that of a mount that nobody serves any more: nobody has its
/// device open, or has since a moment ago.
fn says_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Whether a dead mount is there. The kernel is to ask for its attributes now: for a
/// while it would go by those that it has.
fn has_dead_mount(path: &Path) -> bool {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::BASIC_STATS).is_err_and(says_dead)
}

/// Dead mounts, one over the other, that are cleaned up.
const DEAD: usize = 16;

/// Takes dead mounts of fanfs away from `path`.
fn clean_up(path: &Path) -> Result<(), String> {
    let named = std::path::absolute(path).map_err(|error| error.to_string())?;
    for _ in 0..DEAD {
        let table = MountTable::read().map_err(|error| format!("the mount table: {error}"))?;
        let ours = table.at(&named).is_some_and(|mount| mount.fs_type == "fuse.fanfs");
        if !ours {
            return Err("a dead FUSE mount is in the way; unmount it".to_owned());
        }
        detach(&named, true).map_err(|error| error.to_string())?;
        tracing::warn!(at = %named.display(), "a dead mount was in the way and is unmounted");
        if !has_dead_mount(&named) {
            return Ok(());
        }
    }
    Err("dead FUSE mounts are in the way; unmount them".to_owned())
}

/// Says what is in the way at a mount point, which somebody serves.
fn what_is_mounted(path: &Path) -> String {
    let table = MountTable::read().unwrap_or_default();
    let ours = table.containing(path).is_some_and(|mount| mount.fs_type == "fuse.fanfs");
    if !ours {
        return "already a mount point; unmount what is there or choose another".to_owned();
    }
    match control::ask_status(&control::socket_path(path)) {
        Ok(status) => format!("already a mount point, of volume {}", status.volume),
        Err(_) => "already a mount point, of a volume of fanfs that does not say which; \
                   its daemon is another user's, or has no control socket"
            .to_owned(),
    }
}
