//! How the backend changes a mounted directory.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, linkat, makedev, mkdirat, mknodat,
    removexattr, renameat_with, setxattr, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2};

use super::base_dir::BaseDir;
use super::{DirBackend, DirFile, ObjectFd, proc_path, xattr_capabilities};
use crate::backend::change_scope::check_not_given_up;
use crate::backend::credentials::set_umask;
use crate::backend::mutation::{
    CreateMode, CreateOptions, FileMutation, Lock, LockKind, LockRequest, OpenAccess, SetAttr,
    SetTime, SyncMode, TreeMutation, WriteOpenOptions,
};
use crate::backend::{
    Attr, BackendError, EntryRef, FileKind, ObjectRef, Result, WritableFile, report_progress,
};
use crate::capabilities;

impl DirBackend {
    pub(super) fn open_writable(
        &self,
        path: &Path,
        how: &WriteOpenOptions,
    ) -> Result<WritableFile> {
        if let Some(known) = how.expected {
            // Check it before O_TRUNC truncates it.
            let object = self.resolve(path, OFlags::PATH)?;
            if !known.is_match(&self.device()?.attr(object.as_fd())?) {
                return Err(Errno::STALE.into());
            }
        }
        check_not_given_up()?;
        self.open_with_access(how, |access| self.resolve_file(path, how.open_flags() | access))
    }

    /// Creates a file and opens it for writing, or opens the existing file.
    pub(super) fn create_writable(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile> {
        let mode = mode_with_umask(create.perm)?;
        let (dir, name) = self.resolve_entry(name)?;
        let mut making = how.open_flags() | OFlags::CREATE;
        making.set(OFlags::EXCL, create.exclusive);
        let open = |flags: OFlags| {
            let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
            Self::open_entry(&dir, name, flags, mode)
        };
        check_not_given_up()?;
        self.open_with_access(how, |access| self.open_regular(making | access, open))
    }

    /// Opens a regular file with `open`, which takes the access mode (O_RDONLY and so on).
    fn open_with_access(
        &self,
        how: &WriteOpenOptions,
        open: impl Fn(OFlags) -> Result<OwnedFd>,
    ) -> Result<WritableFile> {
        let (file, readable) = match how.access {
            OpenAccess::Read => (open(OFlags::RDONLY)?, true),
            OpenAccess::ReadWrite => (open(OFlags::RDWR)?, true),
            // Other handles may want to read the data that is written through this file.
            OpenAccess::Write => match open(OFlags::RDWR) {
                Err(BackendError::Os(Errno::ACCESS)) => (open(OFlags::WRONLY)?, false),
                opened => (opened?, true),
            },
        };
        let file = DirFile { direct: None, cached: Some(file), device: self.device()? };
        let attr = file.device.attr(file.any_fd())?;
        if attr.kind != FileKind::Regular {
            return Err(Errno::STALE.into());
        }
        Ok(WritableFile { file: Arc::new(file), attr, readable })
    }

    /// Applies a change. Returns the object's new attributes after a creation or a change of
    /// attributes, else `None`.
    pub(super) fn apply(&self, change: &TreeMutation) -> Result<Option<Attr>> {
        match change {
            TreeMutation::Mkdir { at, perm } => {
                self.make_entry(at, |dir, name| Ok(mkdirat(dir, name, mode_with_umask(*perm)?)?))
            }
            TreeMutation::Mknod { at, kind, perm, device } => self.make_entry(at, |dir, name| {
                let device = makedev(device.0, device.1);
                Ok(mknodat(dir, name, file_type(*kind), mode_with_umask(*perm)?, device)?)
            }),
            TreeMutation::Symlink { at, target } => {
                self.make_entry(at, |dir, name| Ok(symlinkat(target, dir, name)?))
            }
            TreeMutation::Link { from, to } => {
                self.make_entry(to, |dir, name| self.link_object(from, dir, name))
            }
            TreeMutation::Unlink { at } => self.remove_entry(at, AtFlags::empty()).map(|()| None),
            TreeMutation::Rmdir { at } => self.remove_entry(at, AtFlags::REMOVEDIR).map(|()| None),
            TreeMutation::Rename { from, to, flags } => {
                let (old_dir, old_name) = self.resolve_entry(from)?;
                let (new_dir, new_name) = self.resolve_entry(to)?;
                let flags = RenameFlags::from_bits_retain(*flags);
                check_not_given_up()?;
                renameat_with(&old_dir, old_name, &new_dir, new_name, flags)?;
                Ok(None)
            }
            TreeMutation::SetAttr { object, attributes } => {
                self.set_attributes(object, attributes).map(Some)
            }
            TreeMutation::SetXattr { object, name, value, flags } => {
                let object = self.object_fd(object)?;
                let _raised = capabilities::raise(xattr_capabilities(name));
                check_not_given_up()?;
                setxattr(proc_path(&object), name, value, XattrFlags::from_bits_retain(*flags))?;
                Ok(None)
            }
            TreeMutation::RemoveXattr { object, name } => {
                let object = self.object_fd(object)?;
                let _raised = capabilities::raise(xattr_capabilities(name));
                check_not_given_up()?;
                removexattr(proc_path(&object), name)?;
                Ok(None)
            }
            TreeMutation::FsyncDir { dir } => {
                let dir = self.resolve_target(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
                rustix::fs::fsync(dir)?;
                Ok(None)
            }
        }
    }

    /// Creates an entry with `make`, and returns its attributes.
    fn make_entry(
        &self,
        at: &EntryRef,
        make: impl FnOnce(&BaseDir, &OsStr) -> Result<()>,
    ) -> Result<Option<Attr>> {
        let (dir, name) = self.resolve_entry(at)?;
        check_not_given_up()?;
        make(&dir, name)?;
        self.stat_entry_at(&dir, name)
    }

    fn remove_entry(&self, at: &EntryRef, flags: AtFlags) -> Result<()> {
        let (dir, name) = self.resolve_entry(at)?;
        check_not_given_up()?;
        Ok(unlinkat(&dir, name, flags)?)
    }

    /// Creates another name for an object. If the object is no longer at its path, its open
    /// descriptor is linked.
    fn link_object(&self, from: &ObjectRef, dir: &BaseDir, name: &OsStr) -> Result<()> {
        let found = self.resolve_target(from, OFlags::PATH);
        let has_moved = matches!(
            found,
            Err(BackendError::WrongObject | BackendError::Os(Errno::STALE | Errno::NOENT))
        );
        let object = match has_moved && from.open_file().is_some() {
            true => self.object_fd(from)?,
            false => ObjectFd::Opened(found?),
        };
        let flags = AtFlags::SYMLINK_FOLLOW;
        check_not_given_up()?;
        Ok(linkat(rustix::fs::CWD, proc_path(&object), dir, name, flags)?)
    }

    fn stat_entry_at(&self, dir: &BaseDir, name: &OsStr) -> Result<Option<Attr>> {
        self.device()?.attr_at(dir.as_fd(), name).map(Some)
    }

    fn set_attributes(&self, target: &ObjectRef, set: &SetAttr) -> Result<Attr> {
        let object = self.resolve_target(target, OFlags::PATH)?;
        if let Some(size) = set.size {
            let file = self.resolve_target(target, OFlags::WRONLY | OFlags::NONBLOCK)?;
            check_not_given_up()?;
            rustix::fs::ftruncate(&file, size)?;
        } else {
            check_not_given_up()?;
        }
        set_attributes_by_fd(object.as_fd(), set)?;
        self.device()?.attr(object.as_fd())
    }
}

/// Sets everything but the size, on any kind of descriptor.
fn set_attributes_by_fd(fd: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
    // Skipped if nothing changes: even such a chown(2) may clear set-id bits.
    if set.uid.is_some() || set.gid.is_some() || *set == SetAttr::default() {
        let uid = set.uid.map(Uid::from_raw);
        let gid = set.gid.map(Gid::from_raw);
        chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(perm) = set.perm {
        // The kernel never sends a mode change for a symbolic link.
        let mode = Mode::from_raw_mode(perm);
        chmodat(rustix::fs::CWD, proc_path(&fd), mode, AtFlags::empty())?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let times =
            Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
        utimensat(fd, "", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

impl WriteOpenOptions {
    /// The flags of open(2) without the access mode.
    fn open_flags(&self) -> OFlags {
        let flags = match self.sync {
            SyncMode::No => OFlags::empty(),
            SyncMode::Data => OFlags::DSYNC,
            SyncMode::All => OFlags::SYNC,
        };
        if self.truncate { flags | OFlags::TRUNC } else { flags }
    }
}

fn timespec(time: Option<SetTime>) -> Timespec {
    match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At((seconds, nanos))) => Timespec { tv_sec: seconds, tv_nsec: nanos.into() },
    }
}

/// The mode for a creating call, under the caller's umask. The replica applies the umask; if the
/// thread cannot have its own umask, it is applied here.
fn mode_with_umask(perm: CreateMode) -> Result<Mode> {
    let bits = match set_umask(perm.umask) {
        Ok(()) => perm.perm,
        Err(_) => perm.perm & !perm.umask,
    };
    Ok(Mode::from_raw_mode(bits))
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

impl DirFile {
    /// Applies a change to the open file. Returns the number of bytes written or copied, else 0.
    pub(super) fn apply(&self, change: &FileMutation<'_>) -> Result<u64> {
        let file = self.any_fd();
        match *change {
            FileMutation::Write { offset, data, append, whole } => {
                let mut written = pwrite(file, offset, data, append)?;
                while whole && written < data.len() as u64 {
                    let rest = &data[written as usize..];
                    report_progress();
                    written += pwrite(file, offset + written, rest, append)?;
                }
                Ok(written)
            }
            FileMutation::CopyFileRange { offset, to, to_offset: at, len } => {
                let to = to.descriptor().ok_or(Errno::OPNOTSUPP)?;
                let mut from_at = offset;
                let mut to_at = at;
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let copied = rustix::fs::copy_file_range(
                    file,
                    Some(&mut from_at),
                    to,
                    Some(&mut to_at),
                    len,
                );
                Ok(copied? as u64)
            }
            FileMutation::SetAttr(set) => {
                check_not_given_up()?;
                if let Some(size) = set.size {
                    rustix::fs::ftruncate(file, size)?;
                }
                set_attributes_by_fd(file, &set)?;
                Ok(0)
            }
            FileMutation::Fallocate { mode, offset, len } => {
                rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode), offset, len)?;
                Ok(0)
            }
            FileMutation::Fsync { data_only: true } => Ok(rustix::fs::fdatasync(file).map(|()| 0)?),
            FileMutation::Fsync { data_only: false } => Ok(rustix::fs::fsync(file).map(|()| 0)?),
            FileMutation::Flush => {
                // Closing any descriptor of the file, even a duplicate, flushes it. NFS reports
                // failed writeback in the result of close(2).
                let second = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
                nix::unistd::close(second).map(|()| 0).map_err(from_nix_errno)
            }
        }
    }

    /// Sets or tests a lock that belongs to this open file (`F_OFD_SETLK`).
    pub(super) fn lock_range(&self, request: &LockRequest) -> Result<Lock> {
        let (LockRequest::Set(lock) | LockRequest::Test(lock)) = *request;
        let mut range = libc::flock {
            l_type: match lock.kind {
                LockKind::Shared => libc::F_RDLCK as i16,
                LockKind::Exclusive => libc::F_WRLCK as i16,
                LockKind::None => libc::F_UNLCK as i16,
            },
            l_whence: libc::SEEK_SET as i16,
            l_start: i64::try_from(lock.start).map_err(|_| Errno::OVERFLOW)?,
            // 0 means to the end of the file.
            l_len: if lock.end >= Lock::TO_EOF {
                0
            } else {
                lock.end.saturating_sub(lock.start) as i64 + 1
            },
            l_pid: 0,
        };
        let arg = match request {
            LockRequest::Set(_) => FcntlArg::F_OFD_SETLK(&range),
            LockRequest::Test(_) => FcntlArg::F_OFD_GETLK(&mut range),
        };
        fcntl(self.any_fd(), arg).map_err(from_nix_errno)?;
        if matches!(request, LockRequest::Set(_)) {
            return Ok(lock);
        }
        let kind = match i32::from(range.l_type) {
            libc::F_RDLCK => LockKind::Shared,
            libc::F_WRLCK => LockKind::Exclusive,
            _ => LockKind::None,
        };
        let start = range.l_start as u64;
        let end = match range.l_len {
            0 => Lock::TO_EOF,
            len => start + len as u64 - 1,
        };
        Ok(Lock { kind, start, end })
    }
}

fn pwrite(file: BorrowedFd<'_>, offset: u64, data: &[u8], append: bool) -> Result<u64> {
    // APPEND is set for this call only: the kernel's writeback of a mapped file uses the same
    // descriptor and must keep its offset.
    let flags = if append { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
    loop {
        match pwritev2(file, &[IoSlice::new(data)], offset, flags) {
            Err(Errno::INTR) => {}
            written => return Ok(written? as u64),
        }
    }
}

fn from_nix_errno(errno: nix::Error) -> BackendError {
    BackendError::Os(Errno::from_raw_os_error(errno as i32))
}
