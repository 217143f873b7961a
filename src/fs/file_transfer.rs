//! The open files that one daemon sends to the next, beside the records.
//!
//! A successor cannot open a file without a name, and a replica drops a lock when its descriptor is
//! closed. So a daemon that hands over sends its descriptors and handles along ([`FilesToSend`]),
//! and records name them by their index. A daemon that was killed sends nothing.

use std::sync::Arc;

use crate::backend::{BackendFile, OwnedFileParts};
use crate::replicas::Replicas;
use crate::volume::ReplicaId;

/// The files to send with a snapshot.
pub(super) struct FilesToSend {
    /// `None` if there is no daemon to send them to: the snapshot is for a journal.
    files: Option<Vec<Arc<dyn BackendFile>>>,
}

/// The files that came with a snapshot, and the replicas that they belong to.
pub(super) struct ReceivedFiles<'a> {
    replicas: &'a Replicas,
    files: Vec<OwnedFileParts>,
    /// Maps replica ids of the predecessor to this daemon's.
    map: &'a dyn Fn(u16) -> Option<ReplicaId>,
    /// Whether the predecessor was killed.
    pub(super) is_predecessor_killed: bool,
}

/// The reason why the tables cannot be handed over or taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The kernel reads files through descriptors that only this daemon can take back.
    #[error("the kernel reads open files by passthrough; try again when they are closed")]
    Passthrough,
    /// A thread of the pool waits for a lock.
    #[error("an application waits for a file lock on a replica that does not answer")]
    LockWait,
    /// The descriptor of a lock cannot be sent.
    #[error("the descriptor of a file lock cannot be sent")]
    Lock,
    /// The predecessor wrote to another replica.
    #[error("files are open for writing on another write replica; close them first")]
    OtherWriteReplica,
    /// The predecessor kept locks on another replica.
    #[error("applications hold file locks on another replica; release them first")]
    OtherLockReplica,
    /// The volume is read-only now.
    #[error("files are open for writing, and the volume is read-only now; close them first")]
    ReadOnly,
    /// The descriptor of a writer did not arrive.
    #[error("the descriptor of a file that is open for writing is missing")]
    MissingFile,
}

impl FilesToSend {
    /// For the successor.
    pub(super) fn for_handover() -> Self {
        Self { files: Some(Vec::new()) }
    }

    /// For a journal: no files are sent.
    pub(super) fn none() -> Self {
        Self { files: None }
    }

    /// Whether there is a daemon to send the files to.
    pub(super) fn is_handover(&self) -> bool {
        self.files.is_some()
    }

    /// Adds a file; returns its index, or `None` if the file has no parts or none are sent.
    pub(super) fn add(&mut self, file: &Arc<dyn BackendFile>) -> Option<u32> {
        let files = self.files.as_mut().filter(|_| !file.parts().is_empty())?;
        files.push(Arc::clone(file));
        Some((files.len() - 1) as u32)
    }

    pub(super) fn into_files(self) -> Vec<Arc<dyn BackendFile>> {
        self.files.unwrap_or_default()
    }
}

impl<'a> ReceivedFiles<'a> {
    /// `files` of a predecessor whose replicas `map` finds among `replicas`.
    pub(super) fn new(
        replicas: &'a Replicas,
        files: Vec<OwnedFileParts>,
        map: &'a dyn Fn(u16) -> Option<ReplicaId>,
        is_predecessor_killed: bool,
    ) -> Self {
        Self { replicas, files, map, is_predecessor_killed }
    }

    /// The replica that the predecessor knew by this number, if it is still in the volume.
    pub(super) fn map_replica(&self, old: u16) -> Option<ReplicaId> {
        (self.map)(old)
    }

    /// The file at index `place`, opened on `replica`.
    pub(super) fn take(
        &mut self,
        replica: ReplicaId,
        place: Option<u32>,
    ) -> Option<Arc<dyn BackendFile>> {
        let parts = std::mem::take(self.files.get_mut(place? as usize)?);
        if parts.is_empty() {
            return None;
        }
        self.replicas[replica].adopt(parts)
    }
}
