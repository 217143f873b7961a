//! Who caches a file's data, decided when it is opened.
//!
//! The kernel's page cache makes a second reading cost what a local file's does,
//! and its readahead turns small read(2)s into large requests. It costs a second
//! copy of each byte, and the pages of a file that does not fit push out those of
//! everybody else before anybody reads them again. Read directly, a file costs
//! one copy and no pages, but every read(2) is a request of its own.
//!
//! So the rule of `auto`: a file that is larger than [`MEMORY_DIVISOR`] of the memory is
//! opened direct; all others, and a large one whose reader was seen to take
//! small blocks, go through the page cache. docs/PERFORMANCE.md has the figures.
//!
//! *Invariant:* whether the kernel may keep the pages that it has is not decided
//! here, and is the same for direct opens as for others: one that is not told to
//! keep them drops them, in either mode, and pages get in through a direct
//! handle as well (by mmap). So every open counts in [`super::inodes`]'s reasoning
//! about versions, and none is an exception to it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::config::CachePolicy;

/// Who caches what is read through one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// The kernel's page cache.
    Kernel,
    /// Nobody, as long as the file is not mapped.
    Direct,
}

/// What decides.
#[derive(Clone, Copy, Debug)]
pub struct CacheModePolicy {
    /// As configured.
    pub cache: CachePolicy,
    /// Memory that may fill with cached pages, bytes.
    pub memory: u64,
}

/// A file larger than one part in so many of the memory is not cached. The page
/// cache keeps what is used twice apart from what is used once, and grants each
/// about half of what programs leave; a file of a quarter still fits beside
/// another one.
const MEMORY_DIVISOR: u64 = 4;

/// A direct handle whose reads are smaller than this on average, bytes, would be
/// served better by the page cache and its readahead. Of the page cache's rate,
/// cold and from a replica in memory, direct reads of 4 KiB reached 0.2, of 64 KiB
/// 0.6, of 128 KiB 0.9 and of 1 MiB 1.3; random ones of 4 KiB 0.9 as many.
const SMALL_READ_SIZE: u64 = 128 << 10;

/// So many reads say what a reader's blocks are; fewer may be somebody who looks
/// at a header.
const MIN_READS: u64 = 32;

impl CacheModePolicy {
    /// Who is to cache a file of `size` bytes. `small_blocks`: the last to read it
    /// directly took small ones. `can_map`: the kernel maps files that are open
    /// direct (Linux 6.6); where not, applications that map them would fail.
    pub fn choose(&self, size: u64, small_blocks: bool, can_map: bool) -> CacheMode {
        match self.cache {
            CachePolicy::Kernel => CacheMode::Kernel,
            CachePolicy::Direct => CacheMode::Direct,
            CachePolicy::Auto if size <= self.memory / MEMORY_DIVISOR => CacheMode::Kernel,
            CachePolicy::Auto if small_blocks || !can_map => CacheMode::Kernel,
            CachePolicy::Auto => CacheMode::Direct,
        }
    }
}

/// What a handle was read in.
#[derive(Debug, Default)]
pub(super) struct ReadSizeStats {
    reads: AtomicU64,
    bytes: AtomicU64,
    last_process: AtomicU32,
    last_read: AtomicU64,
}

/// What was read, and by whom.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadTotals {
    pub(super) reads: u64,
    pub(super) bytes: u64,
    /// The process that read last.
    pub(super) last_process: u32,
    /// When it did ([`super::activity::ActivityLog::micros_since_start`]).
    pub(super) last_read: u64,
}

impl ReadSizeStats {
    /// A read of `bytes` came from a process, at a moment.
    pub(super) fn record_read(&self, bytes: u64, by: u32, moment: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_process.store(by, Ordering::Relaxed);
        self.last_read.store(moment, Ordering::Relaxed);
    }

    /// What has come so far.
    pub(super) fn totals(&self) -> ReadTotals {
        ReadTotals {
            reads: self.reads.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            last_process: self.last_process.load(Ordering::Relaxed),
            last_read: self.last_read.load(Ordering::Relaxed),
        }
    }

    /// Whether they were small ones; `None` where there were too few to say.
    pub(super) fn has_small_reads(&self) -> Option<bool> {
        let reads = self.reads.load(Ordering::Relaxed);
        let small = self.bytes.load(Ordering::Relaxed) < reads.saturating_mul(SMALL_READ_SIZE);
        (reads >= MIN_READS).then_some(small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 16 << 30;

    fn auto(size: u64, small_blocks: bool, can_map: bool) -> CacheMode {
        let policy = CacheModePolicy { cache: CachePolicy::Auto, memory: MEMORY };
        policy.choose(size, small_blocks, can_map)
    }

    #[test]
    fn a_file_that_fits_is_cached_and_a_large_one_is_not() {
        assert_eq!(auto(0, false, true), CacheMode::Kernel);
        assert_eq!(auto(MEMORY / MEMORY_DIVISOR, false, true), CacheMode::Kernel);
        assert_eq!(auto(MEMORY / MEMORY_DIVISOR + 1, false, true), CacheMode::Direct);
        assert_eq!(auto(u64::MAX, false, true), CacheMode::Direct);
    }

    #[test]
    fn a_large_file_is_cached_for_who_reads_small_blocks_and_where_it_could_not_be_mapped() {
        assert_eq!(auto(u64::MAX, true, true), CacheMode::Kernel);
        assert_eq!(auto(u64::MAX, false, false), CacheMode::Kernel);
    }

    #[test]
    fn what_is_configured_is_not_argued_with() {
        for size in [0, u64::MAX] {
            for (cache, expected) in
                [(CachePolicy::Kernel, CacheMode::Kernel), (CachePolicy::Direct, CacheMode::Direct)]
            {
                let policy = CacheModePolicy { cache, memory: MEMORY };
                assert_eq!(policy.choose(size, true, false), expected);
                assert_eq!(policy.choose(size, false, true), expected);
            }
        }
    }

    #[test]
    fn blocks_are_small_by_their_mean_and_not_by_a_few() {
        let blocks = ReadSizeStats::default();
        (1..MIN_READS).for_each(|_| blocks.record_read(4096, 1, 0));
        assert_eq!(blocks.has_small_reads(), None);
        blocks.record_read(4096, 1, 0);
        assert_eq!(blocks.has_small_reads(), Some(true));
        (0..MIN_READS).for_each(|_| blocks.record_read(1 << 20, 1, 0));
        assert_eq!(blocks.has_small_reads(), Some(false));
    }
}
