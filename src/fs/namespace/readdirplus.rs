//! Listings with attributes: READDIRPLUS.
//!
//! The kernel asks for all listings in this way, and fanfs decides which entries have attributes
//! ([`crate::fs::attribute_demand`]). The kernel looks up the others when a process asks for them.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Instant;

use super::Namespace;
use super::entry_attrs::{AttrAnswer, EntryAttr, EntryNames};
use super::reply_room::FIRST_ENTRIES;
use crate::backend::{BackendError, FileKind, RequestContext};
use crate::fs::entry_name::{EntryName, InodeAttr, ReplicaAttr};
use crate::fs::error::FsResult;
use crate::fs::handle_id::HandleId;
use crate::fs::ino::Ino;
use crate::fs::listing::{ListedEntry, Listing};
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::OpenFileCheck;

/// An entry with its attributes, before the kernel gets it.
pub struct ReaddirPlusEntry {
    /// Its name.
    pub name: OsString,
    /// The offset after it, where the next read continues.
    pub next_offset: u64,
    /// Its attributes, and the replica that showed them; `None` if no replica could.
    pub entry_attr: Option<EntryAttr>,
    /// Its inode number as the listing shows it.
    pub listed_ino: Ino,
    /// Its kind as the listing shows it.
    pub kind: FileKind,
}

/// Entries with attributes.
struct EntryBatch {
    entries: Vec<ReaddirPlusEntry>,
    /// The offset where the next batch begins.
    next_offset: u64,
}

/// A part of a listing, with attributes.
pub struct ReaddirPlusPage {
    /// The whole listing, or the window that has the part.
    pub listing: Arc<Listing>,
    /// The entries of the part; none at the end of the listing.
    pub entries: Vec<ReaddirPlusEntry>,
}

impl ReaddirPlusPage {
    /// Whether there are entries without attributes.
    pub fn has_entries_without_attrs(&self) -> bool {
        self.entries.iter().any(|entry| entry.entry_attr.is_none())
    }

    /// As [`Listing::dot_entries`].
    pub fn dot_entries(&self, offset: u64) -> impl Iterator<Item = (Ino, u64, &'static str)> {
        self.listing.dot_entries(offset)
    }
}

/// The most entries that fit into a reply without attributes, which has one page.
const NAMES_PER_REPLY: usize = 25;

impl Namespace {
    /// The entries from `offset` on. The first of a directory have attributes, the others if these
    /// are in demand ([`crate::fs::attribute_demand`]). Entries that were removed meanwhile are left
    /// out. Entries that no replica can look up are listed by name only.
    pub async fn readdirplus(
        &self,
        caller: RequestContext,
        handle: HandleId,
        offset: u64,
    ) -> FsResult<ReaddirPlusPage> {
        let since = Instant::now();
        let mut offset = offset;
        let mut listing = self.readdir(handle, offset).await?;
        let is_wanted = self.tables.policy.immutable || self.attribute_demand.is_wanted(since);
        if offset > 0 && !is_wanted {
            return Ok(self.names_page(listing, offset, since));
        }
        let most = if is_wanted { self.reply_room.entries() } else { FIRST_ENTRIES };
        loop {
            let listed = listing.entries_from(offset).take(most);
            let names: Vec<_> = listed.map(|entry| entry.name.to_owned()).collect();
            if names.is_empty() {
                return Ok(ReaddirPlusPage { listing, entries: Vec::new() });
            }
            let names = EntryNames { dir: listing.ino, names, caller, since };
            let batch = self.lookup_batch(names, &listing, offset).await?;
            // If all entries were removed, an empty reply would end the listing.
            if !batch.entries.is_empty() {
                return Ok(ReaddirPlusPage { listing, entries: batch.entries });
            }
            offset = batch.next_offset;
            if !listing.packed.covers(offset) {
                listing = self.readdir(handle, offset).await?;
            }
        }
    }

    /// The entries from `offset` on, without attributes.
    fn names_page(&self, listing: Arc<Listing>, offset: u64, now: Instant) -> ReaddirPlusPage {
        let entries: Vec<_> = listing
            .entries_from(offset)
            .take(NAMES_PER_REPLY)
            .map(|listed| ReaddirPlusEntry {
                name: listed.name.to_owned(),
                next_offset: listed.next_offset,
                entry_attr: None,
                listed_ino: self.listed_ino(listing.ino, &listed),
                kind: listed.kind,
            })
            .collect();
        self.attribute_demand.record_listing(listing.ino, entries.len(), now);
        ReaddirPlusPage { listing, entries }
    }

    /// Records that a reply had room for `sent` of the `offered` entries with attributes.
    pub fn record_reply_room(&self, offered: usize, sent: usize) {
        self.reply_room.record(offered, sent);
    }

    /// The entries from `offset` on that have these names, with attributes.
    async fn lookup_batch(
        &self,
        names: EntryNames,
        listing: &Listing,
        offset: u64,
    ) -> FsResult<EntryBatch> {
        let names = Arc::new(names);
        let look_up = || self.entry_attrs(&names);
        let attrs =
            self.calls.with_rename_retry(&[listing.ino], RetriedCall::Lookup, look_up).await?;
        let mut next_offset = offset;
        let entries = listing.entries_from(offset).zip(attrs).filter_map(|(listed, attr)| {
            next_offset = listed.next_offset;
            self.readdirplus_entry(listing.ino, listed, attr)
        });
        let entries: Vec<_> = entries.collect();
        Ok(EntryBatch { entries, next_offset })
    }

    /// An entry for the reply; `None` if it was removed meanwhile.
    fn readdirplus_entry(
        &self,
        dir: Ino,
        listed: ListedEntry<'_>,
        attr: AttrAnswer,
    ) -> Option<ReaddirPlusEntry> {
        let entry_attr = match attr {
            Err(BackendError::Os(rustix::io::Errno::NOENT)) => return None,
            Err(_) => None,
            // Without attributes the kernel looks the entry up. The lookup finds out whether the
            // file was replaced, and waits until its pages are dropped.
            Ok(entry) => {
                let at = EntryName { parent: dir, name: listed.name };
                let found = ReplicaAttr { replica: entry.replica, attr: &entry.attr };
                let may_tell = !self.tables.is_name_possibly_replaced(at, found)
                    && !self.tables.has_page_drops(at, found);
                may_tell.then_some(entry)
            }
        };
        Some(ReaddirPlusEntry {
            name: listed.name.to_owned(),
            next_offset: listed.next_offset,
            entry_attr,
            listed_ino: self.listed_ino(dir, &listed),
            kind: listed.kind,
        })
    }

    /// The reply for an entry. Call [`Namespace::commit_lookup`] once the reply has it.
    pub fn readdirplus_reply(&self, dir: Ino, name: &OsStr, seen: &EntryAttr) -> Option<InodeAttr> {
        let inodes = self.tables.inodes.lock();
        let ino = inodes.ino_for(dir, name, seen.replica, &seen.attr)?;
        if !inodes.is_current_entry(dir, name, ino, seen.change_seq) {
            return None;
        }
        Some(InodeAttr { ino, attr: seen.attr })
    }

    /// Records that the reply to `request` has the entry as `ino`: the kernel knows the inode once
    /// more.
    pub fn commit_lookup(&self, ino: Ino, at: EntryName<'_>, seen: &EntryAttr, request: u64) {
        let EntryAttr { replica, change_seq: asked, attr } = *seen;
        let found = ReplicaAttr { replica, attr: &attr };
        let known = self.tables.inodes.lock().record_lookup_as(ino, request, at, found, asked);
        if let Some(ino) = known {
            self.tables.apply_attrs(ino, &attr, &OpenFileCheck::default(), asked);
        }
    }
}
