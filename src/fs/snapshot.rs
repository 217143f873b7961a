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
use super::journal::Unflushed;
use super::records::{FsSnapshot, HandleRecord};
use super::{Fs, Ino};
use crate::backend::{BackendFile, OwnedFds};
use crate::volume::ReplicaId;

impl Fs {
    /// Whether something is being changed, or may be: the next daemon could overtake it.
    pub fn has_changes_in_flight(&self) -> bool {
        self.client.pending_changes.has_pending() || self.handles.has_changing_files()
    }

    /// Lets changes that wait for memory go on beyond their share of the budget: they keep
    /// threads of the session.
    pub fn lift_payload_limit(&self) {
        self.payload_budget.set_unlimited(true);
    }

    /// Lets no change begin any more, if the replica has not answered any for `time`:
    /// the next daemon may follow.
    pub fn hand_over_changes(&self, time: Duration) -> bool {
        let is_left = self.client.pending_changes.freeze_if_unresponsive(time);
        self.handles.unsettled.set_handed_over(is_left);
        is_left
    }

    /// There is no next daemon: changes begin again.
    pub fn resume_changes(&self) {
        self.payload_budget.set_unlimited(false);
        self.client.pending_changes.unfreeze();
        self.handles.unsettled.set_handed_over(false);
    }

    /// Notes from now on what requests enter into the tables. The next daemon takes it
    /// back where the kernel has no answer.
    pub fn track_unanswered(&self) {
        self.log.track_unanswered();
    }

    /// There are earlier daemons that may still be changing files, until `has_no_change_in_flight`
    /// says that there are none. Call it before [`Fs::restore`].
    pub fn set_earlier_daemons(&self, are_through: impl Fn() -> bool + Send + Sync + 'static) {
        self.handles.unsettled.set_earlier_daemons(Box::new(are_through));
    }

    /// Earlier daemons may be making any change: on another write replica, or it is not
    /// known which.
    pub fn mark_all_changes_in_doubt(&self) {
        self.handles.unsettled.mark_all_in_doubt();
    }

    /// The kernel sends a change of the file again.
    pub fn add_resent_change(&self, ino: Ino) {
        self.handles.unsettled.add_resent(ino);
    }

    /// Whether anybody waits for a lock.
    pub fn has_lock_waiters(&self) -> bool {
        self.locks.has_waiters()
    }

    /// Writes down what the next daemon has to know, and what to send along.
    ///
    /// # Errors
    /// What cannot be handed over, in one line.
    pub fn snapshot(&self) -> Result<(FsSnapshot, Vec<Arc<dyn BackendFile>>), SnapshotError> {
        if self.handles.has_passthrough_files() {
            return Err(SnapshotError::Passthrough);
        }
        let mut files = FilesToSend::for_handover();
        let inodes = self.inodes.lock();
        let mut snapshot = self.snapshot_tables(&inodes, &mut files);
        snapshot.changes = self.recent_changes.freeze().snapshot(Instant::now());
        snapshot.lock_owners = self.locks.snapshot(&mut files)?;
        snapshot.unanswered = self.log.unanswered();
        Ok((snapshot, files.into_files()))
    }

    /// The tables without locks, and without what was changed lately.
    fn snapshot_tables(&self, inodes: &Inodes, files: &mut FilesToSend) -> FsSnapshot {
        let number = |replica: ReplicaId| replica.index() as u16;
        let mut snapshot = FsSnapshot {
            inodes: inodes.snapshot(),
            write_replica: self.policy.write.map(|write| number(write.replica)),
            lock_replica: self.policy.lock_replica.map(number),
            ..FsSnapshot::default()
        };
        self.handles.snapshot(inodes, &mut snapshot, files);
        snapshot
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
        let write_replica = self.policy.write.map(|write| write.replica);
        let old_writer = snapshot.write_replica.and_then(map);
        let writes = snapshot.handles.iter().any(HandleRecord::is_writer);
        if writes && (old_writer.is_none() || old_writer != write_replica) {
            return Err(SnapshotError::OtherWriteReplica);
        }
        let lock_replica = snapshot.lock_replica.and_then(map);
        let has_locks = !snapshot.lock_owners.is_empty();
        if has_locks && (lock_replica.is_none() || lock_replica != self.policy.lock_replica) {
            return Err(SnapshotError::OtherLockReplica);
        }
        if snapshot.write_replica.is_some() && old_writer != write_replica {
            self.mark_all_changes_in_doubt();
        }
        let is_killed = snapshot.is_daemon_killed;
        let mut received = ReceivedFiles::new(&self.replicas, files, map, is_killed);
        let inodes = Inodes::restore(self.policy.mode, std::mem::take(&mut snapshot.inodes));
        let over = HandlesRestore {
            inodes: &inodes,
            reader: &self.reader,
            listing_memory: &self.listing_memory,
            replicas: &self.replicas,
            mode: self.policy.mode,
            write_replica,
        };
        self.handles.restore(&mut snapshot, &over, &mut received)?;
        self.inodes.replace(inodes);
        if let Some(replica) = lock_replica {
            self.locks.restore(replica, snapshot.lock_owners, &mut received);
        }
        self.recent_changes.restore(snapshot.changes, Instant::now());
        self.handles.unsettled.restore_files(snapshot.unsettled);
        self.log.restore_unanswered(snapshot.unanswered);
        Ok(())
    }

    /// Writes down from now on what the next daemon has to know if this one is killed;
    /// `head` comes first, for the daemon that reads it.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn start_journal(&self, path: &Path, head: Vec<u8>) -> std::io::Result<()> {
        self.log.start_journal(path, head, |record| self.with_tables_locked(record))
    }

    /// Passes the snapshot of the tables to `record` before any of them takes another step.
    fn with_tables_locked(&self, record: &dyn Fn(FsSnapshot) -> Unflushed) -> Unflushed {
        let inodes = self.inodes.lock();
        let _open_close = self.handles.block_open_close();
        let mut snapshot = self.snapshot_tables(&inodes, &mut FilesToSend::none());
        let changes = self.recent_changes.freeze();
        snapshot.changes = changes.snapshot(Instant::now());
        let unsettled = self.handles.unsettled.lock_files();
        snapshot.unsettled = unsettled.inos();
        record(snapshot)
    }

    /// Replaces the head of the journal by `now`, if there is a journal and the head
    /// differs. Call it with nothing locked.
    pub fn update_journal_head(&self, now: impl FnOnce() -> std::io::Result<Vec<u8>>) {
        self.log.journal().update_head(now);
        self.compact_journal_if_due();
    }

    /// The next daemon serves the mount from now on, and keeps its own journal.
    pub fn seal_journal(&self) {
        self.log.journal().seal();
    }

    /// Rewrites it if that is due. Call it with nothing locked.
    pub(super) fn compact_journal_if_due(&self) {
        self.log.rewrite_journal_if_due(|record| self.with_tables_locked(record));
    }
}
