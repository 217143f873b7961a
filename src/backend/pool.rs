//! One replica's own bounded threads.
//!
//! A thread that calls a dead NFS server sleeps uninterruptibly until the server answers, which may
//! never happen. So each replica has its own pool. A hung replica blocks only that pool, and no
//! thread ever joins a pool's thread.
//!
//! Two lanes share a pool: bulk reads of file data, and metadata calls, for which a user may wait
//! at a shell prompt. Metadata goes first, and reads never take the last two threads. So an `ls`
//! does not queue behind a window of segments.
//!
//! One hung object must not take all threads of its replica. A thread that has been inside one call
//! for [`STUCK_AFTER`] is *stuck*: the pool starts another thread in its place, up to
//! [`max_replacements`] of them. It does not replace a thread that is stuck in a change: at most as
//! many threads as the pool has may be inside changes, besides the session threads that have permits.
//! Once a call is stuck, [`super::bulkhead`] decides which calls about its object and about objects
//! near it may start. The jobs that it refuses wait without a thread until their callers give up.
//!
//! A job's deadline is counted from the last time its turn came nearer ([`super::queue_progress`]).

mod current_call;
mod threadless_call;
mod worker;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::bulkhead::{ActiveCall, Bulkhead, ResponsiveObjects, base_threads, max_replacements};
use super::hung_path::{HungPath, group_by_path};
use super::queue_progress::{QueueProgress, Ticket};
use super::{BackendError, Lane, PathKey, Result};
use current_call::{CURRENT_CALL, CallSlot, CurrentCall, InlineCall, REGISTERED_POOLS};
use threadless_call::ThreadlessState;
use worker::{run_catching_panics, start_thread};

pub use current_call::{enter_call, report_progress};
pub use threadless_call::ThreadlessCall;

/// A thread that has been inside one call for this long is stuck. Calls on a working replica take
/// far less.
pub(super) const STUCK_AFTER: Duration = Duration::from_secs(2);

/// A session thread that has been inside one call for this long gets a name that says so. Few calls
/// on a working replica take longer.
const NAMED_AFTER: Duration = Duration::from_millis(20);

/// Properties of a job that the pool must know before it runs.
#[derive(Default)]
pub struct JobOptions {
    /// The object of its calls.
    pub path_key: PathKey,
    /// Whether it may change something.
    pub is_mutation: bool,
    /// Whether it probes the replica's root. A probe goes first, and gets an extra thread if all
    /// others are busy.
    pub is_probe: bool,
    /// Whether its caller has given up. Such a job must not call the replica any more.
    pub is_abandoned: Option<Box<dyn Fn() -> bool + Send>>,
}

struct Job {
    ticket: Ticket,
    errand: JobOptions,
    run: Box<dyn FnOnce() + Send>,
}

/// Source of pool ids.
static NEXT_POOL_ID: AtomicU64 = AtomicU64::new(0);

/// A call in progress on one of the pool's threads.
struct RunningCall {
    number: u64,
    since: Instant,
    path_key: PathKey,
    lane: Lane,
    is_mutation: bool,
    call_slot: CallSlot,
}

impl RunningCall {
    fn is_stuck(&self, now: Instant) -> bool {
        is_stuck(self.since, now)
    }
}

fn is_stuck(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= STUCK_AFTER
}

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// The most threads; they start when there is work for them. At least 2.
    pub threads: usize,
    /// The most jobs waiting in each lane; further jobs are refused.
    pub queue: usize,
    /// The most inline calls at once.
    pub max_inline_calls: usize,
}

/// The threads of one replica.
pub struct Pool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    name: String,
    /// Whether the thread names mark the write replica's threads.
    is_write_replica: AtomicBool,
    limits: PoolLimits,
    pool_id: u64,
    state: Mutex<PoolState>,
    wake: Condvar,
    /// Whether any call was stuck at the last check ([`Pool::replace_stuck_threads`]). Inline
    /// callers read it without taking the lock.
    is_any_stuck: AtomicBool,
}

#[derive(Default)]
struct PoolState {
    metadata_queue: VecDeque<Job>,
    read_queue: VecDeque<Job>,
    thread_count: usize,
    idle_threads: usize,
    reading_threads: usize,
    running: Vec<RunningCall>,
    threadless_calls: Vec<ThreadlessState>,
    progress: QueueProgress,
    /// Jobs queued so far, and calls without a thread; the last ticket's number.
    jobs_queued: u64,
    /// Probes that are queued or running.
    pending_probes: usize,
    stopped: bool,
    pool_id: u64,
    /// The slots of threads that have made inline calls. An inline call takes no lock but that of
    /// its own slot.
    inline_slots: Vec<Weak<Mutex<CurrentCall>>>,
    /// Whether any inline call was stuck at the last check ([`Pool::replace_stuck_threads`]).
    is_inline_call_stuck: bool,
    /// Whether any call was stuck at that check.
    is_any_stuck: bool,
    responsive: ResponsiveObjects,
}

impl PoolState {
    /// The most threads at present, replacements included.
    fn max_threads(&self, limits: &PoolLimits, now: Instant) -> usize {
        self.max_threads_for(Lane::Metadata, |_| true, limits, now)
    }

    /// The most threads that may be inside a read at present, replacements included.
    fn max_reading_threads(&self, limits: &PoolLimits, now: Instant) -> usize {
        self.max_threads_for(Lane::Read, |call| call.lane == Lane::Read, limits, now)
    }

    fn max_threads_for(
        &self,
        lane: Lane,
        counts: impl Fn(&RunningCall) -> bool,
        limits: &PoolLimits,
        now: Instant,
    ) -> usize {
        let is_replaced =
            |call: &&RunningCall| !call.is_mutation && counts(call) && call.is_stuck(now);
        let replaced = self.running.iter().filter(is_replaced).count();
        base_threads(lane, limits.threads) + replaced.min(max_replacements(lane, limits.threads))
    }

    /// The most threads at present, with one more while probes are pending.
    fn max_threads_with_probes(&self, limits: &PoolLimits, now: Instant) -> usize {
        self.max_threads(limits, now) + usize::from(self.pending_probes > 0)
    }

    /// The rules for calls that may start now.
    fn bulkhead(&self, threads: usize, now: Instant) -> Bulkhead<'_> {
        let call = |about, lane, since| ActiveCall {
            path_key: about,
            lane,
            is_stuck: is_stuck(since, now),
        };
        let own =
            self.running.iter().map(|running| call(running.path_key, running.lane, running.since));
        let inline_calls = self.inline_calls().into_iter();
        let inline = inline_calls
            .map(|(inline_call, _)| call(inline_call.path_key, Lane::Read, inline_call.since));
        Bulkhead { threads, calls: own.chain(inline).collect(), responsive: &self.responsive }
    }

    /// The inline calls in progress, each with its slot.
    fn inline_calls(&self) -> Vec<(InlineCall, CallSlot)> {
        let inline_call = |slot: &Weak<Mutex<CurrentCall>>| {
            let slot = slot.upgrade()?;
            let inline_call = slot
                .lock()
                .inline_call
                .filter(|inline_call| inline_call.pool_id == self.pool_id)?;
            Some((inline_call, slot))
        };
        self.inline_slots.iter().filter_map(inline_call).collect()
    }

    /// Takes the next job of a lane that may start.
    fn next_job(&mut self, lane: Lane, limits: &PoolLimits, now: Instant) -> Option<Job> {
        // This thread is beyond the limit: it runs a probe, or ends.
        if self.running.len() >= self.max_threads(limits, now) {
            let queue =
                if lane == Lane::Read { &mut self.read_queue } else { &mut self.metadata_queue };
            let is_probe = queue.front().is_some_and(|job| job.errand.is_probe);
            return if is_probe { queue.pop_front() } else { None };
        }
        let is_any_stuck =
            self.is_inline_call_stuck || self.running.iter().any(|call| call.is_stuck(now));
        let queue = if lane == Lane::Read { &self.read_queue } else { &self.metadata_queue };
        if !is_any_stuck {
            let queue =
                if lane == Lane::Read { &mut self.read_queue } else { &mut self.metadata_queue };
            return queue.pop_front();
        }
        let bound = self.bulkhead(limits.threads, now);
        let may = |job: &Job| {
            job.errand.is_abandoned.as_ref().is_some_and(|is_over| is_over())
                || bound.allows(&job.errand.path_key, lane)
        };
        let at = queue.iter().position(may)?;
        let queue =
            if lane == Lane::Read { &mut self.read_queue } else { &mut self.metadata_queue };
        queue.remove(at)
    }

    fn enqueue(&mut self, lane: Lane, errand: JobOptions, run: Box<dyn FnOnce() + Send>) -> Ticket {
        let ticket = self.next_ticket();
        let queue =
            if lane == Lane::Read { &mut self.read_queue } else { &mut self.metadata_queue };
        self.pending_probes += usize::from(errand.is_probe);
        match errand.is_probe {
            true => queue.push_front(Job { ticket, errand, run }),
            false => queue.push_back(Job { ticket, errand, run }),
        }
        ticket
    }

    fn next_ticket(&mut self) -> Ticket {
        self.record_current_job_answer();
        self.jobs_queued += 1;
        Ticket { number: self.jobs_queued, queued_at: Instant::now() }
    }

    fn start_job(&mut self, job: &Job, lane: Lane, slot: &CallSlot) {
        slot.lock().reset();
        self.running.push(RunningCall {
            number: job.ticket.number,
            since: Instant::now(),
            path_key: job.errand.path_key,
            lane,
            is_mutation: job.errand.is_mutation,
            call_slot: Arc::clone(slot),
        });
    }

    fn finish_job(&mut self, number: u64, slot: &CallSlot) {
        if let Some(at) = self.running.iter().position(|call| call.number == number) {
            let call = self.running.swap_remove(at);
            if self.is_any_stuck && slot.lock().has_called {
                self.record_responsive(&call.path_key, call.since);
            }
        }
        self.record_answer(number, slot);
    }

    /// Records an object that answered, if its own call was not stuck.
    fn record_responsive(&mut self, about: &PathKey, since: Instant) {
        if !is_stuck(since, Instant::now()) {
            self.responsive.add(about);
        }
    }

    /// A job that queues another one already has its answer, so the new job does not wait for it.
    fn record_current_job_answer(&mut self) {
        CURRENT_CALL.with(|slot| {
            let own = self.running.iter().find(|call| Arc::ptr_eq(&call.call_slot, slot));
            if let Some(number) = own.map(|call| call.number) {
                self.record_answer(number, slot);
            }
        });
    }

    fn record_answer(&mut self, number: u64, slot: &CallSlot) {
        // A job that made no call, because its caller gave up, says nothing about the replica.
        if !std::mem::take(&mut slot.lock().has_called) {
            return;
        }
        self.record_answer_of(number);
    }

    fn record_answer_of(&mut self, number: u64) {
        let waiting =
            self.metadata_queue.iter().chain(&self.read_queue).map(|job| job.ticket.number);
        let running = self.running.iter().map(|call| call.number);
        let running = running.chain(self.threadless_calls.iter().map(|call| call.number));
        self.progress.record_answer(number, Instant::now(), || waiting.chain(running).collect());
    }

    fn last_progress(&self, ticket: Ticket) -> Option<Instant> {
        let call = self.running.iter().find(|call| call.number == ticket.number);
        let own = call.and_then(|call| call.call_slot.lock().last_progress);
        let own = own.or(self.threadless_progress(ticket.number));
        self.progress.last_before(ticket.number).max(own).filter(|moved| *moved > ticket.queued_at)
    }

    /// Takes all waiting jobs. Drop them after unlocking the pool: dropping a job may queue another
    /// one.
    fn drain_queues(&mut self) -> [VecDeque<Job>; 2] {
        [std::mem::take(&mut self.metadata_queue), std::mem::take(&mut self.read_queue)]
    }
}

impl PoolLimits {
    /// The most threads that may be inside a read at once, not counting replacements.
    pub fn max_readers(&self) -> usize {
        base_threads(Lane::Read, self.threads)
    }
}

impl Pool {
    /// A pool that has no thread yet. `name` is a part of its threads' names.
    pub fn new(name: &str, limits: PoolLimits) -> Self {
        let pool = NEXT_POOL_ID.fetch_add(1, Ordering::Relaxed);
        let shared = PoolShared {
            name: name.to_owned(),
            is_write_replica: AtomicBool::new(false),
            limits: PoolLimits { threads: limits.threads.max(2), ..limits },
            state: Mutex::new(PoolState { pool_id: pool, ..PoolState::default() }),
            pool_id: pool,
            wake: Condvar::new(),
            is_any_stuck: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Marks the threads as the write replica's. Call it before the first job.
    pub(super) fn set_write_replica(&self) {
        self.shared.is_write_replica.store(true, Ordering::Relaxed);
    }

    /// Queues a job without an object.
    pub fn submit(&self, lane: Lane, run: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.submit_with(lane, JobOptions::default(), run).map(drop)
    }

    /// Queues a job. Starts a thread if none is idle and the limit allows it.
    pub fn submit_with(
        &self,
        lane: Lane,
        errand: JobOptions,
        run: Box<dyn FnOnce() + Send>,
    ) -> Result<Ticket> {
        let mut state = self.shared.state.lock();
        if state.stopped {
            return Err(BackendError::QueueFull);
        }
        let queue = match lane {
            Lane::Metadata => &state.metadata_queue,
            Lane::Read => &state.read_queue,
        };
        if queue.len() >= self.shared.limits.queue {
            return Err(BackendError::QueueFull);
        }
        let ticket = state.enqueue(lane, errand, run);
        let dropped = self.start_thread_if_needed(state);
        if dropped.is_some() { Err(BackendError::QueueFull) } else { Ok(ticket) }
    }

    /// When a job's turn last came nearer, or when the job last completed a part of its answer.
    /// `None` if neither has happened.
    pub fn last_progress(&self, ticket: Ticket) -> Option<Instant> {
        self.shared.state.lock().last_progress(ticket)
    }

    /// Starts a thread if too few are idle and the limit allows it. If the pool has no thread and
    /// cannot start one, returns all jobs.
    fn start_thread_if_needed(
        &self,
        mut state: MutexGuard<'_, PoolState>,
    ) -> Option<[VecDeque<Job>; 2]> {
        let waiting = state.metadata_queue.len() + state.read_queue.len();
        let most = state.max_threads_with_probes(&self.shared.limits, Instant::now());
        if state.idle_threads < waiting && state.thread_count < most {
            state.thread_count += 1;
            if let Err(error) = start_thread(&self.shared) {
                state.thread_count -= 1;
                // This process cannot start more threads: the existing ones carry on. With none at
                // all the jobs would never run.
                if state.thread_count == 0 {
                    tracing::error!(replica = %self.shared.name, %error, "cannot start a thread");
                    return Some(state.drain_queues());
                }
            }
        }
        self.shared.wake.notify_one();
        None
    }

    /// Queues a job that closes files, even if the queue is full: there are few of them.
    pub(super) fn submit_close(&self, run: Box<dyn FnOnce() + Send>) -> Result<()> {
        let mut state = self.shared.state.lock();
        if state.stopped {
            return Err(BackendError::QueueFull);
        }
        state.enqueue(Lane::Metadata, JobOptions::default(), run);
        let dropped = self.start_thread_if_needed(state);
        if dropped.is_some() { Err(BackendError::QueueFull) } else { Ok(()) }
    }

    /// Threads that are running a job.
    pub fn busy_threads(&self) -> usize {
        let state = self.shared.state.lock();
        state.thread_count - state.idle_threads
    }

    /// Threads that have been inside one call for longer than `time`, session threads included.
    pub fn stuck_threads(&self, time: Duration) -> usize {
        let now = Instant::now();
        let state = self.shared.state.lock();
        let inline = state.inline_calls().into_iter().map(|(call, _)| call.since);
        let all = state.running.iter().map(|call| call.since).chain(inline);
        all.filter(|since| now.saturating_duration_since(*since) > time).count()
    }

    /// Whether any call was stuck at the last check.
    pub fn has_stuck_calls(&self) -> bool {
        self.shared.is_any_stuck.load(Ordering::Relaxed)
    }

    /// Gives the session threads that have been inside the replica for some time names that say so.
    /// Returns whether any is inside and was not for that long. Call it regularly while calls are in
    /// flight.
    pub fn name_inline_callers(&self) -> bool {
        let makes_changes = self.shared.is_write_replica.load(Ordering::Relaxed);
        let inline_calls = self.shared.state.lock().inline_calls();
        let now = Instant::now();
        let is_long = |call: &InlineCall| now.saturating_duration_since(call.since) >= NAMED_AFTER;
        let (long, short): (Vec<_>, Vec<_>) =
            inline_calls.into_iter().partition(|(inline_call, _)| is_long(inline_call));
        for (inline_call, slot) in long {
            slot.lock().name_thread(&inline_call, makes_changes);
        }
        !short.is_empty()
    }

    /// Starts a replacement for a stuck thread if jobs wait. Call it regularly while calls are in
    /// flight.
    pub fn replace_stuck_threads(&self) {
        let mut state = self.shared.state.lock();
        let now = Instant::now();
        state.is_inline_call_stuck =
            state.inline_calls().iter().any(|(inline_call, _)| is_stuck(inline_call.since, now));
        let is_any_stuck =
            state.is_inline_call_stuck || state.running.iter().any(|call| call.is_stuck(now));
        self.shared.is_any_stuck.store(is_any_stuck, Ordering::Relaxed);
        state.is_any_stuck = is_any_stuck;
        if !is_any_stuck {
            state.responsive.clear();
        }
        let waits = !state.metadata_queue.is_empty() || !state.read_queue.is_empty();
        if !waits || state.stopped || state.idle_threads > 0 {
            return;
        }
        if state.thread_count < state.max_threads_with_probes(&self.shared.limits, Instant::now()) {
            state.thread_count += 1;
            if start_thread(&self.shared).is_err() {
                state.thread_count -= 1;
            }
        }
    }

    /// The objects on which calls hang, the longest-hung first.
    pub fn hung_paths(&self) -> Vec<HungPath> {
        let now = Instant::now();
        let calls: Vec<(Instant, CallSlot)> = {
            let state = self.shared.state.lock();
            let inline = state
                .inline_calls()
                .into_iter()
                .map(|(inline_call, slot)| (inline_call.since, slot));
            let own = state.running.iter().map(|call| (call.since, Arc::clone(&call.call_slot)));
            own.chain(inline).collect()
        };
        let stuck = calls.into_iter().filter(|(since, _)| is_stuck(*since, now));
        group_by_path(stuck.map(|(since, slot)| (slot.lock().path.clone(), since)))
    }

    /// Whether a call about the object may start.
    pub fn has_room_for(&self, lane: Lane, about: &PathKey) -> bool {
        if !self.shared.is_any_stuck.load(Ordering::Relaxed) {
            return true;
        }
        let state = self.shared.state.lock();
        state.bulkhead(self.shared.limits.threads, Instant::now()).allows(about, lane)
    }

    /// Runs `job` on the calling thread as an inline call.
    pub fn run_inline(&self, about: PathKey, job: impl FnOnce()) {
        let since = self.run_on_this_thread(about, job);
        if self.shared.is_any_stuck.load(Ordering::Relaxed) {
            self.shared.state.lock().record_responsive(&about, since);
            // A job may have waited for this call.
            self.shared.wake.notify_one();
        }
    }

    /// The same for a close. Most closes ask no server, so they do not show that it responds.
    pub fn close_inline(&self, about: PathKey, close: impl FnOnce()) {
        self.run_on_this_thread(about, close);
        if self.shared.is_any_stuck.load(Ordering::Relaxed) {
            self.shared.wake.notify_one();
        }
    }

    /// Runs `job` as an inline call; returns when that began.
    fn run_on_this_thread(&self, about: PathKey, job: impl FnOnce()) -> Instant {
        self.register_inline_thread();
        let inline_call =
            InlineCall { pool_id: self.shared.pool_id, path_key: about, since: Instant::now() };
        let around = CURRENT_CALL.with(|slot| slot.lock().begin_inline_call(inline_call));
        run_catching_panics(job);
        CURRENT_CALL.with(|slot| slot.lock().end_inline_call(around));
        inline_call.since
    }

    /// Adds the calling thread's slot to those of inline callers.
    fn register_inline_thread(&self) {
        let pool = self.shared.pool_id;
        if REGISTERED_POOLS.with_borrow(|visited| visited.contains(&pool)) {
            return;
        }
        let slot = CURRENT_CALL.with(|slot| {
            slot.lock().identify();
            Arc::downgrade(slot)
        });
        let mut state = self.shared.state.lock();
        state.inline_slots.retain(|slot| slot.strong_count() > 0);
        state.inline_slots.push(slot);
        drop(state);
        REGISTERED_POOLS.with_borrow_mut(|visited| visited.push(pool));
    }

    /// Drops the waiting jobs. Idle threads end; busy ones end after their job.
    pub fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopped = true;
        let jobs = state.drain_queues();
        self.shared.wake.notify_all();
        drop(state);
        drop(jobs);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_secs(60);

    fn pool(threads: usize, queue: usize) -> Pool {
        Pool::new("test", PoolLimits { threads, queue, max_inline_calls: 0 })
    }

    #[test]
    fn metadata_runs_while_reads_hang() {
        let pool = pool(3, 16);
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for _ in 0..5 {
            let hang = Arc::clone(&hang);
            pool.submit(Lane::Read, Box::new(move || hang.lock().recv().unwrap_or(()))).unwrap();
        }
        let (done, answer) = mpsc::channel();
        pool.submit(Lane::Metadata, Box::new(move || done.send(()).unwrap())).unwrap();
        answer.recv_timeout(SOON).expect("metadata waited for hung reads");
        drop(release);
    }

    #[test]
    fn a_full_queue_rejects_jobs() {
        let pool = pool(2, 1);
        let (release, hang) = mpsc::channel::<()>();
        pool.submit(Lane::Read, Box::new(move || hang.recv().unwrap_or(()))).unwrap();
        // One job runs, one waits, and the next is refused. The first may not have started yet, so
        // allow for one more.
        let results: Vec<_> = (0..4).map(|_| pool.submit(Lane::Read, Box::new(|| ()))).collect();
        assert_eq!(results.last(), Some(&Err(BackendError::QueueFull)));
        drop(release);
    }

    #[test]
    fn a_panicking_job_does_not_end_its_thread() {
        let pool = pool(2, 16);
        for _ in 0..8 {
            pool.submit(Lane::Read, Box::new(|| panic!("on purpose"))).unwrap();
        }
        let (done, answer) = mpsc::channel();
        pool.submit(Lane::Read, Box::new(move || done.send(()).unwrap())).unwrap();
        answer.recv_timeout(SOON).expect("the pool is out of threads");
    }

    #[test]
    fn a_thread_in_a_hung_call_is_stuck_until_it_returns() {
        let pool = pool(3, 16);
        let (release, hang) = mpsc::channel::<()>();
        pool.submit(Lane::Read, Box::new(move || hang.recv().unwrap_or(()))).unwrap();
        let wait = |stuck| {
            let until = Instant::now() + SOON;
            while pool.stuck_threads(Duration::from_millis(20)) != stuck {
                assert!(Instant::now() < until, "{stuck} stuck");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait(1);
        drop(release);
        wait(0);
    }

    /// By its name a later daemon sees where it is.
    #[test]
    fn a_session_thread_inside_for_long_has_a_name_that_says_so() {
        let pool = Arc::new(pool(2, 4));
        let (enter, entered) = mpsc::channel();
        let (leave, left) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("fuser-7".to_owned());
        let called = Arc::clone(&pool);
        let name = || rustix::thread::name().unwrap().into_string().unwrap();
        let caller = thread.spawn(move || {
            let mut inside = String::new();
            called.run_inline(PathKey::default(), || {
                enter.send(()).unwrap();
                let _ = left.recv();
                inside = name();
            });
            (inside, name())
        });
        entered.recv().unwrap();
        while pool.name_inline_callers() {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(leave);
        let names = caller.unwrap().join().unwrap();
        assert_eq!(names, ("r:fuser-7".to_owned(), "fuser-7".to_owned()));
    }

    #[test]
    fn progress_is_a_partial_answer_or_an_older_jobs_end() {
        let pool = pool(3, 16);
        let queue = |job: Box<dyn FnOnce() + Send>| {
            pool.submit_with(Lane::Metadata, JobOptions::default(), job).unwrap()
        };
        let eventually_moves = |ticket| {
            let until = Instant::now() + SOON;
            while pool.last_progress(ticket).is_none() {
                assert!(Instant::now() < until, "nothing moves it");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let waits_after = |call: fn()| {
            let (release, hang) = mpsc::channel::<()>();
            let job = move || {
                call();
                hang.recv().unwrap_or(());
            };
            (release, queue(Box::new(job)))
        };
        let (older, _) = waits_after(|| enter_call(Path::new("older")));
        let (release, hangs) = waits_after(|| enter_call(Path::new("hangs")));
        let (_parts, in_parts) = waits_after(|| {
            enter_call(Path::new("parts"));
            report_progress();
        });
        eventually_moves(in_parts);
        assert_eq!(pool.last_progress(hangs), None, "newer jobs move it");
        drop(older);
        eventually_moves(hangs);
        drop(release);
    }

    fn about(path: &str) -> JobOptions {
        JobOptions { path_key: PathKey::from_path(Path::new(path)), ..JobOptions::default() }
    }

    #[test]
    fn threads_stuck_on_one_object_are_few_and_replaced() {
        let pool = pool(4, 64);
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let given_up = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (done, answer) = mpsc::channel();
        for number in 0..12 {
            let (hang, over, done) = (Arc::clone(&hang), Arc::clone(&given_up), done.clone());
            let is_over = {
                let over = Arc::clone(&over);
                move || over.load(std::sync::atomic::Ordering::Relaxed)
            };
            let errand = JobOptions { is_abandoned: Some(Box::new(is_over)), ..about("d/hung") };
            let job = move || {
                if !over.load(std::sync::atomic::Ordering::Relaxed) {
                    enter_call(Path::new("d/hung"));
                    let _ = hang.lock().recv();
                }
                done.send(number).unwrap();
            };
            pool.submit_with(Lane::Metadata, errand, Box::new(job)).unwrap();
        }
        // The first calls take all threads until they count as stuck.
        let (other, others) = mpsc::channel();
        pool.submit_with(Lane::Metadata, about("d/f"), Box::new(move || other.send(()).unwrap()))
            .unwrap();
        let until = Instant::now() + SOON;
        while others.try_recv().is_err() {
            assert!(Instant::now() < until, "another object waits for the hung one");
            pool.replace_stuck_threads();
            std::thread::sleep(Duration::from_millis(20));
        }
        let hung = pool.hung_paths();
        assert_eq!((hung.len(), hung[0].path.as_path()), (1, Path::new("d/hung")));
        assert!(
            hung[0].threads <= 4 && !pool.has_room_for(Lane::Metadata, &about("d/hung").path_key)
        );
        assert!(
            !pool.has_room_for(Lane::Metadata, &about("d/hung/x").path_key),
            "what lies beneath it"
        );
        assert!(
            pool.has_room_for(Lane::Metadata, &about("d").path_key)
                && pool.has_room_for(Lane::Metadata, &about("d/f").path_key)
        );
        // The other callers give up; their jobs end without a call.
        given_up.store(true, std::sync::atomic::Ordering::Relaxed);
        for _ in 0..8 {
            answer.recv_timeout(SOON).expect("one that was given up waits on");
        }
        drop(release);
        for _ in 0..4 {
            answer.recv_timeout(SOON).unwrap();
        }
        let until = Instant::now() + SOON;
        while pool.busy_threads() > 0 || pool.shared.state.lock().thread_count > 4 {
            assert!(Instant::now() < until, "threads are left over");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(
            pool.hung_paths().is_empty()
                && pool.has_room_for(Lane::Metadata, &about("d/hung").path_key)
        );
    }

    /// Waits until calls about `count` objects are stuck.
    fn until_stuck(pool: &Pool, count: usize) {
        let until = Instant::now() + SOON;
        while pool.hung_paths().len() < count {
            assert!(Instant::now() < until, "{} are stuck", pool.hung_paths().len());
            pool.replace_stuck_threads();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn expect_answer(pool: &Pool, lane: Lane, path: &str) {
        let (done, answer) = mpsc::channel();
        pool.submit_with(lane, about(path), Box::new(move || done.send(()).unwrap())).unwrap();
        let until = Instant::now() + SOON;
        while answer.try_recv().is_err() {
            assert!(Instant::now() < until, "{path} waits for what hangs");
            pool.replace_stuck_threads();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes `count` objects in `dir` hang until the returned sender is dropped.
    fn hang_in(pool: &Pool, lane: Lane, dir: &str, count: usize) -> mpsc::Sender<()> {
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for i in 0..count {
            let (hang, path) = (Arc::clone(&hang), format!("{dir}h{i}"));
            let errand = about(&path);
            let job = move || {
                enter_call(Path::new(&path));
                let _ = hang.lock().recv();
            };
            pool.submit_with(lane, errand, Box::new(job)).unwrap();
        }
        release
    }

    /// Both at once and when as many objects hang as are replaced.
    fn others_are_served_while_many_hang_in(dir: &str, lane: Lane) {
        let pool = pool(2, 64);
        let release = hang_in(&pool, lane, dir, 12);
        expect_answer(&pool, lane, "elsewhere/f");
        until_stuck(&pool, max_replacements(lane, 2));
        expect_answer(&pool, lane, "elsewhere/f");
        expect_answer(&pool, lane, "elsewhere/g");
        drop(release);
    }

    #[test]
    fn hung_objects_of_one_directory_leave_threads_to_others() {
        others_are_served_while_many_hang_in("d/", Lane::Metadata);
    }

    #[test]
    fn hung_objects_in_the_root_leave_threads_to_others() {
        others_are_served_while_many_hang_in("", Lane::Metadata);
    }

    #[test]
    fn hung_reads_leave_threads_to_other_reads() {
        others_are_served_while_many_hang_in("d/", Lane::Read);
    }

    #[test]
    fn hung_changes_get_no_replacement_threads() {
        let pool = pool(2, 64);
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        for path in ["d/a", "e/b"] {
            let hang = Arc::clone(&hang);
            let job = move || {
                enter_call(Path::new(path));
                let _ = hang.lock().recv();
            };
            let errand = JobOptions { is_mutation: true, ..about(path) };
            pool.submit_with(Lane::Metadata, errand, Box::new(job)).unwrap();
        }
        until_stuck(&pool, 2);
        assert_eq!(pool.shared.state.lock().max_threads(&pool.shared.limits, Instant::now()), 2);
        drop(release);
    }

    #[test]
    fn a_probe_runs_although_changes_hold_all_threads() {
        let pool = pool(2, 64);
        let (release, hang) = mpsc::channel::<()>();
        let (hang, begun) = (Arc::new(Mutex::new(hang)), Arc::new(AtomicU64::new(0)));
        for i in 0..6 {
            let (hang, begun) = (Arc::clone(&hang), Arc::clone(&begun));
            let path = format!("d/{i}");
            let errand = JobOptions { is_mutation: true, ..about(&path) };
            let job = move || {
                begun.fetch_add(1, Ordering::Relaxed);
                enter_call(Path::new(&path));
                let _ = hang.lock().recv();
            };
            pool.submit_with(Lane::Metadata, errand, Box::new(job)).unwrap();
        }
        until_stuck(&pool, 2);
        for _ in 0..3 {
            let (done, answer) = mpsc::channel();
            let errand = JobOptions { is_probe: true, ..about("") };
            let job = Box::new(move || done.send(()).unwrap());
            pool.submit_with(Lane::Metadata, errand, job).unwrap();
            answer.recv_timeout(SOON).expect("a probe waits for changes");
        }
        assert_eq!(begun.load(Ordering::Relaxed), 2, "its thread takes no changes");
        drop(release);
    }

    #[test]
    fn healthy_objects_among_hung_ones_are_served() {
        let pool = pool(2, 64);
        let hung = hang_in(&pool, Lane::Metadata, "d/", 4);
        until_stuck(&pool, 4);
        for path in ["d/f", "d/g", "d/well/f", "d/f"] {
            expect_answer(&pool, Lane::Metadata, path);
        }
        drop(hung);
    }

    #[test]
    fn a_stopped_pool_accepts_no_jobs() {
        let pool = pool(2, 4);
        pool.stop();
        assert_eq!(pool.submit(Lane::Metadata, Box::new(|| ())), Err(BackendError::QueueFull));
    }
}
