//! The state that one daemon of a mount hands to the next, and the steps of a handover.
//!
//! ```text
//! predecessor                       successor
//!   Mount        ------------------->  admits the replicas, prepares a session
//!                <-------------------  Prepared
//!   takes no more requests, drains those in flight
//!   Tables, Files*, EarlierDaemons*,
//!   Device       ------------------->  restores inodes and handles
//!                <-------------------  Restored
//!   drops the device for good
//!   Go           ------------------->  serves
//!                <-------------------  Serving
//! ```
//!
//! *Invariant:* until it drops the device for good, the predecessor can resume as if nothing
//! had happened. If anything fails before that, it resumes.

use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::{BackendFile, OwnedFds};
use crate::daemon::earlier_daemons::EarlierDaemons;
use crate::daemon::fd_channel::{FdChannel, MAX_FDS_PER_MESSAGE};
use crate::daemon::mount_snapshot::MountSnapshot;
use crate::fs::FsSnapshot;

/// The messages of a predecessor.
#[derive(Serialize, Deserialize)]
pub(in crate::daemon) enum PredecessorMessage {
    #[serde(rename = "Estate")]
    Mount(MountSnapshot),
    /// Inodes and handles, in the file that comes along.
    #[serde(rename = "All")]
    Tables,
    /// Some of the open files.
    Files,
    /// Some of the daemons before the successor that have not ended, the predecessor included.
    #[serde(rename = "Former")]
    EarlierDaemons,
    /// The device, and the keeper's link if there is one.
    Device,
    Go,
}

/// The messages of a successor.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) enum SuccessorMessage {
    Prepared,
    Restored,
    Serving,
    Refused { why: String },
}

/// Inodes and handles, and the descriptors that each file has: one past the page cache, one
/// through it.
#[derive(Serialize, Deserialize)]
pub(in crate::daemon) struct StateMessage {
    pub(in crate::daemon) snapshot: FsSnapshot,
    parts: Vec<(bool, bool)>,
}

/// Sends inodes, handles, files and earlier daemons.
pub(in crate::daemon) fn send_state(
    link: &FdChannel,
    snapshot: FsSnapshot,
    files: &[Arc<dyn BackendFile>],
    earlier_daemons: &EarlierDaemons,
) -> std::io::Result<()> {
    let open: Vec<_> = files.iter().map(|file| file.fds()).collect();
    let parts = open.iter().map(|p| (p.direct.is_some(), p.cached.is_some())).collect();
    let all =
        postcard::to_stdvec(&StateMessage { snapshot, parts }).map_err(std::io::Error::other)?;
    let file = rustix::fs::memfd_create("fanfs", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    file.write_all(&all)?;
    file.rewind()?;
    link.send(&PredecessorMessage::Tables, &[file.as_fd()])?;
    let descriptors: Vec<BorrowedFd<'_>> =
        open.iter().flat_map(|parts| [parts.direct, parts.cached]).flatten().collect();
    for some in descriptors.chunks(MAX_FDS_PER_MESSAGE) {
        link.send(&PredecessorMessage::Files, some)?;
    }
    for some in earlier_daemons.running().chunks(MAX_FDS_PER_MESSAGE) {
        link.send(&PredecessorMessage::EarlierDaemons, some)?;
    }
    Ok(())
}

impl StateMessage {
    /// Reads inodes and handles from the file that came along.
    pub(in crate::daemon) fn read(file: OwnedFd) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        std::fs::File::from(file).read_to_end(&mut bytes)?;
        postcard::from_bytes(&bytes).map_err(std::io::Error::other)
    }

    /// Groups the received descriptors by file.
    pub(in crate::daemon) fn group_descriptors(&self, along: Vec<OwnedFd>) -> Vec<OwnedFds> {
        let mut along = along.into_iter();
        let mut next = |is_there: bool| if is_there { along.next() } else { None };
        let parts = self.parts.iter();
        parts
            .map(|(direct, cached)| OwnedFds { direct: next(*direct), cached: next(*cached) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Daemons of other versions read these names.
    #[test]
    fn message_names_stay_compatible_with_other_versions() {
        let name = |message: &PredecessorMessage| serde_json::to_string(message).unwrap();
        assert_eq!(name(&PredecessorMessage::Tables), "\"All\"");
        assert_eq!(name(&PredecessorMessage::Files), "\"Files\"");
        assert_eq!(name(&PredecessorMessage::EarlierDaemons), "\"Former\"");
        assert_eq!(name(&PredecessorMessage::Device), "\"Device\"");
        assert_eq!(name(&PredecessorMessage::Go), "\"Go\"");
    }
}
