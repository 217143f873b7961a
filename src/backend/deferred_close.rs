//! A decorator whose files are closed on their replica's own threads. It also tells the pool which
//! object each call is about, and reports the progress of a listing.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::decorator::{CallTarget, forward_calls};
use super::file_closer::FileCloser;
use super::pool::{enter_call, report_progress};
use super::{
    Attr, Backend, BackendFile, CreateOptions, EntryRef, EntryVisitor, FileMutation, FileParts,
    Lock, LockRequest, ObjectRef, OwnedFileParts, Pool, Result, SeekTo, StatFs, SubmitResult,
    SubmittedRead, TreeMutation, WritableFile, WriteOpenOptions,
};

/// The decorator.
pub(super) struct DeferredClose {
    inner: Arc<dyn Backend>,
    closer: Arc<FileCloser>,
}

/// Listed entries for each progress report.
const ENTRIES_PER_PROGRESS: u64 = 64;

impl DeferredClose {
    /// Wraps `inner`; `pool` closes its files.
    pub(super) fn new(inner: Arc<dyn Backend>, pool: Arc<Pool>) -> Self {
        Self { inner, closer: Arc::new(FileCloser::on_pool(pool)) }
    }

    /// The closer of its files.
    pub(super) fn closer(&self) -> Arc<FileCloser> {
        Arc::clone(&self.closer)
    }

    /// Records the call's object in the pool.
    fn before_call(&self, target: CallTarget<'_>) -> Result<()> {
        enter_call(&target.path());
        Ok(())
    }

    fn file(&self, path: PathBuf, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        Arc::new(DeferredCloseFile { inner: Some(inner), path, closer: self.closer() })
    }
}

impl Backend for DeferredClose {
    forward_calls! {
        stat stat_entry stat_entries check_open_dir revalidate_dir read_link get_xattr list_xattr
        stat_fs check_mount is_in_service reads_without_threads connections handle_unmount mount_id
    }

    fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()> {
        enter_call(dir.path());
        let mut entries = 0u64;
        self.inner.list(dir, &mut |name, ino, kind| {
            entries += 1;
            if entries.is_multiple_of(ENTRIES_PER_PROGRESS) {
                report_progress();
            }
            each(name, ino, kind);
        })
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        enter_call(path);
        let (inner, attr) = self.inner.open(path)?;
        Ok((self.file(path.to_owned(), inner), attr))
    }

    fn flush_closes(&self) {
        self.closer.flush();
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpenOptions) -> Result<WritableFile> {
        enter_call(path);
        let opened = self.inner.open_to_write(path, how)?;
        Ok(WritableFile { file: self.file(path.to_owned(), opened.file), ..opened })
    }

    fn create(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile> {
        let path = name.path();
        enter_call(&path);
        let opened = self.inner.create(name, how, create)?;
        Ok(WritableFile { file: self.file(path, opened.file), ..opened })
    }

    fn mutate(&self, change: &TreeMutation) -> Result<Option<Attr>> {
        enter_call(&change.path());
        self.inner.mutate(change)
    }

    fn adopt(&self, parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        Some(self.file(PathBuf::new(), self.inner.adopt(parts)?))
    }
}

struct DeferredCloseFile {
    /// `Some` until `drop` takes it.
    inner: Option<Arc<dyn BackendFile>>,
    /// Its path when it was opened.
    path: PathBuf,
    closer: Arc<FileCloser>,
}

impl DeferredCloseFile {
    fn inner(&self) -> &dyn BackendFile {
        enter_call(&self.path);
        self.open_file()
    }

    fn open_file(&self) -> &dyn BackendFile {
        self.inner.as_deref().expect("taken only when it is dropped")
    }
}

impl BackendFile for DeferredCloseFile {
    fn attr(&self) -> Result<Attr> {
        self.inner().attr()
    }

    fn parts(&self) -> FileParts<'_> {
        self.inner().parts()
    }

    fn is_deferred(&self) -> bool {
        self.inner().is_deferred()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.inner().read_at(offset, buf)
    }

    /// It is no call of this thread.
    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        self.open_file().submit_read(read)
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

    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
        self.inner().mutate(change)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.inner().lock(request)
    }
}

impl Drop for DeferredCloseFile {
    fn drop(&mut self) {
        if let Some(file) = self.inner.take() {
            self.closer.handle_drop(std::mem::take(&mut self.path), Box::new(file));
        }
    }
}
