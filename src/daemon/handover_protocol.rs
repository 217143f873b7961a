//! What is handed from one daemon of a mount to the next, and in which steps.
//!
//! ```text
//! predecessor                       successor
//!   Estate       ------------------->  knows the replicas, would agree the same
//!                <-------------------  Prepared
//!   takes no more requests, lets what is under way end
//!   All, Files*, Former, Device ---->  knows inodes and handles
//!                <-------------------  Restored
//!   lets go of the device, for good
//!   Go           ------------------->  serves
//!                <-------------------  Serving
//! ```
//!
//! *Invariant:* until it says Go the predecessor can go on as if nothing had been;
//! whatever goes wrong before, it does.

use std::ffi::OsString;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fd_channel::{FdChannel, MAX_FDS_PER_MESSAGE};
use super::predecessors::Predecessors;
use crate::backend::{BackendFile, OwnedFds};
use crate::config::Config;
use crate::fs::{self, FsSnapshot};
use crate::fuse::{FixedMountOptions, InitParams};
use crate::survey::{RootRecord, Roster};
use crate::volume::{ReplicaId, VolumeMode};

/// What is known of a mount besides inodes and handles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MountSnapshot {
    /// The form of everything that is handed over.
    format: u32,
    pub(super) agreed: InitParams,
    fixed: FixedMountOptions,
    mode: VolumeMode,
    /// Name, directory and record of each replica, in the configuration's order.
    replicas: Vec<(String, OsString, Option<RootRecord>)>,
    /// Whether the successor refuses a configuration that `fanfs mount` would refuse.
    pub(super) strict: bool,
}

/// What predecessors say.
#[derive(Serialize, Deserialize)]
pub(super) enum PredecessorMessage {
    Estate(MountSnapshot),
    /// Inodes and handles are in the file that comes along.
    All,
    /// Some of the files.
    Files,
    /// The daemons before the successor that have not ended, with this one.
    Former,
    /// The device, and the keeper's link if there is one.
    Device,
    Go,
}

/// What successors say.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum SuccessorMessage {
    Prepared,
    Restored,
    Serving,
    Refused { why: String },
}

/// Inodes and handles, and which descriptors each file has: past the page cache,
/// through it.
#[derive(Serialize, Deserialize)]
struct StateMessage {
    carried: FsSnapshot,
    parts: Vec<(bool, bool)>,
}

impl MountSnapshot {
    pub(super) fn new(
        config: &Config,
        roster: &Roster,
        agreed: InitParams,
        fixed: FixedMountOptions,
        strict: bool,
    ) -> Self {
        let replica = |(index, replica): (usize, &crate::config::ReplicaConfig)| {
            let record = roster.record(ReplicaId::new(index));
            (replica.name.clone(), replica.path.clone().into_os_string(), record)
        };
        let replicas = config.replicas.iter().enumerate().map(replica).collect();
        Self {
            format: fs::SNAPSHOT_FORMAT,
            agreed,
            fixed,
            mode: config.volume.mode,
            replicas,
            strict,
        }
    }

    /// Whether a daemon of `config` that would mount as `fixed` can go on.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_compatible(
        &self,
        config: &Config,
        fixed: &FixedMountOptions,
    ) -> Result<(), String> {
        if self.format != fs::SNAPSHOT_FORMAT {
            return Err(format!(
                "this version hands over in form {}, that one takes form {}; unmount and mount again",
                self.format,
                fs::SNAPSHOT_FORMAT
            ));
        }
        if self.mode != config.volume.mode {
            return Err("`mode` cannot be changed while mounted".to_owned());
        }
        match self.fixed.first_difference(fixed) {
            Some(what) => Err(format!("{what} cannot be changed while mounted")),
            None => Ok(()),
        }
    }

    /// The replica of `config` that had the number `old`, if it is still one.
    pub(super) fn map_replica(&self, config: &Config, old: u16) -> Option<ReplicaId> {
        let (name, path, _) = self.replicas.get(usize::from(old))?;
        let is_it = |replica: &crate::config::ReplicaConfig| {
            replica.name == *name && replica.path == *PathBuf::from(path)
        };
        config.replicas.iter().position(is_it).map(ReplicaId::new)
    }

    /// The predecessor's record of a replica of `config`.
    pub(super) fn replica_record(&self, config: &Config, id: ReplicaId) -> Option<RootRecord> {
        let is_it = |old: &usize| self.map_replica(config, *old as u16) == Some(id);
        let old = (0..self.replicas.len()).find(is_it)?;
        self.replicas[old].2.clone()
    }
}

/// Sends inodes, handles, files and earlier daemons.
pub(super) fn send_state(
    link: &FdChannel,
    carried: FsSnapshot,
    files: &[Arc<dyn BackendFile>],
    former: &Predecessors,
) -> std::io::Result<()> {
    let open: Vec<_> = files.iter().map(|file| file.fds()).collect();
    let parts = open.iter().map(|p| (p.direct.is_some(), p.cached.is_some())).collect();
    let all =
        postcard::to_stdvec(&StateMessage { carried, parts }).map_err(std::io::Error::other)?;
    let file = rustix::fs::memfd_create("fanfs", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(&all)?;
    file.rewind()?;
    link.send(&PredecessorMessage::All, &[file.as_fd()])?;
    let descriptors: Vec<BorrowedFd<'_>> =
        open.iter().flat_map(|parts| [parts.direct, parts.cached]).flatten().collect();
    for some in descriptors.chunks(MAX_FDS_PER_MESSAGE) {
        link.send(&PredecessorMessage::Files, some)?;
    }
    for some in former.running().chunks(MAX_FDS_PER_MESSAGE) {
        link.send(&PredecessorMessage::Former, some)?;
    }
    Ok(())
}

/// Inodes and handles as they have arrived.
pub(super) fn read_state(file: OwnedFd) -> std::io::Result<(FsSnapshot, Vec<(bool, bool)>)> {
    let mut bytes = Vec::new();
    std::fs::File::from(file).read_to_end(&mut bytes)?;
    let all: StateMessage = postcard::from_bytes(&bytes).map_err(std::io::Error::other)?;
    Ok((all.carried, all.parts))
}

/// Files as their descriptors have arrived.
pub(super) fn group_descriptors(which: &[(bool, bool)], along: Vec<OwnedFd>) -> Vec<OwnedFds> {
    let mut along = along.into_iter();
    let mut next = |is_there: bool| if is_there { along.next() } else { None };
    which
        .iter()
        .map(|(direct, cached)| OwnedFds { direct: next(*direct), cached: next(*cached) })
        .collect()
}
