//! Mounting a volume.
//!
//! *Invariant:* a function that returns an error has undone its work.

use std::path::Path;
use std::sync::Arc;

use super::admission::ReplicaRequirement;
use super::dead_mount::DeadMount;
use super::earlier_daemons::EarlierDaemons;
use super::error::StartError;
use super::mount::Mount;
use super::mount_point;
use super::volume_backends::VolumeBackends;
use super::volume_core::VolumeCore;
use super::volume_setup::{MountOverrides, VolumeSetup};
use crate::backend::Backend;
use crate::config::Config;
use crate::fs::run;
use crate::metrics::BoundListener;
use crate::volume::{ReplicaMap, ReplicaSet};

impl Mount {
    /// Mounts a volume over `backends`, one for each replica of `config`.
    ///
    /// # Errors
    /// [`StartError`]; nothing is mounted then.
    pub fn start_with_backends(
        config: Config,
        backends: ReplicaMap<Arc<dyn Backend>>,
        mount_point: &Path,
        overrides: &MountOverrides,
    ) -> Result<Self, StartError> {
        let members = VolumeBackends::from_backends(&config, backends);
        let setup = VolumeSetup::new(config, mount_point, overrides);
        Self::start_with_members(setup, members, ReplicaSet::EMPTY)
    }

    /// Mounts a volume. `silent` are replicas that have just failed to answer.
    ///
    /// # Errors
    /// [`StartError`]; nothing is mounted then.
    pub fn start_from_config(
        config: Config,
        silent: ReplicaSet,
        mount_point: &Path,
        overrides: &MountOverrides,
    ) -> Result<Self, StartError> {
        let members = VolumeBackends::absent(&config, |_| None);
        Self::start_with_members(VolumeSetup::new(config, mount_point, overrides), members, silent)
    }

    fn start_with_members(
        mut setup: VolumeSetup,
        members: VolumeBackends,
        silent: ReplicaSet,
    ) -> Result<Self, StartError> {
        let target = mount_point::check_mount_point(&setup.mount_point)?;
        let metrics = BoundListener::bind(&setup.config.metrics).map_err(|error| {
            StartError::Metrics { source_file: setup.config.source.clone(), error }
        })?;
        setup.mount_point.clone_from(&target.path);
        let started = VolumeCore::start(setup, members)?;
        let needed = ReplicaRequirement::from_config(&started.core.config);
        started.core.admit_replicas(silent, needed)?;
        started.core.read_root()?;
        Ok(started.mount(&target, metrics)?)
    }

    /// Mounts a volume in place of a dead mount. `silent` are replicas that have just failed to
    /// answer.
    ///
    /// # Errors
    /// [`StartError`]; then the dead mount is still there.
    pub(super) fn replace_dead(
        dead: DeadMount,
        mut setup: VolumeSetup,
        silent: ReplicaSet,
    ) -> Result<Self, StartError> {
        let target = mount_point::dead_mount_target(&setup.mount_point, dead.device_number)?;
        setup.mount_point.clone_from(&target.path);
        let members = VolumeBackends::absent(&setup.config, |_| None);
        let started = VolumeCore::start(setup, members)?;
        started.core.admit_replicas(silent, ReplicaRequirement::REPLACEMENT)?;
        started.core.track_earlier_daemons(EarlierDaemons::new(dead.earlier_daemons));
        // There is no record of the files that the dead daemon may still change.
        started.core.fs.mark_all_changes_in_doubt();
        // The mount does not wait for the answer: there may be no replica yet.
        let fs = Arc::clone(&started.core.fs);
        run(async move {
            let _ = fs.namespace.init_root().await;
        });
        Ok(started.mount(&target, None)?)
    }
}
