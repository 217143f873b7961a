//! Pages of the kernel's cache that are older than a write that has returned.
//!
//! For a write(2) through its page cache, the kernel copies the bytes into the pages and unlocks
//! these before it queues the request. In between the thread may be preempted, or wait for a page
//! of the caller's memory. An open of the file, or attributes that show a change, may make the
//! kernel drop the pages then. The read that brings them back overtakes the write: the daemon gets
//! the read first, and answers it with the bytes from before. They stay in the page cache after the
//! write has returned. New attributes make the kernel drop them later. But it stores the attributes
//! before it drops the pages, and other readers trust the attributes at once. Readers of mapped
//! memory ask for none.
//!
//! So each file keeps the reads since its last write ([`CachedReads`]). A write may have been
//! overtaken if another thread has read its pages since. It is answered, and then the daemon makes
//! the kernel drop these pages ([`super::replica_calls`]). Before the reply the kernel may have one
//! of them locked for the write. Until the pages are gone, the kernel gets no attributes of the
//! file: after a write it asks for them before each read(2).
//!
//! Reads by the thread that writes came before its write. Two writes of one file through the page
//! cache never overlap, as the kernel holds the inode's lock.
//!
//! *Invariants:*
//! - After a write through the page cache has returned, no read(2) gets bytes from before it.
//! - The thread that makes the kernel drop pages may wait; no other thread waits for it.

use smallvec::SmallVec;

use super::ino::Ino;
use crate::backend::RequestingThread;
use crate::volume::ByteRange;

/// Reads kept apart. If there are more, only the range that covers all of them is kept.
const MAX_READS: usize = 8;

/// The kernel's page cache.
pub trait KernelPages: Send + Sync {
    /// Drops the pages that have bytes of `range`. Waits for pages that are locked because they are
    /// being read or written.
    fn drop_pages(&self, ino: Ino, range: ByteRange);

    /// Adds the first bytes of a file, which end where the file does. Waits for locked pages. False
    /// if the kernel does not take them.
    fn store(&self, ino: Ino, bytes: &[u8]) -> bool;
}

/// The reads of one file since its last write through the page cache.
#[derive(Debug, Default)]
pub(super) struct CachedReads {
    reads: SmallVec<[CachedRead; MAX_READS]>,
}

#[derive(Clone, Copy, Debug)]
struct CachedRead {
    pages: ByteRange,
    /// [`RequestingThread::NONE`] if it is unknown, or there are several.
    thread: RequestingThread,
}

impl CachedReads {
    /// Any range may have been read, because an earlier daemon served the file.
    pub(super) fn unknown() -> Self {
        let all = CachedRead { pages: ByteRange::new(0, u64::MAX), thread: RequestingThread::NONE };
        Self { reads: SmallVec::from_slice(&[all]) }
    }

    pub(super) fn record(&mut self, range: ByteRange, thread: RequestingThread) {
        let pages = pages_of(range);
        let meets = |other: &CachedRead| {
            other.thread == thread
                && other.pages.start <= pages.end
                && pages.start <= other.pages.end
        };
        if let Some(known) = self.reads.iter_mut().find(|other| meets(other)) {
            known.pages = hull(known.pages, pages);
            return;
        }
        if self.reads.len() == MAX_READS {
            let all = self.reads.iter().fold(pages, |all, read| hull(all, read.pages));
            self.reads.clear();
            self.reads.push(CachedRead { pages: all, thread: RequestingThread::NONE });
            return;
        }
        self.reads.push(CachedRead { pages, thread });
    }

    /// A write of `range` by `thread` has arrived. Forgets the reads before it, and returns whether
    /// any of them may have overtaken it.
    pub(super) fn take_overtaking(&mut self, range: ByteRange, thread: RequestingThread) -> bool {
        let pages = pages_of(range);
        let is_own = |read: &CachedRead| read.thread == thread && thread != RequestingThread::NONE;
        let overtakes =
            |read: &CachedRead| !is_own(read) && !read.pages.intersect(pages).is_empty();
        let found = self.reads.iter().any(overtakes);
        self.reads.clear();
        found
    }
}

/// The smallest range that contains both.
fn hull(a: ByteRange, b: ByteRange) -> ByteRange {
    ByteRange::new(a.start.min(b.start), a.end.max(b.end))
}

/// The pages that have bytes of `range`, as a range of bytes.
fn pages_of(range: ByteRange) -> ByteRange {
    let page = rustix::param::page_size() as u64;
    let end = range.end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    ByteRange::new(range.start / page * page, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READER: RequestingThread = RequestingThread::from_tid(1);
    const WRITER: RequestingThread = RequestingThread::from_tid(2);
    const UNKNOWN: RequestingThread = RequestingThread::NONE;

    fn overtaken(reads: &[(u64, RequestingThread)], at: u64, writer: RequestingThread) -> bool {
        let mut record = CachedReads::default();
        for (start, thread) in reads {
            record.record(ByteRange::at(*start, 10), *thread);
        }
        let written = ByteRange::at(at, 10);
        let found = record.take_overtaking(written, writer);
        assert!(!record.take_overtaking(written, writer), "a write forgets the reads before it");
        found
    }

    #[test]
    fn a_concurrent_read_of_a_page_may_overtake_a_write() {
        let page = rustix::param::page_size() as u64;
        assert!(overtaken(&[(0, READER)], page - 1, WRITER));
        assert!(!overtaken(&[(0, READER)], page, WRITER), "another page");
        assert!(!overtaken(&[(0, WRITER)], 0, WRITER), "its own read");
        assert!(overtaken(&[(0, WRITER), (0, READER)], 0, WRITER));
        assert!(overtaken(&[(0, UNKNOWN)], 0, UNKNOWN));
        assert!(!overtaken(&[], 0, WRITER));
    }

    #[test]
    fn many_reads_are_merged_into_a_covering_range() {
        let page = rustix::param::page_size() as u64;
        let far = |i: u64| (i * 10 * page, READER);
        let few: Vec<_> = (0..8).map(far).collect();
        let many: Vec<_> = (0..9).map(far).collect();
        assert!(!overtaken(&few, 5 * page, WRITER));
        assert!(overtaken(&many, 5 * page, WRITER) && overtaken(&many, 80 * page, WRITER));
        assert!(!overtaken(&many, 200 * page, WRITER));
        assert!(overtaken(&many, 0, READER), "whose reads they were is not known any more");
    }

    #[test]
    fn consecutive_reads_are_one_range() {
        let page = rustix::param::page_size() as u64;
        let row: Vec<_> = (0..100).map(|i: u64| (i * page, READER)).collect();
        assert!(!overtaken(&row, 0, READER) && overtaken(&row, 99 * page, WRITER));
    }

    #[test]
    fn after_a_handover_any_page_may_have_been_read() {
        let mut record = CachedReads::unknown();
        assert!(record.take_overtaking(ByteRange::at(1 << 40, 1), WRITER));
        assert!(!record.take_overtaking(ByteRange::at(1 << 40, 1), WRITER));
    }
}
