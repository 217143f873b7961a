//! Listings with attributes: READDIRPLUS.
//!
//! The kernel asks for listings in this way, and fanfs decides which entries have attributes
//! ([`crate::fs::attribute_demand`]). The kernel looks up the others when a process asks for them.
//! READDIR comes only from a kernel that has agreed with an older daemon to choose by itself.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Instant;

use super::Namespace;
use super::reply_room::fitting;
use crate::backend::{Attr, Backend, FileKind, RequestContext, Result};
use crate::fs::entry_name::{EntryName, InodeAttr, ReplicaAttr};
use crate::fs::error::FsResult;
use crate::fs::handle_id::HandleId;
use crate::fs::ino::Ino;
use crate::fs::listing::{FIRST_ENTRY_OFFSET, Listing};
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::OpenFileCheck;
use crate::replicas::metadata_client::RunAs;
use crate::volume::ReplicaId;

/// An entry of a listing, before the kernel gets it.
pub struct ReaddirPlusEntry {
    /// Its name.
    pub name: OsString,
    /// The offset after it, where the next read continues.
    pub next_offset: u64,
    /// Its attributes, and the replica that showed them; `None` if they are not in demand or no
    /// replica could show them.
    pub entry_attr: Option<EntryAttr>,
    /// Its inode number as the listing shows it.
    pub listed_ino: Ino,
    /// Its kind as the listing shows it.
    pub kind: FileKind,
}

/// The attributes of an entry, as one replica showed them.
#[derive(Clone, Copy)]
pub struct EntryAttr {
    replica: ReplicaId,
    /// The number of changes before the replica was asked.
    change_seq: u64,
    /// Its attributes.
    pub attr: Attr,
}

/// A part of a listing.
pub struct ReaddirPlusPage {
    /// The whole listing, or the window that has the part.
    pub listing: Arc<Listing>,
    /// The entries of the part; none at the end of the listing.
    pub entries: Vec<ReaddirPlusEntry>,
}

/// The first entries of a directory, which are always looked at. About as many fit into one page,
/// the size that kernels before 6.16 ask for.
const FIRST_ENTRIES: usize = 32;

/// The most entries that one call looks at. If a look takes a millisecond, the call is not yet so
/// late that another replica is asked.
const MAX_LOOKS: usize = 64;

/// The attributes, if the replica could show those of at least one entry. Otherwise an error, so
/// that another replica is asked.
fn attrs_or_failover(attrs: Vec<Result<Attr>>) -> Result<Vec<Result<Attr>>> {
    let says = |attr: &Result<Attr>| attr.as_ref().err().is_none_or(|error| error.is_definite());
    match attrs.iter().find_map(|attr| attr.err()) {
        Some(error) if !attrs.iter().any(says) => Err(error),
        _ => Ok(attrs),
    }
}

impl ReaddirPlusPage {
    /// As [`Listing::dot_entries`].
    pub fn dot_entries(&self, offset: u64) -> impl Iterator<Item = (Ino, u64, &'static str)> {
        self.listing.dot_entries(offset)
    }
}

impl Namespace {
    /// The entries from `offset` on, for a reply of `room()` bytes, which is asked only if it
    /// matters. The first of a directory have attributes, the others if these are in demand.
    /// Entries that no replica can look at, or that may have changed meanwhile, have none.
    pub async fn readdirplus(
        &self,
        caller: RequestContext,
        handle: HandleId,
        offset: u64,
        room: impl FnOnce() -> usize + Send,
    ) -> FsResult<ReaddirPlusPage> {
        let since = Instant::now();
        let listing = self.readdir(handle, offset).await?;
        let looks = self.looks_at(offset, since);
        let most = if looks == 0 { usize::MAX } else { looks };
        // The first entries are few, whatever the size of the reply.
        let room = if looks == FIRST_ENTRIES { usize::MAX } else { room() };
        let listed: Vec<_> = fitting(listing.entries_from(offset), room).take(most).collect();
        let mut attrs = match looks {
            0 => vec![None; listed.len()],
            _ => {
                let names = listed.iter().map(|entry| entry.name.to_owned()).collect();
                self.entry_attrs(caller, since, listing.ino, Arc::new(names)).await
            }
        };
        if !listing.packed.is_whole() {
            // Names that share an offset are sent by one reply, and attributes could end it between
            // them.
            for at in 1..listed.len() {
                if listed[at - 1].next_offset + 1 == listed[at].next_offset {
                    attrs[at - 1..=at].fill(None);
                }
            }
        }
        let entries = listed.iter().zip(attrs);
        let entries = entries
            .map(|(listed, entry_attr)| ReaddirPlusEntry {
                name: listed.name.to_owned(),
                next_offset: listed.next_offset,
                entry_attr,
                listed_ino: self.listed_ino(listing.ino, listed),
                kind: listed.kind,
            })
            .collect();
        Ok(ReaddirPlusPage { listing, entries })
    }

    /// The most entries to look at for a reply from `offset` on.
    fn looks_at(&self, offset: u64, now: Instant) -> usize {
        if self.tables.policy.attribute_ttl.is_zero() {
            // The kernel asks for attributes again in any case.
            return 0;
        }
        if self.attribute_demand.is_wanted(now) {
            return MAX_LOOKS;
        }
        let first = offset.max(FIRST_ENTRY_OFFSET) - FIRST_ENTRY_OFFSET;
        FIRST_ENTRIES.saturating_sub(usize::try_from(first).unwrap_or(usize::MAX))
    }

    /// Records that a reply has `names` names without attributes.
    pub fn record_names_only(&self, handle: HandleId, names: usize) {
        self.attribute_demand.record_listing(handle, names, Instant::now());
    }

    /// The attributes of entries of the directory, as far as the kernel may have them now.
    async fn entry_attrs(
        &self,
        caller: RequestContext,
        since: Instant,
        dir: Ino,
        names: Arc<Vec<OsString>>,
    ) -> Vec<Option<EntryAttr>> {
        if names.is_empty() {
            return Vec::new();
        }
        let look = || self.look_at_entries(caller, since, dir, &names);
        let answer = self.calls.with_rename_retry(&[dir], RetriedCall::Lookup, look).await;
        // The directory was listed, so its names are known. An error would hide the rest of them:
        // the C library takes ENOENT for the end.
        let attrs = answer.unwrap_or_else(|_| vec![None; names.len()]);
        let shown = names.iter().zip(attrs).map(|(name, attr)| {
            // Without attributes the kernel looks the entry up. The lookup finds out whether it
            // was replaced or removed, and waits until its pages are dropped.
            let entry = attr?;
            let at = EntryName { parent: dir, name };
            let found = ReplicaAttr { replica: entry.replica, attr: &entry.attr };
            let may_tell = !self.tables.is_name_possibly_replaced(at, found)
                && !self.tables.has_page_drops(at, found);
            may_tell.then_some(entry)
        });
        shown.collect()
    }

    /// Looks at entries of the directory, in one call.
    async fn look_at_entries(
        &self,
        caller: RequestContext,
        since: Instant,
        dir: Ino,
        names: &Arc<Vec<OsString>>,
    ) -> FsResult<Vec<Option<EntryAttr>>> {
        let path = self.tables.path(dir)?;
        let target = self.calls.target_of_listing(&path).requested_at(since);
        let change_seq = self.tables.change_seq();
        let stat = {
            let names = Arc::clone(names);
            let dir = self.tables.dir_ref(dir, path);
            move |replica: ReplicaId, backend: &dyn Backend| {
                attrs_or_failover(backend.stat_entries(&dir.target_on(replica), &names)?)
            }
        };
        let rights = RunAs::DaemonThenCaller(caller);
        let (replica, attrs) = self.calls.client.call(target.long(), rights, stat).await?;
        let known = |attr: Attr| EntryAttr { replica, change_seq, attr };
        Ok(attrs.into_iter().map(|attr| attr.ok().map(known)).collect())
    }

    /// The reply for an entry, if its attributes are known and still current. Call
    /// [`Namespace::commit_lookup`] once the reply has it.
    pub fn readdirplus_reply(
        &self,
        dir: Ino,
        plus: &ReaddirPlusEntry,
    ) -> Option<(InodeAttr, EntryAttr)> {
        let seen = plus.entry_attr?;
        let (ino, is_current) = {
            let inodes = self.tables.inodes.lock();
            let ino = inodes.ino_for(dir, &plus.name, seen.replica, &seen.attr)?;
            (ino, inodes.is_current_entry(dir, &plus.name, ino, seen.change_seq))
        };
        // The inode may have been changed by another name.
        let may_be_old = self.tables.is_inode_possibly_stale(seen.replica, ino);
        (is_current && !may_be_old).then_some((InodeAttr { ino, attr: seen.attr }, seen))
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
