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

use super::call::Rights;
use super::handle::DirHandle;
use super::listing::Collector;
use super::moves::Done;
use super::object;
use super::replaced::Looked;
use super::{Answer, Entry, Errno, Fs, HandleId, Ino, Listed, Listing};
use crate::backend::{Attr, Backend, BackendError, FileKind, Requester, Result};
use crate::volume::{Mode, ReplicaId};

/// One entry with its attributes, not yet given to the kernel.
pub struct PlusEntry {
    /// Its name.
    pub name: OsString,
    /// The offset to go on from after it.
    pub next: u64,
    /// Which inode it is, and what it looks like; `None` where no replica could say so.
    pub seen: Option<Seen>,
    /// Its inode number as the listing shows it.
    pub number: Ino,
    /// Its kind as the listing shows it.
    pub kind: FileKind,
}

/// What a replica showed of an entry.
pub struct Seen {
    replica: ReplicaId,
    /// Changes before it was asked for.
    asked: u64,
    /// Its attributes.
    pub attr: Attr,
}

/// Part of a listing with attributes.
pub struct PlusPage {
    /// The listing that it is a part of.
    pub listing: Arc<Listing>,
    /// Its entries, none for the end of the listing.
    pub entries: Vec<PlusEntry>,
}

impl PlusPage {
    /// Whether there are entries without attributes.
    pub fn has_names_alone(&self) -> bool {
        self.entries.iter().any(|entry| entry.seen.is_none())
    }

    /// As [`Listing::dots`].
    pub fn dots(&self, offset: u64) -> impl Iterator<Item = (Ino, u64, &'static str)> {
        self.listing.dots(offset)
    }
}

/// Entries looked up for one reply of a READDIRPLUS: about what fits into one
/// page, which is what the kernel asks for at a time.
const BATCH: usize = 32;

/// Attributes of entries, where the replica could look at any of them. Where it could at
/// none, another one may.
fn looked_at(attrs: Vec<Result<Attr>>) -> Result<Vec<Result<Attr>>> {
    let says = |attr: &Result<Attr>| attr.as_ref().err().is_none_or(|error| error.is_definite());
    match attrs.iter().find_map(|attr| attr.err()) {
        Some(error) if !attrs.iter().any(says) => Err(error),
        _ => Ok(attrs),
    }
}

/// Whether a directory whose entries could not be looked at for this reason is listed
/// by its names alone.
fn leaves_the_names(error: BackendError) -> bool {
    !error.is_definite() || error == BackendError::Os(rustix::io::Errno::ACCESS)
}

impl Fs {
    /// Opens a directory; it is listed when it is read. Whether it may be is settled
    /// now, as far as the replica could say anything else than the kernel did.
    pub fn open_dir(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        done: impl FnOnce(Answer<HandleId>) + Send + 'static,
    ) {
        let identity = who.identity();
        if identity.is_daemon() {
            return done(Ok(self.handles.insert_directory(ino, (identity, who.request))));
        }
        let (fs, rights) = (Arc::clone(self), Rights::Of(identity.clone()));
        let visit = move |fs: &Arc<Self>, done: Done<()>| {
            let path = match fs.path(ino) {
                Ok(path) => path,
                Err(errno) => return done(Err(errno)),
            };
            let (spot, dir) = (fs.spot_of(ino, &path), fs.dir_at(ino, path));
            let visit = move |replica, backend: &dyn Backend| backend.visit(&dir.on(replica));
            fs.caller.call_by_replica(spot, rights.clone(), visit, move |answer| {
                done(answer.map_err(Errno::from).map(drop));
            });
        };
        self.by_path((&[ino], false), visit, move |answer| {
            done(answer.map(|()| fs.handles.insert_directory(ino, (identity, who.request))));
        });
    }

    /// The directory's entries, for a reader who stands at `offset`.
    pub fn read_dir(
        self: &Arc<Self>,
        handle: HandleId,
        offset: u64,
        done: impl FnOnce(Answer<Arc<Listing>>) + Send + 'static,
    ) {
        let Some(dir) = self.handles.directory(handle) else { return done(Err(Errno::BADF)) };
        if let Some(listing) = dir.listing(offset) {
            return done(Ok(listing));
        }
        let ino = dir.ino;
        let list = move |fs: &Arc<Self>, done| fs.list(handle, Arc::clone(&dir), offset, done);
        self.by_path((&[ino], false), list, done);
    }

    fn list(
        self: &Arc<Self>,
        handle: HandleId,
        dir: Arc<DirHandle>,
        offset: u64,
        done: impl FnOnce(Answer<Arc<Listing>>) + Send + 'static,
    ) {
        let path = match self.path(dir.ino) {
            Ok(path) => path,
            Err(errno) => return done(Err(errno)),
        };
        let spot = self.listing_spot(&path);
        let parent = self.inodes.lock().parent(dir.ino).unwrap_or(dir.ino);
        let copies = self.policy.mode == Mode::Copies;
        let object = object::target(self, dir.ino, path);
        let (fs, lister) = (Arc::clone(self), Arc::clone(self));
        let list = move |replica, backend: &dyn Backend| {
            let mut collector = match Collector::new(&lister.shelf, offset) {
                Ok(collector) => collector,
                Err(errno) => return Ok(Err(errno)),
            };
            backend.list(&object.on(replica), &mut |name, number, kind| {
                // In copies the numbers in the listing are that one tree's.
                collector.push(name, if copies { 0 } else { number }, kind);
            })?;
            Ok(collector.finish(offset))
        };
        let rights = Rights::Granted(dir.who.clone());
        self.caller.call_by_replica(spot, rights, list, move |answer| {
            done(answer.map_err(Errno::from).and_then(|(_, packed)| {
                let listing = Arc::new(Listing { ino: dir.ino, parent, packed: packed? });
                // In another listing the offset may be another place.
                if !dir.keep(&listing, offset) {
                    return Err(Errno::STALE);
                }
                fs.handles.listed(handle.number, &listing);
                if !listing.packed.is_whole() {
                    fs.shelf.keeps(handle.number, &dir);
                }
                Ok(listing)
            }));
        });
    }

    /// The entries from `offset` on, with attributes, as many as are worth
    /// looking up at a time. Entries that have gone meanwhile are left out; those that
    /// no replica can look at are listed by their names alone, as a replica lists them.
    pub fn read_dir_plus(
        self: &Arc<Self>,
        who: Requester,
        handle: HandleId,
        offset: u64,
        done: impl FnOnce(Answer<PlusPage>) + Send + 'static,
    ) {
        let (fs, since) = (Arc::clone(self), Instant::now());
        self.read_dir(handle, offset, move |listing| match listing {
            Ok(listing) => {
                let ino = listing.ino;
                let look_up = move |fs: &Arc<Self>, done| {
                    fs.look_up_batch((who, since), (handle, Arc::clone(&listing)), offset, done);
                };
                fs.by_path((&[ino], false), look_up, done);
            }
            Err(errno) => done(Err(errno)),
        });
    }

    /// Goes on after a batch of which nothing is there any more.
    fn go_on(
        self: &Arc<Self>,
        (who, since): (Requester, Instant),
        (handle, listing): (HandleId, Arc<Listing>),
        offset: u64,
        done: impl FnOnce(Answer<PlusPage>) + Send + 'static,
    ) {
        if listing.packed.covers(offset) {
            return self.look_up_batch((who, since), (handle, listing), offset, done);
        }
        // Not generic over itself: it may take any number of windows.
        let done: Box<dyn FnOnce(Answer<PlusPage>) + Send> = Box::new(done);
        let fs = Arc::clone(self);
        let next: Box<dyn FnOnce(Answer<Arc<Listing>>) + Send> = Box::new(move |next| match next {
            Ok(next) => fs.look_up_batch((who, since), (handle, next), offset, done),
            Err(errno) => done(Err(errno)),
        });
        self.read_dir(handle, offset, next);
    }

    fn look_up_batch(
        self: &Arc<Self>,
        (who, since): (Requester, Instant),
        (handle, listing): (HandleId, Arc<Listing>),
        offset: u64,
        done: impl FnOnce(Answer<PlusPage>) + Send + 'static,
    ) {
        let names: Arc<Vec<OsString>> = {
            let batch = listing.from(offset).take(BATCH);
            Arc::new(batch.map(|entry| entry.name.to_owned()).collect())
        };
        if names.is_empty() {
            return done(Ok(PlusPage { listing, entries: Vec::new() }));
        }
        let path = match self.path(listing.ino) {
            Ok(path) => path,
            Err(errno) => return done(Err(errno)),
        };
        let fs = Arc::clone(self);
        let asked = Arc::clone(&names);
        let (spot, asked_at) = (self.listing_spot(&path).since(since), self.now());
        let dir = self.dir_at(listing.ino, path);
        self.caller.call_by_replica(
            spot,
            Rights::Enough(who),
            move |replica, backend| looked_at(backend.stat_entries(&dir.on(replica), &asked)?),
            move |answer| {
                let unknown = |error| names.iter().map(|_| Err(error)).collect();
                let (replica, attrs) = match answer {
                    Ok((replica, attrs)) => (Some(replica), attrs),
                    // The directory was listed, so its names are known.
                    Err(error) if leaves_the_names(error) => (None, unknown(error)),
                    Err(error) => return done(Err(error.into())),
                };
                let mut last = offset;
                let found: Vec<_> = listing
                    .from(offset)
                    .zip(attrs)
                    .filter_map(|(listed, attr)| {
                        last = listed.next;
                        let seen = match (replica, attr) {
                            // The kernel looks it up: that tells whether it was replaced.
                            (Some(replica), Ok(attr))
                                if fs.is_name_disputed(
                                    (listing.ino, listed.name),
                                    replica,
                                    &attr,
                                ) =>
                            {
                                None
                            }
                            (Some(replica), Ok(attr)) => {
                                Some(Seen { replica, asked: asked_at, attr })
                            }
                            (_, Err(BackendError::Os(rustix::io::Errno::NOENT))) => return None,
                            _ => None,
                        };
                        let Listed { name, next, kind, .. } = listed;
                        let number = fs.listed_number(listing.ino, &listed);
                        Some(PlusEntry { name: name.to_owned(), next, seen, number, kind })
                    })
                    .collect();
                if found.is_empty() {
                    // All of them have gone; an empty answer would end the listing.
                    return fs.go_on((who, since), (handle, listing), last, done);
                }
                done(Ok(PlusPage { listing, entries: found }));
            },
        );
    }

    /// What the kernel is to be told of an entry; [`Fs::accept`] it once it has been.
    pub fn entry(&self, dir: Ino, name: &OsStr, seen: &Seen) -> Option<Entry> {
        let inodes = self.inodes.lock();
        let ino = inodes.number(dir, name, seen.replica, &seen.attr)?;
        if !inodes.is_there(dir, name, ino, seen.asked) {
            return None;
        }
        Some(Entry { ino, attr: seen.attr })
    }

    /// The entry is in the answer to `request`, as `ino`: the kernel knows the inode once
    /// more.
    pub fn accept(&self, ino: Ino, (dir, name): (Ino, &OsStr), seen: &Seen, request: u64) {
        let Seen { replica, asked, attr } = seen;
        let (at, found) = ((dir, name), (*replica, attr));
        let known = self.inodes.lock().remember_as(ino, request, at, found, *asked);
        if let Some(ino) = known {
            self.learned(ino, attr, &Looked::default(), *asked);
        }
    }

    /// The inode number to show for an entry that comes without attributes.
    pub fn listed_number(&self, dir: Ino, entry: &Listed<'_>) -> Ino {
        self.inodes.lock().listed(dir, entry.name, entry.number)
    }
}
