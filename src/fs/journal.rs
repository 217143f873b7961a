//! What the next daemon has to know if this one is killed, written down as it comes
//! to be.
//!
//! The kernel knows inodes and handles by numbers; the daemon that follows one that was
//! killed finds them here. Each entry is in a file, in memory (the run-time directory is a
//! tmpfs), before the kernel is answered.
//!
//! A table takes its step and *queues* the entry under its own lock, so entries are in the
//! order of the steps. Queueing gives an [`Unflushed`], which the thread passes to
//! [`Journal::flush`] once it has unlocked the table. The thread that flushes writes all that
//! is queued with one write(2). A thread whose entry another one has taken from the queue
//! waits for that write, as both need the file's lock.
//!
//! When the file has become much longer than what is still true of it, it is rewritten: whole
//! under another name, then renamed. A rewrite is queued, too: the record of all tables is
//! made with all of them locked, so that it has the steps before it in the queue and none
//! after it. The thread that flushes carries it out, with no table locked. Entries before it
//! are written to the old file, those after it to the new one. A rewrite that fails leaves
//! the old file, which has all entries before it, and gets those after it.
//!
//! *Invariants:*
//! - A journal that misses an entry is empty, which no daemon accepts: it is truncated
//!   through the descriptor that it was written through, and this needs no space, no
//!   directory and no permission.
//! - A daemon that is killed while it writes several entries leaves the first of them, and
//!   perhaps a part of one, which is not read. The kernel was not answered about any of them.
//! - The file is made, renamed and removed under the daemon's own credentials
//!   ([`crate::backend::DaemonCredentials`]), whichever caller's request made it grow.
//! - After a daemon has sealed its journal it writes to that path no more: the next
//!   daemon's journal is there.

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
    /// What comes before the entries, or the last [`JournalEntry::Head`]; says nothing to this
    /// module.
    head: RankedMutex<Vec<u8>>,
    file: RankedMutex<JournalFile>,
    next_rewrite: Arc<NextRewrite>,
}

/// An entry that is perhaps not in the file yet. Flush it before the kernel is answered, with
/// no table locked.
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

/// The file, and what is in it.
struct JournalFile {
    path: PathBuf,
    /// `None` before the journal is started, once an entry could not be written, and once the
    /// mount is the next daemon's.
    file: Option<File>,
    len: u64,
    /// When it is rewritten.
    rewrite_at_len: u64,
    /// The last head that was taken from the queue.
    head: Vec<u8>,
    /// How the journal is started: `Some` until its first file is made, or cannot be.
    start: Option<io::Result<()>>,
    /// The entries that are being written, and their bytes; kept for their memory.
    batch: JournalQueue,
    bytes: Vec<u8>,
}

/// It is not rewritten before it is so long, bytes: what a daemon that recovers the
/// mount reads in a moment.
const MIN_REWRITE_LEN: u64 = 256 << 10;

/// It is rewritten when it is so many times as long as it was then.
const REWRITE_GROWTH: u64 = 4;

/// Buffers larger than this, bytes, are not kept.
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
    /// Begins a journal in place of the one at `path`, `head` first. `record_tables` locks all
    /// tables and calls [`Journal::record_from`]. Where the journal cannot be begun, the one
    /// at `path` is of no use to any daemon any more either.
    ///
    /// # Errors
    /// Where it cannot be written.
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

    /// Records all steps from now on, after the snapshot of the tables, which are locked.
    pub(super) fn record_from(
        &self,
        snapshot: FsSnapshot,
        unanswered: UnansweredRecord,
    ) -> Unflushed {
        let mut queue = self.queue.lock();
        // Under the queue's lock, so that nothing is queued before the snapshot.
        self.is_recording.store(true, Ordering::Release);
        self.push_to(&mut queue, QueuedEntry::Rewrite(Box::new(snapshot), unanswered, None))
    }

    /// Whether steps are recorded.
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

    /// All entries that other threads have queued so far: for a step that need not be
    /// recorded, as another thread has recorded the same just now.
    pub(super) fn all_queued(&self) -> Unflushed {
        Unflushed(self.queued.load(Ordering::Acquire))
    }

    /// Returns when the entry is in the file, or the journal misses it and is empty.
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
        // The entries of a write that panics are lost.
        let written = catch_unwind(AssertUnwindSafe(|| self.write_batch(&mut file)));
        if let Err(error) = written.unwrap_or_else(|_| Err(io::Error::other("writing it panicked")))
        {
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

    /// Replaces the head by `now`, if steps are recorded and that differs. Of two callers,
    /// the later one has the newer head: `now` runs under the lock.
    pub(super) fn update_head(&self, now: impl FnOnce() -> io::Result<Vec<u8>>) {
        if !self.is_recording() {
            return;
        }
        let mut head = self.head.lock();
        match now() {
            Ok(now) if *head == now => {
                // Another thread may be about to write it.
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

    /// What the caller needs to queue a rewrite, if one is due that no other caller has
    /// claimed.
    pub(super) fn claim_rewrite(&self) -> Option<RewriteClaim> {
        NextRewrite::claim(&self.next_rewrite)
    }

    /// The next daemon serves the mount from now on.
    pub(super) fn seal(&self) {
        self.file.lock().file = None;
        self.is_recording.store(false, Ordering::Release);
    }

    /// It misses an entry. Until it is empty, steps are queued, and wait for the file's lock.
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

/// Empties a journal that misses an entry, and removes it.
fn empty_incomplete(file: &File, path: &Path, error: &io::Error) {
    let emptied = file.set_len(0);
    let journal = path.display();
    tracing::warn!(%journal, %error, "the journal cannot be written: if this daemon is killed, the mount is lost");
    // Tidiness only, where it is empty.
    let removed = with_daemon_credentials(|_| std::fs::remove_file(path));
    if let (Err(error), Err(_) | Ok(Err(_))) = (emptied, removed) {
        tracing::error!(%journal, %error, "an incomplete journal stays; remove it");
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

    /// Writes what is encoded.
    fn write_encoded(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.as_mut().filter(|_| !self.bytes.is_empty()) {
            // One write(2), so that entries are there in their order, whenever the daemon
            // is killed.
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
            file::write(own, &self.path, &self.head, snapshot, unanswered)
        });
        match written.map_err(io::Error::other).and_then(|written| written) {
            Ok((file, len)) => {
                self.file = Some(file);
                self.len = len;
                self.rewrite_at_len = (len * REWRITE_GROWTH).max(MIN_REWRITE_LEN);
            }
            Err(error) if self.file.is_some() => {
                // What is there is complete, only longer than it need be.
                self.put_off_rewrite();
                let journal = self.path.display();
                tracing::warn!(%journal, %error, "the journal cannot be rewritten and grows");
            }
            Err(error) => self.fail_start(error),
        }
    }

    /// What failed is tried again once the file is twice as long.
    fn put_off_rewrite(&mut self) {
        self.rewrite_at_len = self.len * 2;
    }

    /// The first file cannot be made.
    fn fail_start(&mut self, error: io::Error) {
        self.discard_older();
        self.start = Some(Err(error));
    }

    /// The journal of an earlier daemon is of no use, where this one's cannot be begun.
    fn discard_older(&self) {
        let path = &self.path;
        let discarded = with_daemon_credentials(|_| {
            // One of the two will do.
            let emptied = OpenOptions::new().write(true).truncate(true).open(path);
            let removed = std::fs::remove_file(path);
            emptied.is_ok() || removed.is_ok() || !path.exists()
        });
        if !discarded.unwrap_or(false) {
            tracing::error!(journal = %path.display(), "an older journal stays; remove it");
        }
    }
}
