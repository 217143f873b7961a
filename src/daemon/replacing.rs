//! Replacing the mount of a daemon that was killed.
//!
//! Where no daemon can go on with that mount ([`super::successor`]), its open files are lost.
//! The dead mount stays until the new one replaces it: a call on it fails, whereas a write to
//! the directory beneath would succeed and be lost. For the same reason the new daemon needs
//! no replica to begin: calls fail with EIO until one joins.

use std::os::fd::OwnedFd;
use std::path::Path;

use super::admission::{Members, Needed};
use super::{Core, Extra, Mount, StartError, mount_point};
use crate::config::Config;
use crate::fuse::abort;
use crate::volume::ReplicaSet;

/// A mount whose daemon is dead.
pub struct Dead {
    /// Device number of the mount.
    number: (u32, u32),
    /// That daemon and those before it, as far as they have not ended.
    former: Vec<OwnedFd>,
}

impl Dead {
    pub(super) fn new(number: (u32, u32), former: Vec<OwnedFd>) -> Self {
        Self { number, former }
    }

    /// Ends the connection of the fanfs mount at `path`, whose daemon is dead.
    pub fn at(path: &Path) -> Option<Self> {
        let (_, number) = mount_point::fanfs_at(path)?;
        abort_at(path, number);
        Some(Self::new(number, Vec::new()))
    }
}

/// Has calls on the mount fail with ENOTCONN, if it is there. It stays.
pub(super) fn abort_at(path: &Path, number: (u32, u32)) {
    let is_there = |(point, found)| (found == number).then_some(point);
    if let Some(point) = mount_point::fanfs_at(path).and_then(is_there)
        && let Err(error) = abort(&point, number)
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
    pub fn replace(
        dead: Dead,
        config: Config,
        silent: ReplicaSet,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let place = mount_point::of_dead(mount_point, dead.number)?;
        let members = Members::absent(&config, |_| None);
        let (core, runtime) = Core::start(config, members, &place.path, extra)?;
        core.bring_in(silent, Needed::REPLACEMENT)?;
        core.follow(dead.former);
        // No list of that daemon shows which files it may still change.
        core.fs.doubt_all();
        // Its answer is not awaited: there may be no replica yet.
        core.fs.start(drop);
        let session = core.mount_at(&place)?;
        Ok(Self::served(core, runtime, session, None))
    }
}
