//! What the file system leaves to the next daemon that serves the same mount, and goes on
//! with.
//!
//! The kernel goes on using the numbers of inodes and handles that the daemon before
//! gave it. So that one writes down what they stand for ([`FsSnapshot`]), and sends along
//! what it has open on the replicas ([`super::file_transfer`]). A daemon that was killed sends
//! nothing; what it had written down meanwhile ([`super::journal`]) is the same record
//! without descriptors, and files are opened again when they are next used.
//!
//! *Invariant:* a daemon that goes on has for every number of the kernel what it stood
//! for, or an error; never something else.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::file_transfer::{FilesToSend, ReceivedFiles, SnapshotError};
use super::handles::HandlesRestore;
use super::inodes::Inodes;
use super::records::{FsSnapshot, HandleRecord};
use super::{Fs, Ino};
use crate::backend::{BackendFile, OwnedFds};
use crate::volume::ReplicaId;

impl Fs {
    /// Whether something is being changed, or may be: the next daemon could overtake it.
    pub fn has_changes_in_flight(&self) -> bool {
        self.calls.client.pending_changes.has_pending() || self.tables.handles.has_changing_files()
    }

    /// Lets changes that wait for memory go on beyond their share of the budget: they keep
    /// threads of the session.
    pub fn lift_payload_limit(&self) {
        self.payload_budget.set_unlimited(true);
    }

    /// Lets no change begin any more, if the replica has not answered any for `time`:
    /// the next daemon may follow.
    pub fn hand_over_changes(&self, time: Duration) -> bool {
        let is_left = self.calls.client.pending_changes.freeze_if_unresponsive(time);
        self.tables.handles.unsettled.set_handed_over(is_left);
        is_left
    }

    /// There is no next daemon: changes begin again.
    pub fn resume_changes(&self) {
        self.payload_budget.set_unlimited(false);
        self.calls.client.pending_changes.unfreeze();
        self.tables.handles.unsettled.set_handed_over(false);
    }

    /// Notes from now on what requests enter into the tables. The next daemon takes it
    /// back where the kernel has no answer.
    pub fn track_unanswered(&self) {
        self.tables.log.track_unanswered();
    }

    /// There are earlier daemons that may still be changing files, until `has_no_change_in_flight`
    /// says that there are none. Call it before [`Fs::restore`].
    pub fn set_earlier_daemons(&self, are_through: impl Fn() -> bool + Send + Sync + 'static) {
        self.tables.handles.unsettled.set_earlier_daemons(Box::new(are_through));
    }

    /// Earlier daemons may be making any change: on another write replica, or it is not
    /// known which.
    pub fn mark_all_changes_in_doubt(&self) {
        self.tables.handles.unsettled.mark_all_in_doubt();
    }

    /// The kernel sends a change of the file again.
    pub fn add_resent_change(&self, ino: Ino) {
        self.tables.handles.unsettled.add_resent(ino);
    }

    /// Writes down what the next daemon has to know, and what to send along.
    ///
    /// # Errors
    /// What cannot be handed over, in one line.
    pub fn snapshot(&self) -> Result<(FsSnapshot, Vec<Arc<dyn BackendFile>>), SnapshotError> {
        if self.tables.handles.has_passthrough_files() {
            return Err(SnapshotError::Passthrough);
        }
        let mut files = FilesToSend::for_handover();
        let mut snapshot = self.tables.snapshot(&mut files);
        snapshot.lock_owners = self.locks.snapshot(&mut files)?;
        Ok((snapshot, files.into_files()))
    }

    /// Restores the snapshot of the daemon before; `map` finds that daemon's replicas among
    /// these. Before the first request.
    ///
    /// # Errors
    /// The entry that cannot be restored, in one line.
    pub fn restore(
        &self,
        mut snapshot: FsSnapshot,
        files: Vec<OwnedFds>,
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

    /// Writes down from now on what the next daemon has to know if this one is killed;
    /// `head` comes first, for the daemon that reads it.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn start_journal(&self, path: &Path, head: Vec<u8>) -> std::io::Result<()> {
        self.tables.start_journal(path, head)
    }

    /// Replaces the head of the journal by `now`, if there is a journal and the head
    /// differs. Call it with nothing locked.
    pub fn update_journal_head(&self, now: impl FnOnce() -> std::io::Result<Vec<u8>>) {
        self.tables.log.journal().update_head(now);
        self.tables.compact_journal_if_due();
    }

    /// The next daemon serves the mount from now on, and keeps its own journal.
    pub fn seal_journal(&self) {
        self.tables.log.journal().seal();
    }
}
