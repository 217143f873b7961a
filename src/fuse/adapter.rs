//! fuser's requests in, fuser's replies out.

mod dir_entries;
mod file_locks;
mod file_opens;
mod file_writes;

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
use super::attr_invalidation::is_acl;
use super::convert::{handle_id, ino, lock_owner, seek_to, set_attr, to_lock};
use super::features::InitFeatures;
use super::notifier::KernelNotifier;
use super::raw_reply::RawReplies;
use super::replies::{
    errno, on_readdirplus, reply_attr, reply_empty, reply_entry, reply_lseek, reply_opendir,
    reply_readdir, reply_readlink, reply_statfs, reply_xattr,
};
use super::resend::{reject_if_resent, reject_if_resent_when};
use crate::fs::{Errno, Fs};
use crate::volume::ByteRange;

/// The file system as fuser sees it.
pub(super) struct Adapter {
    pub(super) fs: Arc<Fs>,
    features: InitFeatures,
    attr_ttl: Duration,
    raw_replies: Arc<RawReplies>,
    pub(super) notifier: Arc<KernelNotifier>,
}

impl Adapter {
    pub(super) fn new(
        fs: Arc<Fs>,
        options: &MountOptions,
        replies: RawReplies,
        kernel: Arc<KernelNotifier>,
    ) -> Self {
        let (ttl, replies) = (fs.attribute_ttl(), Arc::new(replies));
        Self {
            fs,
            features: InitFeatures::new(options),
            attr_ttl: ttl,
            raw_replies: replies,
            notifier: kernel,
        }
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.features.negotiate(&self.fs, config);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ttl = self.attr_ttl;
        self.fs_for(req).lookup(self.request_context(req), ino(parent), name, move |a| {
            reply_entry(reply, ttl, a)
        });
    }

    fn forget(&self, req: &Request, number: INodeNo, nlookup: u64) {
        self.fs_for(req).forget(ino(number), nlookup);
    }

    fn getattr(
        &self,
        req: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let (ttl, handle) = (self.attr_ttl, handle.map(|handle| handle_id(number, handle)));
        let done = move |answer| reply_attr(reply, ttl, answer);
        self.fs_for(req).getattr(self.request_context(req), ino(number), handle, done);
    }

    fn readlink(&self, req: &Request, number: INodeNo, reply: ReplyData) {
        self.fs_for(req).readlink(self.request_context(req), ino(number), move |answer| {
            reply_readlink(reply, answer)
        });
    }

    fn open(&self, req: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open_file(req, number, flags, reply);
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
        let (id, replies) = (req.unique(), Arc::clone(&self.raw_replies));
        let done = move |answer| replies.reply_read(id, reply, answer);
        self.fs_for(req).read(handle_id(number, handle), range, req.pid(), done);
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
        self.fs_for(req).release(handle_id(number, handle));
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
        self.fs_for(req)
            .flush(handle_id(number, handle), lock_owner(owner), move |a| reply_empty(reply, a));
    }

    fn fsync(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.fs_for(req)
            .fsync(handle_id(number, handle), datasync, move |answer| reply_empty(reply, answer));
    }

    fn opendir(&self, req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.fs_for(req).opendir(self.request_context(req), ino(number), move |answer| {
            reply_opendir(reply, answer)
        });
    }

    fn readdir(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let fs = Arc::clone(self.fs_for(req));
        let done = move |answer| reply_readdir(&fs, answer, offset, reply);
        self.fs_for(req).readdir(handle_id(number, handle), offset, done);
    }

    fn readdirplus(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let (by, from) = ((&self.raw_replies, req.unique()), (ino(number), offset));
        let done = on_readdirplus(self.fs_for(req), self.attr_ttl, by, from, reply);
        self.fs_for(req).readdirplus(
            self.request_context(req),
            handle_id(number, handle),
            offset,
            done,
        );
    }

    fn releasedir(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs_for(req).release(handle_id(number, handle));
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
        self.fs_for(req).fsyncdir(self.request_context(req), handle_id(number, handle), move |a| {
            reply_empty(reply, a)
        });
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.fs_for(req).statfs(move |answer| reply_statfs(reply, answer));
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let done = move |answer| reply_xattr(reply, size, answer);
        self.fs_for(req).getxattr(self.request_context(req), ino(number), name, done);
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let done = move |answer| reply_xattr(reply, size, answer);
        self.fs_for(req).listxattr(self.request_context(req), ino(number), done);
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
        self.fs_for(req)
            .lseek(handle_id(number, handle), offset, to, move |a| reply_lseek(reply, a));
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
        let set = set_attr(mode, (uid, gid), size, (atime, mtime));
        let (ttl, handle) = (self.attr_ttl, handle.map(|handle| handle_id(number, handle)));
        let done = move |answer| reply_attr(reply, ttl, answer);
        self.fs_for(req).setattr(self.request_context(req), ino(number), handle, set, done);
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
        self.make_node(req, (parent, name), (mode, umask), rdev, reply);
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
        self.make_dir(req, (parent, name), (mode, umask), reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_entry(req, (parent, name), false, reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_entry(req, (parent, name), true, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.make_symlink(req, (parent, name), target, reply);
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
        self.rename_entry(req, (parent, name), (new_parent, new_name), flags, reply);
    }

    fn link(
        &self,
        req: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.make_link(req, number, (parent, name), reply);
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
        self.create_file(req, (parent, name), (mode, umask), flags, reply);
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
        self.write_data(req, (number, handle), (offset, data), (write_flags, flags), reply);
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
        self.allocate(req, (number, handle), ByteRange::at(offset, length), mode, reply);
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
        self.copy_range(req, (source, from, offset), (target, to, start), len, reply);
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
        let Some(reply) = reject_if_resent_when(flags != 0, &self.fs, req, reply) else { return };
        let value = Some((value, flags as u32));
        let done = self.invalidating_attrs_if(is_acl(name), number, move |a| reply_empty(reply, a));
        self.fs_for(req).setxattr(self.request_context(req), ino(number), name, value, done);
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let done = self.invalidating_attrs_if(is_acl(name), number, move |a| reply_empty(reply, a));
        self.fs_for(req).setxattr(self.request_context(req), ino(number), name, None, done);
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
        self.test_lock(req, (number, handle), owner, to_lock(kind, start, end), reply);
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
        self.set_lock(req, (number, handle), owner, to_lock(kind, start, end), sleep, reply);
    }
}
