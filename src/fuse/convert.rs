//! The FUSE protocol's numbers, converted to fanfs's types and back.

use std::ffi::OsStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, FileType, INodeNo, Request, RequestId, TimeOrNow};

use crate::backend::{
    CreateMode, CreateOptions, FileKind, Lock, LockKind, OpenAccess, RequestContext, SeekTo,
    SetTime, SyncMode, Timestamp, WriteOpenOptions,
};
use crate::fs::{EntryName, Errno, HandleId, Ino, InodeAttr, LockOwner};

/// The permission bits of a mode, set-id and sticky bits included.
const PERMISSION_BITS: u32 = 0o7777;

/// The most bytes of one copy; a caller that asked for more asks again. No reader can read the
/// target meanwhile: one second on a replica that copies 64 MiB/s by reading and writing.
pub(super) const MAX_COPY_BYTES: u64 = 64 << 20;

/// Flags of open(2), as the kernel passes them on.
pub(super) const O_APPEND: i32 = nix::libc::O_APPEND;
pub(super) const O_DIRECT: i32 = nix::libc::O_DIRECT;

/// The kernel's own flag for a file that it opens to run it (`__FMODE_EXEC`).
pub(super) const FMODE_EXEC: i32 = 0x20;

/// The modes of fallocate(2) that remove or insert a range (`FALLOC_FL_COLLAPSE_RANGE`,
/// `FALLOC_FL_INSERT_RANGE`).
pub(super) const FALLOC_SHIFT_MODES: u32 = 0x08 | 0x20;

/// `FUSE_UNIQUE_RESEND`: marks the numbers of resent requests.
const FUSE_UNIQUE_RESEND: u64 = 1 << 63;

/// Whether the request may have been carried out before.
pub(super) fn is_resent(id: RequestId) -> bool {
    id.0 & FUSE_UNIQUE_RESEND != 0
}

/// The number of the request, the same at each try.
pub(super) fn request_number(id: RequestId) -> u64 {
    id.0 & !FUSE_UNIQUE_RESEND
}

pub(super) fn request_context(req: &Request) -> RequestContext {
    let request = request_number(req.unique());
    let again = is_resent(req.unique());
    RequestContext { uid: req.uid(), gid: req.gid(), pid: req.pid(), request, is_resent: again }
}

pub(super) fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

/// An error as fuser names it.
pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw())
}

/// A name in a directory.
pub(super) fn entry_name(parent: INodeNo, name: &OsStr) -> EntryName<'_> {
    EntryName { parent: ino(parent), name }
}

/// The handle in an operation on an inode.
pub(super) fn handle_id(number: INodeNo, handle: FileHandle) -> HandleId {
    HandleId { number: handle.0, ino: ino(number) }
}

/// Whether the kernel must send the parts of a write(2) one by one.
pub(super) fn needs_serial_writes(flags: i32) -> bool {
    flags & (O_APPEND | O_DIRECT) == O_APPEND | O_DIRECT
}

pub(super) fn lock_owner(owner: fuser::LockOwner) -> LockOwner {
    LockOwner(owner.0)
}

/// The permission bits of a mode.
pub(super) fn permission_bits(mode: u32) -> u32 {
    mode & PERMISSION_BITS
}

fn system_time(timestamp: Timestamp) -> SystemTime {
    let (seconds, nanos) = timestamp;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start.and_then(|t| t.checked_add(Duration::from_nanos(nanos.into()))).unwrap_or(UNIX_EPOCH)
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// A kind's number in a listing: `IFTODT` of readdir(3).
pub(super) fn dirent_type(of: FileKind) -> u32 {
    let mode = match of {
        FileKind::Regular => nix::libc::S_IFREG,
        FileKind::Directory => nix::libc::S_IFDIR,
        FileKind::Symlink => nix::libc::S_IFLNK,
        FileKind::Fifo => nix::libc::S_IFIFO,
        FileKind::Socket => nix::libc::S_IFSOCK,
        FileKind::CharDevice => nix::libc::S_IFCHR,
        FileKind::BlockDevice => nix::libc::S_IFBLK,
    };
    mode >> 12
}

/// A device number as the FUSE protocol encodes it: the kernel's `new_encode_dev`.
fn encode_device(device: (u32, u32)) -> u32 {
    let (major, minor) = device;
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

pub(super) fn file_attr(entry: &InodeAttr) -> FileAttr {
    let attr = &entry.attr;
    FileAttr {
        ino: INodeNo(entry.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

pub(super) fn bare_dir_attr(number: Ino) -> FileAttr {
    FileAttr {
        ino: INodeNo(number.0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// How to open a file with these flags of open(2); `None` if the file is only read.
pub(super) fn write_open(flags: i32) -> Option<WriteOpenOptions> {
    let how = open_mode(flags);
    (how.access != OpenAccess::Read || how.truncate).then_some(how)
}

/// How to make a file with these flags of open(2).
pub(super) fn create_options(flags: i32, perm: CreateMode) -> (WriteOpenOptions, CreateOptions) {
    (open_mode(flags), CreateOptions { exclusive: flags & nix::libc::O_EXCL != 0, perm })
}

fn open_mode(flags: i32) -> WriteOpenOptions {
    let access = match flags & nix::libc::O_ACCMODE {
        nix::libc::O_WRONLY => OpenAccess::Write,
        nix::libc::O_RDWR => OpenAccess::ReadWrite,
        _ => OpenAccess::Read,
    };
    let truncate = flags & nix::libc::O_TRUNC != 0;
    let has = |flag: i32| flags & flag == flag;
    let sync = match () {
        () if has(nix::libc::O_SYNC) => SyncMode::All,
        () if has(nix::libc::O_DSYNC) => SyncMode::Data,
        () => SyncMode::No,
    };
    WriteOpenOptions { access, truncate, sync, expected: None }
}

/// The target of an lseek(2), and its starting offset.
///
/// # Errors
/// EINVAL for positions that the kernel computes itself; ENXIO for an offset before the file's
/// start, as on local file systems.
pub(super) fn seek_to(whence: i32, offset: i64) -> Result<(SeekTo, u64), Errno> {
    let to = match whence {
        nix::libc::SEEK_DATA => SeekTo::Data,
        nix::libc::SEEK_HOLE => SeekTo::Hole,
        _ => return Err(Errno::INVAL),
    };
    Ok((to, u64::try_from(offset).map_err(|_| Errno::NXIO)?))
}

/// The mode and umask of mknod(2) and similar calls.
pub(super) fn create_mode(mode: u32, umask: u32) -> CreateMode {
    CreateMode { perm: mode & PERMISSION_BITS, umask: umask & 0o777 }
}

/// The kind of object in a mode.
pub(super) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    Some(match mode & nix::libc::S_IFMT {
        0 | nix::libc::S_IFREG => FileKind::Regular,
        nix::libc::S_IFDIR => FileKind::Directory,
        nix::libc::S_IFLNK => FileKind::Symlink,
        nix::libc::S_IFIFO => FileKind::Fifo,
        nix::libc::S_IFSOCK => FileKind::Socket,
        nix::libc::S_IFCHR => FileKind::CharDevice,
        nix::libc::S_IFBLK => FileKind::BlockDevice,
        _ => return None,
    })
}

/// Major and minor of a device number as the protocol encodes it.
pub(super) fn decode_device(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & !0xff))
}

/// A time to be set.
pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    SetTime::At(match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        // fuser subtracts both the seconds and the nanoseconds from the epoch. But these
        // nanoseconds count up from their second.
        Err(before) => {
            let before = before.duration();
            (-i64::try_from(before.as_secs()).unwrap_or(i64::MAX), before.subsec_nanos())
        }
    })
}

/// A lock with this type of fcntl(2) on these bytes, `end` included.
pub(super) fn to_lock(kind: i32, start: u64, end: u64) -> Option<Lock> {
    let kind = match kind {
        nix::libc::F_RDLCK => LockKind::Shared,
        nix::libc::F_WRLCK => LockKind::Exclusive,
        nix::libc::F_UNLCK => LockKind::None,
        _ => return None,
    };
    Some(Lock { kind, start, end })
}

/// The lock's type in fcntl(2).
pub(super) fn lock_type(kind: LockKind) -> i32 {
    match kind {
        LockKind::Shared => nix::libc::F_RDLCK,
        LockKind::Exclusive => nix::libc::F_WRLCK,
        LockKind::None => nix::libc::F_UNLCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for numbers_of in [(0, 0), (8, 1), (259, 70_000), (0xfff, 0xf_ffff)] {
            assert_eq!(decode_device(encode_device(numbers_of)), numbers_of);
        }
    }

    #[test]
    fn only_modifying_opens_are_opened_for_writing() {
        assert_eq!(write_open(nix::libc::O_RDONLY), None);
        let how = write_open(nix::libc::O_WRONLY | nix::libc::O_TRUNC | nix::libc::O_SYNC).unwrap();
        assert_eq!((how.access, how.truncate, how.sync), (OpenAccess::Write, true, SyncMode::All));
        assert!(write_open(nix::libc::O_RDONLY | nix::libc::O_TRUNC).is_some());
    }
}
