//! Small reads without a segment.
//!
//! A read of a few KiB takes less time than the bookkeeping for a segment that others may join. So
//! a session thread reads it straight into a buffer of its own and replies. All that the rest of
//! the read path needs of such a read is in the thread's *slot*: the file, the range, the replica,
//! and the reply.
//!
//! The slot is also the way back. A read that is still in flight at a tick, or that another request
//! wants to join, is *adopted*: it becomes a request, with a segment and an attempt that is already
//! in flight. From then on it is hedged, expires, and counts like any other ([`super::attempt`]).
//! The thread learns of it when its call returns, and hands its bytes to the segment. A read that
//! fails is not adopted: the same request starts again in the general way, which decides what the
//! failure means.
//!
//! *Invariants:*
//! - Each reply is in one place: with the thread, in its slot, or in the request that adopted it.
//!   Only the slot's lock moves it.
//! - A byte is fetched once for all readers. A small read that is in flight is found by its slot,
//!   and a segment by the file's map. Both sides first announce themselves and then look for the
//!   other ([`OpenFile::announce_segments`]).
//! - A thread that has an [`InlinePermit`] here has a slot, so its read is known.

mod granules;
mod slot;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::attempt::{self, MAX_INLINE_BYTES};
use super::fetch::{ReadRequest, SegmentFetch};
use super::open_file::OpenFile;
use super::request::{ReadBytes, ReadCompletion, ReadParams, Sink};
use super::segment_map::SegmentMap;
use super::{Reader, content_check, fetch_queue};
use crate::backend::{Backend, BackendError, BackendFile, InlinePermit, Replica, report_progress};
use crate::buffer::{Reservation, SegmentData, size_class};
use crate::replicas::{PendingWork, Ticked};
use crate::scheduler::estimate;
use crate::scheduler::rate::Locality;
use crate::scheduler::small_reads::{SmallReadChoice, SmallReadDelivery, SmallReadRequest};
use crate::scheduler::{AttemptId, Dispatch};
use crate::sync::RankedMutexGuard;
use crate::telemetry::counters::{ChunkLocality, increment};
use crate::volume::{ByteRange, Holders, ReplicaSet};
use granules::{GranuleClaim, GranuleTable};
use slot::{Finished, Slot, SlotLease};

/// A read that has been in flight for this long is adopted at the next tick. The ticker looks for
/// late reads as often, and none is late so soon.
const ADOPT_AFTER: Duration = Duration::from_millis(20);

/// A read that has been in flight for this long is adopted even if the budget is used up.
const OVERDRAW_AFTER: Duration = Duration::from_secs(1);

/// Threads that have a slot and wait for a permit.
const WAITING_THREADS: usize = 2;

/// If a read is expected to take longer, its bytes are worth keeping for the other readers of the
/// file.
const WORTH_KEEPING: Duration = Duration::from_micros(100);

/// The small reads of the threads that serve one session. Each thread answers by a `C`.
pub struct SmallReads<C> {
    reader: Arc<Reader>,
    slots: Box<[Slot<C>]>,
    granules: GranuleTable,
}

/// A read that must go the general way.
pub(super) struct GeneralRead<'a, C> {
    pub(super) completion: C,
    /// The slot in which it counts until it is a request.
    pub(super) lease: Option<SlotLease<'a, C>>,
}

impl<C> GeneralRead<'_, C> {
    pub(super) fn new(completion: C) -> Self {
        Self { completion, lease: None }
    }
}

/// What the read path needs to know of a small read in flight.
#[derive(Clone)]
pub(super) struct SmallRead {
    pub(super) file: Arc<OpenFile>,
    pub(super) asked: ReadParams,
    pub(super) choice: SmallReadChoice,
    /// The holders of its chunk; `None` if unknown.
    pub(super) holders: Option<Holders>,
}

/// The decision to make a small read now. It is in flight until this is dropped.
struct SmallReadPlan<'a> {
    choice: SmallReadChoice,
    holders: Option<Holders>,
    host: &'a Replica,
    permit: InlinePermit<'a>,
    _granule: GranuleClaim<'a>,
    _session_permit: InlinePermit<'a>,
}

/// A small read that has become a segment with an attempt in flight.
pub(super) struct AdoptedRead {
    fetch: Arc<SegmentFetch>,
    attempt: AttemptId,
}

/// Whether an adoption may exceed the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdraw {
    /// It may: the caller cannot wait.
    Now,
    /// Only for reads that are late.
    IfLate,
}

/// Why a read is not adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAdopted {
    /// A segment intersects it. It began after that segment, and is about to find it.
    IsKnown,
    /// The budget is used up.
    NoMemory,
}

/// The slots of [`SmallReads`], whatever their replies are.
pub(super) trait SmallReadSlots: Send + Sync {
    /// Adopts the small reads in flight that match. False if there is no memory for one.
    fn adopt_matching(&self, matches: &dyn Fn(&SmallRead) -> bool, overdraw: Overdraw) -> bool;

    /// The calls in progress.
    fn counts(&self) -> SmallReadCounts;
}

/// Numbers of calls for small reads.
#[derive(Clone, Copy, Default)]
pub(super) struct SmallReadCounts {
    /// Those of reads that are their threads' own, until they are answered.
    pub(super) reading: usize,
    /// Those of adopted reads.
    pub(super) adopted: usize,
}

thread_local! {
    /// Where this thread looks for a free slot first.
    static FAVORITE_SLOT: Cell<usize> = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

impl<C: ReadCompletion> SmallReads<C> {
    /// Slots for as many threads as may call replicas at a time, and for those that wait for that.
    pub fn new(reader: &Arc<Reader>) -> Arc<Self> {
        let replicas = reader.replicas.len();
        let slots = match reader.replicas.inline_permits().limit() {
            0 => 0,
            limit => limit + WAITING_THREADS,
        };
        let slots = (0..slots).map(|_| Slot::new(replicas));
        let own = Arc::new(Self {
            reader: Arc::clone(reader),
            slots: slots.collect(),
            granules: GranuleTable::default(),
        });
        let slots: Weak<dyn SmallReadSlots> = Arc::<Self>::downgrade(&own);
        reader.small_reads.write().push(slots);
        let ticked: Weak<dyn Ticked> = Arc::<Self>::downgrade(&own);
        reader.replicas.ticker().add(ticked);
        own
    }

    /// Reads on the calling thread and answers by `completion`.
    ///
    /// # Errors
    /// Returns `completion` if this read must go the general way.
    pub(super) fn try_read(
        &self,
        file: &Arc<OpenFile>,
        asked: ReadParams,
        completion: C,
    ) -> Result<(), GeneralRead<'_, C>> {
        // Dropped after the plan: while a thread has a permit, its read is known.
        let Some(mut lease) = self.claim_slot() else { return Err(GeneralRead::new(completion)) };
        let Some(plan) = self.plan(file, asked) else {
            return Err(GeneralRead { completion, lease: Some(lease) });
        };
        let SmallReadPlan { host, choice, .. } = plan;
        let read = SmallRead { file: Arc::clone(file), asked, choice, holders: plan.holders };
        lease.enter(read, completion);
        // Pairs with the fence in `Reader::adopt_small_reads`.
        fence(Ordering::SeqCst);
        if file.may_have_segments(asked.range)
            && let Some(completion) = lease.withdraw()
        {
            return Err(GeneralRead { completion, lease: Some(lease) });
        }
        self.reader.wake_ticker();
        let is_alone = host.inline_calls() == 1;
        let mut result = Err(BackendError::QueueFull);
        host.run_inline(&plan.permit, file.path_key(), |backend| {
            result = read_into(file, &choice, backend, asked.range, lease.buffer(asked.range));
        });
        let now = Instant::now();
        let delivery = result.map(|()| SmallReadDelivery {
            bytes: asked.range.len(),
            took: now.saturating_duration_since(asked.since),
            expected: choice.expected,
            locality: choice.locality,
            is_alone,
            at: now,
        });
        match (lease.finish(choice.replica, delivery.as_ref().ok()), delivery) {
            (Finished::Own(read, completion), Ok(delivery)) => {
                self.reader.count_small_read(&read, &delivery);
                completion.complete(Ok(ReadBytes::Slice(lease.buffer(asked.range))));
                Ok(())
            }
            // The general way finds out what the error means.
            (Finished::Own(_, completion), Err(_)) => {
                Err(GeneralRead { completion, lease: Some(lease) })
            }
            (Finished::Adopted(adopted), _) => {
                let result = result.map(|()| &*lease.buffer(asked.range));
                let next = self.reader.finish_adopted(adopted, &choice, result);
                self.reader.dispatch(next.into_iter().collect());
                Ok(())
            }
        }
    }

    /// Chooses the replica for a read and gets the permits for it. `None` if the read must go the
    /// general way.
    fn plan(&self, file: &OpenFile, asked: ReadParams) -> Option<SmallReadPlan<'_>> {
        let reader = &self.reader;
        if !reader.may_be_small_read(asked.range) {
            return None;
        }
        let is_kept = file.should_keep_segments() && file.readers() > 1;
        let session_permit = reader.replicas.inline_permits().acquire_soon()?;
        let holders = reader.holders_of(file, asked);
        let choice = reader.choose_for_small_read(file, asked.range.len(), holders)?;
        if is_kept && choice.expected > WORTH_KEEPING
            || content_check::is_due(reader, file, asked.range.start, choice.replica)
        {
            return None;
        }
        let host = &*reader.replicas[choice.replica];
        if host.reads_without_threads() {
            return None;
        }
        let permit = host.try_inline_permit(&file.path_key())?;
        let granule = self.granules.try_claim(file.file_number(), asked.range)?;
        Some(SmallReadPlan {
            choice,
            holders,
            host,
            permit,
            _granule: granule,
            _session_permit: session_permit,
        })
    }

    /// A free slot for the calling thread.
    fn claim_slot(&self) -> Option<SlotLease<'_, C>> {
        let first = FAVORITE_SLOT.get();
        let count = self.slots.len();
        (0..count).find_map(|number| self.slots[(first + number) % count].try_claim())
    }
}

impl<C: ReadCompletion> SmallReadSlots for SmallReads<C> {
    fn adopt_matching(&self, matches: &dyn Fn(&SmallRead) -> bool, overdraw: Overdraw) -> bool {
        let mut all_adopted = true;
        for slot in &self.slots {
            all_adopted &= slot.adopt_if(&self.reader, matches, overdraw);
        }
        all_adopted
    }

    fn counts(&self) -> SmallReadCounts {
        let mut counts = SmallReadCounts::default();
        self.slots.iter().for_each(|slot| slot.count(&mut counts));
        counts
    }
}

impl<C: ReadCompletion> Ticked for SmallReads<C> {
    fn tick(self: Arc<Self>, now: Instant) -> PendingWork {
        let is_old =
            |read: &SmallRead| now.saturating_duration_since(read.asked.since) >= ADOPT_AFTER;
        // One that lacks memory is tried again at the next tick.
        self.adopt_matching(&is_old, Overdraw::IfLate);
        self.reader.collect_small_reads(&self.slots, now);
        let counts = self.counts();
        match counts.reading + counts.adopted {
            0 => PendingWork::Idle,
            _ => PendingWork::Calls,
        }
    }

    fn stop(self: Arc<Self>) {
        // A read that is in flight becomes a request, which ends like the others.
        self.adopt_matching(&|_| true, Overdraw::Now);
    }
}

impl Reader {
    /// Whether the read may skip the segments: it is small, measures no rate, and nothing that needs
    /// a segment is on.
    fn may_be_small_read(&self, range: ByteRange) -> bool {
        range.len() <= MAX_INLINE_BYTES
            && !estimate::is_large(range.len(), self.policy.segment)
            && self.replicas.is_calm()
            && !self.tracer.is_on()
    }

    /// The holders of the chunk in which the read begins, as far as they are known.
    fn holders_of(&self, file: &OpenFile, asked: ReadParams) -> Option<Holders> {
        let at = file.placement_hints().located_file.as_ref()?;
        let holders = at.placement.holders(asked.range.start, asked.since);
        self.locator.query_if_due(at, asked.since);
        holders
    }

    fn choose_for_small_read(
        &self,
        file: &OpenFile,
        bytes: u64,
        holders: Option<Holders>,
    ) -> Option<SmallReadChoice> {
        let candidates = file.candidates();
        let pinned = candidates.and(file.placement_hints().pinned);
        let is_all_there_is = bytes == file.version().size;
        let read = SmallReadRequest {
            bytes,
            candidates: if pinned.is_empty() { candidates } else { pinned },
            holders: holders.unwrap_or(Holders::UNKNOWN),
            open_on: if is_all_there_is { file.verified_replicas() } else { ReplicaSet::ALL },
        };
        self.small_read_view.choose(&read, |id| self.replicas[id].inline_calls_with_room())
    }

    /// Counts a read that a thread is about to answer.
    fn count_small_read(&self, read: &SmallRead, delivery: &SmallReadDelivery) {
        read.file.last_delivery.advance(delivery.at);
        let locality = match (read.holders, delivery.locality) {
            (None, _) => ChunkLocality::Unknown,
            (Some(_), Locality::Local) => ChunkLocality::Local,
            (Some(_), Locality::Remote) => ChunkLocality::Remote,
        };
        let replica = &self.replicas[read.choice.replica];
        replica.counters.record_read(delivery.bytes, delivery.took, locality);
        increment(&self.counters.reads);
        self.counters.read_latency.record(delivery.took);
        self.counters.bytes_delivered.fetch_add(delivery.bytes, Ordering::Relaxed);
    }

    /// Adopts the small reads that intersect `range`, so that a segment there can be joined. The
    /// caller has announced its segments ([`OpenFile::announce_segments`]). False if there is no
    /// memory for one of the reads: then the caller adds no segment now.
    pub(super) fn adopt_small_reads(
        &self,
        file: &OpenFile,
        range: ByteRange,
        overdraw: Overdraw,
    ) -> bool {
        // Pairs with the fence in `SmallReads::try_read`.
        fence(Ordering::SeqCst);
        let intersects = |read: &SmallRead| {
            read.file.file_number() == file.file_number()
                && !read.asked.range.intersect(range).is_empty()
        };
        self.replicas.inline_permits().in_use() == 0
            || self.adopt_small_reads_where(&intersects, overdraw)
    }

    /// Adopts the small reads that match. False if there is no memory for one of them.
    pub(super) fn adopt_small_reads_where(
        &self,
        matches: &dyn Fn(&SmallRead) -> bool,
        overdraw: Overdraw,
    ) -> bool {
        let mut all_adopted = true;
        for slots in self.small_reads.read().iter().filter_map(Weak::upgrade) {
            all_adopted &= slots.adopt_matching(matches, overdraw);
        }
        all_adopted
    }

    /// The calls for small reads in progress.
    pub(super) fn count_small_reads(&self) -> SmallReadCounts {
        let all = self.small_reads.read();
        let counts = all.iter().filter_map(Weak::upgrade).map(|slots| slots.counts());
        counts.fold(SmallReadCounts::default(), |sum, one| SmallReadCounts {
            reading: sum.reading + one.reading,
            adopted: sum.adopted + one.adopted,
        })
    }

    /// The memory for adopting a read of the file with these segments.
    ///
    /// # Errors
    /// The reason why it cannot be adopted now.
    pub(super) fn claim_for_adoption(
        &self,
        read: &SmallRead,
        segments: &SegmentMap<SegmentFetch>,
        overdraw: Overdraw,
    ) -> Result<Reservation, NotAdopted> {
        let range = read.asked.range;
        if segments.known(range).next().is_some() {
            return Err(NotAdopted::IsKnown);
        }
        let budget = self.buffers.budget();
        let bytes = size_class(range.len());
        if let Some(claim) = budget.claim_past_waiters(bytes) {
            return Ok(claim);
        }
        match overdraw == Overdraw::Now || read.asked.since.elapsed() >= OVERDRAW_AFTER {
            true => Ok(budget.overdraw(bytes)),
            false => Err(NotAdopted::NoMemory),
        }
    }

    /// Makes a request of a small read in flight. `segments` are its file's, locked since
    /// [`Reader::claim_for_adoption`].
    pub(super) fn adopt_small_read(
        &self,
        read: &SmallRead,
        claim: Reservation,
        mut segments: RankedMutexGuard<'_, SegmentMap<SegmentFetch>>,
        sink: Sink,
    ) -> AdoptedRead {
        let SmallRead { file, asked, choice, holders } = read;
        let fetch = file.add_fetch(&mut segments, asked.range, claim);
        let part = Arc::clone(&fetch);
        let request = Arc::new(ReadRequest::of_part(*asked, self.policy.deadlines, sink, part));
        fetch.join(&request, asked.range);
        fetch.state.lock().holders = *holders;
        // Before the scheduler knows the attempt, and may hedge it.
        fetch.start_attempt(choice.replica);
        let wanted = fetch_queue::segment_request(&fetch, file.candidates(), false, *holders);
        let attempt = self.scheduler.lock().adopt_small_read(wanted, *choice, asked.since);
        drop(segments);
        self.track(&request);
        AdoptedRead { fetch, attempt }
    }

    /// Ends the attempt of an adopted read. Returns the next attempt for the calling thread.
    fn finish_adopted(
        self: &Arc<Self>,
        adopted: AdoptedRead,
        choice: &SmallReadChoice,
        result: Result<&[u8], BackendError>,
    ) -> Option<Dispatch<Arc<SegmentFetch>>> {
        let AdoptedRead { fetch, attempt } = adopted;
        let claim = fetch.take_attempt_claim(choice.replica);
        // If another attempt has delivered since, this one still measures its replica.
        let spare = || self.buffers.budget().claim_past_waiters(size_class(fetch.range.len()));
        let result = match (result, claim) {
            (Err(error), claim) => Err((error.into(), claim)),
            (Ok(bytes), claim) => match claim.or_else(spare) {
                Some(claim) => self.copy_to_segment(bytes, claim),
                None => {
                    let bytes = bytes.len() as u64;
                    self.counters.bytes_duplicate.fetch_add(bytes, Ordering::Relaxed);
                    Err((BackendError::QueueFull.into(), None))
                }
            },
        };
        let result = attempt::ban_if_truncated(&fetch, choice.replica, result);
        attempt::finish_attempt(self, &fetch, attempt, choice.replica, result)
    }

    fn copy_to_segment(&self, bytes: &[u8], claim: Reservation) -> attempt::AttemptResult {
        match self.buffers.allocate(bytes.len(), claim) {
            Ok(mut buffer) => {
                buffer.copy_from_slice(bytes);
                Ok(SegmentData::from_buffer(buffer))
            }
            Err(claim) => Err((BackendError::Os(Errno::NOMEM).into(), Some(claim))),
        }
    }

    /// Adds what the slots measured to the scheduler's estimates, and publishes the next view.
    fn collect_small_reads<C: ReadCompletion>(&self, slots: &[Slot<C>], now: Instant) {
        let mut tallies = self.open_reads.take_tallies();
        tallies.extend(slots.iter().flat_map(Slot::take_tallies));
        let mut scheduler = self.scheduler.lock();
        let health = &mut *self.replicas.lock_health();
        for (replica, tally) in &tallies {
            scheduler.add_small_reads(*replica, tally, health);
        }
        scheduler.publish_small_read_view(&self.small_read_view, health, now);
    }
}

/// Fills `bytes` from the replica.
fn read_into(
    file: &OpenFile,
    choice: &SmallReadChoice,
    backend: &dyn Backend,
    range: ByteRange,
    bytes: &mut [u8],
) -> Result<(), BackendError> {
    let opened = file.open_on(choice.replica, backend)?;
    let read = match fill(&*opened, range, bytes) {
        // The server has restarted or failed over, and may still have the same file.
        Err(BackendError::Os(Errno::STALE)) => {
            file.drop_stale(choice.replica, &opened);
            let opened = file.open_on(choice.replica, backend)?;
            fill(&*opened, range, bytes).map_err(|error| match error {
                BackendError::Os(Errno::STALE) => BackendError::VersionMismatch,
                error => error,
            })
        }
        read => read,
    };
    // A comparison may have excluded the replica meanwhile.
    match file.is_excluded(choice.replica) {
        true => Err(BackendError::VersionMismatch),
        false => read,
    }
}

/// Fills `bytes` with the range of the file.
pub(super) fn fill(
    file: &dyn BackendFile,
    range: ByteRange,
    bytes: &mut [u8],
) -> Result<(), BackendError> {
    let mut filled = 0;
    while filled < bytes.len() {
        if filled > 0 {
            report_progress();
        }
        match file.read_at(range.start + filled as u64, &mut bytes[filled..])? {
            // The version promises more.
            0 => return Err(BackendError::Truncated),
            n => filled += n,
        }
    }
    Ok(())
}
