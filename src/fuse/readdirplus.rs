//! The reply to READDIRPLUS.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::Duration;

use fuser::{ReplyDirectoryPlus, RequestId};

use super::convert::{bare_dir_attr, errno, file_attr, request_number};
use super::names_only_listing::NamesOnlyListing;
use super::raw_reply::RawReplies;
use super::replies::GENERATION;
use crate::backend::FileKind;
use crate::fs::{EntryName, Fs, FsResult, Ino, ReaddirPlusEntry, ReaddirPlusPage};

/// Replies to a READDIRPLUS of a directory.
pub(super) struct ReaddirPlusResponder {
    pub(super) fs: Arc<Fs>,
    pub(super) raw_replies: Arc<RawReplies>,
    pub(super) id: RequestId,
    pub(super) dir: Ino,
    /// The offset that the kernel asks for.
    pub(super) offset: u64,
    pub(super) ttl: Duration,
}

impl ReaddirPlusResponder {
    /// Replies with as many entries as fit. The kernel then counts one more lookup of each
    /// inode in the reply.
    pub(super) fn send(self, mut reply: ReplyDirectoryPlus, answer: FsResult<ReaddirPlusPage>) {
        let page = match answer {
            Ok(page) => page,
            Err(error) => return reply.error(errno(error)),
        };
        if page.has_entries_without_attrs() {
            return self.send_names_only(reply, &page);
        }
        for (number, next, name) in page.dot_entries(self.offset) {
            // The kernel uses only the name and the number.
            let attr = bare_dir_attr(number);
            if reply.add(attr.ino, next, name, &self.ttl, &attr, GENERATION) {
                return reply.ok();
            }
        }
        let sent = page.entries.iter().take_while(|plus| self.add(&mut reply, plus)).count();
        self.fs.namespace.record_reply_room(page.entries.len(), sent);
        reply.ok();
    }

    /// Adds an entry to the reply, or leaves it out if it has changed since. Returns false if the
    /// reply has no room for it.
    fn add(&self, reply: &mut ReplyDirectoryPlus, plus: &ReaddirPlusEntry) -> bool {
        let Some(seen) = &plus.entry_attr else { return true };
        let entry = self.fs.namespace.readdirplus_reply(self.dir, &plus.name, seen);
        let Some(entry) = entry else { return true };
        let attr = file_attr(&entry);
        if reply.add(attr.ino, plus.next_offset, &plus.name, &self.ttl, &attr, GENERATION) {
            return false;
        }
        let at = EntryName { parent: self.dir, name: &plus.name };
        self.fs.namespace.commit_lookup(entry.ino, at, seen, request_number(self.id));
        true
    }

    /// Replies with names only, because the attributes of some entries cannot be read. The
    /// kernel looks up the entries that processes ask for.
    fn send_names_only(self, reply: ReplyDirectoryPlus, page: &ReaddirPlusPage) {
        let mut names = NamesOnlyListing::default();
        let mut fits = true;
        for (number, next, name) in page.dot_entries(self.offset) {
            fits = fits && names.add(number, next, name.as_bytes(), FileKind::Directory);
        }
        for plus in &page.entries {
            let number = match &plus.entry_attr {
                Some(seen) => {
                    let entry = self.fs.namespace.readdirplus_reply(self.dir, &plus.name, seen);
                    entry.map(|entry| entry.ino)
                }
                None => Some(plus.listed_ino),
            };
            let Some(number) = number else { continue };
            fits = fits && names.add(number, plus.next_offset, plus.name.as_bytes(), plus.kind);
        }
        match self.raw_replies.reply_listing(self.id, names.bytes()) {
            // The kernel has its reply; see [`RawReplies`].
            true => std::mem::forget(reply),
            false => reply.error(fuser::Errno::EIO),
        }
    }
}
