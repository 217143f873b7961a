//! Files are closed where they were opened: on their replica's own threads.
//!
//! Closing is a call on the replica too: Linux's NFSv4 client sends a CLOSE and
//! waits for the answer. The last one who holds a file may be a FUSE thread, or
//! another replica's thread that brings the last segment, and must not wait for
//! this replica. So what is dropped is put aside and closed by a job of the
//! replica's pool, one job for all that have been dropped until it runs; and by
//! another job while that one hangs in a close.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::pool::{STUCK, inside};

use super::{
    Attr, Backend, BackendFile, Change, DirEntry, FileChange, Left, Lock, LockRequest,
    OpenedToWrite, Parts, PartsOpen, Pool, Result, SeekTo, StatFs, Target, WriteOpen,
};

/// The decorator.
pub(super) struct Closing {
    inner: Arc<dyn Backend>,
    closer: Arc<Closer>,
}

struct Closer {
    pool: Arc<Pool>,
    state: Mutex<Aside>,
    /// Something has been closed.
    closed: Condvar,
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
        Self {
            inner,
            closer: Arc::new(Closer { pool, state: Mutex::default(), closed: Condvar::new() }),
        }
    }

    fn file(&self, path: PathBuf, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(ClosingFile { inner: Some(inner), path, closer: Arc::clone(&self.closer) })
    }
}

impl Closer {
    fn put_aside(self: &Arc<Self>, path: PathBuf, file: Left) {
        let number = {
            let mut state = self.state.lock();
            state.dropped.push((path, file));
            let goes_on = |(_, since): &(u64, Instant)| since.elapsed() < STUCK;
            if state.jobs.iter().any(goes_on) || state.jobs.len() >= JOBS {
                return;
            }
            state.number += 1;
            let number = state.number;
            state.jobs.push((number, Instant::now()));
            number
        };
        let closer = Arc::clone(self);
        let job = move || {
            closer.close(Some(number));
            closer.state.lock().jobs.retain(|(known, _)| *known != number);
        };
        if self.pool.submit_close(Box::new(job)).is_err() {
            // The volume is going away; who closes it is the last who knows of it.
            self.state.lock().jobs.retain(|(known, _)| *known != number);
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

impl Backend for Closing {
    fn stat(&self, path: &Path) -> Result<Attr> {
        inside(path);
        self.inner.stat(path)
    }

    fn stat_entries(&self, dir: &Path, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        inside(dir);
        self.inner.stat_entries(dir, names)
    }

    fn list(&self, dir: &Target) -> Result<Vec<DirEntry>> {
        inside(dir.path());
        self.inner.list(dir)
    }

    fn visit(&self, dir: &Path) -> Result<()> {
        inside(dir);
        self.inner.visit(dir)
    }

    fn prove(&self) -> Result<bool> {
        inside(Path::new(""));
        self.inner.prove()
    }

    fn is_in_service(&self) -> bool {
        self.inner.is_in_service()
    }

    fn leave(&self, mount: u64) -> Option<Left> {
        let left = self.inner.leave(mount)?;
        self.closer.put_aside(PathBuf::new(), left);
        None
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

    fn change(&self, change: &Change) -> Result<Option<Attr>> {
        inside(change.path());
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
