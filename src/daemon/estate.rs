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

use super::former::Former;
use super::link::{Link, MOST};
use crate::backend::{BackendFile, Parts};
use crate::config::Config;
use crate::fs::{self, Carried};
use crate::fuse::{Agreed, Fixed};
use crate::volume::survey::{Record, Roster};
use crate::volume::{Mode, ReplicaId};

/// What is known of a mount besides inodes and handles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Estate {
    /// The form of everything that is handed over.
    format: u32,
    pub(super) agreed: Agreed,
    fixed: Fixed,
    mode: Mode,
    /// Name, directory and record of each replica, in the configuration's order.
    replicas: Vec<(String, OsString, Option<Record>)>,
    /// Whether the successor refuses a configuration that `fanfs mount` would refuse.
    pub(super) strict: bool,
}

/// What predecessors say.
#[derive(Serialize, Deserialize)]
pub(super) enum FromPredecessor {
    Estate(Estate),
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
pub(super) enum FromSuccessor {
    Prepared,
    Restored,
    Serving,
    Refused { why: String },
}

/// Inodes and handles, and which descriptors each file has: past the page cache,
/// through it.
#[derive(Serialize, Deserialize)]
struct All {
    carried: Carried,
    parts: Vec<(bool, bool)>,
}

impl Estate {
    pub(super) fn new(
        config: &Config,
        roster: &Roster,
        agreed: Agreed,
        fixed: Fixed,
        strict: bool,
    ) -> Self {
        let replica = |(index, replica): (usize, &crate::config::Replica)| {
            let record = roster.record(ReplicaId::new(index));
            (replica.name.clone(), replica.path.clone().into_os_string(), record)
        };
        let replicas = config.replicas.iter().enumerate().map(replica).collect();
        Self { format: fs::FORMAT, agreed, fixed, mode: config.volume.mode, replicas, strict }
    }

    /// Whether a daemon of `config` that would mount as `fixed` can go on.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn suits(&self, config: &Config, fixed: &Fixed) -> Result<(), String> {
        if self.format != fs::FORMAT {
            return Err(format!(
                "this version hands over in form {}, that one takes form {}; unmount and mount again",
                self.format,
                fs::FORMAT
            ));
        }
        if self.mode != config.volume.mode {
            return Err("`mode` cannot be changed while mounted".to_owned());
        }
        match self.fixed.differs_in(fixed) {
            Some(what) => Err(format!("{what} cannot be changed while mounted")),
            None => Ok(()),
        }
    }

    /// The replica of `config` that had the number `old`, if it is still one.
    pub(super) fn replica(&self, config: &Config, old: u16) -> Option<ReplicaId> {
        let (name, path, _) = self.replicas.get(usize::from(old))?;
        let is_it = |replica: &crate::config::Replica| {
            replica.name == *name && replica.path == *PathBuf::from(path)
        };
        config.replicas.iter().position(is_it).map(ReplicaId::new)
    }

    /// The predecessor's record of a replica of `config`.
    pub(super) fn record(&self, config: &Config, id: ReplicaId) -> Option<Record> {
        let is_it = |old: &usize| self.replica(config, *old as u16) == Some(id);
        let old = (0..self.replicas.len()).find(is_it)?;
        self.replicas[old].2.clone()
    }
}

/// Sends inodes, handles, files and earlier daemons.
pub(super) fn send(
    link: &Link,
    carried: Carried,
    files: &[Arc<dyn BackendFile>],
    former: &Former,
) -> std::io::Result<()> {
    let open: Vec<_> = files.iter().map(|file| file.parts()).collect();
    let parts = open.iter().map(|p| (p.direct.is_some(), p.cached.is_some())).collect();
    let all = postcard::to_stdvec(&All { carried, parts }).map_err(std::io::Error::other)?;
    let file = rustix::fs::memfd_create("fanfs", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(&all)?;
    file.rewind()?;
    link.say(&FromPredecessor::All, &[file.as_fd()])?;
    let descriptors: Vec<BorrowedFd<'_>> =
        open.iter().flat_map(|parts| [parts.direct, parts.cached]).flatten().collect();
    for some in descriptors.chunks(MOST) {
        link.say(&FromPredecessor::Files, some)?;
    }
    for some in former.left().chunks(MOST) {
        link.say(&FromPredecessor::Former, some)?;
    }
    Ok(())
}

/// Inodes and handles as they have arrived.
pub(super) fn read(file: OwnedFd) -> std::io::Result<(Carried, Vec<(bool, bool)>)> {
    let mut bytes = Vec::new();
    std::fs::File::from(file).read_to_end(&mut bytes)?;
    let all: All = postcard::from_bytes(&bytes).map_err(std::io::Error::other)?;
    Ok((all.carried, all.parts))
}

/// Files as their descriptors have arrived.
pub(super) fn parts(which: &[(bool, bool)], along: Vec<OwnedFd>) -> Vec<Parts> {
    let mut along = along.into_iter();
    let mut next = |is_there: bool| if is_there { along.next() } else { None };
    which
        .iter()
        .map(|(direct, cached)| Parts { direct: next(*direct), cached: next(*cached) })
        .collect()
}
