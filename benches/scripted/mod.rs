//! A replica that answers from memory at once, so that a measurement shows fanfs's own cost.

use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use fanfs::backend::{
    Attr, Backend, BackendFile, CreateOptions, EntryRef, EntryVisitor, FileKind, FileMutation,
    FileParts, Lock, LockRequest, ObjectRef, OwnedFileParts, Result, SeekTo, StatFs, SubmitResult,
    SubmittedRead, TreeMutation, WritableFile, WriteOpenOptions,
};
use fanfs::volume::FileId;

/// The size of a file whose name begins with "large".
pub(crate) const LARGE: u64 = 1 << 40;

/// The size of every other file.
pub(crate) const SMALL: u64 = 4096;

/// Has a file of each name that is asked for, with zeros.
pub(crate) struct Memory;

struct MemoryFile(Attr);

/// The attributes of the object at `path`; the empty path is the root.
pub(crate) fn attr_of(path: &Path) -> Attr {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let is_root = path.as_os_str().is_empty();
    let size = if path.to_string_lossy().starts_with("large") { LARGE } else { SMALL };
    Attr {
        id: FileId { dev: FileId::ROOT_DEV, ino: if is_root { 1 } else { hasher.finish() | 2 } },
        kind: if is_root { FileKind::Directory } else { FileKind::Regular },
        perm: if is_root { 0o755 } else { 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        size: if is_root { 0 } else { size },
        blocks: 0,
        blksize: 4096,
        atime: (0, 0),
        mtime: (0, 0),
        ctime: (0, 0),
        generation: Default::default(),
    }
}

fn writable(path: &Path) -> WritableFile {
    let attr = attr_of(path);
    WritableFile { file: Arc::new(MemoryFile(attr)), attr, readable: true }
}

impl Backend for Memory {
    fn stat(&self, path: &Path) -> Result<Attr> {
        Ok(attr_of(path))
    }
    fn stat_entry(&self, entry: &EntryRef) -> Result<Attr> {
        Ok(attr_of(&entry.path()))
    }
    fn stat_entries(&self, _: &ObjectRef, _: &[OsString]) -> Result<Vec<Result<Attr>>> {
        Ok(Vec::new())
    }
    fn list(&self, _: &ObjectRef, _: &mut EntryVisitor<'_>) -> Result<()> {
        Ok(())
    }
    fn check_open_dir(&self, _: &ObjectRef) -> Result<()> {
        Ok(())
    }
    fn revalidate_dir(&self, _: &ObjectRef) -> Result<()> {
        Ok(())
    }
    fn read_link(&self, _: &ObjectRef) -> Result<OsString> {
        Ok(OsString::new())
    }
    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)> {
        let attr = attr_of(path);
        Ok((Arc::new(MemoryFile(attr)), attr))
    }
    fn stat_fs(&self) -> Result<StatFs> {
        Err(rustix::io::Errno::NOSYS.into())
    }
    fn get_xattr(&self, _: &ObjectRef, _: &OsStr) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn list_xattr(&self, _: &ObjectRef) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn check_mount(&self) -> Result<bool> {
        Ok(true)
    }
    fn is_in_service(&self) -> bool {
        true
    }
    fn handle_unmount(&self, _: u64) {}
    fn mount_id(&self) -> Option<u64> {
        None
    }
    fn reads_without_threads(&self) -> bool {
        false
    }
    fn flush_closes(&self) {}
    fn adopt(&self, _: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        None
    }
    fn open_to_write(&self, path: &Path, _: &WriteOpenOptions) -> Result<WritableFile> {
        Ok(writable(path))
    }
    fn create(
        &self,
        at: &EntryRef,
        _: &WriteOpenOptions,
        _: CreateOptions,
    ) -> Result<WritableFile> {
        Ok(writable(&at.path()))
    }
    fn mutate(&self, _: &TreeMutation) -> Result<Option<Attr>> {
        Err(rustix::io::Errno::ROFS.into())
    }
}

impl BackendFile for MemoryFile {
    fn attr(&self) -> Result<Attr> {
        Ok(self.0)
    }
    fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(buf.len())
    }
    fn splice_at(&self, _: u64, _: BorrowedFd<'_>, _: usize) -> Option<Result<usize>> {
        None
    }
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
        false
    }
    fn seek(&self, offset: u64, _: SeekTo) -> Result<u64> {
        Ok(offset)
    }
    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64> {
        Ok(match change {
            FileMutation::Write { data, .. } => data.len() as u64,
            _ => 0,
        })
    }
    fn lock(&self, _: &LockRequest) -> Result<Lock> {
        Err(rustix::io::Errno::NOLCK.into())
    }
}
