//! What can be set in the kernel for one mount.

use std::io;
use std::path::Path;

/// Sets how far the kernel reads ahead on files of this mount.
///
/// Without it the kernel reads 128 KiB at a time from a FUSE file, whatever the
/// application asks for; new opens see the change.
///
/// # Errors
/// Where sysfs cannot be written: an ordinary user may not.
pub(super) fn set_readahead(mount_point: &Path, bytes: u64) -> io::Result<()> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    // The device number of a FUSE mount names its entry in sysfs. The kernel
    // knows it without asking the file system.
    let flags = AtFlags::from_bits_retain(DONT_SYNC) | AtFlags::NO_AUTOMOUNT;
    let s = statx(rustix::fs::CWD, mount_point, flags, StatxFlags::empty())?;
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", s.stx_dev_major, s.stx_dev_minor);
    std::fs::write(path, (bytes / 1024).to_string())
}

/// `AT_STATX_DONT_SYNC` of statx(2).
const DONT_SYNC: u32 = 0x4000;
