//! A file that is opened on its first use.
//!
//! It stands in for a handle that was open for writing when its daemon was killed. The first use
//! must find the same file again, else it fails.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::{
    Attr, Backend, BackendError, BackendFile, FileMutation, FileParts, InodeIdentity, Lock,
    LockRequest, OpenAccess, Result, SeekTo, SubmitResult, SubmittedRead, SyncMode,
    WriteOpenOptions,
};

/// A file that may not be open yet.
pub struct LazyFile {
    backend: Arc<dyn Backend>,
    path: Option<PathBuf>,
    options: WriteOpenOptions,
    file: OnceLock<Arc<dyn BackendFile>>,
    opening: Mutex<()>,
}

impl LazyFile {
    /// The file at `path`, if it is the one that is `known`; for writing, and also for reading if
    /// `readable`. Without a path every use fails with ESTALE.
    pub fn new(
        backend: Arc<dyn Backend>,
        path: Option<PathBuf>,
        known: InodeIdentity,
        readable: bool,
        sync: SyncMode,
    ) -> Self {
        let access = if readable { OpenAccess::ReadWrite } else { OpenAccess::Write };
        let how = WriteOpenOptions { access, truncate: false, sync, expected: Some(known) };
        Self { backend, path, options: how, file: OnceLock::new(), opening: Mutex::new(()) }
    }

    fn file(&self) -> Result<Arc<dyn BackendFile>> {
        let _alone = self.file.get().is_none().then(|| self.opening.lock());
        if let Some(file) = self.file.get() {
            return Ok(Arc::clone(file));
        }
        use rustix::io::Errno as E;
        let path = self.path.as_ref().ok_or(E::STALE)?;
        let opened = match self.backend.open_to_write(path, &self.options) {
            Err(BackendError::Os(E::NOENT | E::NOTDIR)) => return Err(E::STALE.into()),
            opened => opened?,
        };
        if self.options.expected.is_some_and(|known| !known.is_match(&opened.attr)) {
            return Err(E::STALE.into());
        }
        Ok(Arc::clone(self.file.get_or_init(|| opened.file)))
    }
}

impl BackendFile for LazyFile {
    fn parts(&self) -> FileParts<'_> {
        self.file.get().map(|file| file.parts()).unwrap_or_default()
    }

    fn is_deferred(&self) -> bool {
        self.file.get().is_none()
    }

    /// Always `None`: the caller may ask before the first use has opened it.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Its reads are copied.
    fn splice_at(&self, _: u64, _: BorrowedFd<'_>, _: usize) -> Option<Result<usize>> {
        None
    }

    fn attr(&self) -> Result<Attr> {
        self.file()?.attr()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file()?.read_at(offset, buf)
    }

    /// Its first use blocks.
    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        Err(read)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.file()?.seek(offset, to)
    }

    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
        self.file()?.mutate(change)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.file()?.lock(request)
    }
}
