//! fuser's requests in, fuser's replies out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::MountOptions;
use super::opening::Opening;
use super::reply::Replies;
use crate::backend::{FileKind, SeekTo, Timestamp};
use crate::fs::{Answer, Entry, Errno, Fs, Ino, Listing};
use crate::volume::ByteRange;

/// The file system as fuser sees it.
pub(super) struct Adapter {
    fs: Arc<Fs>,
    max_background: u16,
    max_request: u64,
    ttl: Duration,
    replies: Arc<Replies>,
}

/// A replica may give the number of a file that is gone to another one while the
/// kernel still knows it. To the kernel that is the same file with new content,
/// whose pages the next open drops; one generation does for all.
const GENERATION: Generation = Generation(0);

impl Adapter {
    pub(super) fn new(fs: Arc<Fs>, options: &MountOptions, replies: Replies) -> Self {
        let ttl = fs.attribute_ttl();
        let (max_background, max_request) = (options.max_background, options.max_request);
        Self { fs, max_background, max_request, ttl, replies: Arc::new(replies) }
    }
}

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw())
}

fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

fn time((seconds, nanos): Timestamp) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start.and_then(|t| t.checked_add(Duration::from_nanos(nanos.into()))).unwrap_or(UNIX_EPOCH)
}

fn kind(kind: FileKind) -> FileType {
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

/// A device number as the FUSE protocol has it: the kernel's `new_encode_dev`.
fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn attributes(entry: &Entry) -> FileAttr {
    let attr = &entry.attr;
    FileAttr {
        ino: INodeNo(entry.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device(attr.rdev),
        blksize: attr.blksize,
        flags: 0,
    }
}

fn nothing_but_a_directory(number: Ino) -> FileAttr {
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

/// Replies to GETXATTR or LISTXATTR, which first ask how large the answer is.
fn reply_xattr(reply: ReplyXattr, size: u32, answer: Answer<Vec<u8>>) {
    match answer {
        Err(error) => reply.error(errno(error)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(errno(Errno::RANGE)),
        Ok(value) => reply.data(&value),
    }
}

fn fill(fs: &Fs, listing: &Listing, offset: u64, mut reply: ReplyDirectory) {
    for (number, next, name) in listing.dots(offset) {
        if reply.add(INodeNo(number.0), next, FileType::Directory, name) {
            return reply.ok();
        }
    }
    let first = offset.saturating_sub(2);
    for (i, entry) in listing.entries.iter().enumerate().skip(first as usize) {
        let number = fs.listed_number(listing.ino, entry);
        if reply.add(INodeNo(number.0), i as u64 + 3, kind(entry.kind), &entry.name) {
            break;
        }
    }
    reply.ok();
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each is used where the kernel has it and done without where not.
        for capability in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            let _ = config.add_capabilities(capability);
        }
        let maps_direct = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        self.fs.maps_direct(maps_direct.is_ok());
        if self.fs.wants_passthrough() {
            match config.add_capabilities(InitFlags::FUSE_PASSTHROUGH) {
                // One: a replica may not be stacked itself, and one more file
                // system may be stacked on this mount.
                Ok(()) => {
                    let _ = config.set_max_stack_depth(1);
                }
                Err(_) => self.fs.has_no_passthrough("the kernel is older than 6.9".to_owned()),
            }
        }
        let _ = config.set_max_background(self.max_background);
        // This library derives the largest read from the largest write; above
        // its own limit it says what that is.
        let most = u32::try_from(self.max_request).unwrap_or(u32::MAX);
        if let Err(limit) = config.set_max_write(most) {
            let _ = config.set_max_write(limit);
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ttl = self.ttl;
        self.fs.lookup(ino(parent), name, move |answer| match answer {
            Ok(entry) => reply.entry(&ttl, &attributes(&entry), GENERATION),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn forget(&self, _req: &Request, number: INodeNo, nlookup: u64) {
        self.fs.forget(ino(number), nlookup);
    }

    fn getattr(
        &self,
        _req: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let ttl = self.ttl;
        self.fs.attributes(ino(number), handle.map(|h| h.0), move |answer| match answer {
            Ok(entry) => reply.attr(&ttl, &attributes(&entry)),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn readlink(&self, _req: &Request, number: INodeNo, reply: ReplyData) {
        self.fs.read_link(ino(number), move |answer| match answer {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn open(&self, _req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.fs.open(ino(number), Opening(reply));
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = ByteRange::at(offset, size.into());
        let (id, replies) = (req.unique(), Arc::clone(&self.replies));
        self.fs.read(handle.0, range, move |answer| match answer {
            Ok(data) => replies.send(id, reply, &data),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.release(handle.0);
        reply.ok();
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // Nothing can have been written.
        reply.ok();
    }

    fn opendir(&self, _req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.fs.open_dir(ino(number))), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let fs = Arc::clone(&self.fs);
        self.fs.read_dir(handle.0, offset, move |answer| match answer {
            Ok(listing) => fill(&fs, &listing, offset, reply),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn readdirplus(
        &self,
        _req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (fs, ttl, dir) = (Arc::clone(&self.fs), self.ttl, ino(number));
        self.fs.read_dir_plus(handle.0, offset, move |answer| {
            let page = match answer {
                Ok(page) => page,
                Err(error) => return reply.error(errno(error)),
            };
            for (number, next, name) in page.dots(offset) {
                // The kernel takes the name and the number and looks no further.
                let attr = nothing_but_a_directory(number);
                if reply.add(attr.ino, next, name, &ttl, &attr, GENERATION) {
                    return reply.ok();
                }
            }
            for plus in page.entries {
                let Some(entry) = fs.entry(dir, &plus) else { continue };
                let attr = attributes(&entry);
                if reply.add(attr.ino, plus.next, &plus.name, &ttl, &attr, GENERATION) {
                    break;
                }
                fs.accept(dir, &plus);
            }
            reply.ok();
        });
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.release(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.fs.stat_fs(move |answer| match answer {
            Ok(s) => reply.statfs(
                s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
            ),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn getxattr(
        &self,
        _req: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        self.fs.get_xattr(ino(number), name, move |answer| reply_xattr(reply, size, answer));
    }

    fn listxattr(&self, _req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.fs.list_xattr(ino(number), move |answer| reply_xattr(reply, size, answer));
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks by itself (default_permissions); told so, it does
        // not ask again.
        reply.error(errno(Errno::NOSYS));
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        /// `SEEK_DATA` and `SEEK_HOLE` of lseek(2); the kernel does the others.
        const DATA: i32 = 3;
        const HOLE: i32 = 4;
        let to = match whence {
            DATA => SeekTo::Data,
            HOLE => SeekTo::Hole,
            _ => return reply.error(errno(Errno::INVAL)),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(errno(Errno::INVAL)) };
        self.fs.seek(handle.0, offset, to, move |answer| match answer {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(error)),
        });
    }

    // The mount is read-only, so the kernel refuses all that follows by itself,
    // until somebody remounts it.

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(errno(Errno::ROFS));
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(errno(Errno::ROFS));
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(errno(Errno::ROFS));
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(errno(Errno::ROFS));
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(errno(Errno::ROFS));
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(errno(Errno::ROFS));
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(errno(Errno::ROFS));
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(errno(Errno::ROFS));
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        reply.error(errno(Errno::ROFS));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(errno(Errno::ROFS));
    }

    fn setxattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: &OsStr,
        _: &[u8],
        _: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(errno(Errno::ROFS));
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(errno(Errno::ROFS));
    }
}
