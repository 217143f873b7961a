//! Replacing the mount of a daemon that was killed.
//!
//! Where no daemon can go on with that mount ([`super::successor`]), its open files are lost.
//! The dead mount stays until the new one replaces it: a call on it fails, whereas a write to
//! the directory beneath would succeed and be lost. For the same reason the new daemon needs
//! no replica to begin: calls fail with EIO until one joins.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::admission::{ReplicaRequirement, VolumeBackends};
use super::{Mount, MountOverrides, StartError, VolumeCore, mount_point};
use crate::config::Config;
use crate::fs::run;
use crate::fuse::abort_connection;
use crate::volume::ReplicaSet;

/// A mount whose daemon is dead.
pub struct DeadMount {
    /// Device number of the mount.
    device_number: (u32, u32),
    /// That daemon and those before it, as far as they have not ended.
    predecessors: Vec<OwnedFd>,
}

impl DeadMount {
    pub(super) fn new(number: (u32, u32), former: Vec<OwnedFd>) -> Self {
        Self { device_number: number, predecessors: former }
    }

    /// Ends the connection of the fanfs mount at `path`, whose daemon is dead.
    pub fn abort_at(path: &Path) -> Option<Self> {
        let (_, number) = mount_point::find_fanfs_mount(path)?;
        abort_dead_mount(path, number);
        Some(Self::new(number, Vec::new()))
    }
}

/// Has calls on the mount fail with ENOTCONN, if it is there. It stays.
pub(super) fn abort_dead_mount(path: &Path, number: (u32, u32)) {
    let is_there = |(point, found)| (found == number).then_some(point);
    if let Some(point) = mount_point::find_fanfs_mount(path).and_then(is_there)
        && let Err(error) = abort_connection(&point, number)
    {
        tracing::debug!(%error, "the connection of the dead daemon may not have ended");
    }
}

impl Mount {
    /// Mounts a volume in the place of a dead mount. `silent` are replicas that have just
    /// failed to answer.
    ///
    /// # Errors
    /// [`StartError`]; the dead mount is still there then.
    pub fn replace_dead(
        dead: DeadMount,
        config: Config,
        silent: ReplicaSet,
        mount_point: &Path,
        extra: &MountOverrides,
    ) -> Result<Self, StartError> {
        let place = mount_point::dead_mount_target(mount_point, dead.device_number)?;
        let members = VolumeBackends::absent(&config, |_| None);
        let (core, runtime) = VolumeCore::start(config, members, &place.path, extra)?;
        core.admit_replicas(silent, ReplicaRequirement::REPLACEMENT)?;
        core.track_predecessors(dead.predecessors);
        // No list of that daemon shows which files it may still change.
        core.fs.mark_all_changes_in_doubt();
        // Its answer is not awaited: there may be no replica yet.
        let fs = Arc::clone(&core.fs);
        run(async move {
            let _ = fs.init_root().await;
        });
        let session = core.start_session(&place)?;
        Ok(Self::with_session(core, runtime, session, None))
    }
}
