//! Whether a directory can be mounted on.

use std::path::{Path, PathBuf};

use super::StartError;
use crate::control;
use crate::fuse::detach;
use crate::volume::mounts::MountTable;

/// The mount point's own path, if a volume can be mounted there. A dead mount of fanfs
/// is cleaned up first.
pub(super) fn check(path: &Path) -> Result<PathBuf, StartError> {
    let wrong = |reason: String| StartError::MountPoint { path: path.to_owned(), reason };
    let path = match path.canonicalize() {
        Err(error) if is_dead(&error) => {
            clean_up(path).map_err(wrong)?;
            path.canonicalize()
        }
        found => found,
    };
    let path = path.map_err(|error| wrong(error.to_string()))?;
    if std::fs::symlink_metadata(&path).is_err_and(|error| is_dead(&error)) {
        clean_up(&path).map_err(wrong)?;
    }
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
    let s = statx(rustix::fs::CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)
        .map_err(|errno| wrong(errno.to_string()))?;
    if !rustix::fs::FileType::from_raw_mode(s.stx_mode.into()).is_dir() {
        return Err(wrong("not a directory".to_owned()));
    }
    if s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(wrong(what_is_mounted(&path)));
    }
    Ok(path)
}

/// Whether that is what the kernel says of a mount that nobody serves any more: nobody
/// has its device open.
fn is_dead(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

/// Dead mounts, one over the other, that are cleaned up.
const DEAD: usize = 16;

/// Takes dead mounts of fanfs away from `path`.
fn clean_up(path: &Path) -> Result<(), String> {
    let named = std::path::absolute(path).map_err(|error| error.to_string())?;
    for _ in 0..DEAD {
        let table = MountTable::read().map_err(|error| format!("the mount table: {error}"))?;
        let ours = table
            .containing(&named)
            .is_some_and(|mount| mount.mount_point == named && mount.fs_type == "fuse.fanfs");
        if !ours {
            return Err("a dead FUSE mount is in the way; unmount it".to_owned());
        }
        detach(&named, true).map_err(|error| error.to_string())?;
        tracing::warn!(at = %named.display(), "a dead mount was in the way and is unmounted");
        if !std::fs::symlink_metadata(&named).is_err_and(|error| is_dead(&error)) {
            return Ok(());
        }
    }
    Err("dead FUSE mounts are in the way; unmount them".to_owned())
}

/// Says what is in the way at a mount point. One of fanfs whose daemon does not
/// answer has none any more.
fn what_is_mounted(path: &Path) -> String {
    let table = MountTable::read().unwrap_or_else(|_| MountTable::parse(b""));
    let ours = table.containing(path).is_some_and(|mount| mount.fs_type == "fuse.fanfs");
    if !ours {
        return "already a mount point; unmount what is there or choose another".to_owned();
    }
    match control::ask_status(&control::socket_path(path)) {
        Ok(status) => format!("already a mount point, of volume {}", status.volume),
        Err(_) => "a dead FUSE mount is in the way; remove it with `fanfs umount`".to_owned(),
    }
}
