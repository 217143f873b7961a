//! The reply to READDIRPLUS.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{ReplyDirectoryPlus, RequestId};

use super::convert::{bare_dir_attr, errno, file_attr, request_number};
use super::names_only_listing::NamesOnlyListing;
use super::raw_reply::RawReplies;
use super::replies::GENERATION;
use crate::fs::{EntryName, Fs, FsResult, HandleId, ReaddirPlusEntry, ReaddirPlusPage};

/// The size of a reply for which every kernel has a buffer: a page of memory.
const MIN_ROOM: usize = 4096;

/// The size that the kernel asks for, bytes. fuser has no function that returns it, but shows it in
/// its debug output, for which it also looks at its descriptor. So this takes some microseconds. If it shows something else one day, replies have the size that is always safe,
/// and large directories take more requests.
fn reply_room(reply: &ReplyDirectoryPlus) -> usize {
    room_in(&format!("{reply:?}")).unwrap_or(MIN_ROOM).min(MAX_ROOM)
}

fn room_in(shown: &str) -> Option<usize> {
    let rest = shown.split_once("max_size: ")?.1;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|room| *room >= MIN_ROOM)
}

/// A reply has no more bytes than this, whatever the kernel asks for.
const MAX_ROOM: usize = 64 << 10;

/// Replies to a READDIRPLUS of a directory.
pub(super) struct ReaddirPlusResponder {
    pub(super) fs: Arc<Fs>,
    pub(super) raw_replies: Arc<RawReplies>,
    pub(super) id: RequestId,
    pub(super) handle: HandleId,
    /// The offset that the kernel asks for.
    pub(super) offset: u64,
    pub(super) ttl: Duration,
    /// The size of the reply, once it has been asked for.
    pub(super) room: OnceLock<usize>,
}

impl ReaddirPlusResponder {
    /// The size of the reply, bytes.
    pub(super) fn room(&self, reply: &ReplyDirectoryPlus) -> usize {
        *self.room.get_or_init(|| reply_room(reply))
    }

    /// Replies with as many entries as fit. The kernel then counts one more lookup of each
    /// inode in the reply.
    ///
    /// A reply ends before the first entry without attributes. If that is its first, none of its
    /// entries has any: fuser cannot mix them.
    pub(super) fn send(self, mut reply: ReplyDirectoryPlus, answer: FsResult<ReaddirPlusPage>) {
        let page = match answer {
            Ok(page) => page,
            Err(error) => return reply.error(errno(error)),
        };
        let mut is_empty = true;
        for (number, next, name) in page.dot_entries(self.offset) {
            // The kernel uses only the name and the number.
            let attr = bare_dir_attr(number);
            if reply.add(attr.ino, next, name, &self.ttl, &attr, GENERATION) {
                return reply.ok();
            }
            is_empty = false;
        }
        let sent = page.entries.iter().take_while(|plus| self.add(&mut reply, plus)).count();
        if is_empty && sent == 0 && !page.entries.is_empty() {
            return self.send_names_only(reply, &page);
        }
        reply.ok();
    }

    /// Adds an entry to the reply. Returns false if the reply has no room for it, or the entry no
    /// attributes.
    fn add(&self, reply: &mut ReplyDirectoryPlus, plus: &ReaddirPlusEntry) -> bool {
        let known = self.fs.namespace.readdirplus_reply(self.handle.ino, plus);
        let Some((entry, seen)) = known else { return false };
        let attr = file_attr(&entry);
        if reply.add(attr.ino, plus.next_offset, &plus.name, &self.ttl, &attr, GENERATION) {
            return false;
        }
        let at = EntryName { parent: self.handle.ino, name: &plus.name };
        self.fs.namespace.commit_lookup(entry.ino, at, &seen, request_number(self.id));
        true
    }

    /// Replies with names only. The kernel looks up the entries that processes ask for.
    fn send_names_only(self, reply: ReplyDirectoryPlus, page: &ReaddirPlusPage) {
        let mut names = NamesOnlyListing::new(self.room(&reply));
        let sent = page.entries.iter().take_while(|plus| {
            names.add(plus.listed_ino, plus.next_offset, plus.name.as_bytes(), plus.kind)
        });
        self.fs.namespace.record_names_only(self.handle, sent.count());
        match self.raw_replies.reply_listing(self.id, names.bytes()) {
            // The kernel has its reply; see [`RawReplies`].
            true => std::mem::forget(reply),
            false => reply.error(fuser::Errno::EIO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_a_reply_is_read_or_a_page() {
        let shown =
            "ReplyDirectoryPlus { buf: DirEntPlusList(EntListBuf { max_size: 32768, buf: [] }) }";
        assert_eq!(room_in(shown), Some(32_768));
        for unknown in ["", "max_size: ", "max_size: 100 }", "max_size: none", "size: 32768"] {
            assert_eq!(room_in(unknown), None, "{unknown}");
        }
    }
}
