//! A backend that writes down what it is asked for.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fanfs::backend::{Attr, Backend, BackendFile, DirEntry, Result, SeekTo, StatFs};
use fanfs::volume::ByteRange;
use parking_lot::Mutex;

/// One call on one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Stat,
    /// Of so many entries.
    StatEntries(usize),
    List,
    ReadLink,
    Open,
    StatFs,
    Xattr,
    /// The attributes of an open file.
    Attr,
    Read(ByteRange),
    Seek,
    /// By the thread of this name.
    Close(String),
}

/// What was asked for since it was begun.
#[derive(Default)]
pub(crate) struct Record {
    on: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

impl Record {
    /// Writes down what is asked for from now on.
    pub(crate) fn begin(&self) {
        self.calls.lock().clear();
        self.on.store(true, Ordering::Relaxed);
    }

    /// What was asked for, in the order in which it was begun.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    fn note(&self, call: Call) {
        if self.on.load(Ordering::Relaxed) {
            self.calls.lock().push(call);
        }
    }
}

/// The decorator.
pub(crate) struct Recorded<B> {
    pub(crate) inner: B,
    pub(crate) record: Arc<Record>,
}

impl<B: Backend> Backend for Recorded<B> {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.record.note(Call::Stat);
        self.inner.stat(path)
    }

    fn stat_entries(&self, dir: &Path, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        self.record.note(Call::StatEntries(names.len()));
        self.inner.stat_entries(dir, names)
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        self.record.note(Call::List);
        self.inner.list(dir)
    }

    fn read_link(&self, path: &Path) -> Result<OsString> {
        self.record.note(Call::ReadLink);
        self.inner.read_link(path)
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        self.record.note(Call::Open);
        let (inner, attr) = self.inner.open(path)?;
        Ok((Arc::new(RecordedFile { inner, record: Arc::clone(&self.record) }), attr))
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.record.note(Call::StatFs);
        self.inner.stat_fs()
    }

    fn get_xattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>> {
        self.record.note(Call::Xattr);
        self.inner.get_xattr(path, name)
    }

    fn list_xattr(&self, path: &Path) -> Result<Vec<u8>> {
        self.record.note(Call::Xattr);
        self.inner.list_xattr(path)
    }
}

struct RecordedFile {
    inner: Arc<dyn BackendFile>,
    record: Arc<Record>,
}

impl Drop for RecordedFile {
    fn drop(&mut self) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.record.note(Call::Close(thread));
    }
}

impl BackendFile for RecordedFile {
    fn attr(&self) -> Result<Attr> {
        self.record.note(Call::Attr);
        self.inner.attr()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.record.note(Call::Read(ByteRange::at(offset, buf.len() as u64)));
        self.inner.read_at(offset, buf)
    }

    fn splice_at(&self, offset: u64, pipe: BorrowedFd<'_>, len: usize) -> Option<Result<usize>> {
        let spliced = self.inner.splice_at(offset, pipe, len)?;
        self.record.note(Call::Read(ByteRange::at(offset, len as u64)));
        Some(spliced)
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.record.note(Call::Seek);
        self.inner.seek(offset, to)
    }
}
