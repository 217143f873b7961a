//! The life of a read.
//!
//! A read of an [`OpenFile`] is cut into pieces ([`split`]): those that are in memory, those that
//! another read is already fetching, and those that are missing. The missing ones become fetches of
//! at most one segment. They go into the scheduler's queue together with the pieces that
//! [`readahead`] advises. The replicas' pools carry out the scheduler's decisions. The thread that
//! delivers the last byte of a request answers it.
//!
//! The input is a range and a [`ReadCompletion`]. The output is one call of it, with exactly the
//! requested bytes (fewer only at the end of the file) or with an error.
//! [`crate::replicas::request_deadline`] limits the time until that call.
//!
//! *Invariants:*
//! - No method blocks on a replica; a FUSE thread may call any of them.
//! - A byte is fetched once for all readers that want it while its segment is known.
//! - All bytes of one answer belong to one version of the file.
//! - Memory for data is claimed before it is used. A request claims all that it may need at once,
//!   before it holds anything else.
//! - Locks are taken in this order: a file's segments, the scheduler, the replicas' health, a
//!   fetch's state. None is held while a sink is called or an attempt is submitted.

mod active_readers;
mod attempt;
mod caller_thread;
mod content_check;
mod content_check_state;
mod delivery_time;
mod eviction;
mod fetch;
mod fetch_queue;
mod file_identity;
mod gauges;
mod inline_read;
mod open_file;
mod packet_pipes;
mod policy;
mod prefetch;
mod read_at_open;
pub mod readahead;
mod reclaim;
mod replica_slot;
mod request;
mod request_progress;
mod segment_map;
mod segment_timeouts;
mod small_reads;
pub mod split;
mod started_attempt;
mod ticker;
mod trace;
mod tracer;
mod versioned_file;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use rustix::param::page_size;

use crate::backend::{BackendError, Credentials};
use crate::buffer::{Budget, BufferPool, Pipe, Reservation, size_class};
use crate::placement::Locator;
use crate::replicas::{Replicas, Ticked};
use crate::scheduler::fair_queue::FairQueue;
use crate::scheduler::small_reads::SmallReadView;
use crate::scheduler::{Dispatch, ReplicaPolicy, Scheduler, SchedulerPolicy};
use crate::sync::{LockRank, RankedMutex};
use crate::telemetry::VolumeCounters;
use crate::telemetry::counters::increment;
use crate::volume::{ByteRange, FileVersion, ReplicaMap, ReplicaSet, VolumeMode};
use active_readers::{ActiveReaders, LastCounted};
use content_check::ContentChecker;
use eviction::EvictionQueues;
use fetch::{JoinOutcome, ReadRequest, SegmentFetch};
use packet_pipes::PacketPipes;
use readahead::Readahead;
use small_reads::{GeneralRead, Overdraw, SmallReadSlots};
use split::Piece;
use tracer::Tracer;
use versioned_file::{FileParams, PlacementHints};

pub use caller_thread::CallerThread;
pub use gauges::ReadGauges;
pub use open_file::OpenFile;
pub use policy::{ReadError, ReadPolicy, SegmentPipes};
pub use read_at_open::{FileContent, MAX_READ_AT_OPEN};
pub use request::{ReadBytes, ReadCompletion, ReadData, ReadParams, RequestOrigin};
pub use small_reads::SmallReads;
pub use tracer::TraceStream;
pub use versioned_file::VersionedFile;

/// Segments of at least this size are not copied if that can be avoided. For smaller ones, one copy
/// costs less than the system calls.
const MIN_PIPED_BYTES: u64 = 64 * 1024;

/// The read path of one volume.
pub struct Reader {
    policy: ReadPolicy,
    replicas: Arc<Replicas>,
    buffers: BufferPool,
    scheduler: RankedMutex<Scheduler<Arc<SegmentFetch>>>,
    eviction_queues: EvictionQueues,
    /// Unanswered requests, the oldest first. An answered request stays until it reaches the front.
    requests: Mutex<std::collections::VecDeque<Arc<ReadRequest>>>,
    /// The order in which files get memory when they must wait for it.
    memory_queue: Mutex<FairQueue>,
    /// Handles with a readahead window; they share the budget.
    active_readers: ActiveReaders,
    counters: Arc<VolumeCounters>,
    locator: Arc<Locator>,
    content_checker: Option<ContentChecker>,
    tracer: Arc<Tracer>,
    /// The scheduler's loads, for small reads.
    small_read_view: SmallReadView,
    packet_pipes: PacketPipes,
    open_reads: read_at_open::OpenReads,
    /// The slots of small reads, of each session.
    small_reads: RwLock<Vec<Weak<dyn SmallReadSlots>>>,
}

/// Whether no byte of the segment is known to be taken twice: no two requests have asked for the
/// same one, and it is not kept for a second reader.
fn is_taken_once(fetch: &SegmentFetch) -> bool {
    let is_kept = fetch.file.should_keep_segments() && fetch.file.readers() > 1;
    !is_kept && !fetch.state.lock().is_shared
}

type Dispatches = Vec<Dispatch<Arc<SegmentFetch>>>;

/// One open handle's state in the read path.
pub struct ReadHandle {
    readahead: Mutex<(Readahead, LastCounted)>,
}

impl Reader {
    /// A read path over `replicas`, each with its policy.
    pub fn new(
        policy: ReadPolicy,
        replicas: Arc<Replicas>,
        limits: ReplicaMap<ReplicaPolicy>,
        counters: Arc<VolumeCounters>,
        locator: Arc<Locator>,
    ) -> Arc<Self> {
        let scheduling =
            SchedulerPolicy { segment: policy.segment, attempt_deadline: policy.attempt_deadline };
        let tracer = Tracer::new(replicas.map(|_, replica| replica.name.clone()));
        let now = Instant::now();
        let reader = Arc::new(Self {
            buffers: BufferPool::new(Budget::new(policy.budget)),
            scheduler: RankedMutex::new(
                LockRank::Scheduler,
                Scheduler::new(scheduling, limits, now),
            ),
            eviction_queues: EvictionQueues::default(),
            requests: Mutex::default(),
            memory_queue: Mutex::default(),
            active_readers: ActiveReaders::new(now),
            content_checker: ContentChecker::new(policy.compare_share),
            tracer: Arc::new(tracer),
            small_read_view: SmallReadView::new(replicas.len()),
            packet_pipes: PacketPipes::new(policy.pipes.received.clone(), replicas.len()),
            open_reads: read_at_open::OpenReads::new(replicas.len()),
            small_reads: RwLock::default(),
            policy,
            replicas,
            counters,
            locator,
        });
        let ticked: Weak<dyn Ticked> = Arc::<Self>::downgrade(&reader);
        reader.replicas.ticker().add(ticked);
        reader
    }

    /// A file at `path`, at this version, that no replica has opened yet. Replicas will open it
    /// under the credentials `who`.
    pub fn new_open_file(
        &self,
        path: PathBuf,
        version: FileVersion,
        mode: VolumeMode,
        who: Credentials,
    ) -> OpenFile {
        let pinned = self.locator.pin(&path).map_or(ReplicaSet::EMPTY, |pin| pin.replicas);
        let at = self.locator.locate_file(&path, version);
        if let Some(at) = &at {
            self.locator.file_opened(at, Instant::now());
        }
        let check_state =
            self.content_checker.as_ref().map(|checker| checker.check_state(&path, version));
        let params = FileParams {
            path,
            version,
            mode,
            credentials: who,
            placement_hints: PlacementHints { located_file: at, pinned },
            content_check: check_state.unwrap_or_default(),
            tracer: Arc::clone(&self.tracer),
        };
        OpenFile::new(params, self.replicas.len())
    }

    /// Locates chunks and pinned files.
    pub fn locator(&self) -> &Arc<Locator> {
        &self.locator
    }

    /// A new handle's state.
    pub fn new_handle(&self) -> ReadHandle {
        let readahead = Readahead::new(self.policy.segment);
        ReadHandle { readahead: Mutex::new((readahead, LastCounted::default())) }
    }

    /// Reads the requested range, cut at the end of the file, and completes it with the result.
    pub fn read<C: ReadCompletion>(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        handle: &ReadHandle,
        asked: ReadParams,
        thread: CallerThread<'_, C>,
        completion: C,
    ) {
        let size = file.version().size;
        let range = ByteRange::new(asked.range.start.min(size), asked.range.end.min(size));
        let asked = ReadParams { range, ..asked };
        if range.is_empty() {
            return completion.complete(Ok(ReadBytes::Slice(&[])));
        }
        let now = match thread {
            CallerThread::Session(_) => asked.since,
            CallerThread::MustQueue => Instant::now(),
        };
        if file.has_recent_timeout(range, now) {
            increment(&self.counters.read_errors);
            self.counters.read_latency.record(asked.since.elapsed());
            return completion.complete(Err(ReadError::Deadline));
        }
        file.expire_bans();
        // Before the answer: the kernel sends the next request right after it, perhaps to another
        // thread. Readahead must see that request after this one.
        let advice = self.observe_read(file, handle, range, now);
        let GeneralRead { completion, lease } = match thread {
            CallerThread::Session(small_reads) if advice.is_none() => {
                match small_reads.try_read(file, asked, completion) {
                    Ok(()) => return,
                    Err(general) => general,
                }
            }
            CallerThread::Session(_) | CallerThread::MustQueue => GeneralRead::new(completion),
        };
        file.record_part(range.len());
        let may_inline = matches!(thread, CallerThread::Session(_));
        let sink = Box::new(move |answer: Result<_, _>| {
            completion.complete(answer.map(ReadBytes::Segments));
        });
        let request = Arc::new(ReadRequest::new(asked, self.policy.deadlines, sink));
        let started = self.start_or_queue(file, &request, range);
        drop(lease);
        if let Some(sent) = started {
            // Dispatch the others first: an inline read may take long.
            let (first, own) = self.take_inline(sent, may_inline);
            self.dispatch(first);
            self.prefetch(file, handle, range, advice);
            self.run_inline_read(own);
        }
    }

    /// Starts a request and returns the attempts to dispatch now. `None` if it has to wait for
    /// memory.
    fn start_or_queue(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        request: &Arc<ReadRequest>,
        range: ByteRange,
    ) -> Option<Dispatches> {
        let started = self.try_start_request(file, request, range, None).or_else(|| {
            self.reclaim(self.memory_cost(range));
            self.try_start_request(file, request, range, None)
        });
        if started.is_none() {
            increment(&self.counters.budget_waits);
            self.track(request);
            let cost = self.memory_cost(range);
            self.wait_for_memory(Arc::clone(file), Arc::clone(request), range, cost);
            self.serve_waiters();
        }
        started
    }

    /// Queues a request until it can have `bytes` of memory.
    fn wait_for_memory(
        self: &Arc<Self>,
        file: Arc<OpenFile>,
        request: Arc<ReadRequest>,
        range: ByteRange,
        bytes: u64,
    ) {
        let reader = Arc::clone(self);
        let turn = self.memory_queue.lock().assign_tag(file.file_number(), range.len());
        self.buffers.budget().enqueue_waiter(turn, bytes, move |claim| {
            reader.memory_queue.lock().advance(turn);
            if request.is_answered() {
                return;
            }
            request.record_progress(Some(Instant::now()));
            let granted = claim.bytes();
            match reader.try_start_request(&file, &request, range, Some(claim)) {
                Some(sent) => reader.dispatch(sent),
                // Segments that others fetch in the middle of the range leave gaps, and each gap
                // takes its own buffer.
                None if granted < reader.buffers.budget().limit() => {
                    reader.wait_for_memory(file, request, range, granted * 2);
                }
                None => reader.fail_request(&request, ReadError::Failed(BackendError::QueueFull)),
            }
        });
    }

    /// Collects the pieces of `range` and creates fetches for the missing ones. Returns the
    /// attempts to dispatch now; none if the request has ended, for example at its deadline.
    /// Returns `None`, with nothing done, if there is too little memory.
    /// If `claim` is enough, it pays for all pieces.
    fn try_start_request(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        request: &Arc<ReadRequest>,
        range: ByteRange,
        claim: Option<Reservation>,
    ) -> Option<Dispatches> {
        let mut fresh = Vec::new();
        let mut joined = Vec::new();
        let mut failure = None;
        let announced = file.announce_segments();
        let has_waited = claim.is_some();
        let overdraw = if has_waited { Overdraw::Now } else { Overdraw::IfLate };
        if !self.adopt_small_reads(file, range, overdraw) {
            return None;
        }
        let Some(collection) = request.begin_collection() else { return Some(Vec::new()) };
        {
            let mut segments = file.lock_segments();
            segments.drop_consumed(range);
            let pieces = split::split_range(range, segments.known(range), self.policy.segment);
            let needed: u64 = pieces.iter().map(reclaim::missing_cost).sum();
            let claim = claim.or_else(|| self.buffers.budget().claim(needed));
            let mut claim = claim.filter(|claim| claim.bytes() >= needed)?;
            for piece in pieces {
                let (fetch, part) = match piece {
                    Piece::Known(fetch, part) => (fetch, part),
                    Piece::Missing(part) => {
                        let cost = claim.split(size_class(part.len()));
                        let fetch = file.add_fetch(&mut segments, part, cost);
                        fresh.push(Arc::clone(&fetch));
                        (fetch, part)
                    }
                };
                collection.add_part(Arc::clone(&fetch));
                match fetch.join(request, part) {
                    JoinOutcome::Ready => {
                        request.part_arrived();
                    }
                    JoinOutcome::Waiting(Some(_)) => joined.push(fetch),
                    JoinOutcome::Waiting(None) => {}
                    JoinOutcome::Failed(error) => failure = Some(error),
                }
            }
        }
        drop(announced);
        let is_complete = collection.finish();
        if let Some(error) = failure {
            self.fail_request(request, ReadError::Failed(error));
        } else if is_complete {
            increment(&self.counters.buffer_hits);
            self.answer_request(request);
        } else if !has_waited {
            self.track(request);
        }
        Some(self.enqueue_fetches(fresh, joined))
    }

    /// Queues new fetches, moves those in `joined` to the front, and decides which to dispatch.
    fn enqueue_fetches(
        &self,
        fresh: Vec<Arc<SegmentFetch>>,
        joined: Vec<Arc<SegmentFetch>>,
    ) -> Dispatches {
        let mut dispatches = Vec::new();
        if fresh.is_empty() && joined.is_empty() {
            return dispatches;
        }
        let now = Instant::now();
        self.locate_segments(&fresh, now);
        {
            let mut scheduler = self.scheduler.lock();
            for fetch in joined {
                let mut state = fetch.state.lock();
                if let Some(moved) = state.queue_key.and_then(|want| scheduler.promote(want)) {
                    state.queue_key = Some(moved);
                }
            }
            for fetch in fresh {
                let mut state = fetch.state.lock();
                let ahead = state.waiters.is_empty();
                let candidates = fetch.file.candidates();
                let want = fetch_queue::segment_request(&fetch, candidates, ahead, state.holders);
                state.set_queued(scheduler.enqueue(want));
            }
            scheduler.schedule(&mut self.replicas.lock_health(), now, &mut dispatches);
            if !scheduler.is_queue_empty() {
                // Small reads take their turns.
                self.small_read_view.disturb();
            }
        }
        dispatches
    }

    /// Records which replicas' nodes hold the segments, if known, and queries the placement if that
    /// is due.
    fn locate_segments(&self, fresh: &[Arc<SegmentFetch>], now: Instant) {
        let Some(first) = fresh.first() else { return };
        let Some(at) = &first.file.placement_hints().located_file else { return };
        for fetch in fresh {
            fetch.state.lock().holders = at.placement.holders(fetch.range.start, now);
        }
        self.locator.query_if_due(at, now);
    }

    /// Whether the kernel must drop the file's pages before it reads on: fanfs has found that some
    /// may differ from the right ones. True once; the caller tells the kernel.
    pub fn take_stale_pages(&self, file: &OpenFile) -> bool {
        content_check::take_stale_pages(self, file)
    }

    /// Whether [`Self::take_stale_pages`] is true for any file, open or not.
    pub fn has_stale_pages(&self) -> bool {
        self.content_checker.as_ref().is_some_and(ContentChecker::has_stale_pages)
    }

    /// Removes a closed handle.
    pub fn close_handle(&self, handle: &ReadHandle) {
        self.active_readers.remove_reader(handle.readahead.lock().1);
    }

    /// Forgets all segments of a file version that will not be read again.
    pub fn retire_file(&self, file: &OpenFile) {
        file.retire();
        self.abandon_readahead(file, ByteRange::new(0, u64::MAX));
        let segments = std::mem::take(&mut *file.lock_segments());
        drop(segments);
        self.buffers.budget().grant_waiters();
    }

    /// A pipe for the segment, if its data may stay as pages of the page cache: the segment is
    /// large, starts on a page, and is taken once.
    fn pipe_for(&self, fetch: &SegmentFetch) -> Option<Pipe> {
        let pipes = self.policy.pipes.cached.as_ref()?;
        let range = fetch.range;
        let fits = (MIN_PIPED_BYTES..=pipes.bytes() as u64).contains(&range.len());
        // Partly filled pages take as much room in a pipe as full ones.
        let is_even = range.start.is_multiple_of(page_size() as u64);
        if fits && is_even && is_taken_once(fetch) { pipes.pipe().ok() } else { None }
    }

    fn track(&self, request: &Arc<ReadRequest>) {
        let mut requests = self.requests.lock();
        // A request that waits again is older than those that have come since.
        let older = requests.iter().rposition(|other| other.since <= request.since);
        requests.insert(older.map_or(0, |at| at + 1), Arc::clone(request));
        drop(requests);
        self.wake_ticker();
    }

    fn answer_request(&self, request: &ReadRequest) {
        let taken = request.reply_data(|bytes| {
            increment(&self.counters.reads);
            self.counters.read_latency.record(request.since.elapsed());
            self.counters.bytes_delivered.fetch_add(bytes, Ordering::Relaxed);
        });
        self.trace_request(request, taken.iter().map(|(fetch, _)| fetch), None);
        for (fetch, bytes) in taken {
            let used_up = {
                let mut state = fetch.state.lock();
                state.consumed += bytes;
                state.consumed >= fetch.range.len()
            };
            let keep = fetch.file.should_keep_segments() && fetch.file.readers() > 1;
            let kept = keep && fetch.data().is_some_and(|data| data.is_fully_in_memory());
            if used_up && !kept || fetch.file.is_retired() {
                fetch.forget();
            } else if used_up {
                self.eviction_queues.add_consumed(&fetch);
            } else {
                self.eviction_queues.add_readahead(&fetch);
            }
        }
    }

    fn fail_request(&self, request: &ReadRequest, error: ReadError) {
        // All of this before the answer: the kernel may send its next request at once.
        if error == ReadError::Deadline
            && let Some(fetch) = request.first_part()
        {
            fetch.file.record_timeout(request.missing_parts().into_iter(), Instant::now());
        }
        let Some(ended) = request.end() else { return };
        increment(&self.counters.read_errors);
        self.trace_request(request, ended.parts.iter(), Some(error));
        self.counters.read_latency.record(request.since.elapsed());
        // A hung fetch is forgotten, so that the next request starts a new one.
        for fetch in &ended.parts {
            if fetch.data().is_none() || fetch.file.is_retired() {
                self.abandon_if_unwanted(fetch);
            } else {
                self.eviction_queues.add_readahead(fetch);
            }
        }
        ended.reply_error(error);
    }

    /// Forgets a segment, and takes it out of the queue if no request waits for it. In the queue it
    /// would keep its memory until its replica has room.
    fn abandon_if_unwanted(&self, fetch: &Arc<SegmentFetch>) {
        let known = fetch.segments();
        let mut known = known.as_ref().map(|known| known.lock());
        let mut scheduler = self.scheduler.lock();
        // An attempt in flight cannot be stopped, but no other replica need be asked.
        if let Some(want) = fetch.withdraw_if_unwanted() {
            scheduler.cancel(want);
        }
        let is_abandoned = reclaim::abandon_unsent(fetch, known.as_deref_mut(), &mut scheduler);
        if !is_abandoned && let Some(known) = &mut known {
            known.forget(fetch);
        }
    }

    /// Fails all unanswered requests: the volume is stopping.
    pub fn stop(&self) {
        self.adopt_small_reads_where(&|_| true, Overdraw::Now);
        let waiting: Vec<_> = self.requests.lock().drain(..).collect();
        for request in waiting {
            self.fail_request(&request, ReadError::Stopped);
        }
        self.end_traces();
    }
}
