//! A file that is opened when it is first used.
//!
//! For a handle that may write and whose daemon was killed: that file must be the same
//! again, or none.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::{
    Attr, Backend, BackendError, BackendFile, FileChange, Lock, LockRequest, OpenAccess, PartsOpen,
    Result, SeekTo, SyncMode, WriteOpen,
};

/// The file, opened or not.
pub struct OpenedLater {
    backend: Arc<dyn Backend>,
    path: PathBuf,
    how: WriteOpen,
    file: OnceLock<Arc<dyn BackendFile>>,
    opening: Mutex<()>,
}

impl OpenedLater {
    /// The file at `path`, if it has the inode number `ino`; to be written, and read
    /// where it is `readable`.
    pub fn new(
        backend: Arc<dyn Backend>,
        path: PathBuf,
        ino: u64,
        readable: bool,
        sync: SyncMode,
    ) -> Self {
        let access = if readable { OpenAccess::Both } else { OpenAccess::Write };
        let how = WriteOpen { access, truncate: false, sync, create: None, ino: Some(ino) };
        Self { backend, path, how, file: OnceLock::new(), opening: Mutex::new(()) }
    }

    fn file(&self) -> Result<Arc<dyn BackendFile>> {
        let _alone = self.file.get().is_none().then(|| self.opening.lock());
        if let Some(file) = self.file.get() {
            return Ok(Arc::clone(file));
        }
        use rustix::io::Errno as E;
        let opened = match self.backend.open_to_write(&self.path, &self.how) {
            Err(BackendError::Os(E::NOENT | E::NOTDIR)) => return Err(E::STALE.into()),
            opened => opened?,
        };
        if Some(opened.attr.id.ino) != self.how.ino {
            return Err(E::STALE.into());
        }
        Ok(Arc::clone(self.file.get_or_init(|| opened.file)))
    }
}

impl BackendFile for OpenedLater {
    fn parts(&self) -> PartsOpen<'_> {
        self.file.get().map(|file| file.parts()).unwrap_or_default()
    }

    fn is_deferred(&self) -> bool {
        self.file.get().is_none()
    }

    fn attr(&self) -> Result<Attr> {
        self.file()?.attr()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file()?.read_at(offset, buf)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.file()?.seek(offset, to)
    }

    fn change(&self, change: &FileChange<'_>) -> Result<u64> {
        self.file()?.change(change)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.file()?.lock(request)
    }
}
