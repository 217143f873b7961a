//! Operations on ranges of open files: fallocate(2) and copy_file_range(2).

use std::sync::Arc;

use super::author::Author;
use super::handle::FileHandle;
use super::write::Turn;
use super::{Answer, Errno, Fs, HandleId};
use crate::backend::{Backend, BackendFile, FileChange, Requester};
use crate::volume::ByteRange;

impl Fs {
    /// fallocate(2); `again` where the kernel sends it again.
    pub fn allocate(
        self: &Arc<Self>,
        who: Requester,
        handle: HandleId,
        range: ByteRange,
        (mode, again): (u32, bool),
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let author = Author::of(&who);
        let allocate = move |file: &dyn BackendFile, _: &dyn Backend| {
            let (offset, len) = (range.start, range.len());
            author.changes(file, || file.change(&FileChange::Allocate { mode, offset, len }))?;
            Ok(())
        };
        self.change_file(handle, Turn::Alone { again }, None, allocate, done);
    }

    /// copy_file_range(2) between open files; returns the number of bytes. `again` where the
    /// kernel sends it again.
    pub fn copy(
        self: &Arc<Self>,
        who: Requester,
        (from, range): (HandleId, ByteRange),
        (to, at): (HandleId, u64),
        again: bool,
        done: impl FnOnce(Answer<u64>) + Send + 'static,
    ) {
        let (write, source) = match (self.write_policy(), self.handles.file(from)) {
            (Ok(write), Some(source)) => (write, source),
            (Err(errno), _) => return done(Err(errno)),
            (_, None) => return done(Err(Errno::BADF)),
        };
        let author = Author::of(&who);
        let copy = move |file: &dyn BackendFile, backend: &dyn Backend| {
            let source = source.on_writer(write.replica, backend)?;
            let (offset, len) = (range.start, range.len());
            author.changes(file, || source.change(&FileChange::Copy { offset, to: file, at, len }))
        };
        self.change_file(to, Turn::Alone { again }, None, copy, done);
    }
}

impl FileHandle {
    /// The file as the write replica has it. Blocks.
    pub(super) fn on_writer(
        &self,
        replica: crate::volume::ReplicaId,
        backend: &dyn Backend,
    ) -> crate::backend::Result<Arc<dyn BackendFile>> {
        let own = self.writer.iter().cloned().chain(self.inode.any_writer());
        match own.into_iter().find(|writer| writer.readable) {
            Some(writer) => Ok(Arc::clone(&writer.file)),
            None => {
                let current = self.inode.current();
                current.open_for(&self.who);
                current.as_it_is(replica, backend)
            }
        }
    }
}
