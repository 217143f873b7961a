//! One replica's own bounded threads.
//!
//! A thread that calls into a dead NFS server sleeps uninterruptibly until the
//! server answers, if ever. So each replica has a pool to itself, a hung
//! replica fills that one pool, and nobody ever waits for a thread to finish.
//!
//! Two lanes share a pool: reads of file data, which come in bulk, and
//! metadata, which somebody waits for at a shell prompt. Metadata goes first,
//! and reads never take the last two threads, so an `ls` does not queue behind
//! a window of segments.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{BackendError, Result};
use crate::headroom;

type Job = Box<dyn FnOnce() + Send>;

/// Which kind of work a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Lookups, attributes, listings, opens.
    Metadata,
    /// Positioned reads of file data.
    Read,
}

/// How large a pool may grow.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Most threads; they start when there is work for them. At least 2.
    pub threads: usize,
    /// Most jobs waiting in each lane; the next one is refused.
    pub queue: usize,
    /// Most threads of others that may be inside a call at once.
    pub guests: usize,
}

/// The threads of one replica.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    limits: PoolLimits,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    metadata: VecDeque<Job>,
    reads: VecDeque<Job>,
    threads: usize,
    idle: usize,
    reading: usize,
    /// When each job under way was begun.
    begun: Vec<Instant>,
    stopped: bool,
}

/// Threads that reads leave to metadata, of a pool that can spare them.
const KEPT_FOR_METADATA: usize = 2;

impl State {
    /// All that waits, to be dropped when the pool is not locked any more: what a
    /// job holds may want to put one into the queue when it is dropped.
    fn take_jobs(&mut self) -> [VecDeque<Job>; 2] {
        [std::mem::take(&mut self.metadata), std::mem::take(&mut self.reads)]
    }
}

impl PoolLimits {
    /// Most threads that may be inside a read at once.
    pub fn readers(&self) -> usize {
        self.threads.saturating_sub(KEPT_FOR_METADATA).max(1)
    }
}

impl Pool {
    /// A pool with no thread yet. `name` names its threads.
    pub fn new(name: &str, limits: PoolLimits) -> Self {
        let shared = Shared {
            name: name.to_owned(),
            limits: PoolLimits { threads: limits.threads.max(2), ..limits },
            state: Mutex::default(),
            wake: Condvar::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Queues a job; starts a thread where none is idle and there may be one more.
    pub fn submit(&self, lane: Lane, job: Job) -> Result<()> {
        let mut state = self.shared.state.lock();
        if state.stopped {
            return Err(BackendError::Busy);
        }
        let queue = match lane {
            Lane::Metadata => &mut state.metadata,
            Lane::Read => &mut state.reads,
        };
        if queue.len() >= self.shared.limits.queue {
            return Err(BackendError::Busy);
        }
        queue.push_back(job);
        let waiting = state.metadata.len() + state.reads.len();
        if state.idle < waiting && state.threads < self.shared.limits.threads {
            state.threads += 1;
            if let Err(error) = start_thread(&self.shared) {
                state.threads -= 1;
                // Out of threads in this process: the ones there are carry on.
                // With none at all the job could never run.
                if state.threads == 0 {
                    tracing::error!(replica = %self.shared.name, %error, "cannot start a thread");
                    let jobs = state.take_jobs();
                    drop(state);
                    drop(jobs);
                    return Err(BackendError::Busy);
                }
            }
        }
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Threads that are running a job.
    pub fn busy(&self) -> usize {
        let state = self.shared.state.lock();
        state.threads - state.idle
    }

    /// Threads that have been running one job for longer than `time`.
    pub fn stuck(&self, time: Duration) -> usize {
        let now = Instant::now();
        let state = self.shared.state.lock();
        let is_stuck = |begun: &&Instant| now.saturating_duration_since(**begun) > time;
        state.begun.iter().filter(is_stuck).count()
    }

    /// Drops what waits and ends the threads that are idle, now or later.
    pub fn stop(&self) {
        let mut state = self.shared.state.lock();
        state.stopped = true;
        let jobs = state.take_jobs();
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

/// The stack of a thread, bytes; what is usual.
const STACK: usize = 2 << 20;

fn start_thread(shared: &Arc<Shared>) -> std::io::Result<()> {
    if !headroom::is_there(STACK) {
        return Err(std::io::ErrorKind::OutOfMemory.into());
    }
    let shared = Arc::clone(shared);
    // 15 bytes is all the kernel keeps of a thread's name.
    let name = format!("r:{}", shared.name);
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || run(&shared)).map(drop)
}

fn run(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.metadata.pop_front() {
            run_one(&mut state, job);
        } else if state.reading < shared.limits.readers()
            && let Some(job) = state.reads.pop_front()
        {
            state.reading += 1;
            run_one(&mut state, job);
            state.reading -= 1;
        } else if state.stopped {
            state.threads -= 1;
            return;
        } else {
            state.idle += 1;
            shared.wake.wait(&mut state);
            state.idle -= 1;
        }
    }
}

fn run_one(state: &mut MutexGuard<'_, State>, job: Job) {
    let begun = Instant::now();
    state.begun.push(begun);
    MutexGuard::unlocked(state, || carry_out(job));
    if let Some(at) = state.begun.iter().position(|at| *at == begun) {
        state.begun.swap_remove(at);
    }
}

/// A job that panics has answered nobody, which those who wait notice; the
/// thread and the pool's counts survive it.
pub(super) fn carry_out(job: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        tracing::error!("a job panicked; this is a bug in fanfs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const SOON: Duration = Duration::from_secs(10);

    fn pool(threads: usize, queue: usize) -> Pool {
        Pool::new("test", PoolLimits { threads, queue, guests: 0 })
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
    fn a_full_queue_refuses() {
        let pool = pool(2, 1);
        let (release, hang) = mpsc::channel::<()>();
        pool.submit(Lane::Read, Box::new(move || hang.recv().unwrap_or(()))).unwrap();
        // One runs, one waits, the next has no place. Whether the first has
        // been taken yet is a matter of timing, so allow for one more.
        let results: Vec<_> = (0..4).map(|_| pool.submit(Lane::Read, Box::new(|| ()))).collect();
        assert_eq!(results.last(), Some(&Err(BackendError::Busy)));
        drop(release);
    }

    #[test]
    fn a_job_that_panics_takes_no_thread_with_it() {
        let pool = pool(2, 16);
        for _ in 0..8 {
            pool.submit(Lane::Read, Box::new(|| panic!("on purpose"))).unwrap();
        }
        let (done, answer) = mpsc::channel();
        pool.submit(Lane::Read, Box::new(move || done.send(()).unwrap())).unwrap();
        answer.recv_timeout(SOON).expect("the pool is out of threads");
    }

    #[test]
    fn a_thread_that_does_not_come_back_is_stuck_until_it_does() {
        let pool = pool(3, 16);
        let (release, hang) = mpsc::channel::<()>();
        pool.submit(Lane::Read, Box::new(move || hang.recv().unwrap_or(()))).unwrap();
        let wait = |stuck| {
            let until = Instant::now() + SOON;
            while pool.stuck(Duration::from_millis(20)) != stuck {
                assert!(Instant::now() < until, "{stuck} stuck");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        wait(1);
        drop(release);
        wait(0);
    }

    #[test]
    fn after_stop_nothing_is_taken() {
        let pool = pool(2, 4);
        pool.stop();
        assert_eq!(pool.submit(Lane::Metadata, Box::new(|| ())), Err(BackendError::Busy));
    }
}
