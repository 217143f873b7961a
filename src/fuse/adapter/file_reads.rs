//! The requests that read a file, which the kernel may not have opened.

use std::sync::Arc;

use fuser::{INodeNo, ReplyData, ReplyLseek, Request};

use super::Adapter;
use crate::fs::{HandleId, ReadCaller, run_on_session_thread};
use crate::fuse::convert::{errno, seek_to};
use crate::fuse::open_responder::UnopenedFile;
use crate::fuse::replies::reply_lseek;
use crate::volume::ByteRange;

impl Adapter {
    pub(super) fn read_data(
        &self,
        req: &Request,
        handle: HandleId,
        range: ByteRange,
        reply: ReplyData,
    ) {
        let reply = Arc::clone(&self.raw_replies).to_read(req.unique(), reply);
        let caller = ReadCaller { process: req.pid(), small_reads: Some(&self.small_reads) };
        let open_files = &self.fs_for(req).open_files;
        if self.omits_opens && handle.is_unopened() {
            let kernel = self.kernel_of_unopened(handle);
            return open_files.read_unopened(handle.ino, range, caller, kernel, reply);
        }
        open_files.read(handle, range, caller, reply);
    }

    pub(super) fn seek(
        &self,
        req: &Request,
        handle: HandleId,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let (to, offset) = match seek_to(whence, offset) {
            Ok(found) => found,
            Err(error) => return reply.error(errno(error)),
        };
        let fs = self.fs_for(req);
        let kernel = self.kernel_of_unopened(handle);
        run_on_session_thread(async move {
            reply_lseek(reply, fs.open_files.lseek(handle, offset, to, &kernel).await)
        });
    }

    /// The kernel's side of an open that it leaves out.
    fn kernel_of_unopened(&self, handle: HandleId) -> UnopenedFile {
        UnopenedFile { number: INodeNo(handle.ino.0), notifier: Arc::clone(&self.notifier) }
    }
}
