//! Closes dropped files on their replica's own threads.
//!
//! Closing is a call on the replica too: Linux's NFSv4 client sends a CLOSE and waits for the
//! answer. The last holder of a file may be a FUSE thread, or another replica's thread that
//! delivers the last segment. Neither may wait for this replica. So a dropped file goes into a
//! list, and a job on the replica's pool closes all files in the list. If that job hangs in a
//! close, another job continues.
//!
//! Handing a close over costs more than most closes. So a thread that may make calls on the replica
//! itself ([`super::inline_permit`]) may also close its files: [`collect_closes`] gives it the files
//! that it drops.
//!
//! Three kinds of descriptors have no such pool and go to dedicated threads
//! ([`drop_on_dedicated_thread`]):
//! - roots that leave service, which a probe, an inline caller or the watcher of the mount table
//!   may drop last;
//! - descriptors that the previous daemon sent and no file takes;
//! - files of a pool that has stopped.
//!
//! *Invariant:* no thread closes a replica's descriptor where it drops it, except as an inline call
//! with a permit. If no thread can be
//! started, the descriptor stays open until a later [`FileCloser::start_job_if_needed`] starts one.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use super::pool::{Pool, STUCK_AFTER, enter_call};

/// Closes dropped files on other threads.
pub(super) struct FileCloser {
    threads: CloserThreads,
    state: Mutex<CloserState>,
    /// Signaled after each close.
    closed: Condvar,
}

/// The threads that close files.
enum CloserThreads {
    Pool(Arc<Pool>),
    /// One new thread for each job.
    Dedicated,
}

/// Closes descriptors that have no pool.
static DEDICATED_CLOSER: LazyLock<Arc<FileCloser>> =
    LazyLock::new(|| Arc::new(FileCloser::new(CloserThreads::Dedicated)));

/// A value whose drop may block.
pub(super) type PendingDrop = Box<dyn Send>;

thread_local! {
    /// The files that this thread drops in [`collect_closes`].
    static COLLECTED: RefCell<Option<DroppedFiles>> = const { RefCell::new(None) };
}

/// Files that a thread has dropped, usually one.
pub type DroppedFiles = SmallVec<[DroppedFile; 1]>;

/// A file of a replica that was dropped and is not closed yet. It counts as being closed. Dropping
/// this queues the file.
pub struct DroppedFile {
    closer: Arc<FileCloser>,
    path: PathBuf,
    /// `None` once it is closed.
    file: Option<PendingDrop>,
}

impl DroppedFile {
    fn new(closer: &Arc<FileCloser>, path: PathBuf, file: PendingDrop) -> Self {
        closer.state.lock().closing += 1;
        Self { closer: Arc::clone(closer), path, file: Some(file) }
    }

    /// Its path when it was opened; empty if another process opened it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `closer` closes it.
    pub(super) fn is_of(&self, closer: &Arc<FileCloser>) -> bool {
        Arc::ptr_eq(&self.closer, closer)
    }

    /// Closes it on the calling thread, which may make calls on the replica.
    pub(super) fn close(mut self) {
        if let Some(file) = self.file.take() {
            self.closer.close_one(&self.path, file);
        }
    }
}

impl Drop for DroppedFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.closer.enqueue(std::mem::take(&mut self.path), file);
            self.closer.count_closed();
        }
    }
}

/// Runs `work` and returns the replicas' files that it dropped on this thread.
pub fn collect_closes(work: impl FnOnce()) -> DroppedFiles {
    /// Restores the list of an outer scope. After a panic, the collected files are queued.
    struct Scope(Option<DroppedFiles>);
    impl Drop for Scope {
        fn drop(&mut self) {
            let collected = COLLECTED.replace(self.0.take());
            drop(collected);
        }
    }
    let _outer = Scope(COLLECTED.replace(Some(DroppedFiles::new())));
    work();
    COLLECTED.take().unwrap_or_default()
}

/// Drops `left` on a dedicated thread. Never blocks.
pub(super) fn drop_on_dedicated_thread(left: impl Send + 'static) {
    DEDICATED_CLOSER.enqueue(PathBuf::new(), Box::new(left));
}

/// A descriptor that a dedicated thread closes.
pub(super) struct DeferredCloseFd(Option<OwnedFd>);

impl From<OwnedFd> for DeferredCloseFd {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for DeferredCloseFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("taken only when it is dropped").as_fd()
    }
}

impl Drop for DeferredCloseFd {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(drop_on_dedicated_thread);
    }
}

/// Retries closes for which no thread could be started. Call it regularly.
pub(super) fn retry_dedicated_closes() {
    DEDICATED_CLOSER.start_job_if_needed();
}

#[derive(Default)]
struct CloserState {
    /// Dropped, and not closed yet.
    dropped: Vec<(PathBuf, PendingDrop)>,
    /// Jobs that are queued or running: each with its number and the start of its present close.
    jobs: Vec<(u64, Instant)>,
    last_job: u64,
    /// The number of files that are being closed.
    closing: usize,
}

/// The most jobs at once. A further job starts only if all others are stuck.
const MAX_JOBS: usize = 4;

/// How long a flush waits for closes that are already in progress.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

impl FileCloser {
    /// A closer that uses the threads of `pool`.
    pub(super) fn on_pool(pool: Arc<Pool>) -> Self {
        Self::new(CloserThreads::Pool(pool))
    }

    fn new(threads: CloserThreads) -> Self {
        Self { threads, state: Mutex::default(), closed: Condvar::new() }
    }

    /// `file`, which was opened at `path`, was dropped: gives it to the [`collect_closes`] of this
    /// thread, or queues it for closing. Never blocks.
    pub(super) fn handle_drop(self: &Arc<Self>, path: PathBuf, file: PendingDrop) {
        let mut dropped = Some((path, file));
        // A thread that ends collects none.
        let _ = COLLECTED.try_with(|list| {
            if let Some(list) = &mut *list.borrow_mut() {
                list.extend(dropped.take().map(|(path, file)| DroppedFile::new(self, path, file)));
            }
        });
        if let Some((path, file)) = dropped {
            self.enqueue(path, file);
        }
    }

    /// Queues `file` for closing; it was opened at `path`. Never blocks.
    pub(super) fn enqueue(self: &Arc<Self>, path: PathBuf, file: PendingDrop) {
        self.state.lock().dropped.push((path, file));
        self.start_job_if_needed();
    }

    /// Starts a job if files wait and no job makes progress. Call it regularly: a job may have got
    /// stuck since the last drop, or no thread could be started for one.
    pub(super) fn start_job_if_needed(self: &Arc<Self>) {
        let Some(number) = self.state.lock().next_job() else { return };
        let job = CloseJob { closer: Arc::clone(self), number };
        match &self.threads {
            CloserThreads::Pool(pool) => {
                // A refused job is dropped, and its drop passes the files on.
                let _ = pool.submit_close(Box::new(move || job.run()));
            }
            CloserThreads::Dedicated => {
                let thread = std::thread::Builder::new().name("closing".to_owned());
                let _ = thread.spawn(move || job.run());
            }
        }
    }

    /// Closes dropped files one by one until none is left.
    fn close_pending(&self, job: Option<u64>) {
        loop {
            let (path, file) = {
                let mut state = self.state.lock();
                let Some(next) = state.dropped.pop() else { return };
                state.closing += 1;
                let now = Instant::now();
                state.jobs.iter_mut().filter(|(n, _)| Some(*n) == job).for_each(|j| j.1 = now);
                next
            };
            self.close_one(&path, file);
        }
    }

    /// Closes a file that is counted in `closing`.
    fn close_one(&self, path: &Path, file: PendingDrop) {
        /// Counts the file as closed, also after a panic.
        struct Closing<'a>(&'a FileCloser);
        impl Drop for Closing<'_> {
            fn drop(&mut self) {
                self.0.count_closed();
            }
        }
        let _closing = Closing(self);
        enter_call(path);
        drop(file);
    }

    fn count_closed(&self) {
        self.state.lock().closing -= 1;
        self.closed.notify_all();
    }

    /// Closes dropped files, then waits up to [`FLUSH_TIMEOUT`] for closes in progress on other
    /// threads.
    pub(super) fn flush(&self) {
        self.close_pending(None);
        let until = Instant::now() + FLUSH_TIMEOUT;
        let mut state = self.state.lock();
        while state.closing > 0 && !self.closed.wait_until(&mut state, until).timed_out() {}
    }
}

impl CloserState {
    /// The number of the job to start, if one is needed.
    fn next_job(&mut self) -> Option<u64> {
        let goes_on = |(_, since): &(u64, Instant)| since.elapsed() < STUCK_AFTER;
        if self.dropped.is_empty() || self.jobs.iter().any(goes_on) || self.jobs.len() >= MAX_JOBS {
            return None;
        }
        self.last_job += 1;
        self.jobs.push((self.last_job, Instant::now()));
        Some(self.last_job)
    }
}

/// A job that closes files. Dropping it removes it from the list, whether or not it has run.
struct CloseJob {
    closer: Arc<FileCloser>,
    number: u64,
}

impl CloseJob {
    fn run(self) {
        self.closer.close_pending(Some(self.number));
    }
}

impl Drop for CloseJob {
    fn drop(&mut self) {
        let left = {
            let mut state = self.closer.state.lock();
            state.jobs.retain(|(known, _)| *known != self.number);
            match &self.closer.threads {
                // After a run none is left. Otherwise the pool has stopped or has no thread.
                CloserThreads::Pool(_) => std::mem::take(&mut state.dropped),
                CloserThreads::Dedicated => Vec::new(),
            }
        };
        left.into_iter().for_each(|(path, file)| DEDICATED_CLOSER.enqueue(path, file));
    }
}

impl Drop for FileCloser {
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.state.get_mut().dropped);
        left.into_iter().for_each(|(path, file)| DEDICATED_CLOSER.enqueue(path, file));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use super::super::{OwnedFileParts, PoolLimits};
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// Reports the thread on which it is dropped, and hangs there if `hang` is set.
    struct File {
        dropped: mpsc::Sender<ThreadId>,
        hang: Option<mpsc::Receiver<()>>,
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = self.hang.take().map(|hang| hang.recv());
            let _ = self.dropped.send(std::thread::current().id());
        }
    }

    fn closer() -> (Arc<FileCloser>, Arc<Pool>) {
        let limits = PoolLimits { threads: 2, queue: 4, max_inline_calls: 0 };
        let pool = Arc::new(Pool::new("test", limits));
        (Arc::new(FileCloser::new(CloserThreads::Pool(Arc::clone(&pool)))), pool)
    }

    #[test]
    fn files_of_a_stopped_pool_are_closed_by_another_thread() {
        let ((closer, pool), (dropped, thread)) = (closer(), mpsc::channel());
        pool.stop();
        closer.enqueue(PathBuf::new(), Box::new(File { dropped, hang: None }));
        let thread = thread.recv_timeout(SOON).expect("it is not closed");
        assert_ne!(thread, std::thread::current().id());
    }

    #[test]
    fn collected_files_are_closed_by_the_collecting_thread_or_queued() {
        let ((closer, _pool), (dropped, threads)) = (closer(), mpsc::channel());
        let file = || Box::new(File { dropped: dropped.clone(), hang: None });
        let here = std::thread::current().id();
        let mut collected = collect_closes(|| {
            closer.handle_drop(PathBuf::new(), file());
            closer.handle_drop(PathBuf::new(), file());
        });
        assert!(threads.try_recv().is_err(), "neither is closed yet");
        assert!(collected.iter().all(|file| file.is_of(&closer)));
        assert_eq!(closer.state.lock().closing, 2, "a flush waits for them");
        collected.remove(0).close();
        assert_eq!(threads.try_recv(), Ok(here));
        assert_eq!(closer.state.lock().closing, 1);
        drop(collected);
        assert_ne!(threads.recv_timeout(SOON).unwrap(), here, "the other one was queued");
        closer.flush();
        assert_eq!(closer.state.lock().closing, 0);
        // An outer scope continues after an inner one.
        let outer = collect_closes(|| {
            let inner = collect_closes(|| closer.handle_drop(PathBuf::new(), file()));
            closer.handle_drop(PathBuf::new(), file());
            assert_eq!(inner.len(), 1);
            inner.into_iter().for_each(DroppedFile::close);
        });
        assert_eq!(outer.len(), 1);
        outer.into_iter().for_each(DroppedFile::close);
        assert_eq!([(); 2].map(|()| threads.try_recv()), [Ok(here); 2]);
        // Outside, and after a panic.
        closer.handle_drop(PathBuf::new(), file());
        assert_ne!(threads.recv_timeout(SOON).unwrap(), here);
        let panicking = || {
            collect_closes(|| {
                closer.handle_drop(PathBuf::new(), file());
                panic!("on purpose");
            })
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking));
        assert!(panicked.is_err());
        assert_ne!(threads.recv_timeout(SOON).unwrap(), here);
    }

    #[test]
    fn a_file_queued_behind_a_hung_close_is_closed_anyway() {
        let ((closer, _pool), (dropped, threads)) = (closer(), mpsc::channel());
        let (release, hang) = mpsc::channel();
        let hung = File { dropped: dropped.clone(), hang: Some(hang) };
        // The file that was dropped last is closed first.
        closer.enqueue(PathBuf::new(), Box::new(hung));
        while closer.state.lock().closing == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        closer.enqueue(PathBuf::new(), Box::new(File { dropped, hang: None }));
        let until = Instant::now() + SOON;
        while threads.try_recv().is_err() {
            assert!(Instant::now() < until, "it waits for the one that hangs");
            closer.start_job_if_needed();
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(release);
        threads.recv_timeout(SOON).expect("the one that hung");
    }

    #[test]
    fn a_dropped_descriptor_is_not_closed_by_this_thread() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        // Take all job slots, as if no thread could be started.
        let none = (0..MAX_JOBS).map(|number| (u64::MAX - number as u64, Instant::now()));
        DEDICATED_CLOSER.state.lock().jobs.extend(none);
        drop(OwnedFileParts { direct: Some(writer), cached: None, export: None });
        let flags = rustix::event::PollFlags::IN;
        let mut end = [rustix::event::PollFd::new(&reader, flags)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut end, Some(&now)), Ok(0), "it was closed here");
        DEDICATED_CLOSER
            .state
            .lock()
            .jobs
            .retain(|(number, _)| *number <= u64::MAX - MAX_JOBS as u64);
        retry_dedicated_closes();
        rustix::event::poll(&mut end, None).expect("it is closed");
    }
}
