//! The handover of the file system to the next daemon that serves the same mount.
//!
//! The kernel continues to use the numbers of inodes and handles that the old daemon issued. So the
//! old daemon records their objects ([`FsSnapshot`]), and sends its open descriptors
//! ([`super::file_transfer`]). A daemon that was killed sends nothing. Its journal
//! ([`super::journal`]) yields the same record without descriptors, and the next daemon opens files
//! again when they are next used.
//!
//! *Invariant:* for every number that the kernel knows, the next daemon has the same object or an
//! error, never another object.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::file_transfer::{FilesToSend, ReceivedFiles, SnapshotError};
use super::handles::HandlesRestore;
use super::inodes::Inodes;
use super::records::{FsSnapshot, HandleRecord};
use super::{Fs, Ino};
use crate::backend::{BackendFile, OwnedFileParts};
use crate::volume::ReplicaId;

impl Fs {
    /// Whether a change has not ended: the next daemon could overtake it.
    pub fn has_changes_in_flight(&self) -> bool {
        self.calls.client.pending_changes.has_pending() || self.tables.handles.has_changing_files()
    }

    /// Admits changes that wait for memory beyond their share of the budget, because they hold
    /// session threads.
    pub fn lift_payload_limit(&self) {
        self.payload_budget.set_unlimited(true);
    }

    /// Lets no change begin any more, if the write replica has made no progress for `time` and all
    /// changes wait in it or for it. Returns whether it did so: then the handover may proceed.
    pub fn hand_over_changes(&self, time: Duration) -> bool {
        let is_left = self.calls.client.pending_changes.freeze_if_unresponsive(time);
        self.tables.handles.unsettled.set_handed_over(is_left);
        is_left
    }

    /// Lets changes begin again, as there is no next daemon.
    pub fn resume_changes(&self) {
        self.payload_budget.set_unlimited(false);
        self.calls.client.pending_changes.unfreeze();
        self.tables.handles.unsettled.set_handed_over(false);
    }

    /// Tracks from now on the entries that requests make in the tables. The next daemon removes
    /// those of requests that the kernel has no answer to.
    pub fn track_unanswered(&self) {
        self.tables.log.track_unanswered();
    }

    /// Declares that earlier daemons may still be changing files, until `are_through` returns true.
    /// Call it before [`Fs::restore`].
    pub fn set_earlier_daemons(&self, are_through: impl Fn() -> bool + Send + Sync + 'static) {
        self.tables.handles.unsettled.set_earlier_daemons(Box::new(are_through));
    }

    /// Declares that earlier daemons may be making any change: on another write replica, or on an
    /// unknown one.
    pub fn mark_all_changes_in_doubt(&self) {
        self.tables.handles.unsettled.mark_all_in_doubt();
    }

    /// Records that the kernel sends a change of the file again.
    pub fn add_resent_change(&self, ino: Ino) {
        self.tables.handles.unsettled.add_resent(ino);
    }

    /// The record for the next daemon, and the files to send with it.
    ///
    /// # Errors The reason why the tables cannot be handed over.
    pub fn snapshot(&self) -> Result<(FsSnapshot, Vec<Arc<dyn BackendFile>>), SnapshotError> {
        if self.tables.handles.has_passthrough_files() {
            return Err(SnapshotError::Passthrough);
        }
        let mut files = FilesToSend::for_handover();
        let mut snapshot = self.tables.snapshot(&mut files);
        if self.tables.reader.has_stale_pages() {
            // The next daemon does not know which files they are of.
            snapshot.inodes.mark_cache_unknown();
        }
        snapshot.lock_owners = self.locks.snapshot(&mut files)?;
        Ok((snapshot, files.into_files()))
    }

    /// Restores the tables from the predecessor's snapshot. `map` finds the predecessor's replicas
    /// among these. Call it before the first request.
    ///
    /// # Errors The reason why the tables cannot be restored.
    pub fn restore(
        &self,
        mut snapshot: FsSnapshot,
        files: Vec<OwnedFileParts>,
        map: &dyn Fn(u16) -> Option<ReplicaId>,
    ) -> Result<(), SnapshotError> {
        let write_replica = self.tables.policy.write.map(|write| write.replica);
        let old_writer = snapshot.write_replica.and_then(map);
        let writes = snapshot.handles.iter().any(HandleRecord::is_writer);
        if writes && (old_writer.is_none() || old_writer != write_replica) {
            return Err(SnapshotError::OtherWriteReplica);
        }
        let lock_replica = snapshot.lock_replica.and_then(map);
        let has_locks = !snapshot.lock_owners.is_empty();
        if has_locks && (lock_replica.is_none() || lock_replica != self.tables.policy.lock_replica)
        {
            return Err(SnapshotError::OtherLockReplica);
        }
        if snapshot.write_replica.is_some() && old_writer != write_replica {
            self.mark_all_changes_in_doubt();
        }
        let is_killed = snapshot.is_daemon_killed;
        let mut received = ReceivedFiles::new(&self.calls.replicas, files, map, is_killed);
        let inodes = Inodes::restore(self.tables.policy.mode, std::mem::take(&mut snapshot.inodes));
        let over = HandlesRestore {
            inodes: &inodes,
            reader: &self.tables.reader,
            listing_memory: &self.listing_memory,
            replicas: &self.calls.replicas,
            mode: self.tables.policy.mode,
            write_replica,
            is_immutable: self.tables.policy.immutable,
        };
        self.tables.handles.restore(&mut snapshot, &over, &mut received)?;
        self.tables.inodes.replace(inodes);
        if let Some(replica) = lock_replica {
            self.locks.restore(replica, snapshot.lock_owners, &mut received);
        }
        self.tables.recent_changes.restore(snapshot.changes, Instant::now());
        self.tables.handles.unsettled.restore_files(snapshot.unsettled);
        self.tables.log.restore_unanswered(snapshot.unanswered);
        Ok(())
    }

    /// Records from now on the state that the next daemon needs if this one is killed; `head` comes
    /// first, for the daemon that reads it.
    ///
    /// # Errors If the journal cannot be written.
    pub fn start_journal(&self, path: &Path, head: Vec<u8>) -> std::io::Result<()> {
        self.tables.start_journal(path, head)
    }

    /// Replaces the head of the journal by `now`, if there is a journal and the head differs. Call
    /// it without any lock.
    pub fn update_journal_head(&self, now: impl FnOnce() -> std::io::Result<Vec<u8>>) {
        self.tables.log.journal().update_head(now);
        self.tables.compact_journal_if_due();
    }

    /// Ends the journal and removes it: the mount ends with this daemon.
    pub fn remove_journal(&self) {
        self.tables.log.journal().remove();
    }

    /// From now on the next daemon serves the mount and keeps its own journal.
    pub fn seal_journal(&self) {
        self.tables.log.journal().seal();
    }
}
