//! The tables as records: for the next daemon, and for the journal.

use std::path::Path;
use std::time::Instant;

use super::Tables;
use crate::fs::file_transfer::FilesToSend;
use crate::fs::inodes::Inodes;
use crate::fs::journal::Unflushed;
use crate::fs::records::FsSnapshot;
use crate::fs::step_log::RecordSnapshot;
use crate::volume::ReplicaId;

impl Tables {
    /// The tables for the next daemon, without locks; adds the descriptors to `files`.
    pub(in crate::fs) fn snapshot(&self, files: &mut FilesToSend) -> FsSnapshot {
        let inodes = self.inodes.lock();
        let mut snapshot = self.snapshot_locked(&inodes, files);
        snapshot.changes = self.recent_changes.freeze().snapshot(Instant::now());
        snapshot.unanswered = self.log.unanswered();
        snapshot
    }

    /// The tables without recent changes.
    fn snapshot_locked(&self, inodes: &Inodes, files: &mut FilesToSend) -> FsSnapshot {
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

    /// Records from now on the state that the next daemon needs if this one is killed; `head` comes
    /// first, for the daemon that reads it.
    ///
    /// # Errors If the journal cannot be written.
    pub(in crate::fs) fn start_journal(&self, path: &Path, head: Vec<u8>) -> std::io::Result<()> {
        self.log.start_journal(path, head, |record| self.with_all_locked(record))
    }

    /// Rewrites the journal if that is due. Call it without any lock.
    pub(in crate::fs) fn compact_journal_if_due(&self) {
        self.log.rewrite_journal_if_due(|record| self.with_all_locked(record));
    }

    /// Passes the snapshot of the tables to `record` before any of them takes another step.
    fn with_all_locked(&self, record: RecordSnapshot<'_>) -> Unflushed {
        let inodes = self.inodes.lock();
        let _open_close = self.handles.block_open_close();
        let mut snapshot = self.snapshot_locked(&inodes, &mut FilesToSend::none());
        let changes = self.recent_changes.freeze();
        snapshot.changes = changes.snapshot(Instant::now());
        let unsettled = self.handles.unsettled.lock_files();
        snapshot.unsettled = unsettled.inos();
        record(snapshot)
    }
}
