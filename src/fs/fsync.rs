//! fsync(2) and close(2): they make written data safe.
//!
//! fsync(2) concerns the whole file, on whatever descriptor it is called: when it returns,
//! data from other descriptors and other programs must be safe as well. So it goes to the
//! write replica, through any descriptor of the file that is open there. On a read-only
//! volume it goes to one replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::handles::FileHandle;
use super::metadata_client::RunAs;
use super::write::ChangeLock;
use super::{Errno, Fs, FsResult, HandleId, LockOwner, WritePolicy};
use crate::backend::{
    Backend, BackendFile, FileMutation, Lane, ObjectRef, RequestContext, TreeMutation,
};

impl Fs {
    /// fsync(2), or fdatasync(2).
    pub fn fsync(
        self: &Arc<Self>,
        handle: HandleId,
        data_only: bool,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        match (&file.writer, self.write_policy()) {
            (Some(_), _) => self.sync_or_flush(handle, FileMutation::Fsync { data_only }, done),
            (None, Ok(write)) => self.fsync_on_write_replica(file, write, data_only, done),
            (None, Err(_)) => {
                let (current, how) =
                    (file.inode.current(), move || FileMutation::Fsync { data_only });
                current.set_credentials(&file.credentials);
                self.client.call_by_replica(
                    self.call_target_of_inode(file.ino, current.path()),
                    RunAs::Only(current.credentials()),
                    move |replica, backend| current.open_on(replica, backend)?.mutate(&how()),
                    move |answer| done(answer.map_err(Errno::from).map(drop)),
                );
            }
        }
    }

    /// fsync(2) through a descriptor that cannot write, on a writable volume.
    fn fsync_on_write_replica(
        self: &Arc<Self>,
        file: FileHandle,
        write: WritePolicy,
        data_only: bool,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        // The error stays, so that the writer's own fsync(2) reports it as well.
        if let Some(errno) = file.inode.deferred_error() {
            return done(Err(errno));
        }
        let Some(under_way) = file.inode.gate.start_operation() else {
            return done(Err(Errno::IO));
        };
        let once = self.single_call(write, Lane::Read, &file.credentials);
        let sync = move |backend: &dyn Backend| {
            let open = match file.inode.any_writer() {
                Some(writer) => Arc::clone(&writer.file),
                None => file.file_on_write_replica(write.replica, backend)?,
            };
            open.mutate(&FileMutation::Fsync { data_only }).map(drop)
        };
        self.client.call_once(once, sync, move |answer| {
            under_way.finish(&answer);
            done(answer.map_err(Errno::from));
        });
    }

    /// fsync(2) of a directory.
    pub fn fsyncdir(
        self: &Arc<Self>,
        who: RequestContext,
        handle: HandleId,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let Some(dir) = self.handles.dir(handle) else { return done(Err(Errno::BADF)) };
        if self.can_write() {
            let sync = |dir| TreeMutation::FsyncDir { dir };
            return self.change_inode(who, dir.ino, (Lane::Read, None), done, sync);
        }
        let sync = |backend: &dyn Backend, dir: ObjectRef| {
            backend.mutate(&TreeMutation::FsyncDir { dir }).map(drop)
        };
        self.call_on_inode(RunAs::CallerThenDaemon(dir.credentials.clone()), dir.ino, sync, done);
    }

    /// close(2) of one of the descriptors of a handle; releases `owner`'s locks.
    pub fn flush(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        file.is_closing.store(true, Ordering::Relaxed);
        let fs = Arc::clone(self);
        // The data first, as on NFS: the next owner of the lock must see them.
        self.sync_or_flush(handle, FileMutation::Flush, move |answer| {
            fs.release_locks(file.ino, owner, move || done(answer));
        });
    }

    /// Flushes or syncs everything written through this handle, and reports errors of
    /// earlier changes.
    fn sync_or_flush(
        self: &Arc<Self>,
        handle: HandleId,
        how: FileMutation<'static>,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let Some(writer) = file.writer else { return done(Ok(())) };
        if let Some(errno) = writer.take_deferred_error() {
            return done(Err(errno));
        }
        let settle = move |file: &dyn BackendFile, _: &dyn Backend| file.mutate(&how).map(drop);
        self.change_file(handle, ChangeLock::Shared, None, settle, done);
    }
}
