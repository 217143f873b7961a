//! Each request of fuser, as a call of the file system.

use std::ffi::OsStr;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    AccessFlags, CopyFileRangeFlags, FileHandle, INodeNo, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};

use super::file_locks::LockCall;
use super::{Adapter, Call};
use crate::backend::{SetAttr, TreeMutation};
use crate::fs::{
    CopyRequest, CreateRequest, Errno, FallocateRequest, LockWait, WriteRequest,
    run_on_session_thread,
};
use crate::fuse::convert::{
    MAX_COPY_BYTES, O_APPEND, O_DIRECT, create_mode, create_options, decode_device, entry_name,
    errno, handle_id, ino, kind_of_mode, lock_owner, permission_bits, set_time, to_lock,
};
use crate::fuse::replies::{
    reply_attr, reply_empty, reply_opendir, reply_readlink, reply_statfs, reply_xattr,
};
use crate::fuse::resend::{is_resent_change, reject_if_resent, reject_if_resent_when};
use crate::volume::ByteRange;

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.omits_opens = self.features.negotiate(&self.fs, config);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.look_up(req, entry_name(parent, name), reply);
    }

    fn forget(&self, req: &Request, number: INodeNo, nlookup: u64) {
        let fs = self.fs_for(req);
        let is_gone = fs.namespace.forget(ino(number), nlookup);
        if is_gone && self.omits_opens {
            fs.open_files.forget_unopened(ino(number));
        }
    }

    fn getattr(
        &self,
        req: &Request,
        number: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let Call { fs, caller } = self.call(req);
        let ttl = self.attr_ttl;
        let handle = handle.map(|handle| handle_id(number, handle));
        let handle = handle.filter(|handle| !handle.is_unopened());
        run_on_session_thread(async move {
            reply_attr(reply, ttl, fs.namespace.getattr(caller, ino(number), handle).await)
        });
    }

    fn readlink(&self, req: &Request, number: INodeNo, reply: ReplyData) {
        let Call { fs, caller } = self.call(req);
        run_on_session_thread(async move {
            reply_readlink(reply, fs.namespace.readlink(caller, ino(number)).await)
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
        self.read_data(req, handle_id(number, handle), range, reply);
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
        let fs = self.fs_for(req);
        let released = fs.open_files.release_on_session_thread(handle_id(number, handle));
        reply.ok();
        fs.open_files.finish_release(released);
    }

    fn flush(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let fs = self.fs_for(req);
        let handle = handle_id(number, handle);
        if self.omits_opens && handle.is_unopened() {
            // Nothing is ever to be flushed. The kernel does not ask again.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let owner = lock_owner(owner);
        if let Some(answer) = fs.mutations.flush_without_replica(handle, owner) {
            return reply_empty(reply, answer);
        }
        run_on_session_thread(async move {
            reply_empty(reply, fs.mutations.flush(handle, owner).await)
        });
    }

    fn fsync(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let fs = self.fs_for(req);
        let handle = handle_id(number, handle);
        if self.omits_opens && handle.is_unopened() {
            // Likewise.
            return reply.error(fuser::Errno::ENOSYS);
        }
        run_on_session_thread(async move {
            reply_empty(reply, fs.mutations.fsync(handle, datasync).await)
        });
    }

    fn opendir(&self, req: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let Call { fs, caller } = self.call(req);
        run_on_session_thread(async move {
            reply_opendir(reply, fs.namespace.opendir(caller, ino(number)).await)
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
        self.list_names(req, handle_id(number, handle), offset, reply);
    }

    fn readdirplus(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_with_attrs(req, handle_id(number, handle), offset, reply);
    }

    fn releasedir(
        &self,
        req: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs_for(req).open_files.release(handle_id(number, handle));
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
        let Call { fs, caller } = self.call(req);
        let handle = handle_id(number, handle);
        run_on_session_thread(async move {
            reply_empty(reply, fs.mutations.fsyncdir(caller, handle).await)
        });
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let fs = self.fs_for(req);
        run_on_session_thread(async move { reply_statfs(reply, fs.namespace.statfs().await) });
    }

    fn getxattr(&self, req: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.get_xattr(req, number, name, size, reply);
    }

    fn listxattr(&self, req: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let Call { fs, caller } = self.call(req);
        run_on_session_thread(async move {
            reply_xattr(reply, size, fs.namespace.listxattr(caller, ino(number)).await)
        });
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions by itself (default_permissions). After this reply it
        // does not ask again.
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
        self.seek(req, handle_id(number, handle), offset, whence, reply);
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
        let handle = handle.map(|handle| handle_id(number, handle));
        let attributes = SetAttr {
            perm: mode.map(permission_bits),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        self.set_attr(req, number, handle, attributes, reply);
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
        let Some(kind) = kind_of_mode(mode) else { return reply.error(errno(Errno::INVAL)) };
        let perm = create_mode(mode, umask);
        let device = decode_device(rdev);
        self.make_entry(req, entry_name(parent, name), reply, move |at| TreeMutation::Mknod {
            at,
            kind,
            perm,
            device,
        });
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
        let perm = create_mode(mode, umask);
        self.make_entry(req, entry_name(parent, name), reply, move |at| TreeMutation::Mkdir {
            at,
            perm,
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_entry(req, entry_name(parent, name), false, reply);
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_entry(req, entry_name(parent, name), true, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().to_owned();
        self.make_entry(req, entry_name(parent, name), reply, move |at| TreeMutation::Symlink {
            at,
            target: target.clone(),
        });
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
        let to = entry_name(new_parent, new_name);
        self.rename_entry(req, entry_name(parent, name), to, flags, reply);
    }

    fn link(
        &self,
        req: &Request,
        number: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        self.make_link(req, number, entry_name(parent, name), reply);
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
        let (open, create) = create_options(flags, create_mode(mode, umask));
        let request = CreateRequest { at: entry_name(parent, name), open, create };
        self.create_file(req, request, flags, reply);
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
        let is_cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let request = WriteRequest {
            offset,
            data,
            // Pages of a mapped file are written back at their own offsets.
            append: !is_cached && flags.0 & O_APPEND != 0,
            is_part: flags.0 & O_DIRECT != 0,
            whole: is_cached,
            is_resent: is_resent_change(&self.fs, req, number),
            caller: None,
        };
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        self.write_data(req, handle_id(number, handle), request, kills, reply);
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
        let request = FallocateRequest {
            range: ByteRange::at(offset, length),
            mode: mode as u32,
            is_resent: is_resent_change(&self.fs, req, number),
        };
        self.allocate(req, handle_id(number, handle), request, reply);
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
        let request = CopyRequest {
            source: handle_id(source, from),
            range: ByteRange::at(offset, len.min(MAX_COPY_BYTES)),
            target: handle_id(target, to),
            target_offset: start,
            is_resent: is_resent_change(&self.fs, req, target),
        };
        self.copy_range(req, request, reply);
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
        self.set_xattr(req, number, name, Some((value, flags as u32)), reply);
    }

    fn removexattr(&self, req: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        self.set_xattr(req, number, name, None, reply);
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
        let lock = to_lock(kind, start, end);
        self.test_lock(req, handle_id(number, handle), owner, lock, reply);
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
        let lock = to_lock(kind, start, end);
        let waiting = if sleep { LockWait::Thread(req.pid()) } else { LockWait::NoWait };
        self.set_lock(
            req,
            LockCall { handle: handle_id(number, handle), owner, waiting },
            lock,
            reply,
        );
    }
}
