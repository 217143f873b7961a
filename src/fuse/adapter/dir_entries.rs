//! The requests that make and remove entries of a directory. Such a change cannot be made
//! twice, so one that the kernel sends again is refused.

use std::ffi::OsStr;

use fuser::{INodeNo, ReplyEmpty, ReplyEntry, Request};

use super::Adapter;
use crate::backend::{EntryRef, TreeMutation};
use crate::fs::run;
use crate::fuse::convert::ino;
use crate::fuse::replies::{reply_empty, reply_entry};
use crate::fuse::resend::{Call, reject_if_resent};

impl Adapter {
    pub(super) fn make_entry(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
        mutation: impl Fn(EntryRef) -> TreeMutation + Send + Sync + 'static,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let Call { fs, caller } = self.call(req);
        let ttl = self.attr_ttl;
        let name = name.to_owned();
        run(async move {
            let answer = fs.make_entry(caller, ino(parent), &name, mutation).await;
            reply_entry(reply, ttl, answer);
        });
    }

    pub(super) fn remove_entry(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        is_dir: bool,
        reply: ReplyEmpty,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let Call { fs, caller } = self.call(req);
        let name = name.to_owned();
        run(async move {
            let answer = fs.unlink_or_rmdir(caller, ino(parent), &name, is_dir).await;
            reply_empty(reply, answer);
        });
    }
}
