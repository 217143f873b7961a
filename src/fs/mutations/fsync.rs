//! fsync(2) and close(2): they make written data safe.
//!
//! fsync(2) on any descriptor applies to the whole file. When it returns, data from other
//! descriptors and other programs must be safe as well. So it goes to the write replica, through
//! any descriptor of the file that is open there. On a read-only volume it goes to one replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Mutations;
use super::write::{ChangeLock, FileChange};
use crate::backend::{
    Backend, BackendFile, FileMutation, Lane, ObjectRef, RequestContext, TreeMutation,
};
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::FileHandle;
use crate::fs::locks::LockOwner;
use crate::fs::policy::WritePolicy;
use crate::replicas::metadata_client::{ChangeClass, RunAs};
use crate::volume::ReplicaId;

impl Mutations {
    /// fsync(2), or fdatasync(2).
    pub async fn fsync(&self, handle: HandleId, data_only: bool) -> FsResult<()> {
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        if file.writer.is_some() {
            let sync = FileMutation::Fsync { data_only };
            return self.sync_or_flush(handle, ChangeClass::Long, sync).await;
        }
        if let Ok(write) = self.tables.write_policy() {
            return self.fsync_on_write_replica(file, write, data_only).await;
        }
        let current = file.inode.current();
        current.set_credentials(&file.credentials);
        let target = self.calls.target_of_inode(file.ino, current.path());
        let run_as = RunAs::Only(current.credentials());
        let sync = move |replica: ReplicaId, backend: &dyn Backend| {
            current.open_on(replica, backend)?.mutate(&FileMutation::Fsync { data_only })
        };
        self.calls.client.call(target.long(), run_as, sync).await?;
        Ok(())
    }

    /// fsync(2) through a descriptor that cannot write, on a writable volume.
    async fn fsync_on_write_replica(
        &self,
        file: Arc<FileHandle>,
        write: WritePolicy,
        data_only: bool,
    ) -> FsResult<()> {
        // The error is kept, so the writer's own fsync(2) reports it as well.
        if let Some(errno) = file.inode.deferred_error() {
            return Err(errno);
        }
        let guard = file.inode.gate.start_operation().ok_or(Errno::IO)?;
        let once = self.calls.single_call(write, Lane::Read, &file.credentials);
        let sync = move |backend: &dyn Backend| {
            let open = match file.inode.any_writer() {
                Some(writer) => Arc::clone(&writer.file),
                None => file.file_on_write_replica(write.replica, backend)?,
            };
            open.mutate(&FileMutation::Fsync { data_only }).map(drop)
        };
        let answer = self.calls.client.call_once(once, sync).await;
        guard.finish(&answer);
        Ok(answer?)
    }

    /// fsync(2) of a directory.
    pub async fn fsyncdir(&self, caller: RequestContext, handle: HandleId) -> FsResult<()> {
        let dir = self.tables.handles.dir(handle).ok_or(Errno::BADF)?;
        if self.tables.can_write() {
            let sync = |dir| TreeMutation::FsyncDir { dir };
            return self.change_inode(caller, dir.ino, Lane::Read, None, sync).await;
        }
        let sync = |backend: &dyn Backend, dir: ObjectRef| {
            backend.mutate(&TreeMutation::FsyncDir { dir }).map(drop)
        };
        let run_as = RunAs::CallerThenDaemon(dir.credentials.clone());
        self.calls.call_on_inode(run_as, dir.ino, sync).await
    }

    /// The answer to [`Mutations::flush`] if no replica need be asked: the handle does not write,
    /// and `owner` has no locks. So it is for most closes.
    pub fn flush_without_replica(
        &self,
        handle: HandleId,
        owner: LockOwner,
    ) -> Option<FsResult<()>> {
        let Some(file) = self.tables.handles.file(handle) else { return Some(Err(Errno::BADF)) };
        if file.writer.is_some() || self.locks.may_have_locks(file.ino, owner) {
            return None;
        }
        file.is_closing.store(true, Ordering::Relaxed);
        Some(Ok(()))
    }

    /// close(2) of one of the descriptors of a handle; releases `owner`'s locks.
    pub async fn flush(&self, handle: HandleId, owner: LockOwner) -> FsResult<()> {
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        file.is_closing.store(true, Ordering::Relaxed);
        // Flushes data first, as NFS does: the next owner of the lock must see the data.
        let answer = self.sync_or_flush(handle, ChangeClass::Flush, FileMutation::Flush).await;
        self.locks.release_locks(file.ino, owner).await;
        answer
    }

    /// Flushes or syncs everything written through this handle, and reports errors of
    /// earlier changes.
    async fn sync_or_flush(
        &self,
        handle: HandleId,
        class: ChangeClass,
        mutation: FileMutation<'static>,
    ) -> FsResult<()> {
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        let Some(writer) = &file.writer else { return Ok(()) };
        if let Some(errno) = writer.take_deferred_error() {
            return Err(errno);
        }
        let sync = move |file: &dyn BackendFile, _: &dyn Backend| file.mutate(&mutation).map(drop);
        let wanted = FileChange { handle, class, lock: ChangeLock::Shared, caller: None };
        self.change_file(wanted, sync).await
    }
}
