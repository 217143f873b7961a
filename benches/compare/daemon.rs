//! What can be set in the kernel for one mount.

use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, statx};

use super::Failure;

/// Sets the kernel's readahead for a mount, as fanfs does for its own. Files
/// opened from now on see it.
pub(super) fn raise_readahead(mount_point: &Path, bytes: u64) -> Result<(), Failure> {
    let s = statx(rustix::fs::CWD, mount_point, AtFlags::empty(), StatxFlags::empty())?;
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", s.stx_dev_major, s.stx_dev_minor);
    std::fs::write(path, (bytes / 1024).to_string())?;
    Ok(())
}
