//! Operations on ranges of open files: fallocate(2) and copy_file_range(2).

use std::sync::Arc;

use super::handles::FileHandle;
use super::set_id::SetIdPolicy;
use super::write::ChangeLock;
use super::{Errno, Fs, FsResult, HandleId};
use crate::backend::{Backend, BackendFile, FileMutation, RequestContext};
use crate::volume::ByteRange;

impl Fs {
    /// fallocate(2); `again` where the kernel sends it again.
    pub fn fallocate(
        self: &Arc<Self>,
        who: RequestContext,
        handle: HandleId,
        range: ByteRange,
        (mode, again): (u32, bool),
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let author = SetIdPolicy::of_caller(&who);
        let allocate = move |file: &dyn BackendFile, _: &dyn Backend| {
            let (offset, len) = (range.start, range.len());
            author.apply_change(file, || {
                file.mutate(&FileMutation::Fallocate { mode, offset, len })
            })?;
            Ok(())
        };
        self.change_file(handle, ChangeLock::Exclusive { is_resent: again }, None, allocate, done);
    }

    /// copy_file_range(2) between open files; returns the number of bytes. `again` where the
    /// kernel sends it again.
    pub fn copy_file_range(
        self: &Arc<Self>,
        who: RequestContext,
        (from, range): (HandleId, ByteRange),
        (to, at): (HandleId, u64),
        again: bool,
        done: impl FnOnce(FsResult<u64>) + Send + 'static,
    ) {
        let (write, source) = match (self.write_policy(), self.handles.file(from)) {
            (Ok(write), Some(source)) => (write, source),
            (Err(errno), _) => return done(Err(errno)),
            (_, None) => return done(Err(Errno::BADF)),
        };
        let author = SetIdPolicy::of_caller(&who);
        let copy = move |file: &dyn BackendFile, backend: &dyn Backend| {
            let source = source.file_on_write_replica(write.replica, backend)?;
            let (offset, len) = (range.start, range.len());
            author.apply_change(file, || {
                source.mutate(&FileMutation::CopyFileRange { offset, to: file, to_offset: at, len })
            })
        };
        self.change_file(to, ChangeLock::Exclusive { is_resent: again }, None, copy, done);
    }
}

impl FileHandle {
    /// The file as the write replica has it. Blocks.
    pub(super) fn file_on_write_replica(
        &self,
        replica: crate::volume::ReplicaId,
        backend: &dyn Backend,
    ) -> crate::backend::Result<Arc<dyn BackendFile>> {
        let own = self.writer.iter().cloned().chain(self.inode.any_writer());
        match own.into_iter().find(|writer| writer.readable) {
            Some(writer) => Ok(Arc::clone(&writer.file)),
            None => {
                let current = self.inode.current();
                current.set_credentials(&self.credentials);
                current.open_unchecked(replica, backend)
            }
        }
    }
}
