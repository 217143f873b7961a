//! The requests that list a directory, or the attributes of an object.

use std::ffi::OsStr;
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, ReplyDirectory, ReplyDirectoryPlus, ReplyXattr, Request};

use super::{Adapter, Call};
use crate::fs::{HandleId, run_on_session_thread};
use crate::fuse::convert::ino;
use crate::fuse::readdirplus::ReaddirPlusResponder;
use crate::fuse::replies::{reply_readdir, reply_xattr};

impl Adapter {
    pub(super) fn list_names(
        &self,
        req: &Request,
        handle: HandleId,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let fs = self.fs_for(req);
        run_on_session_thread(async move {
            let answer = fs.namespace.readdir(handle, offset).await;
            reply_readdir(&fs, answer, offset, reply);
        });
    }

    pub(super) fn list_with_attrs(
        &self,
        req: &Request,
        handle: HandleId,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let Call { fs, caller } = self.call(req);
        let responder = ReaddirPlusResponder {
            fs: Arc::clone(&fs),
            raw_replies: Arc::clone(&self.raw_replies),
            id: req.unique(),
            handle,
            offset,
            ttl: self.attr_ttl,
            room: OnceLock::new(),
        };
        run_on_session_thread(async move {
            let room = || responder.room(&reply);
            let answer = fs.namespace.readdirplus(caller, handle, offset, room).await;
            responder.send(reply, answer)
        });
    }

    pub(super) fn get_xattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let Call { fs, caller } = self.call(req);
        let name = name.to_owned();
        run_on_session_thread(async move {
            reply_xattr(reply, size, fs.namespace.getxattr(caller, ino(number), &name).await);
        });
    }
}
