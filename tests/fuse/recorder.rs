//! A backend that records the calls made on it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fanfs::backend::{
    Attr, Backend, BackendFile, CreateOptions, DirEntry, EntryRef, EntryVisitor, FileMutation,
    FileParts, Lock, LockRequest, ObjectRef, OwnedFileParts, Result, SeekTo, SetAttr, StatFs,
    SubmitResult, SubmittedRead, TreeMutation, WritableFile, WriteOpenOptions,
};
use fanfs::volume::ByteRange;
use parking_lot::{Condvar, Mutex};

#[path = "view.rs"]
mod view;

pub(crate) use view::View;

/// One call on one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Stat,
    /// With this number of entries.
    StatEntries(usize),
    List,
    Visit,
    ReadLink,
    Open,
    StatFs,
    Xattr,
    /// The attributes of an open file.
    Attr,
    Read(ByteRange),
    Seek,
    /// An open for writing.
    OpenToWrite,
    Change(TreeMutation),
    /// fsync(2) or close(2) of an open file.
    FileChange,
    /// Attributes of an open file were set.
    FileSet(SetAttr),
    /// fallocate(2)
    Allocate,
    /// copy_file_range(2)
    Copy,
    /// The number of written bytes.
    Write(u64),
    Lock(LockRequest),
    /// By the thread with this name.
    Close(String),
}

/// The answer that is held back after it was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hold {
    #[default]
    None,
    /// The next one.
    Next,
    /// One that was found.
    This,
}

/// The calls since recording started.
#[derive(Default)]
pub(crate) struct Record {
    on: AtomicBool,
    calls: Mutex<Vec<Call>>,
    /// The older tree that the replica still shows, if it lags behind.
    view: Mutex<Option<Arc<View>>>,
    hold: Mutex<Hold>,
    released: Condvar,
    /// Attributes that are trusted until the file is opened, as an NFS mount caches them, if
    /// enabled.
    believed: Mutex<Option<HashMap<PathBuf, Attr>>>,
}

impl Record {
    /// Records calls from now on.
    pub(crate) fn begin(&self) {
        self.calls.lock().clear();
        self.on.store(true, Ordering::Relaxed);
    }

    /// The calls, in the order in which they started.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// From now on the replica shows the names and attributes of `view`; with `None`, its real
    /// ones.
    pub(crate) fn shows(&self, view: Option<Arc<View>>) {
        *self.view.lock() = view;
    }

    /// The next answer to [`Backend::stat`] or [`Backend::stat_entry`] is late: it waits for a
    /// release.
    pub(crate) fn hold(&self, hold: Hold) {
        *self.hold.lock() = hold;
        self.released.notify_all();
    }

    /// Whether such an answer has been found, and is held back.
    pub(crate) fn is_held(&self) -> bool {
        *self.hold.lock() == Hold::This
    }

    fn wait(&self) {
        let mut hold = self.hold.lock();
        if *hold == Hold::Next {
            *hold = Hold::This;
            self.released.wait_while(&mut hold, |hold| *hold == Hold::This);
        }
    }

    /// From now on trusts attributes until the file is opened.
    pub(crate) fn believe(&self) {
        self.believed.lock().get_or_insert_default();
    }

    fn believed(&self, path: &Path, look: impl FnOnce() -> Result<Attr>) -> Result<Attr> {
        let known = self.believed.lock().as_ref().and_then(|known| known.get(path).copied());
        known.map_or_else(|| look().inspect(|attr| self.believes(path, attr)), Ok)
    }

    fn believes(&self, path: &Path, attr: &Attr) {
        if let Some(known) = self.believed.lock().as_mut() {
            known.insert(path.to_owned(), *attr);
        }
    }

    fn view(&self) -> Option<Arc<View>> {
        self.view.lock().clone()
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

impl<B> Recorded<B> {
    fn file(&self, path: &Path, inner: Arc<dyn BackendFile>) -> Arc<dyn BackendFile> {
        let (path, record) = (path.to_owned(), Arc::clone(&self.record));
        Arc::new(RecordedFile { inner, path, record })
    }
}

impl<B: Backend> Backend for Recorded<B> {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.record.note(Call::Stat);
        let view = self.record.view();
        let found = self.record.believed(path, || self.inner.stat(path));
        self.record.wait();
        view.map_or(found, |view| view.attr(path))
    }

    fn stat_entry(&self, name: &EntryRef) -> Result<Attr> {
        self.record.note(Call::Stat);
        let (path, view) = (name.path(), self.record.view());
        let found = self.record.believed(&path, || self.inner.stat_entry(name));
        self.record.wait();
        view.map_or(found, |view| view.attr(&path))
    }

    fn stat_entries(&self, dir: &ObjectRef, names: &[OsString]) -> Result<Vec<Result<Attr>>> {
        self.record.note(Call::StatEntries(names.len()));
        let view = self.record.view();
        let found = self.inner.stat_entries(dir, names)?;
        let old =
            |view: Arc<View>| names.iter().map(|name| view.attr(&dir.path().join(name))).collect();
        Ok(view.map_or(found, old))
    }

    fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()> {
        self.record.note(Call::List);
        let Some(view) = self.record.view() else { return self.inner.list(dir, each) };
        let _ = self.inner.list(dir, &mut |_, _, _| {});
        for DirEntry { name, ino, kind } in view.entries(dir.path())? {
            each(&name, ino, kind);
        }
        Ok(())
    }

    fn check_open_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.record.note(Call::Visit);
        self.inner.check_open_dir(dir)
    }

    fn revalidate_dir(&self, dir: &ObjectRef) -> Result<()> {
        self.record.note(Call::Visit);
        self.inner.revalidate_dir(dir)
    }

    fn check_mount(&self) -> Result<bool> {
        self.inner.check_mount()
    }

    fn is_in_service(&self) -> bool {
        self.inner.is_in_service()
    }

    fn reads_without_threads(&self) -> bool {
        false
    }

    fn flush_closes(&self) {
        self.inner.flush_closes();
    }

    /// A file that is handed over has no path to record.
    fn adopt(&self, _: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        None
    }

    fn handle_unmount(&self, mount: u64) {
        self.inner.handle_unmount(mount);
    }

    fn mount_id(&self) -> Option<u64> {
        self.inner.mount_id()
    }

    fn read_link(&self, path: &ObjectRef) -> Result<OsString> {
        self.record.note(Call::ReadLink);
        self.inner.read_link(path)
    }

    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        self.record.note(Call::Open);
        let old = self.record.view().map(|view| view.attr(path)).transpose()?;
        let (inner, attr) = self.inner.open(path)?;
        self.record.believes(path, &attr);
        Ok((self.file(path, inner), old.unwrap_or(attr)))
    }

    fn stat_fs(&self) -> Result<StatFs> {
        self.record.note(Call::StatFs);
        self.inner.stat_fs()
    }

    fn get_xattr(&self, path: &ObjectRef, name: &OsStr) -> Result<Vec<u8>> {
        self.record.note(Call::Xattr);
        self.inner.get_xattr(path, name)
    }

    fn list_xattr(&self, path: &ObjectRef) -> Result<Vec<u8>> {
        self.record.note(Call::Xattr);
        self.inner.list_xattr(path)
    }

    fn open_to_write(&self, path: &Path, how: &WriteOpenOptions) -> Result<WritableFile> {
        self.record.note(Call::OpenToWrite);
        let opened = self.inner.open_to_write(path, how)?;
        Ok(WritableFile { file: self.file(path, opened.file), ..opened })
    }

    fn create(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile> {
        self.record.note(Call::OpenToWrite);
        let opened = self.inner.create(name, how, create)?;
        Ok(WritableFile { file: self.file(&name.path(), opened.file), ..opened })
    }

    fn mutate(&self, change: &TreeMutation) -> Result<Option<Attr>> {
        self.record.note(Call::Change(change.clone()));
        self.inner.mutate(change)
    }
}

struct RecordedFile {
    inner: Arc<dyn BackendFile>,
    path: PathBuf,
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
        let view = self.record.view();
        let found = self.record.believed(&self.path, || self.inner.attr());
        view.map_or(found, |view| view.attr(&self.path))
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

    /// The kernel's own reads are not recorded.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn parts(&self) -> FileParts<'_> {
        FileParts::default()
    }

    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult {
        Err(read)
    }

    fn is_deferred(&self) -> bool {
        self.inner.is_deferred()
    }

    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64> {
        self.record.note(Call::Seek);
        self.inner.seek(offset, to)
    }

    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
        let call = match change {
            FileMutation::Write { data, .. } => Call::Write(data.len() as u64),
            FileMutation::SetAttr(attributes) => Call::FileSet(*attributes),
            FileMutation::Fallocate { .. } => Call::Allocate,
            FileMutation::CopyFileRange { .. } => Call::Copy,
            FileMutation::Fsync { .. } | FileMutation::Flush => Call::FileChange,
        };
        self.record.note(call);
        self.inner.mutate(change)
    }

    fn lock(&self, request: &LockRequest) -> Result<Lock> {
        self.record.note(Call::Lock(*request));
        self.inner.lock(request)
    }
}
