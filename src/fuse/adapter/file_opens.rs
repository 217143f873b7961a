//! The requests that open a file, or create and open it. They turn the flags of open(2) into
//! the way in which the file is opened.

use std::sync::Arc;

use fuser::{INodeNo, OpenFlags, ReplyCreate, ReplyOpen, Request};

use super::Adapter;
use super::dir_entries::DirEntry;
use crate::fuse::convert::{
    FMODE_EXEC, create_mode, create_options, ino, needs_serial_writes, write_open,
};
use crate::fuse::open_responder::FuseOpenResponder;
use crate::fuse::replies::reply_create;
use crate::fuse::resend::reject_if_resent_when;

impl Adapter {
    pub(super) fn open_file(
        &self,
        req: &Request,
        number: INodeNo,
        flags: OpenFlags,
        reply: ReplyOpen,
    ) {
        let (kernel, flush) = (Arc::clone(&self.notifier), self.fs_for(req).has_lock_replica());
        let reply = FuseOpenResponder {
            reply,
            number,
            notifier: kernel,
            needs_flush: flush,
            serial_writes: needs_serial_writes(flags.0),
        };
        match write_open(flags.0) {
            None => self.fs_for(req).open(
                self.request_context(req),
                ino(number),
                flags.0 & FMODE_EXEC != 0,
                reply,
            ),
            Some(how) => {
                self.fs_for(req).open_to_write(self.request_context(req), ino(number), how, reply)
            }
        }
    }

    pub(super) fn create_file(
        &self,
        req: &Request,
        (parent, name): DirEntry<'_>,
        (mode, umask): (u32, u32),
        flags: i32,
        reply: ReplyCreate,
    ) {
        let how = create_options(flags, create_mode(mode, umask));
        let Some(reply) = reject_if_resent_when(how.1.exclusive, &self.fs, req, reply) else {
            return;
        };
        let (ttl, one_by_one) = (self.attr_ttl, needs_serial_writes(flags));
        let done = move |answer| reply_create(reply, ttl, one_by_one, answer);
        self.fs_for(req).create(self.request_context(req), ino(parent), name, how, done);
    }
}
