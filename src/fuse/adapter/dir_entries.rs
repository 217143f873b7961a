//! The requests that change a directory: they make, link, rename and remove its entries.
//! Such a change cannot be made twice, so one that the kernel sends again is refused.

use std::ffi::OsStr;
use std::path::Path;

use fuser::{INodeNo, RenameFlags, ReplyEmpty, ReplyEntry, Request};

use super::Adapter;
use crate::backend::TreeMutation;
use crate::fs::Errno;
use crate::fuse::convert::{create_mode, decode_device, ino, kind_of_mode};
use crate::fuse::replies::{errno, reply_empty, reply_entry};
use crate::fuse::resend::reject_if_resent;

/// A directory and a name in it.
pub(super) type DirEntry<'a> = (INodeNo, &'a OsStr);

impl Adapter {
    pub(super) fn make_node(
        &self,
        req: &Request,
        (parent, name): DirEntry<'_>,
        (mode, umask): (u32, u32),
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let Some(kind) = kind_of_mode(mode) else { return reply.error(errno(Errno::INVAL)) };
        let (ttl, perm, device) = (self.attr_ttl, create_mode(mode, umask), decode_device(rdev));
        let node = move |at| TreeMutation::Mknod { at, kind, perm, device };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs_for(req).make_entry(self.request_context(req), ino(parent), name, node, done);
    }

    pub(super) fn make_dir(
        &self,
        req: &Request,
        (parent, name): DirEntry<'_>,
        (mode, umask): (u32, u32),
        reply: ReplyEntry,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let (ttl, perm) = (self.attr_ttl, create_mode(mode, umask));
        let dir = move |at| TreeMutation::Mkdir { at, perm };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs_for(req).make_entry(self.request_context(req), ino(parent), name, dir, done);
    }

    pub(super) fn remove_entry(
        &self,
        req: &Request,
        (parent, name): DirEntry<'_>,
        is_dir: bool,
        reply: ReplyEmpty,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        self.fs_for(req).unlink_or_rmdir(
            self.request_context(req),
            ino(parent),
            name,
            is_dir,
            move |a| reply_empty(reply, a),
        );
    }

    pub(super) fn make_symlink(
        &self,
        req: &Request,
        (parent, name): DirEntry<'_>,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let (ttl, target) = (self.attr_ttl, target.as_os_str().to_owned());
        let link = move |at| TreeMutation::Symlink { at, target: target.clone() };
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs_for(req).make_entry(self.request_context(req), ino(parent), name, link, done);
    }

    pub(super) fn rename_entry(
        &self,
        req: &Request,
        (parent, name): DirEntry<'_>,
        (new_parent, new_name): DirEntry<'_>,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let (from, to) = ((ino(parent), name), (ino(new_parent), new_name));
        self.fs_for(req).rename(self.request_context(req), from, to, flags.bits(), move |a| {
            reply_empty(reply, a)
        });
    }

    pub(super) fn make_link(
        &self,
        req: &Request,
        number: INodeNo,
        (parent, name): DirEntry<'_>,
        reply: ReplyEntry,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let ttl = self.attr_ttl;
        let done = move |answer| reply_entry(reply, ttl, answer);
        self.fs_for(req).link(self.request_context(req), ino(number), ino(parent), name, done);
    }
}
