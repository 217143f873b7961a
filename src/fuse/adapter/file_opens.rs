//! The requests that open a file. They turn the flags of open(2) into the way in which the
//! file is opened.

use std::sync::Arc;

use fuser::{INodeNo, OpenFlags, ReplyOpen, Request};

use super::{Adapter, Call};
use crate::fs::run_on_session_thread;
use crate::fuse::convert::{FMODE_EXEC, ino, needs_serial_writes, write_open};
use crate::fuse::open_responder::FuseOpenResponder;

impl Adapter {
    pub(super) fn open_file(
        &self,
        req: &Request,
        number: INodeNo,
        flags: OpenFlags,
        reply: ReplyOpen,
    ) {
        if self.omits_opens {
            // The kernel opens files without asking from now on.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let Call { fs, caller } = self.call(req);
        let responder = FuseOpenResponder {
            reply,
            number,
            notifier: Arc::clone(&self.notifier),
            needs_flush: fs.has_lock_replica(),
            serial_writes: needs_serial_writes(flags.0),
        };
        match write_open(flags.0) {
            None => run_on_session_thread(async move {
                let to_run = flags.0 & FMODE_EXEC != 0;
                let answer = fs.open_files.open(caller, ino(number), to_run, &responder).await;
                responder.send(answer);
            }),
            Some(options) => run_on_session_thread(async move {
                let answer =
                    fs.open_files.open_to_write(caller, ino(number), options, &responder).await;
                responder.send(answer);
            }),
        }
    }
}
