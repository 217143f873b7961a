//! Files are closed where they were opened: on their replica's own threads.
//!
//! Closing is a call on the replica too: Linux's NFSv4 client sends a CLOSE and
//! waits for the answer. The last one who holds a file may be a FUSE thread, or
//! another replica's thread that brings the last segment, and must not wait for
//! this replica. So what is dropped is put aside and closed by a job of the
//! replica's pool, one job for all that have been dropped until it runs; and by
//! another job while that one hangs in a close.
//!
//! Three kinds of descriptors have no such pool and go to dedicated threads ([`aside`]):
//! roots that leave service, which a proof, a guest or the watcher of the mount table may
//! drop last; descriptors that the previous daemon sent and no file takes; and files of a
//! pool that has stopped.
//!
//! *Invariant:* no thread closes a replica's descriptor where it drops it. Where no thread
//! can be started, the descriptor stays open until a later [`Closer::tend`] starts one.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::pool::{STUCK, has_a_part, inside};

use super::{
    Attr, Backend, BackendFile, Change, Create, Each, FileChange, Lock, LockRequest, Name,
    OpenedToWrite, Parts, PartsOpen, Pool, Result, SeekTo, StatFs, Target, WriteOpen,
};

/// The decorator.
pub(super) struct Closing {
    inner: Arc<dyn Backend>,
    closer: Arc<Closer>,
}

/// Closes dropped files on other threads.
pub(super) struct Closer {
    threads: Threads,
    state: Mutex<Aside>,
    /// Something has been closed.
    closed: Condvar,
}

/// The threads that close.
enum Threads {
    Of(Arc<Pool>),
    /// Started when there is something to close.
    Own,
}

/// Closes descriptors that have no pool.
static ASIDE: LazyLock<Arc<Closer>> = LazyLock::new(|| Arc::new(Closer::new(Threads::Own)));

/// Entries of a listing that count as a part of it.
const PART: u64 = 64;

/// A value whose drop may block.
type Left = Box<dyn Send>;

/// Drops `left` on a dedicated thread. Never blocks.
pub(super) fn aside(left: impl Send + 'static) {
    ASIDE.put_aside(PathBuf::new(), Box::new(left));
}

/// A descriptor that a dedicated thread closes.
pub(super) struct ClosedAside(Option<OwnedFd>);

impl From<OwnedFd> for ClosedAside {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl AsFd for ClosedAside {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("taken only when it is dropped").as_fd()
    }
}

impl Drop for ClosedAside {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(aside);
    }
}

/// Retries what no thread could close. Call it regularly.
pub(super) fn tend() {
    ASIDE.tend();
}

#[derive(Default)]
struct Aside {
    /// Dropped and not closed yet.
    dropped: Vec<(PathBuf, Left)>,
    /// Jobs that are on their way, or close one file after the other: since when each is
    /// at the one that it is at.
    jobs: Vec<(u64, Instant)>,
    number: u64,
    /// Files that are being closed.
    closing: usize,
}

/// Jobs at most, all but one of which hang.
const JOBS: usize = 4;

/// So long a change waits for the closes that are under way before it.
const PATIENCE: Duration = Duration::from_secs(2);

impl Closing {
    /// Has `inner`'s files closed by `pool`.
    pub(super) fn new(inner: Arc<dyn Backend>, pool: Arc<Pool>) -> Self {
        Self { inner, closer: Arc::new(Closer::new(Threads::Of(pool))) }
    }

    /// Closes its files.
    pub(super) fn closer(&self) -> Arc<Closer> {
        Arc::clone(&self.closer)
    }

    fn file(&self, path: PathBuf, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(ClosingFile { inner: Some(inner), path, closer: self.closer() })
    }
}

impl Closer {
    fn new(threads: Threads) -> Self {
        Self { threads, state: Mutex::default(), closed: Condvar::new() }
    }

    fn put_aside(self: &Arc<Self>, path: PathBuf, file: Left) {
        self.state.lock().dropped.push((path, file));
        self.tend();
    }

    /// Starts a job if files wait and no job makes progress. Call it regularly: a job may
    /// hang since the last drop, or no thread could be started for one.
    pub(super) fn tend(self: &Arc<Self>) {
        let Some(number) = self.state.lock().next_job() else { return };
        let job = Job { closer: Arc::clone(self), number };
        match &self.threads {
            Threads::Of(pool) => {
                // A refused job is dropped, and hands its files on.
                let _ = pool.submit_close(Box::new(move || job.run()));
            }
            Threads::Own => {
                let thread = std::thread::Builder::new().name("closing".to_owned());
                let _ = thread.spawn(move || job.run());
            }
        }
    }

    /// Closes what has been dropped, one file after the other.
    fn close(&self, job: Option<u64>) {
        loop {
            let (path, file) = {
                let mut state = self.state.lock();
                let Some(next) = state.dropped.pop() else { return };
                state.closing += 1;
                let now = Instant::now();
                state.jobs.iter_mut().filter(|(n, _)| Some(*n) == job).for_each(|j| j.1 = now);
                next
            };
            inside(&path);
            drop(file);
            self.state.lock().closing -= 1;
            self.closed.notify_all();
        }
    }

    /// The same, and waits for those that others close, but not for one that hangs.
    fn settle(&self) {
        self.close(None);
        let until = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.closing > 0 && !self.closed.wait_until(&mut state, until).timed_out() {}
    }
}

impl Aside {
    /// The number of the job to start, if one is needed.
    fn next_job(&mut self) -> Option<u64> {
        let goes_on = |(_, since): &(u64, Instant)| since.elapsed() < STUCK;
        if self.dropped.is_empty() || self.jobs.iter().any(goes_on) || self.jobs.len() >= JOBS {
            return None;
        }
        self.number += 1;
        self.jobs.push((self.number, Instant::now()));
        Some(self.number)
    }
}

/// A job that closes files, whether or not it runs.
struct Job {
    closer: Arc<Closer>,
    number: u64,
}

impl Job {
    fn run(self) {
        self.closer.close(Some(self.number));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let left = {
            let mut state = self.closer.state.lock();
            state.jobs.retain(|(known, _)| *known != self.number);
            match &self.closer.threads {
                // The pool has stopped, or has no thread.
                Threads::Of(_) => std::mem::take(&mut state.dropped),
                Threads::Own => Vec::new(),
            }
        };
        left.into_iter().for_each(|(path, file)| ASIDE.put_aside(path, file));
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        let left = std::mem::take(&mut self.state.get_mut().dropped);
        left.into_iter().for_each(|(path, file)| ASIDE.put_aside(path, file));
    }
}

impl Backend for Closing {
    fn stat(&self, path: &Path) -> Result<Attr> {
        inside(path);
        self.inner.stat(path)
    }

    fn stat_entry(&self, name: &Name) -> Result<Attr> {
        inside(&name.path());
        self.inner.stat_entry(name)
    }

    fn stat_entries(&self, dir: &Target, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        inside(dir.path());
        self.inner.stat_entries(dir, names)
    }

    fn list(&self, dir: &Target, each: &mut Each<'_>) -> Result<()> {
        inside(dir.path());
        let mut entries = 0u64;
        self.inner.list(dir, &mut |name, ino, kind| {
            entries += 1;
            if entries.is_multiple_of(PART) {
                has_a_part();
            }
            each(name, ino, kind);
        })
    }

    fn visit(&self, dir: &Target) -> Result<()> {
        inside(dir.path());
        self.inner.visit(dir)
    }

    fn refresh(&self, dir: &Target) -> Result<()> {
        inside(dir.path());
        self.inner.refresh(dir)
    }

    fn prove(&self) -> Result<bool> {
        inside(Path::new(""));
        self.inner.prove()
    }

    fn is_in_service(&self) -> bool {
        self.inner.is_in_service()
    }

    fn leave(&self, mount: u64) {
        self.inner.leave(mount);
    }

    fn mount_id(&self) -> Option<u64> {
        self.inner.mount_id()
    }

    fn read_link(&self, path: &Target) -> Result<OsString> {
        inside(path.path());
        self.inner.read_link(path)
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        inside(path);
        let (inner, attr) = self.inner.open(path)?;
        Ok((self.file(path.to_owned(), inner), attr))
    }

    fn stat_fs(&self) -> Result<StatFs> {
        inside(Path::new(""));
        self.inner.stat_fs()
    }

    fn get_xattr(&self, path: &Target, name: &OsStr) -> Result<Vec<u8>> {
        inside(path.path());
        self.inner.get_xattr(path, name)
    }

    fn list_xattr(&self, path: &Target) -> Result<Vec<u8>> {
        inside(path.path());
        self.inner.list_xattr(path)
    }

    fn settle(&self) {
        self.closer.settle();
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpen) -> Result<OpenedToWrite> {
        inside(path);
        let opened = self.inner.open_to_write(path, how)?;
        Ok(OpenedToWrite { file: self.file(path.to_owned(), opened.file), ..opened })
    }

    fn create(&self, name: &Name, how: &WriteOpen, create: Create) -> Result<OpenedToWrite> {
        let path = name.path();
        inside(&path);
        let opened = self.inner.create(name, how, create)?;
        Ok(OpenedToWrite { file: self.file(path, opened.file), ..opened })
    }

    fn change(&self, change: &Change) -> Result<Option<Attr>> {
        inside(&change.path());
        self.inner.change(change)
    }

    fn adopt(&self, parts: Parts) -> Option<Arc<dyn BackendFile>> {
        Some(self.file(PathBuf::new(), self.inner.adopt(parts)?))
    }
}

struct ClosingFile {
    /// Until it is dropped.
    inner: Option<Arc<dyn BackendFile>>,
    /// Where it was when it was opened.
    path: PathBuf,
    closer: Arc<Closer>,
}

impl ClosingFile {
    fn inner(&self) -> &dyn BackendFile {
        inside(&self.path);
        self.inner.as_deref().expect("taken only when it is dropped")
    }
}

impl BackendFile for ClosingFile {
    fn attr(&self) -> Result<Attr> {
        self.inner().attr()
    }

    fn parts(&self) -> PartsOpen<'_> {
        self.inner().parts()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.inner().read_at(offset, buf)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner().descriptor()
    }

    fn splice_at(&self, offset: u64, pipe: BorrowedFd<'_>, len: usize) -> Option<Result<usize>> {
        self.inner().splice_at(offset, pipe, len)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.inner().seek(offset, to)
    }

    fn change(&self, change: &FileChange<'_>) -> Result<u64> {
        self.inner().change(change)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.inner().lock(request)
    }
}

impl Drop for ClosingFile {
    fn drop(&mut self) {
        if let Some(file) = self.inner.take() {
            self.closer.put_aside(std::mem::take(&mut self.path), Box::new(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use super::super::PoolLimits;
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// Says on which thread it is dropped, and hangs there if it is to.
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

    fn closer() -> (Arc<Closer>, Arc<Pool>) {
        let limits = PoolLimits { threads: 2, queue: 4, guests: 0 };
        let pool = Arc::new(Pool::new("test", limits));
        (Arc::new(Closer::new(Threads::Of(Arc::clone(&pool)))), pool)
    }

    #[test]
    fn what_a_stopped_pool_leaves_is_closed_by_another_thread() {
        let ((closer, pool), (dropped, thread)) = (closer(), mpsc::channel());
        pool.stop();
        closer.put_aside(PathBuf::new(), Box::new(File { dropped, hang: None }));
        let thread = thread.recv_timeout(SOON).expect("it is not closed");
        assert_ne!(thread, std::thread::current().id());
    }

    #[test]
    fn a_file_behind_one_that_hangs_is_closed_without_another_drop() {
        let ((closer, _pool), (dropped, threads)) = (closer(), mpsc::channel());
        let (release, hang) = mpsc::channel();
        let hung = File { dropped: dropped.clone(), hang: Some(hang) };
        // The last that was dropped is closed first.
        closer.put_aside(PathBuf::new(), Box::new(hung));
        while closer.state.lock().closing == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        closer.put_aside(PathBuf::new(), Box::new(File { dropped, hang: None }));
        let until = Instant::now() + SOON;
        while threads.try_recv().is_err() {
            assert!(Instant::now() < until, "it waits for the one that hangs");
            closer.tend();
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(release);
        threads.recv_timeout(SOON).expect("the one that hung");
    }

    #[test]
    fn a_descriptor_that_is_given_up_is_not_closed_by_this_thread() {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        // As if there were no thread for it.
        let none = (0..JOBS).map(|number| (u64::MAX - number as u64, Instant::now()));
        ASIDE.state.lock().jobs.extend(none);
        drop(Parts { direct: Some(writer), cached: None });
        let flags = rustix::event::PollFlags::IN;
        let mut end = [rustix::event::PollFd::new(&reader, flags)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut end, Some(&now)), Ok(0), "it was closed here");
        ASIDE.state.lock().jobs.retain(|(number, _)| *number <= u64::MAX - JOBS as u64);
        tend();
        rustix::event::poll(&mut end, None).expect("it is closed");
    }
}
