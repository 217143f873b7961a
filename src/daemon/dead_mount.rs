//! Replacing the mount of a daemon that was killed.
//!
//! Where no daemon can continue that mount ([`super::handover::successor`]), its open files are
//! lost. The dead mount stays until the new one replaces it: a call on it fails, whereas a
//! write to the directory beneath would succeed and be lost. For the same reason the new daemon
//! needs no replica to begin: calls fail with EIO until one joins.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::device_number::DeviceNumber;
use super::mount_point;
use crate::fuse::abort_connection;

/// A mount whose daemon is dead.
pub(super) struct DeadMount {
    pub(super) device_number: DeviceNumber,
    /// That daemon and those before it that have not ended.
    pub(super) earlier_daemons: Vec<OwnedFd>,
}

impl DeadMount {
    /// Ends the connection of the fanfs mount at `path`, whose daemon is dead.
    pub(super) fn abort_at(path: &Path) -> Option<Self> {
        let device_number = mount_point::find_fanfs_mount(path)?.device_number;
        abort_dead_mount(path, device_number);
        Some(Self { device_number, earlier_daemons: Vec::new() })
    }
}

/// Aborts the mount's connection, if the mount is still there: calls on it fail with ENOTCONN.
/// The mount itself stays.
pub(super) fn abort_dead_mount(path: &Path, number: DeviceNumber) {
    let found = mount_point::find_fanfs_mount(path);
    if let Some(found) = found.filter(|found| found.device_number == number)
        && let Err(error) = abort_connection(&found.path, number.into())
    {
        tracing::debug!(%error, "cannot abort the FUSE connection of the dead daemon");
    }
}
