//! What one daemon leaves to the next that serves the same mount.
//!
//! The kernel goes on using the numbers of inodes and handles that the daemon before
//! gave it. So that one writes down what they stand for ([`FsSnapshot`]), and sends along
//! what it has open on the replicas: files without a name can be had no other way, and
//! locks are given up when their descriptor is closed. A daemon that was killed sends
//! nothing; what it had written down meanwhile ([`super::journal`]) is the same record
//! without descriptors, and files are opened again when they are next used.
//!
//! *Invariant:* a daemon that goes on has for every number of the kernel what it stood
//! for, or an error; never something else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::handles::snapshot::{FileRecord, HandleRecord as OpenedRecord};
use super::inodes::Inodes;
use super::inodes::snapshot::InodesRecord;
use super::journal::{Journal, SharedLists};
use super::listing_memory::ListingMemory;
use super::lock::snapshot::LockOwnerRecord;
use super::recent_changes::{RecentChangesGuard, RecentChangesRecord};
use super::unanswered::UnansweredEntries;
use super::{Fs, Ino, WritePolicy};
use crate::backend::{BackendFile, OwnedFds, with_daemon_credentials};
use crate::read::Reader;
use crate::replicas::Replicas;
use crate::volume::{ReplicaId, VolumeMode};

pub(super) use super::handles::snapshot::HandleRecord;

/// The form that it has. A daemon that knows another one is not followed.
pub const SNAPSHOT_FORMAT: u32 = 5;

/// Everything that a daemon leaves, but what it has open.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FsSnapshot {
    pub(super) inodes: InodesRecord,
    pub(super) files: Vec<FileRecord>,
    pub(super) opened: Vec<OpenedRecord>,
    pub(super) owners: Vec<LockOwnerRecord>,
    /// The last number that the daemon issued.
    pub(super) last: u64,
    /// What was changed lately.
    pub(super) changes: RecentChangesRecord,
    /// The replicas that carried out changes and kept locks.
    writer: Option<u16>,
    locker: Option<u16>,
    /// Whether the daemon was killed: nothing was sent along.
    lost: bool,
    /// The requests that the daemon may not have answered; a journal has them apart.
    pub(super) unanswered: UnansweredEntries,
    /// Files that the daemon may still be changing.
    pub(super) unsettled: Vec<u64>,
}

/// What is being written down, and what is to be sent along.
pub(super) struct SnapshotBuilder {
    pub(super) snapshot: FsSnapshot,
    pub(super) files: Vec<Arc<dyn BackendFile>>,
    /// Whether there is somebody to send it to: else it is for a journal.
    pub(super) is_handover: bool,
}

/// What is there to go on with.
pub(super) struct RestoreContext<'a> {
    pub(super) replicas: &'a Replicas,
    pub(super) reader: &'a Reader,
    pub(super) listing_memory: &'a ListingMemory,
    pub(super) mode: VolumeMode,
    pub(super) write: Option<WritePolicy>,
    parts: Vec<OwnedFds>,
    map: &'a dyn Fn(u16) -> Option<ReplicaId>,
    /// Whether the daemon before was killed.
    pub(super) is_predecessor_killed: bool,
}

/// The reason why the tables cannot be handed over, or taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The kernel reads files through descriptors that only this daemon can take back.
    #[error("files are open that the kernel reads by itself (passthrough)")]
    Passthrough,
    /// A thread of the pool waits for a lock.
    #[error("a lock is being waited for on a replica that does not answer")]
    LockWait,
    /// The descriptor of a lock cannot be sent.
    #[error("a lock could not be handed over")]
    Lock,
    /// The daemon before wrote to another replica.
    #[error("files are open for writing, on another write replica")]
    OtherWriteReplica,
    /// The daemon before kept locks on another replica.
    #[error("locks are held, on another replica")]
    OtherLockReplica,
    /// The volume has become read-only.
    #[error("files are open for writing, and nothing may be written")]
    ReadOnly,
    /// The descriptor of a writer did not arrive.
    #[error("a file that is open for writing could not be sent")]
    MissingFile,
}

impl FsSnapshot {
    /// The daemon was killed: nothing of what it had open is left.
    pub(super) fn mark_daemon_killed(&mut self) {
        self.lost = true;
        self.files.clear();
        self.owners.clear();
        self.opened.iter_mut().for_each(OpenedRecord::mark_daemon_killed);
    }

    /// How many handles there are.
    pub fn handle_count(&self) -> usize {
        self.opened.len()
    }
}

impl SnapshotBuilder {
    /// Sends a file along; says which one it is. `None` where it cannot be sent.
    pub(super) fn attach_file(&mut self, file: &Arc<dyn BackendFile>) -> Option<u32> {
        if !self.is_handover || file.fds().is_empty() {
            return None;
        }
        self.files.push(Arc::clone(file));
        Some((self.files.len() - 1) as u32)
    }
}

impl RestoreContext<'_> {
    /// The replica that the daemon before knew by this number, if it is still one.
    pub(super) fn map_replica(&self, old: u16) -> Option<ReplicaId> {
        (self.map)(old)
    }

    /// A file that `replica` has open.
    pub(super) fn adopt_file(
        &mut self,
        replica: ReplicaId,
        index: Option<u32>,
    ) -> Option<Arc<dyn BackendFile>> {
        let parts = std::mem::take(self.parts.get_mut(index? as usize)?);
        if parts.is_empty() {
            return None;
        }
        self.replicas[replica].adopt(parts)
    }
}

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
        let mut inodes = self.inodes.lock();
        if self.handles.journal().is_none() {
            let journal = Arc::new(Journal::in_memory(self.shared_lists()));
            inodes.attach_journal(Arc::clone(&journal));
            self.handles.attach_journal(journal);
        }
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
        let inodes = self.inodes.lock();
        let mut sheet = self.build_snapshot(&inodes, &self.recent_changes.freeze(), true);
        self.locks.snapshot(&mut sheet)?;
        sheet.snapshot.unanswered = self.unanswered.lock().clone();
        Ok((sheet.snapshot, sheet.files))
    }

    fn build_snapshot(
        &self,
        inodes: &Inodes,
        recent: &RecentChangesGuard<'_>,
        is_sent: bool,
    ) -> SnapshotBuilder {
        let mut sheet = SnapshotBuilder {
            snapshot: FsSnapshot::default(),
            files: Vec::new(),
            is_handover: is_sent,
        };
        sheet.snapshot.inodes = inodes.snapshot();
        sheet.snapshot.changes = recent.snapshot(Instant::now());
        sheet.snapshot.writer = self.policy.write.map(|write| write.replica.index() as u16);
        sheet.snapshot.locker = self.policy.lock_replica.map(|replica| replica.index() as u16);
        self.handles.snapshot(inodes, &mut sheet);
        sheet
    }

    /// Restores the snapshot of the daemon before; `map` finds that daemon's replicas among
    /// these. Before the first request.
    ///
    /// # Errors
    /// The entry that cannot be restored, in one line.
    pub fn restore(
        &self,
        mut carried: FsSnapshot,
        parts: Vec<OwnedFds>,
        map: &dyn Fn(u16) -> Option<ReplicaId>,
    ) -> Result<(), SnapshotError> {
        let mut heir = RestoreContext {
            replicas: &self.replicas,
            reader: &self.reader,
            listing_memory: &self.listing_memory,
            mode: self.policy.mode,
            write: self.policy.write,
            parts,
            map,
            is_predecessor_killed: carried.lost,
        };
        let writes = carried.opened.iter().any(OpenedRecord::is_writer);
        let writer = carried.writer.and_then(map);
        if writes && (writer.is_none() || writer != self.policy.write.map(|write| write.replica)) {
            return Err(SnapshotError::OtherWriteReplica);
        }
        let locker = carried.locker.and_then(map);
        if !carried.owners.is_empty() && (locker.is_none() || locker != self.policy.lock_replica) {
            return Err(SnapshotError::OtherLockReplica);
        }
        if carried.writer.is_some() && writer != self.policy.write.map(|write| write.replica) {
            self.mark_all_changes_in_doubt();
        }
        let mut inodes = self.inodes.lock();
        *inodes = Inodes::restore(self.policy.mode, std::mem::take(&mut carried.inodes));
        self.handles.restore(&mut inodes, &mut carried, &mut heir)?;
        if let Some(locker) = locker {
            self.locks.restore(locker, carried.owners, &mut heir);
        }
        self.recent_changes.restore(carried.changes, Instant::now());
        self.handles.unsettled.restore_files(carried.unsettled);
        *self.unanswered.lock() = carried.unanswered;
        Ok(())
    }

    fn shared_lists(&self) -> SharedLists {
        SharedLists {
            unanswered: Arc::clone(&self.unanswered),
            unsettled: self.handles.unsettled.files(),
        }
    }

    /// Writes down from now on what the next daemon has to know if this one is killed;
    /// `head` comes first, for the daemon that reads it.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn start_journal(&self, path: &Path, head: Vec<u8>) -> std::io::Result<()> {
        let mut inodes = self.inodes.lock();
        let recent = self.recent_changes.freeze();
        let all = self.build_snapshot(&inodes, &recent, false).snapshot;
        let lists = self.shared_lists();
        let begun = with_daemon_credentials(|own| Journal::create(own, path, head, all, lists));
        let journal = Arc::new(begun.map_err(std::io::Error::other)??);
        inodes.attach_journal(Arc::clone(&journal));
        recent.attach_journal(Arc::clone(&journal));
        self.handles.attach_journal(journal);
        Ok(())
    }

    /// Replaces the head of the journal by `now`, if there is a journal and the head
    /// differs. Call it with nothing locked.
    pub fn update_journal_head(&self, now: impl FnOnce() -> std::io::Result<Vec<u8>>) {
        if let Some(journal) = self.handles.journal() {
            journal.update_head(now);
            self.compact_journal_if_due();
        }
    }

    /// The next daemon serves the mount from now on, and keeps its own journal.
    pub fn seal_journal(&self) {
        if let Some(journal) = self.handles.journal() {
            journal.seal();
        }
    }

    /// Rewrites it if that is due. Call it with nothing locked.
    pub(super) fn compact_journal_if_due(&self) {
        let Some(journal) = self.handles.journal().filter(|journal| journal.take_rewrite_due())
        else {
            return;
        };
        let rewritten = with_daemon_credentials(|own| {
            let inodes = self.inodes.lock();
            let _still = self.handles.block_open_close();
            let recent = self.recent_changes.freeze();
            journal.compact(own, self.build_snapshot(&inodes, &recent, false).snapshot);
        });
        if let Err(error) = rewritten {
            tracing::warn!(%error, "the journal is not rewritten and grows");
        }
    }
}

/// A path written down.
pub(super) fn path_record(path: &Path) -> std::ffi::OsString {
    path.as_os_str().to_owned()
}

/// The path of an inode now, or where it was.
pub(super) fn current_path_or(
    inodes: &Inodes,
    ino: super::Ino,
    was: std::ffi::OsString,
) -> PathBuf {
    inodes.path(ino).unwrap_or_else(|| was.into())
}
