//! The state of a mount apart from inodes and handles, as the next daemon receives it.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use super::handover_error::IncompatibleMount;
use super::volume_core::VolumeCore;
use super::volume_policies::can_omit_opens;
use crate::config::{Config, ReplicaConfig};
use crate::fs;
use crate::fuse::{FixedMountOptions, InitParams};
use crate::survey::RootRecord;
use crate::volume::{ReplicaId, VolumeMode};

/// The state of a mount apart from inodes and handles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::daemon) struct MountSnapshot {
    /// The format of everything that is handed over.
    format: u32,
    pub(in crate::daemon) agreed: InitParams,
    fixed: FixedMountOptions,
    mode: VolumeMode,
    /// Name, location and record of each replica, in the configuration's order.
    replicas: Vec<(String, OsString, Option<RootRecord>)>,
    /// Whether the successor refuses a configuration that `fanfs mount` would refuse.
    pub(in crate::daemon) strict: bool,
}

impl MountSnapshot {
    /// The snapshot of a mount whose kernel agreed to `agreed`.
    pub(in crate::daemon) fn new(core: &VolumeCore, agreed: InitParams, strict: bool) -> Self {
        let replica = |(index, replica): (usize, &ReplicaConfig)| {
            let record = core.roster.record(ReplicaId::new(index));
            (replica.name.clone(), replica.location.to_path().into_os_string(), record)
        };
        Self {
            format: fs::SNAPSHOT_FORMAT,
            agreed,
            fixed: core.mount_options().fixed_options(),
            mode: core.config.volume.mode,
            replicas: core.config.replicas.iter().enumerate().map(replica).collect(),
            strict,
        }
    }

    /// Checks that a daemon with `config`, which would mount with the options `fixed`, can
    /// continue the mount.
    ///
    /// # Errors
    /// [`IncompatibleMount`] says why it cannot.
    pub(in crate::daemon) fn check_compatible(
        &self,
        config: &Config,
        fixed: &FixedMountOptions,
    ) -> Result<(), IncompatibleMount> {
        if self.format != fs::SNAPSHOT_FORMAT {
            let ours = fs::SNAPSHOT_FORMAT;
            return Err(IncompatibleMount::Format { theirs: self.format, ours });
        }
        if self.mode != config.volume.mode {
            return Err(IncompatibleMount::Mode);
        }
        if self.agreed.is_immutable().is_some_and(|was| was != config.volume.immutable) {
            return Err(IncompatibleMount::Option("immutable"));
        }
        if self.agreed.omits_opens() && !can_omit_opens(config, fixed.allows_others()) {
            return Err(IncompatibleMount::Option("read.cache, passthrough, locks or allow_other"));
        }
        match self.fixed.first_difference(fixed) {
            Some(option) => Err(IncompatibleMount::Option(option)),
            None => Ok(()),
        }
    }

    /// The replica of `config` that had the number `old` at the predecessor, if the volume
    /// still has it.
    pub(in crate::daemon) fn map_replica(&self, config: &Config, old: u16) -> Option<ReplicaId> {
        let (name, path, _) = self.replicas.get(usize::from(old))?;
        let is_it =
            |replica: &ReplicaConfig| replica.name == *name && replica.location.to_path() == *path;
        config.replicas.iter().position(is_it).map(ReplicaId::new)
    }

    /// The predecessor's record of a replica of `config`.
    pub(in crate::daemon) fn replica_record(
        &self,
        config: &Config,
        id: ReplicaId,
    ) -> Option<RootRecord> {
        let is_it = |old: &usize| self.map_replica(config, *old as u16) == Some(id);
        let old = (0..self.replicas.len()).find(is_it)?;
        self.replicas[old].2.clone()
    }
}
