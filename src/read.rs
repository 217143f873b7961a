//! One read's life.
//!
//! A read of some bytes of an [`OpenFile`] is cut into pieces ([`plan`]): those
//! that are in memory, those that somebody is fetching already, and those that
//! are missing. The missing ones become fetches, at most a segment long, and go
//! into the scheduler's queue together with what [`readahead`] advises. What the
//! scheduler decides is carried out on the replicas' pools; the thread that
//! brings the last byte of a request answers it.
//!
//! In goes a range and a [`Sink`]; out comes one call of that sink, with exactly
//! the bytes asked for (fewer only at the end of the file) or with an error,
//! not later than the deadline.
//!
//! *Invariants:*
//! - No method blocks on a replica; all may be called from a FUSE thread.
//! - A byte is fetched once for all who want it while it is known.
//! - All bytes of one answer belong to one version of the file.
//! - Memory for data is claimed before it is used, all that a request may need
//!   at once, before the request holds on to anything else.
//! - Locks are taken in the order: a file's segments, the scheduler, a fetch's
//!   state; none is held while a sink is called.

mod attempt;
mod cache;
mod fetch;
mod file;
mod gather;
pub mod plan;
mod policy;
pub mod readahead;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::Replica;
use crate::buffer::{Budget, BufferPool, Reservation, size_class};
use crate::placement::Locator;
use crate::scheduler::{Dispatch, Policy, ReplicaPolicy, Scheduler, Standing};
use crate::telemetry::VolumeCounters;
use crate::telemetry::counters::count;
use crate::volume::{ByteRange, FileVersion, Mode, ReplicaId, ReplicaMap, ReplicaSet};
use cache::Cache;
use fetch::{Fetch, Joined};
use file::Place;
use gather::Gather;
use plan::Piece;
use readahead::Readahead;

pub use file::OpenFile;
pub use gather::{ReadData, Sink};
pub use policy::{ReadError, ReadPolicy};

/// How often late segments and passed deadlines are looked for while anything
/// is under way. A tenth of the earliest hedge is close enough.
const TICK: Duration = Duration::from_millis(25);

/// Answered requests behind one that is not are swept out past this number.
const ANSWERED_KEPT: usize = 1024;

/// The read path of one volume.
pub struct Reader {
    policy: ReadPolicy,
    replicas: ReplicaMap<Arc<Replica>>,
    buffers: BufferPool,
    scheduler: Mutex<Scheduler<Arc<Fetch>>>,
    cache: Cache,
    /// Unanswered requests, the oldest first; answered ones stay until they
    /// get to the front.
    requests: Mutex<std::collections::VecDeque<Arc<Gather>>>,
    /// Handles that have a readahead window; they share the budget.
    windows: AtomicUsize,
    counters: Arc<VolumeCounters>,
    locator: Arc<Locator>,
    wake: Notify,
}

/// One open handle's place in the read path.
pub struct ReadHandle {
    readahead: Mutex<(Readahead, bool)>,
}

/// Memory and queues as they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// Bytes of the budget in use.
    pub buffer_used: u64,
    /// Bytes kept for reuse.
    pub buffer_idle: u64,
    /// Bytes of memory that buffers take, in use or kept.
    pub buffer_memory: u64,
    /// The budget.
    pub buffer_budget: u64,
    /// Segments that wait for a replica.
    pub waiting: usize,
    /// Attempts that have not ended.
    pub in_flight: usize,
    /// Requests not answered yet.
    pub requests: usize,
}

impl Reader {
    /// A read path over `replicas`, each with its policy.
    pub fn new(
        policy: ReadPolicy,
        replicas: ReplicaMap<Arc<Replica>>,
        limits: ReplicaMap<ReplicaPolicy>,
        counters: Arc<VolumeCounters>,
        locator: Arc<Locator>,
    ) -> Self {
        let scheduling = Policy {
            segment: policy.segment,
            attempt_deadline: policy.attempt_deadline,
            names: replicas.map(|_, replica| replica.name.clone()),
        };
        Self {
            buffers: BufferPool::new(Budget::new(policy.budget)),
            scheduler: Mutex::new(Scheduler::new(scheduling, limits, Instant::now())),
            cache: Cache::default(),
            requests: Mutex::default(),
            windows: AtomicUsize::new(0),
            wake: Notify::new(),
            policy,
            replicas,
            counters,
            locator,
        }
    }

    /// A file at `path`, at this version, that no replica has opened yet.
    pub fn file(&self, path: PathBuf, version: FileVersion, mode: Mode) -> OpenFile {
        let pinned = self.locator.pin(&path).map_or(ReplicaSet::EMPTY, |pin| pin.replicas);
        let at = self.locator.file(&path, version);
        if let Some(at) = &at {
            self.locator.opened(at, Instant::now());
        }
        let place = Place { at, pinned };
        OpenFile::new(path, version, mode, self.replicas.len(), place)
    }

    /// Who knows where chunks are.
    pub fn locator(&self) -> &Arc<Locator> {
        &self.locator
    }

    /// A new handle's state.
    pub fn handle(&self) -> ReadHandle {
        ReadHandle { readahead: Mutex::new((Readahead::new(self.policy.segment), false)) }
    }

    /// Answers `sink` with the bytes of `range` that the file has.
    pub fn read(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        handle: &ReadHandle,
        range: ByteRange,
        sink: Sink,
    ) {
        let size = file.version().size;
        let range = ByteRange::new(range.start.min(size), range.end.min(size));
        if range.is_empty() {
            return sink(Ok(ReadData::empty()));
        }
        if file.has_just_timed_out(Instant::now()) {
            count(&self.counters.read_errors);
            return sink(Err(ReadError::Deadline));
        }
        file.reconsider();
        let gather = Arc::new(Gather::new(range, Instant::now(), sink));
        let served = self.serve(file, &gather, range, None) || {
            self.cache.evict(self.cost(range));
            self.serve(file, &gather, range, None)
        };
        if served {
            return self.read_ahead(file, handle, range);
        }
        count(&self.counters.budget_waits);
        self.watch(&gather);
        let (reader, file) = (Arc::clone(self), Arc::clone(file));
        self.buffers.budget().wait(self.cost(range), move |claim| {
            if !gather.is_over() {
                reader.serve(&file, &gather, range, Some(claim));
            }
        });
        self.make_room();
    }

    /// Collects and requests the pieces of `range`; false, with nothing done,
    /// where memory for them is short. `claim` pays for all of them.
    fn serve(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        gather: &Arc<Gather>,
        range: ByteRange,
        claim: Option<Reservation>,
    ) -> bool {
        let mut fresh = Vec::new();
        let mut joined = Vec::new();
        let mut failure = None;
        {
            let mut segments = file.segments.lock();
            let pieces = plan::cover(range, OpenFile::known(&segments, range), self.policy.segment);
            let needed = pieces.iter().map(missing_cost).sum();
            let Some(mut claim) = claim.or_else(|| self.buffers.budget().claim(needed)) else {
                return false;
            };
            for piece in pieces {
                let fetch = match piece {
                    Piece::Known(fetch, _) => fetch,
                    Piece::Missing(part) => {
                        let cost = claim.split(size_class(part.len()));
                        let fetch = Arc::new(Fetch::new(Arc::clone(file), part, cost));
                        segments.insert(part.start, Arc::clone(&fetch));
                        fresh.push(Arc::clone(&fetch));
                        fetch
                    }
                };
                gather.expect(Arc::clone(&fetch));
                match fetch.join(gather) {
                    Joined::Ready => {
                        gather.arrived();
                    }
                    Joined::Waiting(Some(_)) => joined.push(fetch),
                    Joined::Waiting(None) => {}
                    Joined::Over(error) => failure = Some(error),
                }
            }
        }
        if let Some(error) = failure {
            self.fail(gather, ReadError::Failed(error));
        }
        let all_here = gather.arrived();
        if all_here {
            count(&self.counters.buffer_hits);
            self.answer(gather);
        } else {
            self.watch(gather);
        }
        self.request(fresh, joined);
        true
    }

    /// The most that a request for `range` can need.
    fn cost(&self, range: ByteRange) -> u64 {
        plan::cover(range, std::iter::empty::<(ByteRange, ())>(), self.policy.segment)
            .iter()
            .map(missing_cost)
            .sum()
    }

    /// Puts fetches into the queue, those in `joined` to its front, and sends
    /// what can be sent.
    fn request(self: &Arc<Self>, fresh: Vec<Arc<Fetch>>, joined: Vec<Arc<Fetch>>) {
        if fresh.is_empty() && joined.is_empty() {
            return;
        }
        let now = Instant::now();
        self.locate(&fresh, now);
        let mut dispatches = Vec::new();
        {
            let mut scheduler = self.scheduler.lock();
            for fetch in joined {
                let mut state = fetch.state.lock();
                if let Some(moved) = state.want.and_then(|want| scheduler.hurry(want)) {
                    state.want = Some(moved);
                }
            }
            for fetch in fresh {
                let mut state = fetch.state.lock();
                let ahead = state.waiters.is_empty();
                let candidates = fetch.file.candidates();
                let want = attempt::want(&fetch, candidates, ahead, state.holders);
                state.want = Some(scheduler.want(want));
            }
            scheduler.next(now, &mut dispatches);
        }
        self.dispatch(dispatches);
    }

    /// Notes whose nodes hold the segments, as far as that is known, and sees to
    /// it that it becomes known.
    fn locate(&self, fresh: &[Arc<Fetch>], now: Instant) {
        let Some(first) = fresh.first() else { return };
        let Some(at) = &first.file.place().at else { return };
        for fetch in fresh {
            fetch.state.lock().holders = at.placement.holders(fetch.range.start, now);
        }
        self.locator.prompt(at, first.range.start, now);
        if let Some(last) = fresh.last() {
            self.locator.prompt(at, last.range.end - 1, now);
        }
    }

    fn dispatch(self: &Arc<Self>, dispatches: Vec<Dispatch<Arc<Fetch>>>) {
        if !dispatches.is_empty() {
            self.wake.notify_one();
        }
        for dispatch in dispatches {
            attempt::send(self, dispatch);
        }
    }

    /// Fetches ahead what the handle's reading so far suggests.
    fn read_ahead(self: &Arc<Self>, file: &Arc<OpenFile>, handle: &ReadHandle, range: ByteRange) {
        let max = self.window();
        if max == 0 {
            return;
        }
        let advice = {
            let mut readahead = handle.readahead.lock();
            let advice = readahead.0.observe(range, file.version().size, max);
            let sequential = readahead.0.is_sequential();
            if sequential && !readahead.1 {
                readahead.1 = true;
                self.windows.fetch_add(1, Ordering::Relaxed);
            }
            advice
        };
        if !advice.abandon.is_empty() {
            self.abandon(file, advice.abandon);
        }
        if advice.fetch.is_empty() {
            return;
        }
        let mut fresh = Vec::new();
        let mut reached = advice.fetch.start;
        {
            let mut segments = file.segments.lock();
            let known = OpenFile::known(&segments, advice.fetch);
            for piece in plan::cover(advice.fetch, known, self.policy.segment) {
                match piece {
                    Piece::Known(_, part) => reached = part.end,
                    Piece::Missing(part) => {
                        let Some(claim) = self.buffers.budget().claim_spare(size_class(part.len()))
                        else {
                            break;
                        };
                        let fetch = Arc::new(Fetch::new(Arc::clone(file), part, claim));
                        segments.insert(part.start, Arc::clone(&fetch));
                        fresh.push(fetch);
                        reached = part.end;
                    }
                }
            }
        }
        if reached < advice.fetch.end {
            self.cache.evict(advice.fetch.end - reached);
        }
        handle.readahead.lock().0.fetched(range, reached);
        self.request(fresh, Vec::new());
    }

    /// How long a window may be now: the readers share what the budget has for
    /// readahead.
    fn window(&self) -> u64 {
        let readers = self.windows.load(Ordering::Relaxed).max(1) as u64;
        self.policy.readahead_max.min(self.policy.budget / 2 / readers)
    }

    /// Drops what was to be fetched ahead in `range` and has not been sent.
    fn abandon(&self, file: &OpenFile, range: ByteRange) {
        let mut segments = file.segments.lock();
        let known: Vec<_> = OpenFile::known(&segments, range).map(|(_, fetch)| fetch).collect();
        let mut scheduler = self.scheduler.lock();
        for fetch in known {
            if fetch.abandon() {
                if let Some(want) = fetch.state.lock().want.take() {
                    scheduler.cancel(want);
                }
                segments.remove(&fetch.range.start);
            }
        }
    }

    /// A handle is closed.
    pub fn close(&self, handle: &ReadHandle) {
        if handle.readahead.lock().1 {
            self.windows.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets all segments of a file version that nobody will read again.
    pub fn retire(&self, file: &OpenFile) {
        self.abandon(file, ByteRange::new(0, u64::MAX));
        let segments = std::mem::take(&mut *file.segments.lock());
        drop(segments);
        self.buffers.budget().settle();
    }

    fn watch(&self, gather: &Arc<Gather>) {
        self.requests.lock().push_back(Arc::clone(gather));
        self.wake.notify_one();
    }

    fn answer(&self, gather: &Gather) {
        let taken = gather.answer(|bytes| {
            count(&self.counters.reads);
            self.counters.bytes_delivered.fetch_add(bytes, Ordering::Relaxed);
        });
        for (fetch, bytes) in taken {
            let used_up = {
                let mut state = fetch.state.lock();
                state.consumed += bytes;
                state.consumed >= fetch.range.len()
            };
            if used_up && !(fetch.file.keeps() && fetch.file.readers() > 1) {
                fetch.file.forget(&fetch);
            } else if used_up {
                self.cache.used(&fetch);
            }
        }
    }

    fn fail(&self, gather: &Gather, error: ReadError) {
        // Before the answer: the kernel's next request may come at once.
        if error == ReadError::Deadline
            && let Some(fetch) = gather.first_part()
        {
            fetch.file.timed_out(Instant::now());
        }
        let Some(parts) = gather.fail(error) else { return };
        count(&self.counters.read_errors);
        // What hangs is left to itself: the next request begins afresh.
        for fetch in parts {
            if fetch.buffer().is_none() {
                fetch.file.forget(&fetch);
            }
        }
    }

    /// Gives memory to those who wait in line for it, evicting as needed.
    fn make_room(&self) {
        let budget = self.buffers.budget();
        budget.settle();
        let shortage = budget.shortage();
        if shortage > 0 {
            self.cache.evict(shortage);
            budget.settle();
        }
    }

    /// Looks after what takes too long; true while there is anything to look
    /// after.
    fn tick(self: &Arc<Self>, now: Instant) -> bool {
        let mut late = Vec::new();
        let mut dispatches = Vec::new();
        {
            let mut scheduler = self.scheduler.lock();
            scheduler.late(now, &mut late);
            for late in late {
                attempt::hedge(self, &mut scheduler, late);
            }
            scheduler.next(now, &mut dispatches);
        }
        self.dispatch(dispatches);
        let overdue: Vec<_> = {
            let mut requests = self.requests.lock();
            let mut overdue = Vec::new();
            while let Some(first) = requests.front() {
                let late = now.saturating_duration_since(first.since) >= self.policy.deadline;
                if !late && !first.is_over() {
                    break;
                }
                overdue.extend(requests.pop_front());
            }
            if requests.len() > ANSWERED_KEPT {
                requests.retain(|gather| !gather.is_over());
            }
            overdue
        };
        for gather in overdue {
            self.fail(&gather, ReadError::Deadline);
        }
        self.make_room();
        !self.requests.lock().is_empty() || !self.scheduler.lock().is_idle()
    }

    /// Runs the read path's clock; never returns. Spawn it once.
    pub async fn run_clock(self: Arc<Self>) {
        loop {
            self.wake.notified().await;
            while self.tick(Instant::now()) {
                tokio::time::sleep(TICK).await;
            }
        }
    }

    /// Fails whatever still waits: the volume is going away.
    pub fn stop(&self) {
        let waiting: Vec<_> = self.requests.lock().drain(..).collect();
        for gather in waiting {
            self.fail(&gather, ReadError::Stopped);
        }
    }

    /// Memory and queues as they stand.
    pub fn gauges(&self) -> Gauges {
        let (waiting, in_flight) = self.scheduler.lock().depth();
        let requests = self.requests.lock().iter().filter(|gather| !gather.is_over()).count();
        Gauges {
            buffer_used: self.buffers.budget().used(),
            buffer_idle: self.buffers.idle_bytes(),
            buffer_memory: self.buffers.allocated_bytes(),
            buffer_budget: self.buffers.budget().limit(),
            waiting,
            in_flight,
            requests,
        }
    }

    /// What the scheduler knows of each replica.
    pub fn standings(&self) -> ReplicaMap<Standing> {
        self.scheduler.lock().standings(Instant::now())
    }

    /// Replicas that may be asked for metadata.
    pub fn usable(&self) -> ReplicaSet {
        self.scheduler.lock().usable(Instant::now())
    }

    /// A metadata call went well or failed by the replica's fault.
    pub fn heard(&self, replica: ReplicaId, well: bool) {
        self.scheduler.lock().heard(replica, well, Instant::now());
    }
}

fn missing_cost<K>(piece: &Piece<K>) -> u64 {
    match piece {
        Piece::Missing(part) => size_class(part.len()),
        Piece::Known(..) => 0,
    }
}
