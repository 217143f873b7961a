//! Whether a directory can be mounted on.

use std::path::{Path, PathBuf};

use super::StartError;
use crate::control;
use crate::volume::mounts::MountTable;

/// The mount point's own path, if a volume can be mounted there.
pub(super) fn check(path: &Path) -> Result<PathBuf, StartError> {
    let wrong = |reason: String| StartError::MountPoint { path: path.to_owned(), reason };
    let path = path.canonicalize().map_err(|error| match error.raw_os_error() {
        Some(raw) if raw == rustix::io::Errno::NOTCONN.raw_os_error() => {
            wrong("a dead FUSE mount is in the way; remove it with `fanfs umount`".to_owned())
        }
        _ => wrong(error.to_string()),
    })?;
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
