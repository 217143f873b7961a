//! Directories: listings with offsets that stay good.
//!
//! A directory is listed when it is first read through a handle, and the handle keeps the
//! listing where there is memory for it: offsets are places in it, so they mean the same
//! whichever replica answers next, and whatever happens to the directory meanwhile. Where
//! there is not, the handle keeps a window of it, and the directory is listed again for
//! the next one ([`super::listing`]). Reading from the start again (rewinddir) begins
//! another listing.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Instant;

use super::file_replacement::OpenFileCheck;
use super::handles::DirHandle;
use super::inode_ref;
use super::listing::ListingBuilder;
use super::metadata_client::RunAs;
use super::renames::ReplyFn;
use super::{Errno, Fs, FsResult, HandleId, Ino, InodeAttr, ListedEntry, Listing};
use crate::backend::{Attr, Backend, BackendError, FileKind, RequestContext, Result};
use crate::volume::{ReplicaId, VolumeMode};

/// One entry with its attributes, not yet given to the kernel.
pub struct ReaddirPlusEntry {
    /// Its name.
    pub name: OsString,
    /// The offset to go on from after it.
    pub next_offset: u64,
    /// Which inode it is, and what it looks like; `None` where no replica could say so.
    pub entry_attr: Option<EntryAttr>,
    /// Its inode number as the listing shows it.
    pub listed_ino: Ino,
    /// Its kind as the listing shows it.
    pub kind: FileKind,
}

/// What a replica showed of an entry.
pub struct EntryAttr {
    replica: ReplicaId,
    /// Changes before it was asked for.
    change_seq: u64,
    /// Its attributes.
    pub attr: Attr,
}

/// Part of a listing with attributes.
pub struct ReaddirPlusPage {
    /// The listing that it is a part of.
    pub listing: Arc<Listing>,
    /// Its entries, none for the end of the listing.
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

/// Entries looked up for one reply of a READDIRPLUS: about what fits into one
/// page, which is what the kernel asks for at a time.
const ENTRIES_PER_REPLY: usize = 32;

/// Attributes of entries, where the replica could look at any of them. Where it could at
/// none, another one may.
fn attrs_or_failover(attrs: Vec<Result<Attr>>) -> Result<Vec<Result<Attr>>> {
    let says = |attr: &Result<Attr>| attr.as_ref().err().is_none_or(|error| error.is_definite());
    match attrs.iter().find_map(|attr| attr.err()) {
        Some(error) if !attrs.iter().any(says) => Err(error),
        _ => Ok(attrs),
    }
}

/// Whether a directory whose entries could not be looked at for this reason is listed
/// by its names alone.
fn can_list_names_only(error: BackendError) -> bool {
    !error.is_definite() || error == BackendError::Os(rustix::io::Errno::ACCESS)
}

impl Fs {
    /// Opens a directory; it is listed when it is read. Whether it may be is settled
    /// now, as far as the replica could say anything else than the kernel did.
    pub fn opendir(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        done: impl FnOnce(FsResult<HandleId>) + Send + 'static,
    ) {
        let identity = who.credentials();
        if identity.is_daemon() {
            return done(Ok(self.handles.insert_dir(ino, (identity, who.request))));
        }
        let (fs, rights) = (Arc::clone(self), RunAs::Only(identity.clone()));
        let visit = move |fs: &Arc<Self>, done: ReplyFn<()>| {
            let path = match fs.path(ino) {
                Ok(path) => path,
                Err(errno) => return done(Err(errno)),
            };
            let (spot, dir) = (fs.call_target_of_inode(ino, &path), fs.dir_ref(ino, path));
            let visit = move |replica, backend: &dyn Backend| {
                backend.check_open_dir(&dir.target_on(replica))
            };
            fs.client.call_by_replica(spot, rights.clone(), visit, move |answer| {
                done(answer.map_err(Errno::from).map(drop));
            });
        };
        self.call_with_rename_retry((&[ino], false), visit, move |answer| {
            done(answer.map(|()| fs.handles.insert_dir(ino, (identity, who.request))));
        });
    }

    /// The directory's entries, for a reader who stands at `offset`.
    pub fn readdir(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        done: impl FnOnce(FsResult<Arc<Listing>>) + Send + 'static,
    ) {
        let Some(dir) = self.handles.dir(handle) else { return done(Err(Errno::BADF)) };
        if let Some(listing) = dir.cached_listing(offset) {
            return done(Ok(listing));
        }
        let ino = dir.ino;
        let list = move |fs: &Arc<Self>, done| fs.list_dir(handle, Arc::clone(&dir), offset, done);
        self.call_with_rename_retry((&[ino], false), list, done);
    }

    fn list_dir(
        self: &Arc<Self>,
        handle: HandleId,
        dir: Arc<DirHandle>,
        offset: u64,
        done: impl FnOnce(FsResult<Arc<Listing>>) + Send + 'static,
    ) {
        let path = match self.path(dir.ino) {
            Ok(path) => path,
            Err(errno) => return done(Err(errno)),
        };
        let spot = self.listing_target(&path);
        let parent = self.inodes.lock().parent(dir.ino).unwrap_or(dir.ino);
        let copies = self.policy.mode == VolumeMode::Copies;
        let object = inode_ref::inode_at(self, dir.ino, path);
        let (fs, lister) = (Arc::clone(self), Arc::clone(self));
        let list = move |replica, backend: &dyn Backend| {
            let mut collector = match ListingBuilder::new(&lister.listing_memory, offset) {
                Ok(collector) => collector,
                Err(errno) => return Ok(Err(errno)),
            };
            backend.list(&object.target_on(replica), &mut |name, number, kind| {
                // In copies the numbers in the listing are that one tree's.
                collector.push(name, if copies { 0 } else { number }, kind);
            })?;
            Ok(collector.finish(offset))
        };
        let rights = RunAs::CallerThenDaemon(dir.credentials.clone());
        self.client.call_by_replica(spot, rights, list, move |answer| {
            done(answer.map_err(Errno::from).and_then(|(_, packed)| {
                let listing = Arc::new(Listing { ino: dir.ino, parent, packed: packed? });
                // In another listing the offset may be another place.
                if !dir.cache_listing(&listing, offset) {
                    return Err(Errno::STALE);
                }
                fs.handles.journal_listing(handle.number, &listing);
                if !listing.packed.is_whole() {
                    fs.listing_memory.track_window(handle.number, &dir);
                }
                Ok(listing)
            }));
        });
    }

    /// The entries from `offset` on, with attributes, as many as are worth
    /// looking up at a time. Entries that have gone meanwhile are left out; those that
    /// no replica can look at are listed by their names alone, as a replica lists them.
    pub fn readdirplus(
        self: &Arc<Self>,
        who: RequestContext,
        handle: HandleId,
        offset: u64,
        done: impl FnOnce(FsResult<ReaddirPlusPage>) + Send + 'static,
    ) {
        let (fs, since) = (Arc::clone(self), Instant::now());
        self.readdir(handle, offset, move |listing| match listing {
            Ok(listing) => {
                let ino = listing.ino;
                let look_up = move |fs: &Arc<Self>, done| {
                    fs.lookup_batch((who, since), (handle, Arc::clone(&listing)), offset, done);
                };
                fs.call_with_rename_retry((&[ino], false), look_up, done);
            }
            Err(errno) => done(Err(errno)),
        });
    }

    /// Goes on after a batch of which nothing is there any more.
    fn continue_readdirplus(
        self: &Arc<Self>,
        (who, since): (RequestContext, Instant),
        (handle, listing): (HandleId, Arc<Listing>),
        offset: u64,
        done: impl FnOnce(FsResult<ReaddirPlusPage>) + Send + 'static,
    ) {
        if listing.packed.covers(offset) {
            return self.lookup_batch((who, since), (handle, listing), offset, done);
        }
        // Not generic over itself: it may take any number of windows.
        let done: Box<dyn FnOnce(FsResult<ReaddirPlusPage>) + Send> = Box::new(done);
        let fs = Arc::clone(self);
        let next: Box<dyn FnOnce(FsResult<Arc<Listing>>) + Send> =
            Box::new(move |next| match next {
                Ok(next) => fs.lookup_batch((who, since), (handle, next), offset, done),
                Err(errno) => done(Err(errno)),
            });
        self.readdir(handle, offset, next);
    }

    fn lookup_batch(
        self: &Arc<Self>,
        (who, since): (RequestContext, Instant),
        (handle, listing): (HandleId, Arc<Listing>),
        offset: u64,
        done: impl FnOnce(FsResult<ReaddirPlusPage>) + Send + 'static,
    ) {
        let names: Arc<Vec<OsString>> = {
            let batch = listing.entries_from(offset).take(ENTRIES_PER_REPLY);
            Arc::new(batch.map(|entry| entry.name.to_owned()).collect())
        };
        if names.is_empty() {
            return done(Ok(ReaddirPlusPage { listing, entries: Vec::new() }));
        }
        let path = match self.path(listing.ino) {
            Ok(path) => path,
            Err(errno) => return done(Err(errno)),
        };
        let fs = Arc::clone(self);
        let asked = Arc::clone(&names);
        let (spot, asked_at) = (self.listing_target(&path).requested_at(since), self.change_seq());
        let dir = self.dir_ref(listing.ino, path);
        self.client.call_by_replica(
            spot,
            RunAs::DaemonThenCaller(who),
            move |replica, backend| {
                attrs_or_failover(backend.stat_entries(&dir.target_on(replica), &asked)?)
            },
            move |answer| {
                let unknown = |error| names.iter().map(|_| Err(error)).collect();
                let (replica, attrs) = match answer {
                    Ok((replica, attrs)) => (Some(replica), attrs),
                    // The directory was listed, so its names are known.
                    Err(error) if can_list_names_only(error) => (None, unknown(error)),
                    Err(error) => return done(Err(error.into())),
                };
                let mut last = offset;
                let found: Vec<_> = listing
                    .entries_from(offset)
                    .zip(attrs)
                    .filter_map(|(listed, attr)| {
                        last = listed.next_offset;
                        let seen = match (replica, attr) {
                            // The kernel looks it up: that tells whether it was replaced.
                            (Some(replica), Ok(attr))
                                if fs.is_name_possibly_replaced(
                                    (listing.ino, listed.name),
                                    replica,
                                    &attr,
                                ) =>
                            {
                                None
                            }
                            (Some(replica), Ok(attr)) => {
                                Some(EntryAttr { replica, change_seq: asked_at, attr })
                            }
                            (_, Err(BackendError::Os(rustix::io::Errno::NOENT))) => return None,
                            _ => None,
                        };
                        let ListedEntry { name, next_offset: next, kind, .. } = listed;
                        let number = fs.listed_ino(listing.ino, &listed);
                        Some(ReaddirPlusEntry {
                            name: name.to_owned(),
                            next_offset: next,
                            entry_attr: seen,
                            listed_ino: number,
                            kind,
                        })
                    })
                    .collect();
                if found.is_empty() {
                    // All of them have gone; an empty answer would end the listing.
                    return fs.continue_readdirplus((who, since), (handle, listing), last, done);
                }
                done(Ok(ReaddirPlusPage { listing, entries: found }));
            },
        );
    }

    /// What the kernel is to be told of an entry; [`Fs::commit_lookup`] it once it has been.
    pub fn readdirplus_reply(&self, dir: Ino, name: &OsStr, seen: &EntryAttr) -> Option<InodeAttr> {
        let inodes = self.inodes.lock();
        let ino = inodes.ino_for(dir, name, seen.replica, &seen.attr)?;
        if !inodes.is_current_entry(dir, name, ino, seen.change_seq) {
            return None;
        }
        Some(InodeAttr { ino, attr: seen.attr })
    }

    /// The entry is in the answer to `request`, as `ino`: the kernel knows the inode once
    /// more.
    pub fn commit_lookup(
        &self,
        ino: Ino,
        (dir, name): (Ino, &OsStr),
        seen: &EntryAttr,
        request: u64,
    ) {
        let EntryAttr { replica, change_seq: asked, attr } = seen;
        let (at, found) = ((dir, name), (*replica, attr));
        let known = self.inodes.lock().record_lookup_as(ino, request, at, found, *asked);
        if let Some(ino) = known {
            self.apply_attrs(ino, attr, &OpenFileCheck::default(), *asked);
        }
    }

    /// The inode number to show for an entry that comes without attributes.
    pub fn listed_ino(&self, dir: Ino, entry: &ListedEntry<'_>) -> Ino {
        self.inodes.lock().listed_ino(dir, entry.name, entry.number)
    }
}
