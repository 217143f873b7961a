//! Segments and requests, and a small version of the code that connects them: see `read` and
//! `read::attempt`.

#[allow(dead_code)]
#[path = "../src/read/fetch.rs"]
mod fetch;
#[allow(dead_code)]
#[path = "../src/read/request.rs"]
mod request;
#[allow(dead_code)]
#[path = "../src/read/segment_map.rs"]
mod segment_map;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfs::backend::BackendError;
pub use fanfs::read::ReadError;
use fanfs::replicas::request_deadline::Deadlines;
use fanfs::scheduler::{QueueKey, ReplicaPolicy, Scheduler, SchedulerPolicy, SegmentRequest};
use fanfs::volume::{ByteRange, Holders, ReplicaId, ReplicaMap, ReplicaSet};
use shuttle::rand::Rng;
use shuttle::thread;

use crate::buffer::{Budget, SegmentData};
use crate::sync::{AtomicUsize, LockRank, Mutex, Ordering, RankedMutex};
use fetch::{
    AttemptError, DeliveredBy, EvictionQueue, FailureAction, FetchStage, JoinOutcome, ReadRequest,
    SegmentFetch, SharedSegments,
};
use request::{ReadData, ReadParams, RequestOrigin};
use segment_map::SegmentMap;

mod versioned_file {
    use fanfs::volume::{ReplicaId, ReplicaSet};

    /// A file that two replicas have.
    pub struct VersionedFile;

    impl VersionedFile {
        pub fn candidates(&self) -> ReplicaSet {
            ReplicaSet::first(2)
        }

        pub(super) fn is_excluded(&self, _: ReplicaId) -> bool {
            false
        }

        pub(super) fn expire_bans(&self) {}

        pub(super) fn candidates_not_banned(&self) -> ReplicaSet {
            self.candidates()
        }

        pub(super) fn candidates_after(&self, tried: ReplicaSet) -> ReplicaSet {
            self.candidates().minus(tried)
        }
    }
}

fn delivered_by() -> DeliveredBy {
    DeliveredBy { replica: ReplicaId::new(0), at: Instant::now(), took: Duration::ZERO }
}

/// Longer than any request waits.
const DEADLINES: Deadlines = Deadlines {
    while_responsive: Duration::from_secs(30),
    while_unresponsive: Duration::from_secs(300),
};

/// Bytes of a segment.
const LEN: u64 = 8;

/// One file of segments, read by requests.
struct World {
    file: Arc<versioned_file::VersionedFile>,
    segments: Arc<SharedSegments>,
    budget: Budget,
    /// Whether a second read is queued.
    queue: Mutex<bool>,
    /// Whether the first replica fails.
    fails: bool,
}

/// The result of a request.
#[derive(Default)]
struct Outcome {
    reply_count: AtomicUsize,
    result: Mutex<Option<Result<Vec<u8>, ReadError>>>,
}

impl World {
    fn new(fails: bool) -> Arc<Self> {
        Arc::new(Self {
            file: Arc::new(versioned_file::VersionedFile),
            segments: Arc::new(RankedMutex::new(LockRank::Segments, SegmentMap::default())),
            budget: Budget::new(1000),
            queue: Mutex::new(false),
            fails,
        })
    }

    fn bytes(range: ByteRange) -> Vec<u8> {
        (range.start..range.end).map(|at| at as u8 + 1).collect()
    }

    /// As `Reader::try_start_request` and the code after it.
    fn start_request(self: &Arc<Self>, range: ByteRange, request: &Arc<ReadRequest>) {
        let mut fresh = Vec::new();
        let mut failure = None;
        let Some(collection) = request.begin_collection() else { return };
        {
            let mut segments = self.segments.lock();
            for index in range.start / LEN..range.end.div_ceil(LEN) {
                let whole = ByteRange::at(index * LEN, LEN);
                let part = whole.intersect(range);
                let known = segments.known(whole).next().map(|(_, fetch)| fetch);
                let fetch = known.filter(|fetch| fetch.can_serve(part)).unwrap_or_else(|| {
                    let claim = self.budget.claim(LEN).expect("there is enough");
                    let file = Arc::clone(&self.file);
                    let fetch = Arc::new(SegmentFetch::new(file, &self.segments, whole, claim));
                    segments.insert(Arc::clone(&fetch));
                    fresh.push(Arc::clone(&fetch));
                    fetch
                });
                collection.add_part(Arc::clone(&fetch));
                match fetch.join(request, part) {
                    JoinOutcome::Ready => {
                        request.part_arrived();
                    }
                    JoinOutcome::Waiting(_) => {}
                    JoinOutcome::Failed(error) => failure = Some(error),
                }
            }
        }
        let is_complete = collection.finish();
        if let Some(error) = failure {
            self.fail_request(request, ReadError::Failed(error));
        } else if is_complete {
            Self::answer_request(request);
        }
        for fetch in fresh {
            let world = Arc::clone(self);
            thread::spawn(move || {
                world.run_attempt(&fetch, 0);
                // The world is dropped last: the thread that waits for it finds everything
                // released.
                drop(fetch);
                drop(world);
            });
        }
    }

    /// As `read::attempt`: the first replica may fail, the second delivers.
    fn run_attempt(&self, fetch: &Arc<SegmentFetch>, replica: usize) {
        fetch.start_attempt(ReplicaId::new(replica));
        let claim = fetch.take_attempt_claim(ReplicaId::new(replica));
        let (error, claim) = match claim {
            Some(claim) if replica == 1 || !self.fails => {
                let data = SegmentData::with_claim(Self::bytes(fetch.range), claim);
                if let Ok(completed) = fetch.complete(data, delivered_by()) {
                    self.cancel(completed.queue_key);
                    for waiter in completed.waiters {
                        if waiter.part_arrived() {
                            Self::answer_request(&waiter);
                        }
                    }
                }
                return;
            }
            Some(claim) => (BackendError::Os(rustix::io::Errno::IO), Some(claim)),
            None => (BackendError::QueueFull, None),
        };
        let action = {
            let mut segments = self.segments.lock();
            let failure = AttemptError::Failed(error);
            let action = fetch.attempt_failed(ReplicaId::new(replica), failure, claim);
            if matches!(action, FailureAction::GiveUp { .. }) {
                segments.forget(fetch);
            }
            action
        };
        match action {
            FailureAction::Retry(left) => {
                assert_eq!(left, ReplicaSet::EMPTY.with(ReplicaId::new(1)));
                self.run_attempt(fetch, 1);
            }
            FailureAction::Wait => {}
            FailureAction::GiveUp { error, waiters, queue_key, .. } => {
                self.cancel(queue_key);
                waiters
                    .iter()
                    .for_each(|request| self.fail_request(request, ReadError::Failed(error)));
            }
        }
    }

    /// As `read::attempt::enqueue_hedge`, and the scheduler's dispatch after it, unless the hedge
    /// has been taken out of the queue.
    fn hedge(&self) {
        let Some(fetch) = self.segments.lock().iter().next().cloned() else { return };
        {
            let mut queue = self.queue.lock();
            let mut state = fetch.state.lock();
            let pending = matches!(state.stage, FetchStage::Pending);
            let left = !state.tried.contains(ReplicaId::new(1));
            // Only a segment in flight can be late.
            let is_in_flight = state.attempts_in_flight > 0;
            if !pending
                || !left
                || !is_in_flight
                || state.queue_key.is_some()
                || state.is_unwanted()
            {
                return;
            }
            if state.claim.is_none() {
                state.claim = self.budget.claim(LEN);
            }
            state.queue_key = Some(some_queue_key());
            *queue = true;
        }
        if std::mem::take(&mut *self.queue.lock()) {
            self.run_attempt(&fetch, 1);
        }
    }

    /// As `Scheduler::cancel`.
    fn cancel(&self, queue_key: Option<QueueKey>) {
        if queue_key.is_some() {
            *self.queue.lock() = false;
        }
    }

    /// As `Reader::answer_request`, for segments that are kept.
    fn answer_request(request: &ReadRequest) {
        for (fetch, _) in request.reply_data(|_| {}) {
            Self::keep_for_eviction(&fetch);
        }
    }

    /// As `EvictionQueues::add_readahead`.
    fn keep_for_eviction(fetch: &SegmentFetch) {
        fetch.state.lock().eviction_queue = EvictionQueue::Readahead;
    }

    /// Checks that all memory can be reclaimed: what the file still has is in an eviction queue.
    fn check_memory(&self) {
        for fetch in self.segments.lock().take_where(|_| true) {
            let state = fetch.state.lock();
            assert_ne!(state.eviction_queue, EvictionQueue::NotQueued, "memory is never reclaimed");
        }
        assert_eq!(self.budget.used(), 0, "memory is kept");
    }

    /// As `Reader::fail_request` and `Reader::abandon_if_unwanted`.
    fn fail_request(&self, request: &ReadRequest, error: ReadError) {
        let Some(ended) = request.end() else { return };
        for fetch in &ended.parts {
            if fetch.data().is_some() {
                Self::keep_for_eviction(fetch);
                continue;
            }
            let mut segments = self.segments.lock();
            let mut queue = self.queue.lock();
            if fetch.withdraw_if_unwanted().is_some() {
                *queue = false;
            }
            fetch.abandon();
            segments.forget(fetch);
        }
        ended.reply_error(error);
    }
}

/// A place in a scheduler's queue; which one does not matter here.
fn some_queue_key() -> QueueKey {
    let now = Instant::now();
    let policy = SchedulerPolicy { segment: LEN, attempt_deadline: Duration::from_secs(1) };
    let replica = ReplicaPolicy { weight: 1.0, max_in_flight: LEN, max_reads: 1, max_rate: None };
    let replicas = ReplicaMap::from_fn(2, |_| replica.clone());
    Scheduler::new(policy, replicas, now).enqueue(SegmentRequest {
        item: (),
        bytes: LEN,
        is_readahead: false,
        candidates: ReplicaSet::first(2),
        holders: Holders::UNKNOWN,
        pinned: ReplicaSet::EMPTY,
        is_hedge: true,
        file_number: 0,
        start: 0,
        open_on: ReplicaSet::ALL,
    })
}

fn new_request(range: ByteRange) -> (Arc<ReadRequest>, Arc<Outcome>) {
    let outcome = Arc::new(Outcome::default());
    let recorded = Arc::clone(&outcome);
    let sink = Box::new(move |result: Result<ReadData, ReadError>| {
        recorded.reply_count.fetch_add(1, Ordering::SeqCst);
        *recorded.result.lock() = Some(result.map(|data| data.to_vec().expect("it is memory")));
    });
    (
        Arc::new(ReadRequest::new(
            ReadParams {
                range,
                since: Instant::now(),
                fails_fast_on_stale: false,
                origin: RequestOrigin::default(),
            },
            DEADLINES,
            sink,
        )),
        outcome,
    )
}

/// Every request is answered once; a request without a deadline gets its bytes.
fn check_outcome(outcome: &Outcome, range: ByteRange, may_be_late: bool) {
    assert_eq!(outcome.reply_count.load(Ordering::SeqCst), 1, "answers");
    match outcome.result.lock().take().expect("it was answered") {
        Ok(bytes) => assert_eq!(bytes, World::bytes(range)),
        Err(error) => assert!(may_be_late && error == ReadError::Deadline, "{error}"),
    }
}

/// Waits until all threads started by requests have ended: then only the world refers to a segment.
fn wait_for_fetches(world: &Arc<World>) {
    while Arc::strong_count(world) > 1 {
        thread::yield_now();
    }
}

/// One segment, wanted by two requests, one of which passes its deadline meanwhile;
/// the first replica is late, and may fail.
pub fn single_flight() {
    let fails = shuttle::rand::thread_rng().gen_bool(0.5);
    let world = World::new(fails);
    let ranges = [ByteRange::new(0, 5), ByteRange::new(3, 8)];
    let requests = ranges.map(new_request);
    let mut threads = Vec::new();
    for (range, (request, _)) in ranges.into_iter().zip(&requests) {
        let (world, request) = (Arc::clone(&world), Arc::clone(request));
        threads.push(thread::spawn(move || world.start_request(range, &request)));
    }
    let (late, hedging) = (Arc::clone(&world), Arc::clone(&world));
    let request = Arc::clone(&requests[0].0);
    threads.push(thread::spawn(move || late.fail_request(&request, ReadError::Deadline)));
    threads.push(thread::spawn(move || hedging.hedge()));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    wait_for_fetches(&world);
    check_outcome(&requests[0].1, ranges[0], true);
    check_outcome(&requests[1].1, ranges[1], false);
    drop(requests);
    world.check_memory();
}

/// A request of two segments, which may pass its deadline; another request wants the second one.
pub fn two_parts() {
    let world = World::new(true);
    let ranges = [ByteRange::new(2, 14), ByteRange::new(8, 16)];
    let requests = ranges.map(new_request);
    let mut threads = Vec::new();
    let may_be_late = shuttle::rand::thread_rng().gen_bool(0.5);
    if may_be_late {
        let (late, request) = (Arc::clone(&world), Arc::clone(&requests[0].0));
        threads.push(thread::spawn(move || late.fail_request(&request, ReadError::Deadline)));
    }
    for (range, (request, _)) in ranges.into_iter().zip(&requests) {
        let (world, request) = (Arc::clone(&world), Arc::clone(request));
        threads.push(thread::spawn(move || world.start_request(range, &request)));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    wait_for_fetches(&world);
    check_outcome(&requests[0].1, ranges[0], may_be_late);
    check_outcome(&requests[1].1, ranges[1], false);
    drop(requests);
    world.check_memory();
}
