//! A backend that moves file data no faster than a given rate.
//!
//! It models one link: reads and writes pass one after the other, each taking
//! its size divided by the rate, however many threads ask. Used by `[[replica]]
//! max_rate`, `fanfs demo`, tests and benches.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{
    Attr, Backend, BackendFile, Change, Create, Each, FileChange, Lock, LockRequest, Name,
    OpenedToWrite, Parts, PartsOpen, Result, SeekTo, StatFs, Target, WriteOpen,
};

/// The decorator. The rate may be changed while it runs.
pub struct RateLimited<B> {
    inner: B,
    link: Arc<Link>,
}

struct Link {
    bytes_per_second: AtomicU64,
    free_at: Mutex<Instant>,
}

impl Link {
    /// Takes the link for `bytes` and returns when they have passed.
    fn pass(&self, bytes: usize) {
        let rate = self.bytes_per_second.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let done = {
            let mut free_at = self.free_at.lock();
            *free_at = (*free_at).max(Instant::now()) + takes;
            *free_at
        };
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
    }
}

impl<B> RateLimited<B> {
    /// Limits `inner` to `bytes_per_second`; 0 means no limit.
    pub fn new(inner: B, bytes_per_second: u64) -> Self {
        let link = Link {
            bytes_per_second: AtomicU64::new(bytes_per_second),
            free_at: Mutex::new(Instant::now()),
        };
        Self { inner, link: Arc::new(link) }
    }

    fn file(&self, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(LimitedFile { inner, link: Arc::clone(&self.link) })
    }

    /// A handle that changes the rate, in bytes a second, from now on.
    pub fn dial(&self) -> impl Fn(u64) + Send + Sync + use<B> {
        let link = Arc::clone(&self.link);
        move |rate| link.bytes_per_second.store(rate, Ordering::Relaxed)
    }
}

impl<B: Backend> Backend for RateLimited<B> {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.inner.stat(path)
    }

    fn stat_entry(&self, name: &Name) -> Result<Attr> {
        self.inner.stat_entry(name)
    }

    fn stat_entries(&self, dir: &Target, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        self.inner.stat_entries(dir, names)
    }

    fn list(&self, dir: &Target, each: &mut Each<'_>) -> Result<()> {
        self.inner.list(dir, each)
    }

    fn visit(&self, dir: &Target) -> Result<()> {
        self.inner.visit(dir)
    }

    fn refresh(&self, dir: &Target) -> Result<()> {
        self.inner.refresh(dir)
    }

    fn prove(&self) -> Result<bool> {
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

    fn open_to_write(&self, path: &Path, how: &WriteOpen) -> Result<OpenedToWrite> {
        let opened = self.inner.open_to_write(path, how)?;
        Ok(OpenedToWrite { file: self.file(opened.file), ..opened })
    }

    fn create(&self, name: &Name, how: &WriteOpen, create: Create) -> Result<OpenedToWrite> {
        let opened = self.inner.create(name, how, create)?;
        Ok(OpenedToWrite { file: self.file(opened.file), ..opened })
    }

    fn change(&self, change: &Change) -> Result<Option<Attr>> {
        self.inner.change(change)
    }

    fn adopt(&self, parts: Parts) -> Option<Arc<dyn BackendFile>> {
        Some(self.file(self.inner.adopt(parts)?))
    }
}

struct LimitedFile {
    inner: Arc<dyn BackendFile>,
    link: Arc<Link>,
}

impl BackendFile for LimitedFile {
    fn attr(&self) -> Result<Attr> {
        self.inner.attr()
    }

    fn parts(&self) -> PartsOpen<'_> {
        self.inner.parts()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let n = self.inner.read_at(offset, buf)?;
        self.link.pass(n);
        Ok(n)
    }

    fn splice_at(&self, offset: u64, pipe: BorrowedFd<'_>, len: usize) -> Option<Result<usize>> {
        let spliced = self.inner.splice_at(offset, pipe, len)?;
        if let Ok(n) = spliced {
            self.link.pass(n);
        }
        Some(spliced)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.inner.seek(offset, to)
    }

    fn change(&self, change: &FileChange<'_>) -> Result<u64> {
        let written = self.inner.change(change)?;
        self.link.pass(written as usize);
        Ok(written)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.inner.lock(request)
    }
}
