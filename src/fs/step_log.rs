//! Records the steps of the tables: all of them in the [`Journal`], and entries that the kernel's
//! requests make also in the list of [`UnansweredEntries`].

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::journal::{Journal, Unflushed};
use super::records::{FsSnapshot, JournalEntry, UnansweredEntry, UnansweredRecord};
use super::unanswered::UnansweredEntries;
use crate::sync::{LockRank, RankedMutex};

/// Records the snapshot of the tables, all of which are locked.
pub(super) type RecordSnapshot<'a> = Box<dyn FnOnce(FsSnapshot) -> Unflushed + 'a>;

/// The journal, and the entries of requests that may not have been answered.
pub(super) struct StepLog {
    journal: Journal,
    unanswered: RankedMutex<UnansweredEntries>,
    /// Whether all entries of requests are tracked. Those of writers always are: such a request may
    /// wait for a replica long before a handover begins, and the next daemon would keep a writer
    /// that no process has.
    tracks_unanswered: AtomicBool,
}

impl Default for StepLog {
    fn default() -> Self {
        Self {
            journal: Journal::default(),
            unanswered: RankedMutex::new(LockRank::Unanswered, UnansweredEntries::default()),
            tracks_unanswered: AtomicBool::new(false),
        }
    }
}

impl StepLog {
    /// Tracks from now on the entries that requests make in the tables.
    pub(super) fn track_unanswered(&self) {
        self.tracks_unanswered.store(true, Ordering::Release);
    }

    /// The tracked entries.
    pub(super) fn unanswered(&self) -> UnansweredRecord {
        self.unanswered.lock().snapshot()
    }

    /// Restores the list of the predecessor.
    pub(super) fn restore_unanswered(&self, unanswered: UnansweredRecord) {
        *self.unanswered.lock() = UnansweredEntries::restore(unanswered);
    }

    /// Removes the entries of an earlier try of the request, and records that. Call it under the
    /// lock of the inode table.
    pub(super) fn roll_back(&self, request: u64) -> (Vec<UnansweredEntry>, Unflushed) {
        let entered = self.unanswered.lock().take_entries_of(request);
        let queued = match entered.is_empty() {
            true => Unflushed::default(),
            false => self.append(|| JournalEntry::RolledBack(request)),
        };
        (entered, queued)
    }

    /// As [`Journal::append`].
    pub(super) fn append(&self, entry: impl FnOnce() -> JournalEntry) -> Unflushed {
        self.journal.append(entry)
    }

    /// Tracks an entry that a request is about to make.
    pub(super) fn track(&self, request: u64, entered: UnansweredEntry) {
        self.unanswered.lock().insert(request, entered);
    }

    /// The same as [`StepLog::append`] for an entry that a request has made.
    pub(super) fn append_for_request(
        &self,
        request: u64,
        entered: UnansweredEntry,
        entry: impl FnOnce() -> JournalEntry,
    ) -> Unflushed {
        if self.tracks_unanswered.load(Ordering::Acquire) {
            self.track(request, entered);
        }
        self.journal.append(entry)
    }

    /// As [`Journal::all_queued`].
    pub(super) fn all_queued(&self) -> Unflushed {
        self.journal.all_queued()
    }

    /// As [`Journal::flush`].
    pub(super) fn flush(&self, entry: Unflushed) {
        self.journal.flush(entry);
    }

    /// Starts the journal. `snapshot_tables` locks all tables, and passes their snapshot to its
    /// argument before it unlocks them.
    ///
    /// # Errors If the journal cannot be written.
    pub(super) fn start_journal(
        &self,
        path: &Path,
        head: Vec<u8>,
        snapshot_tables: impl FnOnce(RecordSnapshot<'_>) -> Unflushed,
    ) -> io::Result<()> {
        self.journal.start(path, head, || {
            snapshot_tables(Box::new(|snapshot| {
                self.track_unanswered();
                self.journal.record_from(snapshot, self.unanswered())
            }))
        })
    }

    /// Rewrites the journal if that is due; `snapshot_tables` as in [`StepLog::start_journal`].
    pub(super) fn rewrite_journal_if_due(
        &self,
        snapshot_tables: impl FnOnce(RecordSnapshot<'_>) -> Unflushed,
    ) {
        if let Some(claim) = self.journal.claim_rewrite() {
            let rewrite = snapshot_tables(Box::new(|snapshot| {
                self.journal.queue_rewrite(claim, snapshot, self.unanswered())
            }));
            self.flush(rewrite);
        }
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }
}
