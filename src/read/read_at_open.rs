//! Small files, read by the call that opens them.
//!
//! Most programs read a small file as soon as they have opened it. For that read(2) the kernel wakes
//! a session thread, which wakes the program again. This takes longer than a quick replica's read.
//! So the call that opens the file also reads it, and the kernel gets the bytes before the reply to
//! the open ([`crate::fs::KernelOpen::store`]).
//!
//! The bytes are those that a read through the file just opened would return. The call is hedged
//! and has a deadline, as any open. If its read fails, the file is open all the same: the kernel
//! will ask for the bytes, and the usual way decides what the failure means.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Reader;
use super::small_reads::fill;
use crate::backend::BackendFile;
use crate::scheduler::rate::Locality;
use crate::scheduler::small_reads::{SmallReadDelivery, SmallReadTally};
use crate::sync::{LockRank, RankedMutex, before_io};
use crate::telemetry::counters::ChunkLocality;
use crate::volume::{ByteRange, FileVersion, ReplicaId, ReplicaMap};

/// A larger file is read when the program asks for it.
pub const MAX_READ_AT_OPEN: u64 = 16 << 10;

/// If a replica's latency is higher, the read waits until the program asks for it: so an open is not
/// slower for programs that do not read, and two changes of threads matter less.
const QUICK_LATENCY: Duration = Duration::from_micros(100);

/// A whole file, as its open found it.
pub struct FileContent {
    bytes: Vec<u8>,
    replica: ReplicaId,
    delivery: SmallReadDelivery,
}

/// What the reads of opens measured since the last tick.
pub(super) struct OpenReadTallies(ReplicaMap<RankedMutex<SmallReadTally>>);

impl OpenReadTallies {
    pub(super) fn new(replicas: usize) -> Self {
        let empty = |_| RankedMutex::new(LockRank::SmallRead, SmallReadTally::default());
        Self(ReplicaMap::from_fn(replicas, empty))
    }

    /// Removes and returns the tallies that have reads.
    pub(super) fn take(&self) -> Vec<(ReplicaId, SmallReadTally)> {
        let taken = self.0.iter().map(|(id, tally)| (id, std::mem::take(&mut *tally.lock())));
        taken.filter(|(_, tally)| !tally.is_empty()).collect()
    }
}

impl Reader {
    /// Whether some open may read a small file now: replicas are well, one is quick, and none is
    /// nearer to the file's data than the others.
    pub fn may_read_at_open(&self) -> bool {
        self.content_checker.is_none()
            && !self.locator.has_source()
            && !self.tracer.is_on()
            && self.replicas.is_calm()
            && self.replicas.iter().any(|(id, _)| self.is_quick(id))
    }

    fn is_quick(&self, replica: ReplicaId) -> bool {
        let latency = self.small_read_view.expected_time(replica, 0);
        latency.is_some_and(|latency| latency <= QUICK_LATENCY)
    }

    /// Reads a small file of this version that `replica` has just opened. `None` if it is not
    /// small, the replica not quick, or the read fails.
    pub fn read_at_open(
        &self,
        replica: ReplicaId,
        file: &dyn BackendFile,
        version: FileVersion,
    ) -> Option<FileContent> {
        let size = version.size;
        if size == 0 || size > MAX_READ_AT_OPEN || !self.is_quick(replica) {
            return None;
        }
        let expected = self.small_read_view.expected_time(replica, size)?;
        let since = Instant::now();
        let mut bytes = vec![0; size as usize];
        fill(file, ByteRange::new(0, size), &mut bytes).ok()?;
        let at = Instant::now();
        let delivery = SmallReadDelivery {
            bytes: size,
            took: at.saturating_duration_since(since),
            expected,
            // As for all reads whose holders are unknown.
            locality: Locality::Local,
            is_alone: false,
            at,
        };
        Some(FileContent { bytes, replica, delivery })
    }

    /// Counts the file's bytes as read from its replica. Hands them to `store`, which may have to
    /// wait for another read of the file, and counts them as delivered if it took them.
    pub fn deliver_content(&self, content: &FileContent, store: impl FnOnce(&[u8]) -> bool) {
        let FileContent { bytes, replica, delivery } = content;
        self.replicas[*replica].counters.record_read(
            delivery.bytes,
            delivery.took,
            ChunkLocality::Unknown,
        );
        self.open_read_tallies.0[*replica].lock().add(delivery);
        self.wake_ticker();
        let Some(_permit) = self.replicas.inline_permits().try_acquire() else { return };
        before_io("bytes for the kernel");
        if store(bytes) {
            self.counters.bytes_delivered.fetch_add(delivery.bytes, Ordering::Relaxed);
        }
    }
}
