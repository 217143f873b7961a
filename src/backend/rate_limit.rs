//! A backend that moves file data no faster than a set rate.
//!
//! It models one link: reads and writes pass one after the other, each taking its size divided by
//! the rate, no matter how many threads call. Used by `[[replica]] max_rate`, `fanfs demo`, tests
//! and benches.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::decorator::{CallTarget, forward_calls};
use super::{
    Attr, Backend, BackendFile, CreateOptions, EntryRef, EntryVisitor, FileMutation, FileParts,
    Lock, LockRequest, ObjectRef, OwnedFileParts, Result, SeekTo, StatFs, SubmitResult,
    SubmittedRead, TreeMutation, WritableFile, WriteOpenOptions,
};

/// The decorator. The rate may change during calls.
pub struct RateLimited<B> {
    inner: B,
    limiter: Arc<RateLimiter>,
}

struct RateLimiter {
    bytes_per_second: AtomicU64,
    idle_at: Mutex<Instant>,
}

impl RateLimiter {
    /// Occupies the link for `bytes` and returns when they have passed.
    fn wait_for_transfer(&self, bytes: usize) {
        let rate = self.bytes_per_second.load(Ordering::Relaxed);
        if rate == 0 {
            return;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let done = {
            let mut free_at = self.idle_at.lock();
            *free_at = (*free_at).max(Instant::now()) + takes;
            *free_at
        };
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
    }
}

impl<B> RateLimited<B> {
    /// Limits `inner` to `bytes_per_second`; 0 means no limit.
    pub fn new(inner: B, bytes_per_second: u64) -> Self {
        let link = RateLimiter {
            bytes_per_second: AtomicU64::new(bytes_per_second),
            idle_at: Mutex::new(Instant::now()),
        };
        Self { inner, limiter: Arc::new(link) }
    }

    /// Only file data is limited: other calls pass.
    fn before_call(&self, _target: CallTarget<'_>) -> Result<()> {
        Ok(())
    }

    fn file(&self, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(RateLimitedFile { inner, limiter: Arc::clone(&self.limiter) })
    }

    /// A function that sets the rate, in bytes a second, from now on.
    pub fn rate_setter(&self) -> impl Fn(u64) + Send + Sync + use<B> {
        let link = Arc::clone(&self.limiter);
        move |rate| link.bytes_per_second.store(rate, Ordering::Relaxed)
    }
}

impl<B: Backend> Backend for RateLimited<B> {
    forward_calls! {
        stat stat_entry stat_entries list check_open_dir revalidate_dir read_link get_xattr
        list_xattr stat_fs check_mount is_in_service connections handle_unmount mount_id
        flush_closes
    }

    /// The limit makes threads wait.
    fn reads_without_threads(&self) -> bool {
        false
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        let (inner, attr) = self.inner.open(path)?;
        Ok((self.file(inner), attr))
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpenOptions) -> Result<WritableFile> {
        let opened = self.inner.open_to_write(path, how)?;
        Ok(WritableFile { file: self.file(opened.file), ..opened })
    }

    fn create(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile> {
        let opened = self.inner.create(name, how, create)?;
        Ok(WritableFile { file: self.file(opened.file), ..opened })
    }

    fn mutate(&self, change: &TreeMutation) -> Result<Option<Attr>> {
        self.inner.mutate(change)
    }

    fn adopt(&self, parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        Some(self.file(self.inner.adopt(parts)?))
    }
}

struct RateLimitedFile {
    inner: Arc<dyn BackendFile>,
    limiter: Arc<RateLimiter>,
}

impl BackendFile for RateLimitedFile {
    fn attr(&self) -> Result<Attr> {
        self.inner.attr()
    }

    fn parts(&self) -> FileParts<'_> {
        self.inner.parts()
    }

    /// `None`: the kernel's own reads would bypass the limit.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn is_deferred(&self) -> bool {
        self.inner.is_deferred()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let n = self.inner.read_at(offset, buf)?;
        self.limiter.wait_for_transfer(n);
        Ok(n)
    }

    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        Err(read)
    }

    fn splice_at(&self, offset: u64, pipe: BorrowedFd<'_>, len: usize) -> Option<Result<usize>> {
        let spliced = self.inner.splice_at(offset, pipe, len)?;
        if let Ok(n) = spliced {
            self.limiter.wait_for_transfer(n);
        }
        Some(spliced)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.inner.seek(offset, to)
    }

    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
        let written = self.inner.mutate(change)?;
        self.limiter.wait_for_transfer(written as usize);
        Ok(written)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.inner.lock(request)
    }
}
