//! What may be changed on a replica: requests, each carried out once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::{BackendFile, EntryRef, FileKind, InodeIdentity, ObjectRef, Timestamp};

/// Permission bits that were asked for, and the umask of who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateMode {
    /// As given to open(2), mkdir(2) or mknod(2).
    pub perm: u32,
    /// Applied by the replica, unless a default access control list is.
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
    /// The path that the change is about; of two paths, the first.
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

/// Attributes to be set; `None` leaves one as it is.
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

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The replica's present time.
    Now,
    /// This one.
    At(Timestamp),
}

/// A change of an open file.
pub enum FileMutation<'a> {
    /// pwrite(2); `append`: at the file's end, wherever that is by now; `whole`: all of
    /// it, or an error.
    Write { offset: u64, data: &'a [u8], append: bool, whole: bool },
    /// copy_file_range(2) from this file to `to`.
    CopyFileRange { offset: u64, to: &'a dyn BackendFile, to_offset: u64, len: u64 },
    /// fchmod(2), fchown(2), futimens(2), ftruncate(2)
    SetAttr(SetAttr),
    /// fallocate(2), with its mode.
    Fallocate { mode: u32, offset: u64, len: u64 },
    /// fsync(2), or fdatasync(2).
    Fsync { data_only: bool },
    /// What close(2) does before it returns, such as to write back over NFS.
    Flush,
}

/// How a file is opened that may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOpenOptions {
    /// What it is opened for.
    pub access: OpenAccess,
    /// O_TRUNC
    pub truncate: bool,
    /// When a write is done.
    pub sync: SyncMode,
    /// The object that it has to be.
    pub expected: Option<InodeIdentity>,
}

/// Making a file in the same step as opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// O_EXCL
    pub exclusive: bool,
    /// Its permission bits.
    pub perm: CreateMode,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAccess {
    /// O_RDONLY
    Read,
    /// O_WRONLY
    Write,
    /// O_RDWR
    ReadWrite,
}

/// When a write is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// When the replica's mount has it.
    No,
    /// O_DSYNC: when the data are stable.
    Data,
    /// O_SYNC: when its attributes are, too.
    All,
}

impl SyncMode {
    const MODES: [Self; 3] = [Self::No, Self::Data, Self::All];

    /// A number for it, to be written down.
    pub fn to_code(self) -> u8 {
        Self::MODES.iter().position(|mode| *mode == self).unwrap_or_default() as u8
    }

    /// The one that `number` was written down for; the strictest for any other.
    pub fn from_code(number: u8) -> Self {
        Self::MODES.get(usize::from(number)).copied().unwrap_or(Self::All)
    }
}

/// A lock on a range of a file, or the absence of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// What kind of lock.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Last byte; [`Lock::TO_EOF`] for all there will ever be.
    pub end: u64,
}

/// What a lock keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// From writing.
    Shared,
    /// From reading and writing.
    Exclusive,
    /// Nothing: it is given up.
    None,
}

impl Lock {
    /// The last byte of a lock without end (`OFFSET_MAX` of the kernel).
    pub const TO_EOF: u64 = i64::MAX as u64;
}

/// What is asked about a lock. Its owner is the open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRequest {
    /// Takes it, or gives it up; EAGAIN where somebody else has one in the way.
    Set(Lock),
    /// Says who is in the way of it: a lock of somebody's, or one of kind `None`.
    Test(Lock),
}
