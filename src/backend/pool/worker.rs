//! A pool's worker threads. Each one takes the next job that may start and runs it, and waits while
//! there is none. A thread beyond the pool's limit ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use super::current_call::{CURRENT_CALL, CallSlot};
use super::{Job, Lane, PoolShared, PoolState};
use crate::backend::thread_name;
use crate::memory_headroom;

/// How often an idle thread checks jobs that must not start yet.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The stack size of a thread in bytes; the usual default.
const STACK_SIZE: usize = 2 << 20;

pub(super) fn start_thread(shared: &Arc<PoolShared>) -> std::io::Result<()> {
    if !memory_headroom::is_available(STACK_SIZE) {
        return Err(std::io::ErrorKind::OutOfMemory.into());
    }
    let shared = Arc::clone(shared);
    let name = thread_name::prefixed(&shared.name, shared.is_write_replica.load(Ordering::Relaxed));
    std::thread::Builder::new()
        .name(name)
        .stack_size(STACK_SIZE)
        .spawn(move || thread_loop(&shared))
        .map(drop)
}

fn thread_loop(shared: &PoolShared) {
    let slot = CURRENT_CALL.with(Arc::clone);
    let limits = &shared.limits;
    let mut state = shared.state.lock();
    loop {
        let now = Instant::now();
        if let Some(job) = state.next_job(Lane::Metadata, limits, now) {
            run_job(&mut state, Lane::Metadata, job, &slot);
        } else if state.reading_threads < state.max_reading_threads(limits, now)
            && let Some(job) = state.next_job(Lane::Read, limits, now)
        {
            state.reading_threads += 1;
            run_job(&mut state, Lane::Read, job, &slot);
            state.reading_threads -= 1;
        } else if state.stopped || state.thread_count > state.max_threads_with_probes(limits, now) {
            state.thread_count -= 1;
            return;
        } else {
            state.idle_threads += 1;
            if state.metadata_queue.is_empty() && state.read_queue.is_empty() {
                shared.wake.wait(&mut state);
            } else {
                // They wait for hung calls to end, or for their callers to give up.
                shared.wake.wait_for(&mut state, RECHECK_INTERVAL);
            }
            state.idle_threads -= 1;
        }
    }
}

fn run_job(state: &mut MutexGuard<'_, PoolState>, lane: Lane, job: Job, slot: &CallSlot) {
    state.start_job(&job, lane, slot);
    let Job { ticket, errand, run } = job;
    let is_probe = errand.is_probe;
    MutexGuard::unlocked(state, || {
        drop(errand);
        run_catching_panics(run);
    });
    state.pending_probes -= usize::from(is_probe);
    state.finish_job(ticket.number, slot);
}

/// Runs a job. A panic ends only the job: its waiters notice that no answer came, and the thread
/// and the pool's counts stay intact.
pub(super) fn run_catching_panics(job: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        tracing::error!("a call on a replica panicked; this is a bug in fanfs");
    }
}
