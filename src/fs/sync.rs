//! fsync(2) and close(2): they make written data safe.
//!
//! fsync(2) concerns the whole file, on whatever descriptor it is called: when it returns,
//! data from other descriptors and other programs must be safe as well. So it goes to the
//! write replica, through any descriptor of the file that is open there. On a read-only
//! volume it goes to one replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::call::Rights;
use super::handle::FileHandle;
use super::write::Turn;
use super::{Answer, Errno, Fs, HandleId, LockOwner, WritePolicy};
use crate::backend::{Backend, BackendFile, Change, FileChange, Lane, Requester, Target};

impl Fs {
    /// fsync(2), or fdatasync(2).
    pub fn sync(
        self: &Arc<Self>,
        handle: HandleId,
        data_only: bool,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        match (&file.writer, self.write_policy()) {
            (Some(_), _) => self.settle(handle, FileChange::Sync { data_only }, done),
            (None, Ok(write)) => self.sync_written(file, write, data_only, done),
            (None, Err(_)) => {
                let (current, how) = (file.inode.current(), move || FileChange::Sync { data_only });
                current.open_for(&file.who);
                self.caller.call_by_replica(
                    self.spot_of(file.ino, current.path()),
                    Rights::Of(current.who()),
                    move |replica, backend| current.on(replica, backend)?.change(&how()),
                    move |answer| done(answer.map_err(Errno::from).map(drop)),
                );
            }
        }
    }

    /// fsync(2) through a descriptor that cannot write, on a writable volume.
    fn sync_written(
        self: &Arc<Self>,
        file: FileHandle,
        write: WritePolicy,
        data_only: bool,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        // The error stays, so that the writer's own fsync(2) reports it as well.
        if let Some(errno) = file.inode.trouble() {
            return done(Err(errno));
        }
        let Some(under_way) = file.inode.gate.begin() else { return done(Err(Errno::IO)) };
        let once = self.once(write, Lane::Read, &file.who);
        let sync = move |backend: &dyn Backend| {
            let open = match file.inode.any_writer() {
                Some(writer) => Arc::clone(&writer.file),
                None => file.on_writer(write.replica, backend)?,
            };
            open.change(&FileChange::Sync { data_only }).map(drop)
        };
        self.caller.call_once(once, sync, move |answer| {
            under_way.ends(&answer);
            done(answer.map_err(Errno::from));
        });
    }

    /// fsync(2) of a directory.
    pub fn sync_dir(
        self: &Arc<Self>,
        who: Requester,
        handle: HandleId,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let Some(dir) = self.handles.directory(handle) else { return done(Err(Errno::BADF)) };
        if self.can_write() {
            let sync = |dir| Change::SyncDir { dir };
            return self.change_at(who, dir.ino, (Lane::Read, None), done, sync);
        }
        let sync =
            |backend: &dyn Backend, dir: Target| backend.change(&Change::SyncDir { dir }).map(drop);
        self.on_object(Rights::Granted(dir.who.clone()), dir.ino, sync, done);
    }

    /// close(2) of one of the descriptors of a handle; releases `owner`'s locks.
    pub fn flush(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        file.closing.store(true, Ordering::Relaxed);
        let fs = Arc::clone(self);
        // The data first, as on NFS: the next owner of the lock must see them.
        self.settle(handle, FileChange::Flush, move |answer| {
            fs.give_up_locks(file.ino, owner, move || done(answer));
        });
    }

    /// Flushes or syncs everything written through this handle, and reports errors of
    /// earlier changes.
    fn settle(
        self: &Arc<Self>,
        handle: HandleId,
        how: FileChange<'static>,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let Some(writer) = file.writer else { return done(Ok(())) };
        if let Some(errno) = writer.trouble() {
            return done(Err(errno));
        }
        let settle = move |file: &dyn BackendFile, _: &dyn Backend| file.change(&how).map(drop);
        self.change_file(handle, Turn::Beside, None, settle, done);
    }
}
