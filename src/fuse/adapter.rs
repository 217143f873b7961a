//! fuser's requests in, fuser's replies out.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, CopyFileRangeFlags, FileHandle, INodeNo, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};

use super::MountOptions;
use super::answers::{
    errno, fill, plus, reply_attr, reply_created, reply_dir, reply_empty, reply_entry, reply_link,
    reply_lock, reply_offset, reply_stat_fs, reply_written, reply_xattr,
};
use super::features::Features;
use super::kernel::Kernel;
use super::notice::is_list;
use super::opening::Opening;
use super::repeat::{once, once_if};
use super::reply::Replies;
use super::wire::{
    APPEND, DIRECT, LARGEST_COPY, MOVES_DATA, TO_RUN, at, create, ino, kind_of, lock, new_perm,
    numbers, one_by_one, owner_of, seek_to, set, write_open,
};
use crate::backend::{Change, LockKind};
use crate::fs::{Errno, Fs, Waiting, WriteRequest};
use crate::volume::ByteRange;

/// The file system as fuser sees it.
pub(super) struct Adapter {
    pub(super) fs: Arc<Fs>,
    features: Features,
    ttl: Duration,
    replies: Arc<Replies>,
    pub(super) kernel: Arc<Kernel>,
}

impl Adapter {
    pub(super) fn new(
        fs: Arc<Fs>,
        options: &MountOptions,
        replies: Replies,
        kernel: Arc<Kernel>,
    ) -> Self {
        let (ttl, replies) = (fs.attribute_ttl(), Arc::new(replies));
        Self { fs, features: Features::new(options), ttl, replies, kernel }
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.features.agree(&self.fs, config);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ttl = self.ttl;
        self.fs(req).lookup(self.who(req), ino(parent), name, move |a| reply_entry(reply, ttl, a));
    }

    fn forget(&self, req: &Request, number: INodeNo, nlookup: u64) {
        self.fs(req).forget(ino(number), nlookup);
    }

    fn getattr(
        &self,
        req: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let (ttl, handle) = (self.ttl, handle.map(|handle| at(number, handle)));
        let done = move |answer| reply_attr(reply, ttl, answer);
        self.fs(req).attributes(self.who(req), ino(number), handle, done);
    }

    fn readlink(&self, req: &Request, number: INodeNo, reply: ReplyData) {
        self.fs(req).read_link(self.who(req), ino(number), move |answer| reply_link(reply, answer));
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (kernel, flush) = (Arc::clone(&self.kernel), self.fs(req).forwards_locks());
        let reply = Opening { reply, number, kernel, flush, one_by_one: one_by_one(flags.0) };
        match write_open(flags.0) {
            None => self.fs(req).open(self.who(req), ino(number), flags.0 & TO_RUN != 0, reply),
            Some(how) => self.fs(req).open_to_write(self.who(req), ino(number), how, reply),
        }
    }

    fn read(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = ByteRange::at(offset, size.into());
        let (id, replies) = (req.unique(), Arc::clone(&self.replies));
        let done = move |answer| replies.answer(id, reply, answer);
        self.fs(req).read(at(number, handle), range, req.pid(), done);
    }

    fn release(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.fs(req).release(at(number, handle));
        reply.ok();
    }

    fn flush(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.fs(req).flush(at(number, handle), owner_of(owner), move |a| reply_empty(reply, a));
    }

    fn fsync(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.fs(req).sync(at(number, handle), datasync, move |answer| reply_empty(reply, answer));
    }

    fn opendir(&self, req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.fs(req).open_dir(self.who(req), ino(number), move |answer| reply_dir(reply, answer));
    }

    fn readdir(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let fs = Arc::clone(self.fs(req));
        let done = move |answer| fill(&fs, answer, offset, reply);
        self.fs(req).read_dir(at(number, handle), offset, done);
    }

    fn readdirplus(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let (by, from) = ((&self.replies, req.unique()), (ino(number), offset));
        let done = plus(self.fs(req), self.ttl, by, from, reply);
        self.fs(req).read_dir_plus(self.who(req), at(number, handle), offset, done);
    }

    fn releasedir(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs(req).release(at(number, handle));
        reply.ok();
    }

    fn fsyncdir(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.fs(req).sync_dir(self.who(req), at(number, handle), move |a| reply_empty(reply, a));
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.fs(req).stat_fs(move |answer| reply_stat_fs(reply, answer));
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let done = move |answer| reply_xattr(reply, size, answer);
        self.fs(req).get_xattr(self.who(req), ino(number), name, done);
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let done = move |answer| reply_xattr(reply, size, answer);
        self.fs(req).list_xattr(self.who(req), ino(number), done);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks by itself (default_permissions); told so, it does
        // not ask again.
        reply.error(errno(Errno::NOSYS));
    }

    fn lseek(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let (to, offset) = match seek_to(whence, offset) {
            Ok(found) => found,
            Err(error) => return reply.error(errno(error)),
        };
        self.fs(req).seek(at(number, handle), offset, to, move |a| reply_offset(reply, a));
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
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = set(mode, (uid, gid), size, (atime, mtime));
        let (ttl, handle) = (self.ttl, handle.map(|handle| at(number, handle)));
        let done = move |answer| reply_attr(reply, ttl, answer);
        self.fs(req).set_attributes(self.who(req), ino(number), handle, set, done);
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
        let Some(reply) = once(&self.fs, req, reply) else { return };
        let Some(kind) = kind_of(mode) else { return reply.error(errno(Errno::INVAL)) };
        let (ttl, perm, device) = (self.ttl, new_perm(mode, umask), numbers(rdev));
        let node = move |at| Change::MakeNode { at, kind, perm, device };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs(req).make(self.who(req), ino(parent), name, node, done);
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
        let Some(reply) = once(&self.fs, req, reply) else { return };
        let (ttl, perm) = (self.ttl, new_perm(mode, umask));
        let dir = move |at| Change::MakeDir { at, perm };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs(req).make(self.who(req), ino(parent), name, dir, done);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(reply) = once(&self.fs, req, reply) else { return };
        self.fs(req)
            .remove(self.who(req), ino(parent), name, false, move |a| reply_empty(reply, a));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(reply) = once(&self.fs, req, reply) else { return };
        self.fs(req).remove(self.who(req), ino(parent), name, true, move |a| reply_empty(reply, a));
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let Some(reply) = once(&self.fs, req, reply) else { return };
        let (ttl, target) = (self.ttl, target.as_os_str().to_owned());
        let link = move |at| Change::MakeLink { at, target: target.clone() };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs(req).make(self.who(req), ino(parent), name, link, done);
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
        let Some(reply) = once(&self.fs, req, reply) else { return };
        let (from, to) = ((ino(parent), name), (ino(new_parent), new_name));
        self.fs(req).rename(self.who(req), from, to, flags.bits(), move |a| reply_empty(reply, a));
    }

    fn link(
        &self,
        req: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let Some(reply) = once(&self.fs, req, reply) else { return };
        let ttl = self.ttl;
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs(req).link(self.who(req), ino(number), ino(parent), name, done);
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
        let how = create(flags, new_perm(mode, umask));
        let Some(reply) = once_if(how.1.exclusive, &self.fs, req, reply) else { return };
        let (ttl, one_by_one) = (self.ttl, one_by_one(flags));
        let done = move |answer| reply_created(reply, ttl, one_by_one, answer);
        self.fs(req).create(self.who(req), ino(parent), name, how, done);
    }

    fn write(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let (append, again) = (!cached && flags.0 & APPEND != 0, self.is_again(req, number));
        let Some(reply) = once_if(append, &self.fs, req, reply) else { return };
        let request = WriteRequest {
            offset,
            data,
            // What is written back of a mapped file belongs where it says.
            append,
            is_part: flags.0 & DIRECT != 0,
            whole: cached,
            again,
            who: (kills && !cached).then(|| self.who(req)),
        };
        let done = move |answer| reply_written(reply, answer);
        self.fs(req).write(at(number, handle), request, self.showing_if(kills, number, done));
    }

    fn fallocate(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (moves, again) = (mode as u32 & MOVES_DATA != 0, self.is_again(req, number));
        let Some(reply) = once_if(moves, &self.fs, req, reply) else { return };
        let (range, how) = (ByteRange::at(offset, length), (mode as u32, again));
        let done = self.showing(number, move |answer| reply_empty(reply, answer));
        self.fs(req).allocate(self.who(req), at(number, handle), range, how, done);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        source: INodeNo,
        from: FileHandle,
        offset: u64,
        target: INodeNo,
        to: FileHandle,
        start: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (len, again) = (len.min(LARGEST_COPY), self.is_again(req, target));
        let range = ByteRange::at(offset, len);
        let done = self.showing(target, move |answer| reply_written(reply, answer));
        let (from, to) = ((at(source, from), range), (at(target, to), start));
        self.fs(req).copy(self.who(req), from, to, again, done);
    }

    fn setxattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let Some(reply) = once_if(flags != 0, &self.fs, req, reply) else { return };
        let value = Some((value, flags as u32));
        let done = self.showing_if(is_list(name), number, move |a| reply_empty(reply, a));
        self.fs(req).set_xattr(self.who(req), ino(number), name, value, done);
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(reply) = once(&self.fs, req, reply) else { return };
        let done = self.showing_if(is_list(name), number, move |a| reply_empty(reply, a));
        self.fs(req).set_xattr(self.who(req), ino(number), name, None, done);
    }

    fn getlk(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        let Some(lock) = lock(kind, start, end) else { return reply.error(errno(Errno::INVAL)) };
        let done = move |answer| reply_lock(reply, answer);
        self.fs(req).test_lock(at(number, handle), owner_of(owner), lock, done);
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
        _: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(lock) = lock(kind, start, end) else { return reply.error(errno(Errno::INVAL)) };
        let waiting = if sleep { Waiting::Thread(req.pid()) } else { Waiting::Not };
        let kernel = Arc::clone(&self.kernel);
        self.fs(req).lock(at(number, handle), owner_of(owner), lock, waiting, move |answer| {
            if answer.is_ok() && lock.kind != LockKind::None {
                // Who has a lock sees what others wrote before they gave it up.
                kernel.forget_attributes(number);
            }
            reply_empty(reply, answer);
        });
    }
}
