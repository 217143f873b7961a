//! Whether the kernel caches a file's data, decided at open.
//!
//! With the kernel's page cache, a second read of a file costs as much as that of a local file. The
//! kernel's readahead turns small read(2)s into large requests. But the page cache costs a second
//! copy of each byte. The pages of a file that does not fit evict those of all other files before
//! they are used again. A direct read costs one copy and no pages, but every read(2) is a request
//! of its own.
//!
//! So `auto` opens a file direct if it is larger than the memory divided by [`MEMORY_DIVISOR`]. All
//! other files go through the page cache, and so does a large file whose last direct reader took
//! small blocks. docs/PERFORMANCE.md has the figures.
//!
//! *Invariant:* this module does not decide whether the kernel may keep the pages that it has. That
//! rule is the same for direct opens and for others. An open whose reply does not say "keep" makes
//! the kernel drop them in either mode. Pages also get in through a direct handle (by mmap). So
//! every open counts in [`super::inodes`]'s reasoning about versions, without exception.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::config::CachePolicy;

/// Where data that is read through one handle is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// The kernel's page cache.
    Kernel,
    /// Nowhere, unless the file is mapped.
    Direct,
}

/// The inputs of the decision.
#[derive(Clone, Copy, Debug)]
pub struct CacheModePolicy {
    /// As configured.
    pub cache: CachePolicy,
    /// Memory that cached pages may fill, bytes.
    pub memory: u64,
}

/// A file larger than this fraction of the memory is not cached. The page cache keeps pages that
/// were used twice apart from pages that were used once. Each kind gets about half of the memory
/// that programs leave. So a file of a quarter still fits beside another one.
const MEMORY_DIVISOR: u64 = 4;

/// If the mean read of a direct handle is smaller than this, bytes, the page cache and its
/// readahead would serve it better. The rate of direct reads, as a multiple of the page cache's
/// (cold, from a replica in memory): 0.2 at 4 KiB, 0.6 at 64 KiB, 0.9 at 128 KiB, 1.3 at 1 MiB.
/// Random direct reads of 4 KiB reached 0.9 of the page cache's number.
const SMALL_READ_SIZE: u64 = 128 << 10;

/// Reads that a handle needs before its block size is judged. A program that only looks at a header
/// makes fewer.
const MIN_READS: u64 = 32;

impl CacheModePolicy {
    /// Chooses the mode for a file of `size` bytes. `small_blocks`: the last direct reader took
    /// small blocks. `can_map`: the kernel maps files that are open direct (Linux 6.6); without it,
    /// applications that map them would fail.
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

/// Counts the reads of a handle and their sizes.
#[derive(Debug, Default)]
pub(super) struct ReadSizeStats {
    reads: AtomicU64,
    bytes: AtomicU64,
    last_process: AtomicU32,
    last_read: AtomicU64,
}

/// A copy of the counts, and the last reader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadTotals {
    pub(super) reads: u64,
    pub(super) bytes: u64,
    /// The process that read last.
    pub(super) last_process: u32,
    /// The time of that read ([`super::activity::ActivityLog::micros_since_start`]).
    pub(super) last_read: u64,
}

impl ReadSizeStats {
    /// A process read `bytes`; `moment` is in microseconds since the start.
    pub(super) fn record_read(&self, bytes: u64, by: u32, moment: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_process.store(by, Ordering::Relaxed);
        self.last_read.store(moment, Ordering::Relaxed);
    }

    pub(super) fn totals(&self) -> ReadTotals {
        ReadTotals {
            reads: self.reads.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            last_process: self.last_process.load(Ordering::Relaxed),
            last_read: self.last_read.load(Ordering::Relaxed),
        }
    }

    /// Whether the mean read is small; `None` after fewer than [`MIN_READS`] reads.
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
    fn small_files_are_cached_and_large_files_are_not() {
        assert_eq!(auto(0, false, true), CacheMode::Kernel);
        assert_eq!(auto(MEMORY / MEMORY_DIVISOR, false, true), CacheMode::Kernel);
        assert_eq!(auto(MEMORY / MEMORY_DIVISOR + 1, false, true), CacheMode::Direct);
        assert_eq!(auto(u64::MAX, false, true), CacheMode::Direct);
    }

    #[test]
    fn a_large_file_is_cached_for_small_blocks_or_without_mmap() {
        assert_eq!(auto(u64::MAX, true, true), CacheMode::Kernel);
        assert_eq!(auto(u64::MAX, false, false), CacheMode::Kernel);
    }

    #[test]
    fn a_configured_cache_mode_always_applies() {
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
    fn block_size_is_judged_by_the_mean() {
        let blocks = ReadSizeStats::default();
        (1..MIN_READS).for_each(|_| blocks.record_read(4096, 1, 0));
        assert_eq!(blocks.has_small_reads(), None);
        blocks.record_read(4096, 1, 0);
        assert_eq!(blocks.has_small_reads(), Some(true));
        (0..MIN_READS).for_each(|_| blocks.record_read(1 << 20, 1, 0));
        assert_eq!(blocks.has_small_reads(), Some(false));
    }
}
