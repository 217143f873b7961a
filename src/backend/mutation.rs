//! The changes that a replica can be asked for. Each request is carried out once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::{BackendFile, EntryRef, FileKind, InodeIdentity, ObjectRef, Timestamp};

/// The requested permission bits, and the caller's umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateMode {
    /// As passed to open(2), mkdir(2) or mknod(2).
    pub perm: u32,
    /// The replica applies it, or the directory's default access control list instead.
    pub umask: u32,
}

/// A change of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeMutation {
    /// mkdir(2)
    Mkdir { at: EntryRef, perm: CreateMode },
    /// mknod(2); `device` is major and minor.
    Mknod { at: EntryRef, kind: FileKind, perm: CreateMode, device: (u32, u32) },
    /// symlink(2)
    Symlink { at: EntryRef, target: OsString },
    /// link(2)
    Link { from: ObjectRef, to: EntryRef },
    /// unlink(2)
    Unlink { at: EntryRef },
    /// rmdir(2)
    Rmdir { at: EntryRef },
    /// renameat2(2), with its flags.
    Rename { from: EntryRef, to: EntryRef, flags: u32 },
    /// chmod(2), chown(2), utimensat(2), truncate(2)
    SetAttr { object: ObjectRef, attributes: SetAttr },
    /// setxattr(2), with its flags.
    SetXattr { object: ObjectRef, name: OsString, value: Arc<[u8]>, flags: u32 },
    /// removexattr(2)
    RemoveXattr { object: ObjectRef, name: OsString },
    /// fsync(2) of a directory.
    FsyncDir { dir: ObjectRef },
}

impl TreeMutation {
    /// The path of the changed object; if there are two paths, the first.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Link { from: object, .. }
            | Self::SetAttr { object, .. }
            | Self::SetXattr { object, .. }
            | Self::RemoveXattr { object, .. }
            | Self::FsyncDir { dir: object } => object.path().to_owned(),
            Self::Rename { from: at, .. }
            | Self::Mkdir { at, .. }
            | Self::Mknod { at, .. }
            | Self::Symlink { at, .. }
            | Self::Unlink { at }
            | Self::Rmdir { at } => at.path(),
        }
    }
}

/// Attributes to set; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, set-id and sticky bits included.
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub atime: Option<SetTime>,
    /// Time of the last modification.
    pub mtime: Option<SetTime>,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The replica's current time.
    Now,
    /// This one.
    At(Timestamp),
}

/// A change of an open file.
pub enum FileMutation<'a> {
    /// pwrite(2). `append`: at the current end of the file. `whole`: writes all of `data` or
    /// returns an error.
    Write { offset: u64, data: &'a [u8], append: bool, whole: bool },
    /// copy_file_range(2) from this file to `to`.
    CopyFileRange { offset: u64, to: &'a dyn BackendFile, to_offset: u64, len: u64 },
    /// fchmod(2), fchown(2), futimens(2), ftruncate(2)
    SetAttr(SetAttr),
    /// fallocate(2), with its mode.
    Fallocate { mode: u32, offset: u64, len: u64 },
    /// fsync(2), or fdatasync(2).
    Fsync { data_only: bool },
    /// The work of close(2) before it returns, such as writeback over NFS.
    Flush,
}

/// How to open a file for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOpenOptions {
    /// The access mode.
    pub access: OpenAccess,
    /// O_TRUNC
    pub truncate: bool,
    /// When a write counts as done.
    pub sync: SyncMode,
    /// The object that must be at the path.
    pub expected: Option<InodeIdentity>,
}

/// How to create a file while opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// O_EXCL
    pub exclusive: bool,
    /// Its permission bits and the umask.
    pub perm: CreateMode,
}

/// The access mode of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAccess {
    /// O_RDONLY
    Read,
    /// O_WRONLY
    Write,
    /// O_RDWR
    ReadWrite,
}

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// When the replica's mount has taken it.
    No,
    /// O_DSYNC: when the data is on stable storage.
    Data,
    /// O_SYNC: when the attributes are on stable storage too.
    All,
}

impl SyncMode {
    const MODES: [Self; 3] = [Self::No, Self::Data, Self::All];

    /// Its number in records.
    pub fn to_code(self) -> u8 {
        Self::MODES.iter().position(|mode| *mode == self).unwrap_or_default() as u8
    }

    /// The mode with this number; the strictest for an unknown number.
    pub fn from_code(number: u8) -> Self {
        Self::MODES.get(usize::from(number)).copied().unwrap_or(Self::All)
    }
}

/// A lock on a range of a file, or the absence of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Kind of lock.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte; [`Lock::TO_EOF`] for the rest of the file, however large it grows.
    pub end: u64,
}

/// What a lock prevents for other owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Writing.
    Shared,
    /// Reading and writing.
    Exclusive,
    /// Nothing: the lock is released.
    None,
}

impl Lock {
    /// The last byte of a lock without an end (`OFFSET_MAX` of the kernel).
    pub const TO_EOF: u64 = i64::MAX as u64;
}

/// A request about a lock. The open file owns the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRequest {
    /// Sets or releases it; EAGAIN if another owner's lock conflicts.
    Set(Lock),
    /// Tests it: returns the conflicting lock, or one of kind `None`.
    Test(Lock),
}
