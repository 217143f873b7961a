//! fuser's requests in, fuser's replies out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, CopyFileRangeFlags, FileHandle, FileType, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::MountOptions;
use super::kernel::Kernel;
use super::opening::{self, Opening};
use super::reply::Replies;
use super::wire::{
    APPEND, LARGEST_COPY, PERMISSIONS, TO_RUN, attributes, kind, kind_of, lock, lock_number,
    new_perm, nothing_but_a_directory, numbers, set_time, write_open,
};
use crate::backend::{Change, LockKind, Requester, SeekTo, SetAttr};
use crate::fs::{Answer, Entry, Errno, Fs, Ino, Listing, Waiting, WriteRequest};
use crate::volume::ByteRange;

/// The file system as fuser sees it.
pub(super) struct Adapter {
    fs: Arc<Fs>,
    max_background: u16,
    max_request: u64,
    ttl: Duration,
    replies: Arc<Replies>,
    /// Whether volumes can be written, and locks go to a replica.
    writes: bool,
    locks: bool,
    /// Whether closing a descriptor has to be heard of.
    flush: bool,
    kernel: Arc<Kernel>,
}

impl Adapter {
    pub(super) fn new(
        fs: Arc<Fs>,
        options: &MountOptions,
        replies: Replies,
        kernel: Arc<Kernel>,
    ) -> Self {
        Self {
            ttl: fs.attribute_ttl(),
            writes: fs.can_write(),
            locks: fs.forwards_locks(),
            flush: fs.forwards_locks(),
            fs,
            max_background: options.max_background,
            max_request: options.max_request,
            replies: Arc::new(replies),
            kernel,
        }
    }
}

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw())
}

fn who(req: &Request) -> Requester {
    Requester { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

fn generation(entry: &Entry) -> Generation {
    Generation(entry.generation)
}

fn reply_entry(reply: ReplyEntry, ttl: Duration, answer: Answer<Entry>) {
    match answer {
        Ok(entry) => reply.entry(&ttl, &attributes(&entry), generation(&entry)),
        Err(error) => reply.error(errno(error)),
    }
}

fn reply_empty(reply: ReplyEmpty, answer: Answer<()>) {
    match answer {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
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
        if self.writes {
            for capability in [
                InitFlags::FUSE_ATOMIC_O_TRUNC,
                // The replica takes set-id bits away, as it would from the caller.
                InitFlags::FUSE_HANDLE_KILLPRIV_V2,
                // It applies the umask too, or a default access control list.
                InitFlags::FUSE_DONT_MASK,
            ] {
                let _ = config.add_capabilities(capability);
            }
        }
        if self.locks {
            let _ = config.add_capabilities(InitFlags::FUSE_POSIX_LOCKS);
            let _ = config.add_capabilities(InitFlags::FUSE_FLOCK_LOCKS);
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

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ttl = self.ttl;
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs.lookup(who(req), ino(parent), name, done);
    }

    fn forget(&self, _req: &Request, number: INodeNo, nlookup: u64) {
        self.fs.forget(ino(number), nlookup);
    }

    fn getattr(
        &self,
        req: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let ttl = self.ttl;
        self.fs.attributes(
            who(req),
            ino(number),
            handle.map(|h| h.0),
            move |answer| match answer {
                Ok(entry) => reply.attr(&ttl, &attributes(&entry)),
                Err(error) => reply.error(errno(error)),
            },
        );
    }

    fn readlink(&self, req: &Request, number: INodeNo, reply: ReplyData) {
        self.fs.read_link(who(req), ino(number), move |answer| match answer {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let reply = Opening { reply, flush: self.flush };
        match write_open(flags.0, None) {
            None => self.fs.open(who(req), ino(number), flags.0 & TO_RUN != 0, reply),
            Some(how) => self.fs.open_to_write(who(req), ino(number), how, reply),
        }
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
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let owner = crate::fs::LockOwner(owner.0);
        self.fs.flush(handle.0, owner, move |answer| reply_empty(reply, answer));
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.sync(handle.0, datasync, move |answer| reply_empty(reply, answer));
    }

    fn opendir(&self, req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.fs.open_dir(who(req), ino(number), move |answer| match answer {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(error)),
        });
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
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (fs, ttl, dir) = (Arc::clone(&self.fs), self.ttl, ino(number));
        self.fs.read_dir_plus(who(req), handle.0, offset, move |answer| {
            let page = match answer {
                Ok(page) => page,
                Err(error) => return reply.error(errno(error)),
            };
            for (number, next, name) in page.dots(offset) {
                // The kernel takes the name and the number and looks no further.
                let attr = nothing_but_a_directory(number);
                if reply.add(attr.ino, next, name, &ttl, &attr, Generation(0)) {
                    return reply.ok();
                }
            }
            for plus in page.entries {
                let Some(entry) = fs.entry(dir, &plus) else { continue };
                let attr = attributes(&entry);
                let generation = generation(&entry);
                if reply.add(attr.ino, plus.next, &plus.name, &ttl, &attr, generation) {
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
        req: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.fs.sync_dir(who(req), ino(number), move |answer| reply_empty(reply, answer));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.fs.stat_fs(move |answer| match answer {
            Ok(s) => reply.statfs(
                s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
            ),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let done = move |answer| reply_xattr(reply, size, answer);
        self.fs.get_xattr(who(req), ino(number), name, done);
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let done = move |answer| reply_xattr(reply, size, answer);
        self.fs.list_xattr(who(req), ino(number), done);
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

    fn setattr(
        &self,
        req: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            perm: mode.map(|mode| mode & PERMISSIONS),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let (ttl, handle) = (self.ttl, handle.map(|handle| handle.0));
        let done = move |answer| match answer {
            Ok(entry) => reply.attr(&ttl, &attributes(&entry)),
            Err(error) => reply.error(errno(error)),
        };
        self.fs.set_attributes(who(req), ino(number), handle, set, done);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of(mode) else { return reply.error(errno(Errno::INVAL)) };
        let (ttl, perm, device) = (self.ttl, new_perm(mode, umask), numbers(rdev));
        let node = move |path| Change::MakeNode { path, kind, perm, device };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs.make(who(req), ino(parent), name, node, done);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (ttl, perm) = (self.ttl, new_perm(mode, umask));
        let dir = move |path| Change::MakeDir { path, perm };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs.make(who(req), ino(parent), name, dir, done);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = move |answer| reply_empty(reply, answer);
        self.fs.remove(who(req), ino(parent), name, false, done);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = move |answer| reply_empty(reply, answer);
        self.fs.remove(who(req), ino(parent), name, true, done);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (ttl, target) = (self.ttl, target.as_os_str().to_owned());
        let link = move |path| Change::MakeLink { path, target };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs.make(who(req), ino(parent), name, link, done);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((ino(parent), name), (ino(new_parent), new_name));
        let done = move |answer| reply_empty(reply, answer);
        self.fs.rename(who(req), from, to, flags.bits(), done);
    }

    fn link(
        &self,
        req: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let ttl = self.ttl;
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs.link(who(req), ino(number), ino(parent), name, done);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let perm = new_perm(mode, umask);
        let Some(how) = write_open(flags, Some(perm)) else {
            return reply.error(errno(Errno::INVAL));
        };
        let ttl = self.ttl;
        self.fs.create(who(req), ino(parent), name, how, move |answer| match answer {
            Ok(created) => {
                let (entry, opened) = (&created.entry, &created.opened);
                let (attr, generation) = (attributes(entry), generation(entry));
                let flags = opening::flags(opened, true);
                reply.created(&ttl, &attr, generation, FileHandle(opened.handle), flags);
            }
            Err(error) => reply.error(errno(error)),
        });
    }

    fn write(
        &self,
        req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let request = WriteRequest {
            offset,
            data: data.to_vec(),
            // What is written back of a mapped file belongs where it says.
            append: !cached && flags.0 & APPEND != 0,
            who: (kills && !cached).then(|| who(req)),
        };
        self.fs.write(handle.0, request, move |answer| match answer {
            // No request is larger than 4 GiB.
            Ok(bytes) => reply.written(bytes as u32),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let range = ByteRange::at(offset, length);
        let done = move |answer| reply_empty(reply, answer);
        self.fs.allocate(handle.0, range, mode as u32, done);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        from: FileHandle,
        offset: u64,
        _ino_out: INodeNo,
        to: FileHandle,
        at: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let range = ByteRange::at(offset, len.min(LARGEST_COPY));
        self.fs.copy((from.0, range), (to.0, at), move |answer| match answer {
            Ok(bytes) => reply.written(bytes as u32),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setxattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let value = Some((value.to_vec(), flags as u32));
        let done = move |answer| reply_empty(reply, answer);
        self.fs.set_xattr(who(req), ino(number), name, value, done);
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = move |answer| reply_empty(reply, answer);
        self.fs.set_xattr(who(req), ino(number), name, None, done);
    }

    fn getlk(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _pid: u32,
        reply: ReplyLock,
    ) {
        let Some(lock) = lock(kind, start, end) else { return reply.error(errno(Errno::INVAL)) };
        let owner = crate::fs::LockOwner(owner.0);
        self.fs.test_lock(handle.0, owner, lock, move |answer| match answer {
            // Whose it is, nobody says.
            Ok(found) => reply.locked(found.start, found.end, lock_number(found.kind), 0),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setlk(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(lock) = lock(kind, start, end) else { return reply.error(errno(Errno::INVAL)) };
        let waiting = if sleep { Waiting::Thread(req.pid()) } else { Waiting::Not };
        let kernel = Arc::clone(&self.kernel);
        let owner = crate::fs::LockOwner(owner.0);
        self.fs.lock(handle.0, owner, lock, waiting, move |answer| {
            if answer.is_ok() && lock.kind != LockKind::None {
                // Who has a lock sees what others wrote before they gave it up.
                kernel.forget_attributes(number);
            }
            reply_empty(reply, answer);
        });
    }
}
