//! Files are closed where they were opened: on their replica's own threads.
//!
//! Closing is a call on the replica too: Linux's NFSv4 client sends a CLOSE and
//! waits for the answer. The last one who holds a file may be a FUSE thread, or
//! another replica's thread that brings the last segment, and must not wait for
//! this replica. So what is dropped is put aside and closed by a job of the
//! replica's pool, one job for all that have been dropped until it runs.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    Attr, Backend, BackendFile, Change, DirEntry, FileChange, Lane, Lock, LockRequest,
    OpenedToWrite, Parts, PartsOpen, Pool, Result, SeekTo, StatFs, Target, WriteOpen,
};

/// The decorator.
pub(super) struct Closing {
    inner: Arc<dyn Backend>,
    closer: Arc<Closer>,
}

struct Closer {
    pool: Arc<Pool>,
    /// Dropped and not closed yet. A job is on its way while there are any.
    dropped: Mutex<Vec<Arc<dyn BackendFile>>>,
    /// Held by whoever closes some, so that who waits for it waits for them.
    closing: Mutex<()>,
}

impl Closing {
    /// Has `inner`'s files closed by `pool`.
    pub(super) fn new(inner: Arc<dyn Backend>, pool: Arc<Pool>) -> Self {
        Self {
            inner,
            closer: Arc::new(Closer { pool, dropped: Mutex::default(), closing: Mutex::default() }),
        }
    }

    fn file(&self, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(ClosingFile { inner: Some(inner), closer: Arc::clone(&self.closer) })
    }
}

impl Closer {
    fn put_aside(self: &Arc<Self>, file: Arc<dyn BackendFile>) {
        let is_first = {
            let mut dropped = self.dropped.lock();
            dropped.push(file);
            dropped.len() == 1
        };
        if is_first {
            let closer = Arc::clone(self);
            let job = move || closer.close();
            if self.pool.submit(Lane::Metadata, Box::new(job)).is_err() {
                // Stopped, or thousands of calls behind: nobody else will.
                self.close();
            }
        }
    }

    fn close(&self) {
        let _alone = self.closing.lock();
        let dropped = std::mem::take(&mut *self.dropped.lock());
        drop(dropped);
    }
}

impl Backend for Closing {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.inner.stat(path)
    }

    fn stat_entries(&self, dir: &Path, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        self.inner.stat_entries(dir, names)
    }

    fn list(&self, dir: &Target) -> Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn visit(&self, dir: &Path) -> Result<()> {
        self.inner.visit(dir)
    }

    fn prove(&self) -> Result<bool> {
        self.inner.prove()
    }

    fn is_in_service(&self) -> bool {
        self.inner.is_in_service()
    }

    fn mount_id(&self) -> Option<u64> {
        self.inner.mount_id()
    }

    fn read_link(&self, path: &Target) -> Result<OsString> {
        self.inner.read_link(path)
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        let (inner, attr) = self.inner.open(path)?;
        Ok((self.file(inner), attr))
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.inner.stat_fs()
    }

    fn get_xattr(&self, path: &Target, name: &OsStr) -> Result<Vec<u8>> {
        self.inner.get_xattr(path, name)
    }

    fn list_xattr(&self, path: &Target) -> Result<Vec<u8>> {
        self.inner.list_xattr(path)
    }

    fn settle(&self) {
        self.closer.close();
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpen) -> Result<OpenedToWrite> {
        let opened = self.inner.open_to_write(path, how)?;
        Ok(OpenedToWrite { file: self.file(opened.file), ..opened })
    }

    fn change(&self, change: &Change) -> Result<Option<Attr>> {
        self.inner.change(change)
    }

    fn adopt(&self, parts: Parts) -> Option<Arc<dyn BackendFile>> {
        Some(self.file(self.inner.adopt(parts)?))
    }
}

struct ClosingFile {
    /// Until it is dropped.
    inner: Option<Arc<dyn BackendFile>>,
    closer: Arc<Closer>,
}

impl ClosingFile {
    fn inner(&self) -> &dyn BackendFile {
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
            self.closer.put_aside(file);
        }
    }
}
