//! The requests that look up, make, rename and remove entries of a directory. A change of an
//! entry cannot be made twice, so a resent one is refused; only creating a file without O_EXCL
//! can be repeated.

use std::ffi::OsString;

use fuser::{INodeNo, RenameFlags, ReplyCreate, ReplyEmpty, ReplyEntry, Request};

use super::{Adapter, Call};
use crate::backend::{EntryRef, TreeMutation};
use crate::fs::{CreateRequest, EntryName, Ino, RenameRequest, run_on_session_thread};
use crate::fuse::convert::{ino, needs_serial_writes};
use crate::fuse::replies::{reply_create, reply_empty, reply_entry, reply_lookup};
use crate::fuse::resend::{reject_if_resent, reject_if_resent_when};

/// The name of an entry, for a request that outlives the kernel's buffer.
struct OwnedEntryName {
    parent: Ino,
    name: OsString,
}

impl From<EntryName<'_>> for OwnedEntryName {
    fn from(EntryName { parent, name }: EntryName<'_>) -> Self {
        Self { parent, name: name.to_owned() }
    }
}

impl OwnedEntryName {
    fn get(&self) -> EntryName<'_> {
        EntryName { parent: self.parent, name: &self.name }
    }
}

impl Adapter {
    pub(super) fn look_up(&self, req: &Request, at: EntryName<'_>, reply: ReplyEntry) {
        let Call { fs, caller } = self.call(req);
        let ttl = self.attr_ttl;
        let missing_ttl = self.missing_name_ttl;
        let at = OwnedEntryName::from(at);
        run_on_session_thread(async move {
            let answer = fs.namespace.lookup(caller, at.get()).await;
            reply_lookup(reply, ttl, missing_ttl, answer);
        });
    }

    pub(super) fn make_entry(
        &self,
        req: &Request,
        at: EntryName<'_>,
        reply: ReplyEntry,
        mutation: impl Fn(EntryRef) -> TreeMutation + Send + Sync + 'static,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let Call { fs, caller } = self.call(req);
        let ttl = self.attr_ttl;
        let at = OwnedEntryName::from(at);
        run_on_session_thread(async move {
            reply_entry(reply, ttl, fs.mutations.make_entry(caller, at.get(), mutation).await);
        });
    }

    pub(super) fn remove_entry(
        &self,
        req: &Request,
        at: EntryName<'_>,
        is_dir: bool,
        reply: ReplyEmpty,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let Call { fs, caller } = self.call(req);
        let at = OwnedEntryName::from(at);
        run_on_session_thread(async move {
            reply_empty(reply, fs.mutations.unlink_or_rmdir(caller, at.get(), is_dir).await);
        });
    }

    pub(super) fn rename_entry(
        &self,
        req: &Request,
        from: EntryName<'_>,
        to: EntryName<'_>,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let Call { fs, caller } = self.call(req);
        let from = OwnedEntryName::from(from);
        let to = OwnedEntryName::from(to);
        run_on_session_thread(async move {
            let request = RenameRequest { from: from.get(), to: to.get(), flags: flags.bits() };
            reply_empty(reply, fs.mutations.rename(caller, request).await);
        });
    }

    pub(super) fn make_link(
        &self,
        req: &Request,
        number: INodeNo,
        at: EntryName<'_>,
        reply: ReplyEntry,
    ) {
        let Some(reply) = reject_if_resent(&self.fs, req, reply) else { return };
        let Call { fs, caller } = self.call(req);
        let ttl = self.attr_ttl;
        let at = OwnedEntryName::from(at);
        run_on_session_thread(async move {
            reply_entry(reply, ttl, fs.mutations.link(caller, ino(number), at.get()).await);
        });
    }

    pub(super) fn create_file(
        &self,
        req: &Request,
        request: CreateRequest<'_>,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let CreateRequest { at, open, create } = request;
        let reply = reject_if_resent_when(create.exclusive, &self.fs, req, reply);
        let Some(reply) = reply else { return };
        let Call { fs, caller } = self.call(req);
        let ttl = self.attr_ttl;
        let at = OwnedEntryName::from(at);
        run_on_session_thread(async move {
            let request = CreateRequest { at: at.get(), open, create };
            let answer = fs.mutations.create(caller, request).await;
            reply_create(reply, ttl, needs_serial_writes(flags), answer);
        });
    }
}
