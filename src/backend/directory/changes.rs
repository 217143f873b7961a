//! How a mounted directory is changed.

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

use super::base::Base;
use super::{Directory, DirectoryFile, Object, for_xattr, proc_path};
use crate::backend::change::{
    Change, Create, FileChange, Lock, LockKind, LockRequest, NewPerm, OpenAccess, SetAttr, SetTime,
    SyncMode, WriteOpen,
};
use crate::backend::identity::set_umask;
use crate::backend::{
    Attr, BackendError, FileKind, Name, OpenedToWrite, Result, Target, has_a_part,
};
use crate::privilege;

impl Directory {
    /// Opens a file that may be written.
    pub(super) fn open_writable(&self, path: &Path, how: &WriteOpen) -> Result<OpenedToWrite> {
        if let Some(known) = how.known {
            // Before anything is cut off.
            let object = self.resolve(path, OFlags::PATH)?;
            if !known.is(&self.device()?.attr(object.as_fd())?) {
                return Err(Errno::STALE.into());
            }
        }
        self.opened(how, |access| self.resolve_file(path, how.flags() | access))
    }

    /// Makes a file that may be written, or opens it.
    pub(super) fn create_writable(
        &self,
        name: &Name,
        how: &WriteOpen,
        create: Create,
    ) -> Result<OpenedToWrite> {
        let mode = masked(create.perm)?;
        let (dir, name) = self.place(name)?;
        let mut making = how.flags() | OFlags::CREATE;
        making.set(OFlags::EXCL, create.exclusive);
        let open = |flags: OFlags| {
            let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
            Self::open_in(&dir, name, flags, mode)
        };
        self.opened(how, |access| self.open_regular(making | access, open))
    }

    /// Opens a regular file by `open`, which is given O_RDONLY and its like.
    fn opened(
        &self,
        how: &WriteOpen,
        open: impl Fn(OFlags) -> Result<OwnedFd>,
    ) -> Result<OpenedToWrite> {
        let (file, readable) = match how.access {
            OpenAccess::Read => (open(OFlags::RDONLY)?, true),
            OpenAccess::Both => (open(OFlags::RDWR)?, true),
            // Others may want to read what is written through it.
            OpenAccess::Write => match open(OFlags::RDWR) {
                Err(BackendError::Os(Errno::ACCESS)) => (open(OFlags::WRONLY)?, false),
                opened => (opened?, true),
            },
        };
        let file = DirectoryFile { direct: None, cached: Some(file), device: self.device()? };
        let attr = file.device.attr(file.any())?;
        if attr.kind != FileKind::Regular {
            return Err(Errno::STALE.into());
        }
        Ok(OpenedToWrite { file: Arc::new(file), attr, readable })
    }

    /// Carries out a change; says what the object is like now, if there is one.
    pub(super) fn apply(&self, change: &Change) -> Result<Option<Attr>> {
        match change {
            Change::MakeDir { at, perm } => {
                let (dir, name) = self.place(at)?;
                mkdirat(&dir, name, masked(*perm)?)?;
                self.look(&dir, name)
            }
            Change::MakeNode { at, kind, perm, device } => {
                let (dir, name) = self.place(at)?;
                let device = makedev(device.0, device.1);
                mknodat(&dir, name, file_type(*kind), masked(*perm)?, device)?;
                self.look(&dir, name)
            }
            Change::MakeLink { at, target } => {
                let (dir, name) = self.place(at)?;
                symlinkat(target, &dir, name)?;
                self.look(&dir, name)
            }
            Change::Link { from, to } => {
                let (new, new_name) = self.place(to)?;
                // If the object is no longer at this path, link its open descriptor.
                let object = match (self.resolve_target(from, OFlags::PATH), from.open()) {
                    (
                        Err(BackendError::Another | BackendError::Os(Errno::STALE | Errno::NOENT)),
                        Some(_),
                    ) => self.object(from)?,
                    (found, _) => Object::Found(found?),
                };
                let (cwd, follow) = (rustix::fs::CWD, AtFlags::SYMLINK_FOLLOW);
                linkat(cwd, proc_path(&object), &new, new_name, follow)?;
                self.look(&new, new_name)
            }
            Change::Unlink { at } => {
                let (dir, name) = self.place(at)?;
                unlinkat(&dir, name, AtFlags::empty())?;
                Ok(None)
            }
            Change::RemoveDir { at } => {
                let (dir, name) = self.place(at)?;
                unlinkat(&dir, name, AtFlags::REMOVEDIR)?;
                Ok(None)
            }
            Change::Rename { from, to, flags } => {
                let ((old, old_name), (new, new_name)) = (self.place(from)?, self.place(to)?);
                let flags = RenameFlags::from_bits_retain(*flags);
                renameat_with(&old, old_name, &new, new_name, flags)?;
                Ok(None)
            }
            Change::Set { object, attributes } => self.set_attributes(object, attributes).map(Some),
            Change::SetXattr { object, name, value, flags } => {
                let object = self.object(object)?;
                let _raised = privilege::raise(for_xattr(name));
                setxattr(proc_path(&object), name, value, XattrFlags::from_bits_retain(*flags))?;
                Ok(None)
            }
            Change::RemoveXattr { object, name } => {
                let object = self.object(object)?;
                let _raised = privilege::raise(for_xattr(name));
                removexattr(proc_path(&object), name)?;
                Ok(None)
            }
            Change::SyncDir { dir } => {
                let dir = self.resolve_target(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
                rustix::fs::fsync(dir)?;
                Ok(None)
            }
        }
    }

    fn look(&self, dir: &Base, name: &OsStr) -> Result<Option<Attr>> {
        self.device()?.attr_at(dir.as_fd(), name).map(Some)
    }

    fn set_attributes(&self, target: &Target, set: &SetAttr) -> Result<Attr> {
        let object = self.resolve_target(target, OFlags::PATH)?;
        if let Some(size) = set.size {
            let file = self.resolve_target(target, OFlags::WRONLY | OFlags::NONBLOCK)?;
            rustix::fs::ftruncate(&file, size)?;
        }
        set_by_descriptor(object.as_fd(), set)?;
        self.device()?.attr(object.as_fd())
    }
}

/// Everything but the size, of what any kind of descriptor stands for.
fn set_by_descriptor(fd: BorrowedFd<'_>, set: &SetAttr) -> Result<()> {
    // chown(2) that changes nothing may take set-id bits away all the same.
    if set.uid.is_some() || set.gid.is_some() || *set == SetAttr::default() {
        let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
        chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(perm) = set.perm {
        // Of a symbolic link nobody can change them: the kernel does not ask.
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

impl WriteOpen {
    /// The flags of open(2) but for the access.
    fn flags(&self) -> OFlags {
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

/// Leaves the umask to the replica; where the thread can have none of its own, it
/// is applied here.
fn masked(perm: NewPerm) -> Result<Mode> {
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

impl DirectoryFile {
    /// Carries out a change of the open file; says how many bytes it wrote.
    pub(super) fn apply(&self, change: &FileChange<'_>) -> Result<u64> {
        let file = self.any();
        match *change {
            FileChange::Write { offset, data, append, whole } => {
                let mut written = write(file, offset, data, append)?;
                while whole && written < data.len() as u64 {
                    let rest = &data[written as usize..];
                    has_a_part();
                    written += write(file, offset + written, rest, append)?;
                }
                Ok(written)
            }
            FileChange::Copy { offset, to, at, len } => {
                let to = to.descriptor().ok_or(Errno::OPNOTSUPP)?;
                let (mut from_at, mut to_at) = (offset, at);
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
            FileChange::Set(set) => {
                if let Some(size) = set.size {
                    rustix::fs::ftruncate(file, size)?;
                }
                set_by_descriptor(file, &set)?;
                Ok(0)
            }
            FileChange::Allocate { mode, offset, len } => {
                rustix::fs::fallocate(file, FallocateFlags::from_bits_retain(mode), offset, len)?;
                Ok(0)
            }
            FileChange::Sync { data_only: true } => Ok(rustix::fs::fdatasync(file).map(|()| 0)?),
            FileChange::Sync { data_only: false } => Ok(rustix::fs::fsync(file).map(|()| 0)?),
            FileChange::Flush => {
                // Every close(2) of a descriptor does it, also of a second one, and
                // its result is where NFS says that writing back has failed.
                let second = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
                nix::unistd::close(second).map(|()| 0).map_err(errno)
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
            // 0 is to the end.
            l_len: if lock.end >= Lock::TO_THE_END {
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
        fcntl(self.any(), arg).map_err(errno)?;
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
            0 => Lock::TO_THE_END,
            len => start + len as u64 - 1,
        };
        Ok(Lock { kind, start, end })
    }
}

fn write(file: BorrowedFd<'_>, offset: u64, data: &[u8], append: bool) -> Result<u64> {
    // For this call alone: what the kernel writes back of a mapped file comes
    // through the same descriptor and belongs where it says.
    let flags = if append { ReadWriteFlags::APPEND } else { ReadWriteFlags::empty() };
    loop {
        match pwritev2(file, &[IoSlice::new(data)], offset, flags) {
            Err(Errno::INTR) => {}
            written => return Ok(written? as u64),
        }
    }
}

fn errno(errno: nix::Error) -> BackendError {
    BackendError::Os(Errno::from_raw_os_error(errno as i32))
}
