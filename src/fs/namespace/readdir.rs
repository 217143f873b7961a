//! Directory listings with stable offsets.
//!
//! A directory is listed when it is first read through a handle, and the handle keeps the listing
//! if there is memory for it. Offsets are positions in that listing, so they stay valid whichever
//! replica answers next, and however the directory changes. If there is not enough memory, the
//! handle keeps a window of the listing, and lists the directory again for the next window
//! ([`crate::fs::listing`]). A read from the start (rewinddir) begins another listing.

use std::ffi::{OsStr, OsString};
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::Namespace;
use crate::backend::{Attr, Backend, BackendError, Credentials, FileKind, RequestContext, Result};
use crate::fs::entry_name::{EntryName, InodeAttr, ReplicaAttr};
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::DirHandle;
use crate::fs::ino::Ino;
use crate::fs::listing::{ListedEntry, Listing, ListingBuilder};
use crate::fs::listing_cache::ListingCache;
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::OpenFileCheck;
use crate::replicas::metadata_client::RunAs;
use crate::volume::{ReplicaId, VolumeMode};

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

/// The attributes of an entry, as one replica showed them.
#[derive(Clone, Copy)]
pub struct EntryAttr {
    replica: ReplicaId,
    /// The number of changes before the replica was asked.
    change_seq: u64,
    /// Its attributes.
    pub attr: Attr,
}

/// The attributes of an entry, or the reason why the replica could not look at it.
type AttrAnswer = Result<EntryAttr>;

/// Entries that were looked up in one call.
struct EntryBatch {
    entries: Vec<ReaddirPlusEntry>,
    /// The offset where the next batch begins.
    next_offset: u64,
    /// Whether the listing has no more entries.
    is_end: bool,
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

/// Entries that are looked up for one reply to READDIRPLUS. About as many fit into one page, which
/// is the size that the kernel asks for.
const ENTRIES_PER_REPLY: usize = 32;

/// The attributes, if the replica could show those of at least one entry. Otherwise an error, so
/// that another replica is asked.
fn attrs_or_failover(attrs: Vec<Result<Attr>>) -> Result<Vec<Result<Attr>>> {
    let says = |attr: &Result<Attr>| attr.as_ref().err().is_none_or(|error| error.is_definite());
    match attrs.iter().find_map(|attr| attr.err()) {
        Some(error) if !attrs.iter().any(says) => Err(error),
        _ => Ok(attrs),
    }
}

/// Whether a directory is listed by names only, after looking up its entries failed with this
/// error.
fn can_list_names_only(error: BackendError) -> bool {
    !error.is_definite() || error == BackendError::Os(rustix::io::Errno::ACCESS)
}

impl Namespace {
    /// Opens a directory; it is listed when it is read. The replica checks now whether the caller
    /// may list it, unless the caller has the daemon's own credentials.
    pub async fn opendir(&self, caller: RequestContext, ino: Ino) -> FsResult<HandleId> {
        let credentials = caller.credentials();
        if !credentials.is_daemon() {
            let check = || self.check_open_dir(ino, &credentials);
            self.calls.with_rename_retry(&[ino], RetriedCall::Lookup, check).await?;
        }
        Ok(self.tables.handles.insert_dir(ino, credentials, caller.request))
    }

    async fn check_open_dir(&self, ino: Ino, credentials: &Credentials) -> FsResult<()> {
        let path = self.tables.path(ino)?;
        let target = self.calls.target_of_inode(ino, &path);
        let dir = self.tables.dir_ref(ino, path);
        let check = move |replica: ReplicaId, backend: &dyn Backend| {
            backend.check_open_dir(&dir.target_on(replica))
        };
        self.calls.client.call(target, RunAs::Only(credentials.clone()), check).await?;
        Ok(())
    }

    /// The directory's entries, for a reader at `offset`.
    pub async fn readdir(&self, handle: HandleId, offset: u64) -> FsResult<Arc<Listing>> {
        let dir = self.tables.handles.dir(handle).ok_or(Errno::BADF)?;
        if let Some(listing) = dir.listing.get(offset) {
            return Ok(listing);
        }
        let list = || self.list_dir(handle, &dir, offset);
        self.calls.with_rename_retry(&[dir.ino], RetriedCall::Lookup, list).await
    }

    async fn list_dir(
        &self,
        handle: HandleId,
        dir: &Arc<DirHandle>,
        offset: u64,
    ) -> FsResult<Arc<Listing>> {
        let path = self.tables.path(dir.ino)?;
        let target = self.calls.target_of_listing(&path);
        let parent = self.tables.inodes.lock().parent(dir.ino).unwrap_or(dir.ino);
        let list = {
            let memory = Arc::clone(&self.listing_memory);
            let object = self.tables.inode_at(dir.ino, path);
            // In `copies` mode the numbers in the listing are valid only in that one tree.
            let has_numbers = self.tables.policy.mode != VolumeMode::Copies;
            move |replica: ReplicaId, backend: &dyn Backend| {
                let mut builder = match ListingBuilder::new(&memory, offset) {
                    Ok(builder) => builder,
                    Err(errno) => return Ok(Err(errno)),
                };
                backend.list(&object.target_on(replica), &mut |name, number, kind| {
                    builder.push(name, if has_numbers { number } else { 0 }, kind);
                })?;
                Ok(builder.finish(offset))
            }
        };
        let run_as = RunAs::CallerThenDaemon(dir.credentials.clone());
        let (_, packed) = self.calls.client.call(target.long(), run_as, list).await?;
        let listing = Arc::new(Listing { ino: dir.ino, parent, packed: packed? });
        // In another listing the offset may be another position.
        if !self.tables.handles.set_listing(handle.number, dir, &listing, offset) {
            return Err(Errno::STALE);
        }
        if !listing.packed.is_whole() {
            let keeper: Weak<ListingCache> = Arc::downgrade(&dir.listing);
            self.listing_memory.track_window(handle.number, keeper);
        }
        Ok(listing)
    }

    /// The entries from `offset` on, with attributes, as many as are looked up in one call. Entries
    /// that were removed meanwhile are left out. Entries that no replica can look up are listed by
    /// name only.
    pub async fn readdirplus(
        &self,
        caller: RequestContext,
        handle: HandleId,
        offset: u64,
    ) -> FsResult<ReaddirPlusPage> {
        let since = Instant::now();
        let mut offset = offset;
        let mut listing = self.readdir(handle, offset).await?;
        loop {
            let ino = listing.ino;
            let look_up = || self.lookup_batch(caller, since, &listing, offset);
            let batch = self.calls.with_rename_retry(&[ino], RetriedCall::Lookup, look_up).await?;
            // If all entries were removed, an empty reply would end the listing.
            if batch.is_end || !batch.entries.is_empty() {
                return Ok(ReaddirPlusPage { listing, entries: batch.entries });
            }
            offset = batch.next_offset;
            if !listing.packed.covers(offset) {
                listing = self.readdir(handle, offset).await?;
            }
        }
    }

    async fn lookup_batch(
        &self,
        caller: RequestContext,
        since: Instant,
        listing: &Listing,
        offset: u64,
    ) -> FsResult<EntryBatch> {
        let batch = listing.entries_from(offset).take(ENTRIES_PER_REPLY);
        let names: Arc<Vec<OsString>> =
            Arc::new(batch.map(|entry| entry.name.to_owned()).collect());
        if names.is_empty() {
            return Ok(EntryBatch { entries: Vec::new(), next_offset: offset, is_end: true });
        }
        let path = self.tables.path(listing.ino)?;
        let target = self.calls.target_of_listing(&path).requested_at(since);
        let change_seq = self.tables.change_seq();
        let stat = {
            let names = Arc::clone(&names);
            let dir = self.tables.dir_ref(listing.ino, path);
            move |replica: ReplicaId, backend: &dyn Backend| {
                attrs_or_failover(backend.stat_entries(&dir.target_on(replica), &names)?)
            }
        };
        let answer =
            self.calls.client.call(target.long(), RunAs::DaemonThenCaller(caller), stat).await;
        let attrs: Vec<AttrAnswer> = match answer {
            Ok((replica, attrs)) => attrs
                .into_iter()
                .map(|attr| attr.map(|attr| EntryAttr { replica, change_seq, attr }))
                .collect(),
            // The directory was listed, so its names are known.
            Err(error) if can_list_names_only(error) => vec![Err(error); names.len()],
            Err(error) => return Err(error.into()),
        };
        let mut next_offset = offset;
        let entries = listing.entries_from(offset).zip(attrs).filter_map(|(listed, attr)| {
            next_offset = listed.next_offset;
            self.readdirplus_entry(listing.ino, listed, attr)
        });
        let entries: Vec<_> = entries.collect();
        Ok(EntryBatch { entries, next_offset, is_end: false })
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

    /// The inode number to show for an entry without attributes.
    pub fn listed_ino(&self, dir: Ino, entry: &ListedEntry<'_>) -> Ino {
        self.tables.inodes.lock().listed_ino(dir, entry.name, entry.number)
    }
}
