//! The record of the tables from which the next daemon continues if this one is killed.
//!
//! The kernel knows inodes and handles by numbers. The daemon that follows a killed one finds these
//! numbers here. Each entry is in a file before the kernel is answered. The file is in memory, as
//! the run-time directory is a tmpfs.
//!
//! A table takes its step and *queues* the entry under its own lock, so entries are in the order of
//! the steps. Queueing returns an [`Unflushed`], which the thread passes to [`Journal::flush`] once
//! it has unlocked the table. The thread that flushes writes all queued entries with one write(2).
//! If another thread has already taken an entry from the queue, the flushing thread waits for that
//! write, as both need the file's lock.
//!
//! When the file has become much longer than a new one would be, it is rewritten: as a whole under
//! another name, then renamed. A rewrite is queued, too. The snapshot is made with all tables
//! locked, so it has the steps before it in the queue and none after it. The thread that flushes
//! carries out the rewrite, with no table locked. Entries before it go to the old file, those after
//! it to the new one. If a rewrite fails, the old file stays. It has all entries before the
//! rewrite, and gets those after it.
//!
//! *Invariants:*
//! - A journal that misses an entry is empty, and no daemon accepts an empty one. It is truncated
//!   through the descriptor that it was written through, which needs no space, no directory and no
//!   permission.
//! - A daemon that is killed while it writes several entries leaves the first of them. It may also
//!   leave a part of one, which is not read. The kernel was not answered about any of them.
//! - The file is made, renamed and removed under the daemon's own credentials
//!   ([`crate::backend::DaemonCredentials`]), even if a caller's request made it grow.
//! - After a daemon has sealed its journal it no longer writes to that path: the next daemon's
//!   journal is there.

mod file;
mod next_rewrite;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::records::{FsSnapshot, JournalEntry, UnansweredRecord};
use crate::backend::with_daemon_credentials;
use crate::owned_path::DevIno;
use crate::sync::{LockRank, RankedMutex, before_io};

#[cfg(test)]
pub(super) use file::encode_frame;
pub(super) use file::{JournalContents, read};
use next_rewrite::{NextRewrite, RewriteClaim};

/// The journal. It records nothing until it is started.
pub(super) struct Journal {
    /// Whether entries are queued.
    is_recording: AtomicBool,
    queue: RankedMutex<JournalQueue>,
    /// The number of the last entry that was queued. Counted under the lock of `queue`.
    queued: AtomicU64,
    /// The number of the last entry that is in the file.
    flushed: AtomicU64,
    /// The bytes before the entries, or the last [`JournalEntry::Head`]. This module does not
    /// interpret them.
    head: RankedMutex<Vec<u8>>,
    file: RankedMutex<JournalFile>,
    next_rewrite: Arc<NextRewrite>,
}

/// An entry that may not be in the file yet. Flush it before the kernel is answered, with no table
/// locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "the entry is not in the journal's file before it is flushed"]
pub(super) struct Unflushed(u64);

type JournalQueue = Vec<QueuedEntry>;

enum QueuedEntry {
    Append(JournalEntry),
    Rewrite(Box<FsSnapshot>, UnansweredRecord, Option<RewriteClaim>),
    #[cfg(test)]
    Panic,
}

/// The file and its state.
struct JournalFile {
    path: PathBuf,
    /// `None` before the journal is started, after an entry could not be written, and after the
    /// next daemon has taken over the mount.
    file: Option<File>,
    len: u64,
    /// The length at which it is rewritten, bytes.
    rewrite_at_len: u64,
    /// The last head that was taken from the queue.
    head: Vec<u8>,
    /// The result of the start: `Some` until the first file is made, or cannot be.
    start: Option<io::Result<()>>,
    /// The entries that are being written, and their bytes; kept to reuse the memory.
    batch: JournalQueue,
    bytes: Vec<u8>,
}

/// A shorter file is not rewritten, bytes: a daemon that recovers the mount reads it quickly.
const MIN_REWRITE_LEN: u64 = 256 << 10;

/// The file is rewritten when it has grown by this factor since the last rewrite.
const REWRITE_GROWTH: u64 = 4;

/// Larger buffers are not kept, bytes.
const MAX_KEPT_BUFFER: usize = 64 << 10;

impl Default for Journal {
    fn default() -> Self {
        let file = JournalFile {
            path: PathBuf::new(),
            file: None,
            len: 0,
            rewrite_at_len: u64::MAX,
            head: Vec::new(),
            start: None,
            batch: Vec::new(),
            bytes: Vec::new(),
        };
        Self {
            is_recording: AtomicBool::new(false),
            queue: RankedMutex::new(LockRank::JournalQueue, Vec::new()),
            queued: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            head: RankedMutex::new(LockRank::JournalHead, Vec::new()),
            file: RankedMutex::new(LockRank::JournalFile, file),
            next_rewrite: Arc::default(),
        }
    }
}

impl Journal {
    /// Starts a journal in place of the one at `path`; `head` comes first. `record_tables` locks
    /// all tables and calls [`Journal::record_from`]. If the journal cannot be started, the one at
    /// `path` is discarded too, as it no longer describes the tables.
    ///
    /// # Errors If it cannot be written.
    pub(super) fn start(
        &self,
        path: &Path,
        head: Vec<u8>,
        record_tables: impl FnOnce() -> Unflushed,
    ) -> io::Result<()> {
        self.head.lock().clone_from(&head);
        {
            let mut file = self.file.lock();
            file.path = path.to_owned();
            file.head = head;
            file.start = Some(Ok(()));
        }
        let first = record_tables();
        self.flush(first);
        self.file.lock().start.take().unwrap_or(Ok(()))
    }

    /// Queues the snapshot of the tables, which are locked, and records all steps from now on.
    pub(super) fn record_from(
        &self,
        snapshot: FsSnapshot,
        unanswered: UnansweredRecord,
    ) -> Unflushed {
        let mut queue = self.queue.lock();
        // Under the queue's lock, so nothing is queued before the snapshot.
        self.is_recording.store(true, Ordering::Release);
        self.push_to(&mut queue, QueuedEntry::Rewrite(Box::new(snapshot), unanswered, None))
    }

    pub(super) fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Acquire)
    }

    /// Queues an entry, if steps are recorded. Call it under the lock of the table that has
    /// taken the step.
    pub(super) fn append(&self, entry: impl FnOnce() -> JournalEntry) -> Unflushed {
        if !self.is_recording() {
            return Unflushed::default();
        }
        self.push(QueuedEntry::Append(entry()))
    }

    /// Queues a rewrite with the snapshot of the tables, which are locked.
    pub(super) fn queue_rewrite(
        &self,
        claim: RewriteClaim,
        snapshot: FsSnapshot,
        unanswered: UnansweredRecord,
    ) -> Unflushed {
        if !self.is_recording() {
            return Unflushed::default();
        }
        self.push(QueuedEntry::Rewrite(Box::new(snapshot), unanswered, Some(claim)))
    }

    fn push(&self, entry: QueuedEntry) -> Unflushed {
        self.push_to(&mut self.queue.lock(), entry)
    }

    fn push_to(&self, queue: &mut JournalQueue, entry: QueuedEntry) -> Unflushed {
        queue.push(entry);
        Unflushed(self.queued.fetch_add(1, Ordering::Release) + 1)
    }

    /// All entries that other threads have queued. For a step that another thread has just
    /// recorded, so this one need not record it.
    pub(super) fn all_queued(&self) -> Unflushed {
        Unflushed(self.queued.load(Ordering::Acquire))
    }

    /// Returns once the entry is in the file, or the journal is empty because it misses the entry.
    pub(super) fn flush(&self, entry: Unflushed) {
        if self.flushed.load(Ordering::Acquire) >= entry.0 {
            return;
        }
        before_io("the journal's write(2)");
        let mut file = self.file.lock();
        if self.flushed.load(Ordering::Acquire) >= entry.0 {
            return;
        }
        let last = {
            let mut queue = self.queue.lock();
            std::mem::swap(&mut *queue, &mut file.batch);
            self.queued.load(Ordering::Acquire)
        };
        // If the write panics, its entries are lost.
        let written = catch_unwind(AssertUnwindSafe(|| self.write_batch(&mut file)));
        if let Err(error) = written.unwrap_or_else(|_| {
            Err(io::Error::other("writing the journal panicked; this is a bug in fanfs"))
        }) {
            self.invalidate(&mut file, error);
        }
        self.flushed.store(last, Ordering::Release);
    }

    fn write_batch(&self, file: &mut JournalFile) -> io::Result<()> {
        let mut batch = std::mem::take(&mut file.batch);
        let written = batch.drain(..).try_for_each(|entry| match entry {
            QueuedEntry::Append(entry) => file.encode(entry),
            QueuedEntry::Rewrite(snapshot, unanswered, claim) => {
                file.write_encoded()?;
                file.rewrite(snapshot, unanswered);
                if let Some(claim) = claim {
                    claim.fulfil();
                }
                Ok(())
            }
            #[cfg(test)]
            QueuedEntry::Panic => panic!("a test"),
        });
        file.batch = batch;
        written.and_then(|()| file.write_encoded())?;
        if self.next_rewrite.take_failure() {
            file.put_off_rewrite();
        }
        if file.file.is_none() {
            self.is_recording.store(false, Ordering::Release);
        } else if file.len >= file.rewrite_at_len {
            self.next_rewrite.becomes_due();
        }
        Ok(())
    }

    /// Replaces the head by `now`, if steps are recorded and the head differs. `now` runs under the
    /// lock, so the later of two callers has the newer head.
    pub(super) fn update_head(&self, now: impl FnOnce() -> io::Result<Vec<u8>>) {
        if !self.is_recording() {
            return;
        }
        let mut head = self.head.lock();
        match now() {
            Ok(now) if *head == now => {
                // Another thread may have queued the same head and not written it yet.
                let queued = self.all_queued();
                drop(head);
                self.flush(queued);
            }
            Ok(now) => {
                head.clone_from(&now);
                let entry = self.append(|| JournalEntry::Head(now));
                drop(head);
                self.flush(entry);
            }
            Err(error) => self.invalidate(&mut self.file.lock(), error),
        }
    }

    /// The right to queue a rewrite, if one is due and unclaimed.
    pub(super) fn claim_rewrite(&self) -> Option<RewriteClaim> {
        NextRewrite::claim(&self.next_rewrite)
    }

    /// From now on the next daemon serves the mount: this one writes no more entries.
    pub(super) fn seal(&self) {
        self.file.lock().file = None;
        self.is_recording.store(false, Ordering::Release);
    }

    /// The mount ends with this daemon: removes the file, unless it is another daemon's by now.
    pub(super) fn remove(&self) {
        let mut state = self.file.lock();
        if let Some(file) = state.file.take()
            && let Err(error) = DevIno::of(&file).and_then(|own| own.remove_from(&state.path))
        {
            tracing::warn!(journal = %state.path.display(), %error, "cannot remove the journal");
        }
        drop(state);
        self.is_recording.store(false, Ordering::Release);
    }

    /// The journal misses an entry. Until the file is empty, steps are still queued, and their
    /// threads wait for the file's lock.
    fn invalidate(&self, state: &mut JournalFile, error: io::Error) {
        state.bytes.clear();
        if let Some(file) = state.file.take() {
            empty_incomplete(&file, &state.path, &error);
        } else if state.start.is_some() {
            state.fail_start(error);
        }
        self.is_recording.store(false, Ordering::Release);
    }
}

/// Whether another file is at `path`: this daemon's mount is detached, and another daemon has begun
/// to serve one at the same mount point.
fn is_replaced(file: &File, path: &Path) -> bool {
    let found = DevIno::at(path);
    found.is_ok_and(|found| DevIno::of(file).is_ok_and(|own| own != found))
}

/// Empties a journal that misses an entry, and removes it.
fn empty_incomplete(file: &File, path: &Path, error: &io::Error) {
    let emptied = file.set_len(0);
    let journal = path.display();
    tracing::warn!(
        %journal, %error,
        "cannot write the journal; if this daemon is killed, the mount is lost"
    );
    // The file is empty, so its removal is only for tidiness.
    let removed = with_daemon_credentials(|_| DevIno::of(file)?.remove_from(path));
    if let (Err(error), Err(_) | Ok(Err(_))) = (emptied, removed) {
        tracing::error!(%journal, %error, "cannot remove an incomplete journal; remove it");
    }
}

impl JournalFile {
    fn encode(&mut self, entry: JournalEntry) -> io::Result<()> {
        if self.file.is_some() {
            file::encode_frame(&entry, &mut self.bytes)?;
        }
        if let JournalEntry::Head(head) = entry {
            self.head = head;
        }
        Ok(())
    }

    /// Writes the encoded entries.
    fn write_encoded(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.as_mut().filter(|_| !self.bytes.is_empty()) {
            // One write(2) for all, so that a killed daemon leaves the first entries, in their
            // order.
            file.write_all(&self.bytes)?;
            self.len += self.bytes.len() as u64;
        }
        self.bytes.clear();
        self.bytes.shrink_to(MAX_KEPT_BUFFER);
        Ok(())
    }

    /// Replaces the file by one that begins with the snapshot.
    fn rewrite(&mut self, snapshot: Box<FsSnapshot>, unanswered: UnansweredRecord) {
        if self.file.is_none() && self.start.is_none() {
            return;
        }
        let written = with_daemon_credentials(|own| {
            if self.file.as_ref().is_some_and(|file| is_replaced(file, &self.path)) {
                return Err(io::Error::other("another daemon's journal is there"));
            }
            file::write(own, &self.path, &self.head, snapshot, unanswered)
        });
        match written.map_err(io::Error::other).and_then(|written| written) {
            Ok((file, len)) => {
                self.file = Some(file);
                self.len = len;
                self.rewrite_at_len = (len * REWRITE_GROWTH).max(MIN_REWRITE_LEN);
            }
            Err(error) if self.file.is_some() => {
                // The present file is complete, only longer than necessary.
                self.put_off_rewrite();
                let journal = self.path.display();
                tracing::warn!(%journal, %error, "cannot rewrite the journal, so it grows");
            }
            Err(error) => self.fail_start(error),
        }
    }

    /// A failed rewrite is tried again once the file is twice as long.
    fn put_off_rewrite(&mut self) {
        self.rewrite_at_len = self.len * 2;
    }

    /// The first file cannot be made.
    fn fail_start(&mut self, error: io::Error) {
        self.discard_older();
        self.start = Some(Err(error));
    }

    /// Discards the journal of an earlier daemon, which is of no use if this one cannot be started.
    fn discard_older(&self) {
        let path = &self.path;
        let discarded = with_daemon_credentials(|_| {
            // One of the two is enough.
            let emptied = OpenOptions::new().write(true).truncate(true).open(path);
            let removed = std::fs::remove_file(path);
            emptied.is_ok() || removed.is_ok() || !path.exists()
        });
        if !discarded.unwrap_or(false) {
            tracing::error!(journal = %path.display(), "cannot remove an older journal; remove it");
        }
    }
}
