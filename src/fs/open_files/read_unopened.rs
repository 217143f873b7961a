//! Reads of files that the kernel has not opened.
//!
//! Where data never changes, and every caller has the daemon's own rights, an open has nothing to
//! decide. So the kernel may leave OPEN and RELEASE out (`FUSE_NO_OPEN_SUPPORT`). It looks a file up
//! and reads it.
//!
//! A small file is read as a whole by one call that opens it too. For other files this module opens
//! a handle, of which the kernel does not know. It keeps the last [`MAX_HANDLES`] of them, each until
//! the kernel forgets its inode. They are in no journal, and no handover passes them on: the next
//! daemon opens its own.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use lru::LruCache;
use parking_lot::Mutex;

use super::open::OpenRequest;
use super::{OpenFiles, ReadCaller, ReadReply, ReleasedFiles};
use crate::backend::collect_closes;
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::FileHandle;
use crate::fs::ino::Ino;
use crate::fs::kernel_open::KernelOpen;
use crate::read::ReadBytes;
use crate::replicas::task;
use crate::volume::ByteRange;

/// Files that are kept open at once, at most.
const MAX_HANDLES: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// The handles that the kernel does not know, the last used ones last.
pub(super) struct ImplicitHandles(Mutex<LruCache<Ino, HandleId>>);

impl Default for ImplicitHandles {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_HANDLES)))
    }
}

impl OpenFiles {
    /// Reads a range of a file that the kernel has not opened, like [`OpenFiles::read`].
    pub fn read_unopened<R: ReadReply>(
        self: &Arc<Self>,
        ino: Ino,
        range: ByteRange,
        caller: ReadCaller<'_, R>,
        kernel: impl KernelOpen + 'static,
        reply: R,
    ) {
        if let Some((handle, file)) = self.implicit_file(ino) {
            return self.read_file(handle, file, range, caller, reply);
        }
        let since = Instant::now();
        let whole =
            self.wants_content(ino).filter(|version| range.start == 0 && range.end >= version.size);
        let process = caller.process;
        let files = Arc::clone(self);
        let read = async move {
            if let Some(version) = whole {
                let request = OpenRequest::by_daemon(ino, whole);
                let read = files.read_whole(&request, version, since).await;
                if let Some(content) = read.and_then(|read| read.content) {
                    return files.tables.reader.deliver_content(content, |bytes| {
                        reply.send(Ok(ReadBytes::Slice(bytes)));
                        true
                    });
                }
            }
            match files.file_to_read(ino, &kernel).await {
                Ok((handle, file)) => {
                    let caller = ReadCaller { process, small_reads: None };
                    files.read_file(handle, file, range, caller, reply);
                }
                Err(error) => reply.send(Err(error)),
            }
        };
        // The reply is sent before the file is closed.
        let dropped = collect_closes(|| task::run_on_session_thread(read));
        self.finish_release(ReleasedFiles { dropped, writer: None });
    }

    /// The handle by which an unopened file is read. Opens it if there is none.
    pub(super) async fn file_to_read(
        self: &Arc<Self>,
        ino: Ino,
        kernel: &impl KernelOpen,
    ) -> FsResult<(HandleId, Arc<FileHandle>)> {
        if let Some(known) = self.implicit_file(ino) {
            return Ok(known);
        }
        let request = OpenRequest::by_daemon(ino, None);
        let opened = match self.enter_immutable(&request, None) {
            Some(opened) => opened,
            None => self.open_to_read(request, kernel).await?,
        };
        let handle = opened.handle;
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        let replaced = self.implicit.0.lock().push(ino, handle);
        if let Some((_, replaced)) = replaced {
            self.release(replaced);
        }
        Ok((handle, file))
    }

    /// Closes what is open for a file that the kernel has forgotten.
    pub fn forget_unopened(self: &Arc<Self>, ino: Ino) {
        let forgotten = self.implicit.0.lock().pop(&ino);
        if let Some(handle) = forgotten {
            let released = self.release_on_session_thread(handle);
            self.finish_release(released);
        }
    }

    fn implicit_file(&self, ino: Ino) -> Option<(HandleId, Arc<FileHandle>)> {
        let handle = *self.implicit.0.lock().get(&ino)?;
        let file = self.tables.handles.file(handle)?;
        Some((handle, file))
    }
}
