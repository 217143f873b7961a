//! Small files, read when they are opened.
//!
//! Most programs read a small file as soon as they have opened it. For that read(2) the kernel wakes
//! a session thread, which wakes the program again. This takes longer than a quick replica's read.
//! So the session thread that opens the file also reads it, and the kernel gets the bytes before
//! the reply to the open ([`crate::fs::KernelPages::store`]).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Reader;
use super::small_reads::fill;
use crate::backend::BackendFile;
use crate::replicas::metadata_order::mix_hash;
use crate::scheduler::rate::Locality;
use crate::scheduler::small_reads::{SmallReadDelivery, SmallReadTally};
use crate::sync::{LockRank, RankedMutex, before_io};
use crate::telemetry::VolumeCounters;
use crate::telemetry::counters::{ChunkLocality, increment};
use crate::volume::{ByteRange, FileVersion, ReplicaId, ReplicaMap};

/// A larger file is read when the program asks for it.
pub const MAX_READ_AT_OPEN: u64 = 16 << 10;

/// If a replica's latency is higher, the read waits until the program asks for it: so an open is not
/// slower for programs that do not read, and two changes of threads matter less.
const QUICK_LATENCY: Duration = Duration::from_micros(100);

/// After a read that took so long, no open reads for [`PAUSE`].
const SLOW_READ: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_millis(100);

/// A whole file, as its open found it. If the kernel does not get it, it was read in vain.
pub struct FileContent {
    version: FileVersion,
    bytes: Vec<u8>,
    counters: Arc<VolumeCounters>,
    is_delivered: bool,
}

impl FileContent {
    pub fn version(&self) -> FileVersion {
        self.version
    }
}

impl Drop for FileContent {
    fn drop(&mut self) {
        let count = match self.is_delivered {
            true => &self.counters.bytes_delivered,
            false => &self.counters.bytes_duplicate,
        };
        count.fetch_add(self.bytes.len() as u64, Ordering::Relaxed);
        // A thread that ends keeps none.
        let _ = SPARE.try_with(|spare| spare.set(std::mem::take(&mut self.bytes)));
    }
}

thread_local! {
    /// The buffer of this thread's last read, for its next one.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The reads of opens.
pub(super) struct OpenReads {
    /// The measurements since the last tick.
    tallies: ReplicaMap<RankedMutex<SmallReadTally>>,
    /// Whether there are any, so that most ticks take no lock.
    has_tallies: AtomicBool,
    start: Instant,
    /// No open reads before this time after `start`, microseconds.
    paused_until_us: AtomicU64,
}

impl OpenReads {
    pub(super) fn new(replicas: usize) -> Self {
        let empty = |_| RankedMutex::new(LockRank::SmallRead, SmallReadTally::default());
        Self {
            tallies: ReplicaMap::from_fn(replicas, empty),
            has_tallies: AtomicBool::new(false),
            start: Instant::now(),
            paused_until_us: AtomicU64::new(0),
        }
    }

    /// Removes and returns the tallies that have reads.
    pub(super) fn take_tallies(&self) -> Vec<(ReplicaId, SmallReadTally)> {
        if !self.has_tallies.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let taken = self.tallies.iter().map(|(id, tally)| (id, std::mem::take(&mut *tally.lock())));
        taken.filter(|(_, tally)| !tally.is_empty()).collect()
    }

    fn add(&self, replica: ReplicaId, delivery: &SmallReadDelivery) {
        self.tallies[replica].lock().add(delivery);
        self.has_tallies.store(true, Ordering::Release);
    }

    fn is_paused(&self) -> bool {
        let until = self.paused_until_us.load(Ordering::Relaxed);
        until > 0 && (self.start.elapsed().as_micros() as u64) < until
    }

    fn pause(&self) {
        let until = self.start.elapsed() + PAUSE;
        self.paused_until_us.store(until.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Reader {
    /// Whether an open may read a small file now: replicas are well, one is quick, and none is
    /// nearer to the file's data than the others.
    pub fn may_read_at_open(&self) -> bool {
        self.content_checker.is_none()
            && !self.locator.has_source()
            && !self.tracer.is_on()
            && self.replicas.is_calm()
            && self.replicas.inline_permits().limit() > 0
            && self.replicas.iter().any(|(id, _)| self.is_quick(id))
            && !self.open_reads.is_paused()
    }

    /// An open had to do without the bytes: the next ones do not try for a while.
    pub fn pause_reads_at_open(&self) {
        self.open_reads.pause();
    }

    /// The replica that an open may read from, for a file whose path has that hash.
    pub fn quick_replica(&self, path_hash: u64) -> Option<ReplicaId> {
        let quick = || self.replicas.iter().map(|(id, _)| id).filter(|id| self.is_quick(*id));
        let count = quick().count().max(1) as u64;
        // As for lookups, because that replica's mount knows the name.
        quick().nth((mix_hash(path_hash) % count) as usize)
    }

    /// Whether an open may read from `replica`.
    pub fn is_quick(&self, replica: ReplicaId) -> bool {
        let latency = self.small_read_view.expected_time(replica, 0);
        latency.is_some_and(|latency| latency <= QUICK_LATENCY)
    }

    /// Reads a small file of this version that `replica` has just opened. `None` if the read fails:
    /// then the kernel asks for the bytes later, and the usual way decides what the failure means.
    pub fn read_at_open(
        &self,
        replica: ReplicaId,
        file: &dyn BackendFile,
        version: FileVersion,
    ) -> Option<FileContent> {
        let expected = self.small_read_view.expected_time(replica, version.size)?;
        let host = &self.replicas[replica];
        let is_alone = host.inline_calls() == 1;
        let since = Instant::now();
        let mut bytes = SPARE.take();
        bytes.resize(version.size as usize, 0);
        let read = fill(file, ByteRange::new(0, version.size), &mut bytes);
        let at = Instant::now();
        let took = at.saturating_duration_since(since);
        if read.is_err() || took >= SLOW_READ {
            self.pause_reads_at_open();
        }
        read.ok()?;
        host.counters.record_read(version.size, took, ChunkLocality::Unknown);
        let delivery = SmallReadDelivery {
            bytes: version.size,
            took,
            expected,
            // As for all reads whose holders are unknown.
            locality: Locality::Local,
            is_alone,
            at,
        };
        self.open_reads.add(replica, &delivery);
        self.wake_ticker();
        let counters = Arc::clone(&self.counters);
        Some(FileContent { version, bytes, counters, is_delivered: false })
    }

    /// Hands a file's bytes to `reply`, the reply to a read that came at `since`.
    pub fn deliver_read(&self, content: FileContent, since: Instant, reply: impl FnOnce(&[u8])) {
        increment(&self.counters.reads);
        self.counters.read_latency.record(since.elapsed());
        self.deliver_content(content, |bytes| {
            reply(bytes);
            true
        });
    }

    /// Hands a file's bytes to `store`.
    pub fn deliver_content(&self, mut content: FileContent, store: impl FnOnce(&[u8]) -> bool) {
        before_io("bytes for the kernel");
        content.is_delivered = store(&content.bytes);
    }
}
