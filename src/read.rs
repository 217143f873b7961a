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
//! not later than [`term`] says.
//!
//! *Invariants:*
//! - No method blocks on a replica; all may be called from a FUSE thread.
//! - A byte is fetched once for all who want it while it is known.
//! - All bytes of one answer belong to one version of the file.
//! - Memory for data is claimed before it is used, all that a request may need
//!   at once, before the request holds on to anything else.
//! - Locks are taken in the order: a file's segments, the scheduler, a fetch's
//!   state; none is held while a sink is called.

mod ahead;
mod attempt;
mod cache;
mod clock;
mod compare;
mod crowd;
mod expired;
mod fetch;
mod file;
mod gather;
mod memory;
mod origin;
mod overdue;
pub mod plan;
mod policy;
pub mod readahead;
mod slot;
mod term;
mod trace;
mod visit;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::param::page_size;
use tokio::sync::Notify;

use crate::backend::{BackendError, Guests, Identity, Replica};
use crate::buffer::{Budget, BufferPool, Pipe, Reservation, size_class};
use crate::placement::Locator;
use crate::scheduler::board::Silence;
use crate::scheduler::health::Heard;
use crate::scheduler::turns::Turns;
use crate::scheduler::{Dispatch, Policy, ReplicaPolicy, Scheduler, Standing};
use crate::telemetry::VolumeCounters;
use crate::telemetry::counters::count;
use crate::volume::{ByteRange, FileVersion, Mode, ReplicaId, ReplicaMap, ReplicaSet};
use cache::Cache;
use compare::Comparer;
use crowd::{Crowd, Seen};
use fetch::{Fetch, Joined};
use file::Place;
use gather::Gather;
use plan::Piece;
use readahead::Readahead;
use trace::Tracer;

pub use file::OpenFile;
pub use gather::{Asked, By, ReadData, Sink};
pub use policy::{ReadError, ReadPolicy, Thread};
pub use term::{Deadlines, Term, Verdict};
pub use trace::Trace;

/// Segments from this size on are not copied where they need not be; below it
/// one copy costs less than the system calls.
const SMALLEST_PIPED: u64 = 64 * 1024;

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
    /// In which order files get memory, where they have to wait for it.
    line: Mutex<Turns>,
    /// Handles that have a readahead window; they share the budget.
    crowd: Crowd,
    counters: Arc<VolumeCounters>,
    locator: Arc<Locator>,
    guests: Guests,
    comparer: Option<Comparer>,
    tracer: Arc<Tracer>,
    wake: Notify,
    /// Whether the clock runs.
    ticking: AtomicBool,
}

type Dispatches = Vec<Dispatch<Arc<Fetch>>>;

/// Who may be asked for metadata.
#[derive(Clone, Copy, Debug)]
pub struct Usable {
    /// All who may be asked at all.
    pub replicas: ReplicaSet,
    /// Those of them who failed or were late lately.
    pub suspect: ReplicaSet,
    /// Those of the suspect that failed by errors, and answer in time.
    pub refusing: ReplicaSet,
}

/// One open handle's place in the read path.
pub struct ReadHandle {
    readahead: Mutex<(Readahead, Seen)>,
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
            proofs: true,
        };
        let tracer = Tracer::new(scheduling.names.clone());
        let now = Instant::now();
        Self {
            buffers: BufferPool::new(Budget::new(policy.budget)),
            scheduler: Mutex::new(Scheduler::new(scheduling, limits, now)),
            cache: Cache::default(),
            requests: Mutex::default(),
            line: Mutex::default(),
            crowd: Crowd::new(now),
            guests: Guests::new(policy.guests),
            comparer: Comparer::new(policy.compare),
            tracer: Arc::new(tracer),
            wake: Notify::new(),
            ticking: AtomicBool::new(false),
            policy,
            replicas,
            counters,
            locator,
        }
    }

    /// A file at `path`, at this version, that no replica has opened yet; they will
    /// do so in the name of `who`.
    pub fn file(&self, path: PathBuf, version: FileVersion, mode: Mode, who: Identity) -> OpenFile {
        let pinned = self.locator.pin(&path).map_or(ReplicaSet::EMPTY, |pin| pin.replicas);
        let at = self.locator.file(&path, version);
        if let Some(at) = &at {
            self.locator.opened(at, Instant::now());
        }
        let place = Place { at, pinned };
        let marks = self.comparer.as_ref().map(|comparer| comparer.marks(&path, version));
        let file = OpenFile::new(path, version, mode, who, self.replicas.len(), place);
        file.marked(marks.unwrap_or_default()).traced(&self.tracer)
    }

    /// Who knows where chunks are.
    pub fn locator(&self) -> &Arc<Locator> {
        &self.locator
    }

    /// Session threads that are inside a replica.
    pub fn guests_inside(&self) -> usize {
        self.guests.inside()
    }

    /// A new handle's state.
    pub fn handle(&self) -> ReadHandle {
        let readahead = Readahead::new(self.policy.segment);
        ReadHandle { readahead: Mutex::new((readahead, Seen::default())) }
    }

    /// Answers `sink` with the bytes of what is asked for that the file has.
    pub fn read(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        handle: &ReadHandle,
        asked: Asked,
        thread: Thread,
        sink: Sink,
    ) {
        let size = file.version().size;
        let range = ByteRange::new(asked.range.start.min(size), asked.range.end.min(size));
        if range.is_empty() {
            return sink(Ok(ReadData::empty()));
        }
        if file.has_just_timed_out(range, Instant::now()) {
            count(&self.counters.read_errors);
            self.counters.read_latency.record(asked.since.elapsed());
            return sink(Err(ReadError::Deadline));
        }
        file.reconsider();
        // Before the answer: the next request comes right after it, perhaps to
        // another thread, and is to be seen after this one.
        let now = Instant::now();
        let advice = self.observe(file, handle, range, now);
        let gather = Gather::new(Asked { range, ..asked }, self.policy.deadlines, sink);
        let gather = Arc::new(gather);
        let served = self.serve(file, &gather, range, None).or_else(|| {
            self.free(self.cost(range));
            self.serve(file, &gather, range, None)
        });
        if let Some(sent) = served {
            // Whoever visits a replica may be away for long.
            let (first, own) = self.divide(sent, thread);
            self.dispatch(first);
            self.read_ahead(file, handle, range, advice);
            return self.visit(own);
        }
        count(&self.counters.budget_waits);
        self.watch(&gather);
        self.stand_in_line(Arc::clone(file), gather, range, self.cost(range));
        self.make_room();
    }

    /// Has a request wait until there are `bytes` of memory for it.
    fn stand_in_line(
        self: &Arc<Self>,
        file: Arc<OpenFile>,
        gather: Arc<Gather>,
        range: ByteRange,
        bytes: u64,
    ) {
        let reader = Arc::clone(self);
        let turn = self.line.lock().take(file.stream(), range.len());
        self.buffers.budget().wait(turn, bytes, move |claim| {
            reader.line.lock().sent(turn);
            if gather.is_over() {
                return;
            }
            gather.moved(Some(Instant::now()));
            let granted = claim.bytes();
            match reader.serve(&file, &gather, range, Some(claim)) {
                Some(sent) => reader.dispatch(sent),
                // What others fetch in the midst of it leaves gaps, and each gap
                // takes a buffer of its own.
                None if granted < reader.buffers.budget().limit() => {
                    reader.stand_in_line(file, gather, range, granted * 2);
                }
                None => reader.fail(&gather, ReadError::Failed(BackendError::Busy)),
            }
        });
    }

    /// Collects and requests the pieces of `range`; returns what is to be sent
    /// now, or `None`, with nothing done, where memory for them is short.
    /// `claim`, if it is enough, pays for all of them.
    fn serve(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        gather: &Arc<Gather>,
        range: ByteRange,
        claim: Option<Reservation>,
    ) -> Option<Dispatches> {
        let mut fresh = Vec::new();
        let mut joined = Vec::new();
        let mut failure = None;
        {
            let mut segments = file.segments.lock();
            OpenFile::drop_gone(&mut segments, range);
            let pieces = plan::cover(range, OpenFile::known(&segments, range), self.policy.segment);
            let needed: u64 = pieces.iter().map(memory::missing_cost).sum();
            let claim = claim.or_else(|| self.buffers.budget().claim(needed));
            let mut claim = claim.filter(|claim| claim.bytes() >= needed)?;
            for piece in pieces {
                let (fetch, part) = match piece {
                    Piece::Known(fetch, part) => (fetch, part),
                    Piece::Missing(part) => {
                        let cost = claim.split(size_class(part.len()));
                        let fetch = Arc::new(Fetch::new(Arc::clone(file), part, cost));
                        segments.insert(part.start, Arc::clone(&fetch));
                        fresh.push(Arc::clone(&fetch));
                        (fetch, part)
                    }
                };
                gather.expect(Arc::clone(&fetch));
                match fetch.join(gather, part) {
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
        Some(self.request(fresh, joined))
    }

    /// Puts fetches into the queue, those in `joined` to its front, and decides
    /// what to send.
    fn request(&self, fresh: Vec<Arc<Fetch>>, joined: Vec<Arc<Fetch>>) -> Dispatches {
        let mut dispatches = Vec::new();
        if fresh.is_empty() && joined.is_empty() {
            return dispatches;
        }
        let now = Instant::now();
        self.locate(&fresh, now);
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
                state.waits(scheduler.want(want));
            }
            scheduler.next(now, &mut dispatches);
        }
        dispatches
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

    /// Hands what was decided to the replicas' own threads.
    fn dispatch(self: &Arc<Self>, dispatches: Dispatches) {
        if !dispatches.is_empty() {
            self.wake_clock();
        }
        for dispatch in dispatches {
            attempt::send(self, dispatch);
        }
    }

    /// A handle is closed.
    pub fn close(&self, handle: &ReadHandle) {
        self.crowd.leaves(handle.readahead.lock().1);
    }

    /// Forgets all segments of a file version that nobody will read again.
    pub fn retire(&self, file: &OpenFile) {
        file.retire();
        self.abandon(file, ByteRange::new(0, u64::MAX));
        let segments = std::mem::take(&mut *file.segments.lock());
        drop(segments);
        self.buffers.budget().settle();
    }

    /// A pipe for the segment's pages, where they may stay pages: where nobody
    /// but one reader wants them, and they are many.
    fn pipe_for(&self, fetch: &Fetch) -> Option<Pipe> {
        let pipes = self.policy.pipes.as_ref()?;
        let range = fetch.range;
        let fits = (SMALLEST_PIPED..=pipes.bytes() as u64).contains(&range.len());
        let is_alone = !fetch.file.keeps() || fetch.file.readers() <= 1;
        // Pages that are filled in part take as much room as full ones.
        let is_even = range.start.is_multiple_of(page_size() as u64);
        if fits && is_even && is_alone { pipes.pipe().ok() } else { None }
    }

    fn watch(&self, gather: &Arc<Gather>) {
        let mut requests = self.requests.lock();
        // One that is done again is older than those that came meanwhile.
        let older = requests.iter().rposition(|other| other.since <= gather.since);
        requests.insert(older.map_or(0, |at| at + 1), Arc::clone(gather));
        drop(requests);
        self.wake_clock();
    }

    fn answer(&self, gather: &Gather) {
        let taken = gather.answer(|bytes| {
            count(&self.counters.reads);
            self.counters.read_latency.record(gather.since.elapsed());
            self.counters.bytes_delivered.fetch_add(bytes, Ordering::Relaxed);
        });
        self.trace_answer(gather, taken.iter().map(|(fetch, _)| fetch), None);
        for (fetch, bytes) in taken {
            let used_up = {
                let mut state = fetch.state.lock();
                state.consumed += bytes;
                state.consumed >= fetch.range.len()
            };
            let keep = fetch.file.keeps() && fetch.file.readers() > 1;
            let kept = keep && fetch.data().is_some_and(|data| data.is_whole());
            if used_up && !kept || fetch.file.is_retired() {
                fetch.file.forget(&fetch);
            } else if used_up {
                self.cache.used(&fetch);
            } else {
                self.cache.arrived(&fetch);
            }
        }
    }

    fn fail(&self, gather: &Gather, error: ReadError) {
        // Before the answer: the kernel's next request may come at once.
        if error == ReadError::Deadline
            && let Some(fetch) = gather.first_part()
        {
            fetch.file.timed_out(gather.missing_parts().into_iter(), Instant::now());
        }
        let Some(parts) = gather.fail(error) else { return };
        count(&self.counters.read_errors);
        self.trace_answer(gather, parts.iter(), Some(error));
        self.counters.read_latency.record(gather.since.elapsed());
        // What hangs is left to itself: the next request begins afresh.
        for fetch in parts {
            if fetch.data().is_none() || fetch.file.is_retired() {
                self.leave(&fetch);
            } else {
                self.cache.arrived(&fetch);
            }
        }
    }

    /// Forgets a segment, and takes it out of the queue if nobody waits for it any
    /// more: there it would keep its memory until its replica can be asked.
    fn leave(&self, fetch: &Arc<Fetch>) {
        let mut segments = fetch.file.segments.lock();
        let mut scheduler = self.scheduler.lock();
        // On its way it cannot be stopped, but nobody else need be asked.
        if let Some(want) = fetch.withdraw() {
            scheduler.cancel(want);
        }
        if !memory::abandon(fetch, &mut segments, &mut scheduler) {
            OpenFile::forget_in(&mut segments, fetch);
        }
    }

    /// Fails whatever still waits: the volume is going away.
    pub fn stop(&self) {
        let waiting: Vec<_> = self.requests.lock().drain(..).collect();
        for gather in waiting {
            self.fail(&gather, ReadError::Stopped);
        }
        self.end_traces();
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

    /// Who may be asked for metadata.
    pub fn usable(&self) -> Usable {
        let mut scheduler = self.scheduler.lock();
        let replicas = scheduler.usable(Instant::now());
        let (suspect, refusing) = (scheduler.suspect(), scheduler.refusing());
        let usable = Usable { replicas, suspect, refusing };
        let all_are_in = scheduler.all_are_in();
        drop(scheduler);
        if !all_are_in {
            self.wake_clock();
        }
        usable
    }

    /// Whether any replica of a set answers; its roots are asked. For what has waited for
    /// long.
    pub fn silence(self: &Arc<Self>, of: ReplicaSet, now: Instant) -> Silence {
        let (silence, to_prove) = {
            let mut scheduler = self.scheduler.lock();
            (scheduler.silence(of, now), scheduler.to_prove(now))
        };
        for replica in to_prove.iter() {
            self.have_prove_itself(replica, |_| {});
            self.wake_clock();
        }
        silence
    }

    /// What a metadata call told of a replica.
    pub fn heard(self: &Arc<Self>, replica: ReplicaId, heard: Heard) {
        let now = Instant::now();
        let to_prove = {
            let mut scheduler = self.scheduler.lock();
            scheduler.heard(replica, heard, now);
            match heard {
                Heard::Doubtful | Heard::Failed => scheduler.to_prove(now),
                Heard::Well | Heard::Late => ReplicaSet::EMPTY,
            }
        };
        for replica in to_prove.iter() {
            self.have_prove_itself(replica, |_| {});
            self.wake_clock();
        }
    }
}
