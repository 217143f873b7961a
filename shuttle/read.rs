//! Segments and requests, and in small who brings them together: see `read` and
//! `read::attempt`.

#[allow(dead_code)]
#[path = "../src/read/fetch.rs"]
mod fetch;
#[allow(dead_code)]
#[path = "../src/read/gather.rs"]
mod gather;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fanfs::backend::BackendError;
pub use fanfs::read::ReadError;
use fanfs::scheduler::{Policy, ReplicaPolicy, Scheduler, Want, WantId};
use fanfs::volume::{ByteRange, Holders, ReplicaId, ReplicaMap, ReplicaSet};
use shuttle::rand::Rng;
use shuttle::thread;

use crate::buffer::{Budget, Data};
use crate::sync::{AtomicUsize, Mutex, Ordering};
use fetch::{Fetch, Joined, Next, Stage};
use gather::Gather;

mod term {
    pub use fanfs::read::{Deadlines, Term};
}

mod cache {
    /// Nothing is listed here.
    pub enum Listed {
        Nowhere,
    }
}

mod file {
    use fanfs::volume::ReplicaSet;

    /// A file that two replicas have.
    pub struct OpenFile;

    impl OpenFile {
        pub fn candidates(&self) -> ReplicaSet {
            ReplicaSet::first(2)
        }

        pub(super) fn candidates_after(&self, tried: ReplicaSet) -> ReplicaSet {
            self.candidates().minus(tried)
        }
    }
}

fn brought() -> fetch::Brought {
    fetch::Brought { by: ReplicaId::new(0), at: Instant::now(), took: Duration::ZERO }
}

/// No request waits for so long.
const DEADLINES: term::Deadlines =
    term::Deadlines { some: Duration::from_secs(30), all: Duration::from_secs(300) };

/// Bytes of a segment.
const LEN: u64 = 8;

/// One file of segments, read by requests.
struct World {
    file: Arc<file::OpenFile>,
    segments: Mutex<Vec<Option<Arc<Fetch>>>>,
    budget: Budget,
    /// Whether a second read waits to be sent.
    queue: Mutex<bool>,
    /// Whether the first replica fails.
    fails: bool,
}

/// How a request ended.
#[derive(Default)]
struct Answer {
    calls: AtomicUsize,
    result: Mutex<Option<Result<Vec<u8>, ReadError>>>,
}

impl World {
    fn new(segments: usize, fails: bool) -> Arc<Self> {
        Arc::new(Self {
            file: Arc::new(file::OpenFile),
            segments: Mutex::new(vec![None; segments]),
            budget: Budget::new(1000),
            queue: Mutex::new(false),
            fails,
        })
    }

    fn bytes(range: ByteRange) -> Vec<u8> {
        (range.start..range.end).map(|at| at as u8 + 1).collect()
    }

    /// As `Reader::serve` and what follows from it.
    fn request(self: &Arc<Self>, range: ByteRange, gather: &Arc<Gather>) {
        let mut fresh = Vec::new();
        let mut failure = None;
        {
            let mut segments = self.segments.lock();
            for index in range.start / LEN..range.end.div_ceil(LEN) {
                let whole = ByteRange::at(index * LEN, LEN);
                let part = whole.intersect(range);
                let known = segments[index as usize].clone().filter(|fetch| fetch.has(part));
                let fetch = known.unwrap_or_else(|| {
                    let claim = self.budget.claim(LEN).expect("there is enough");
                    let fetch = Arc::new(Fetch::new(Arc::clone(&self.file), whole, claim));
                    segments[index as usize] = Some(Arc::clone(&fetch));
                    fresh.push(Arc::clone(&fetch));
                    fetch
                });
                gather.expect(Arc::clone(&fetch));
                match fetch.join(gather, part) {
                    Joined::Ready => {
                        gather.arrived();
                    }
                    Joined::Waiting(_) => {}
                    Joined::Over(error) => failure = Some(error),
                }
            }
        }
        if let Some(error) = failure {
            self.fail(gather, ReadError::Failed(error));
        }
        if gather.arrived() {
            gather.answer(|_| {});
        }
        for fetch in fresh {
            let world = Arc::clone(self);
            thread::spawn(move || {
                world.attempt(&fetch, 0);
                // The world last: who waits for it finds everything given back.
                drop(fetch);
                drop(world);
            });
        }
    }

    /// As `read::attempt`: the first replica may fail, the second delivers.
    fn attempt(&self, fetch: &Arc<Fetch>, replica: usize) {
        fetch.begin(ReplicaId::new(replica));
        let claim = fetch.take_claim(ReplicaId::new(replica));
        let (error, claim) = match claim {
            Some(claim) if replica == 1 || !self.fails => {
                let data = Data::paid(Self::bytes(fetch.range), claim);
                if let Ok(completed) = fetch.complete(data, brought()) {
                    self.cancel(completed.want);
                    for waiter in completed.waiters {
                        if waiter.arrived() {
                            waiter.answer(|_| {});
                        }
                    }
                }
                return;
            }
            Some(claim) => (BackendError::Os(rustix::io::Errno::IO), Some(claim)),
            None => (BackendError::Busy, None),
        };
        let next = {
            let mut segments = self.segments.lock();
            let next = fetch.failed(error, claim);
            if matches!(next, Next::GiveUp { .. }) {
                Self::forget(&mut segments, fetch);
            }
            next
        };
        match next {
            Next::Retry(left) => {
                assert_eq!(left, ReplicaSet::EMPTY.with(ReplicaId::new(1)));
                self.attempt(fetch, 1);
            }
            Next::Wait => {}
            Next::GiveUp { error, waiters, want, .. } => {
                self.cancel(want);
                waiters.iter().for_each(|gather| self.fail(gather, ReadError::Failed(error)));
            }
        }
    }

    /// As `read::attempt::hedge`, and as what the scheduler dispatches then, unless it
    /// has been taken out of the queue.
    fn hedge(&self) {
        let Some(fetch) = self.segments.lock()[0].clone() else { return };
        {
            let mut queue = self.queue.lock();
            let mut state = fetch.state.lock();
            let pending = matches!(state.stage, Stage::Pending);
            let left = !state.tried.contains(ReplicaId::new(1));
            // Only what is on its way can be late.
            let is_under_way = state.outstanding > 0;
            if !pending || !left || !is_under_way || state.want.is_some() || state.is_unwanted() {
                return;
            }
            if state.claim.is_none() {
                state.claim = self.budget.claim(LEN);
            }
            state.want = Some(place());
            *queue = true;
        }
        if std::mem::take(&mut *self.queue.lock()) {
            self.attempt(&fetch, 1);
        }
    }

    /// As `Scheduler::cancel`.
    fn cancel(&self, want: Option<WantId>) {
        if want.is_some() {
            *self.queue.lock() = false;
        }
    }

    fn forget(segments: &mut [Option<Arc<Fetch>>], fetch: &Arc<Fetch>) {
        for known in segments {
            if known.as_ref().is_some_and(|known| Arc::ptr_eq(known, fetch)) {
                *known = None;
            }
        }
    }

    /// As `Reader::fail` and `Reader::leave`.
    fn fail(&self, gather: &Gather, error: ReadError) {
        for fetch in gather.fail(error).into_iter().flatten() {
            if fetch.data().is_some() {
                continue;
            }
            let mut segments = self.segments.lock();
            let mut queue = self.queue.lock();
            if fetch.withdraw().is_some() {
                *queue = false;
            }
            fetch.abandon();
            Self::forget(&mut segments, &fetch);
        }
    }
}

/// A place in a scheduler's queue; which one does not matter here.
fn place() -> WantId {
    let now = Instant::now();
    let policy = Policy {
        segment: LEN,
        attempt_deadline: Duration::from_secs(1),
        names: ReplicaMap::from_fn(2, |_| String::new()),
        proofs: false,
    };
    let replica = ReplicaPolicy { weight: 1.0, max_in_flight: LEN, max_reads: 1 };
    let replicas = ReplicaMap::from_fn(2, |_| replica.clone());
    Scheduler::new(policy, replicas, now).want(Want {
        item: (),
        bytes: LEN,
        ahead: false,
        candidates: ReplicaSet::first(2),
        holders: Holders::UNKNOWN,
        pinned: ReplicaSet::EMPTY,
        hedge: true,
        stream: 0,
        start: 0,
        open: ReplicaSet::ALL,
    })
}

fn gather(range: ByteRange) -> (Arc<Gather>, Arc<Answer>) {
    let answer = Arc::new(Answer::default());
    let told = Arc::clone(&answer);
    let sink = Box::new(move |result: Result<gather::ReadData, ReadError>| {
        told.calls.fetch_add(1, Ordering::SeqCst);
        *told.result.lock() = Some(result.map(|data| data.to_vec().expect("it is memory")));
    });
    (
        Arc::new(Gather::new(
            gather::Asked { range, since: Instant::now(), looks: false, by: gather::By::default() },
            DEADLINES,
            sink,
        )),
        answer,
    )
}

/// Every request is answered once; who has no deadline gets his bytes.
fn check(answer: &Answer, range: ByteRange, may_be_late: bool) {
    assert_eq!(answer.calls.load(Ordering::SeqCst), 1, "answers");
    match answer.result.lock().take().expect("it was answered") {
        Ok(bytes) => assert_eq!(bytes, World::bytes(range)),
        Err(error) => assert!(may_be_late && error == ReadError::Deadline, "{error}"),
    }
}

/// Waits until all threads that requests have started are over: nobody but the world
/// knows of a segment then.
fn settle(world: &Arc<World>) {
    while Arc::strong_count(world) > 1 {
        thread::yield_now();
    }
}

/// One segment, wanted by two requests, one of which passes its deadline meanwhile;
/// the first replica is late, and may fail.
pub fn single_flight() {
    let fails = shuttle::rand::thread_rng().gen_bool(0.5);
    let world = World::new(1, fails);
    let ranges = [ByteRange::new(0, 5), ByteRange::new(3, 8)];
    let requests = ranges.map(gather);
    let mut threads = Vec::new();
    for (range, (gather, _)) in ranges.into_iter().zip(&requests) {
        let (world, gather) = (Arc::clone(&world), Arc::clone(gather));
        threads.push(thread::spawn(move || world.request(range, &gather)));
    }
    let (late, hedging) = (Arc::clone(&world), Arc::clone(&world));
    let gather = Arc::clone(&requests[0].0);
    threads.push(thread::spawn(move || late.fail(&gather, ReadError::Deadline)));
    threads.push(thread::spawn(move || hedging.hedge()));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    settle(&world);
    check(&requests[0].1, ranges[0], true);
    check(&requests[1].1, ranges[1], false);
    drop(requests);
    world.segments.lock().clear();
    assert_eq!(world.budget.used(), 0, "memory is kept");
}

/// A request of two segments, of which another one wants the second.
pub fn two_parts() {
    let world = World::new(2, true);
    let ranges = [ByteRange::new(2, 14), ByteRange::new(8, 16)];
    let requests = ranges.map(gather);
    let mut threads = Vec::new();
    for (range, (gather, _)) in ranges.into_iter().zip(&requests) {
        let (world, gather) = (Arc::clone(&world), Arc::clone(gather));
        threads.push(thread::spawn(move || world.request(range, &gather)));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    settle(&world);
    for (range, (_, answer)) in ranges.into_iter().zip(&requests) {
        check(answer, range, false);
    }
    drop(requests);
    world.segments.lock().clear();
    assert_eq!(world.budget.used(), 0, "memory is kept");
}
