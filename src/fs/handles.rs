//! What is open: files and directories, by handle and by inode.

mod id;
mod open_inode;
pub(super) mod snapshot;
mod table;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::cache_mode::{ReadSizeStats, ReadTotals};
use super::inodes::CacheValidity;
use super::journal::Journal;
use super::unsettled::UnsettledChanges;
use super::write_gate::{WriteGate, Writer};
use super::{CacheMode, Ino, Listing, PassthroughFile};
use crate::backend::{BackendFile, Credentials};
use crate::read::{OpenFile, ReadHandle};
use crate::volume::{FileVersion, ReplicaId, VolumeMode};
use id::HandleNumbers;
use snapshot::{ListingDigest, digest_of_names};
use table::HandleTable;

pub use id::HandleId;
pub(super) use open_inode::{OpenInode, ReadSource};

/// Everything open.
#[derive(Default)]
pub(super) struct Handles {
    numbers: HandleNumbers,
    open: Mutex<HandleTable>,
    inodes: Mutex<HashMap<Ino, OpenInodeEntry>>,
    /// Of files that are open, or being changed.
    gates: Mutex<HashMap<Ino, Weak<WriteGate>>>,
    /// Files that an older change may still reach.
    pub(super) unsettled: Arc<UnsettledChanges>,
    /// Where what is opened and closed is written down, if it is.
    journal: OnceLock<Arc<Journal>>,
    /// Locked by who opens or closes, and before the tables.
    open_close_lock: Mutex<()>,
}

struct OpenInodeEntry {
    inode: Arc<OpenInode>,
    handles: usize,
    /// Those of them that are direct.
    direct_handles: usize,
}

/// What is done at a file's open, some of it only if it was not open before.
pub(super) struct OpenHooks<L, M> {
    /// Who caches, unless the kernel reads by itself.
    pub(super) cache_mode: CacheMode,
    /// Lends the kernel what it is to read by itself.
    pub(super) open_backing: L,
    /// A version that is not open yet.
    pub(super) make_file: M,
}

/// What an open came to.
pub(super) struct OpenOutcome {
    pub(super) inode: Arc<OpenInode>,
    pub(super) cache_mode: CacheMode,
}

/// An open file or directory.
enum Handle {
    File(FileHandle),
    Directory(Arc<DirHandle>),
}

/// An open file.
#[derive(Clone)]
pub(super) struct FileHandle {
    pub(super) ino: Ino,
    pub(super) inode: Arc<OpenInode>,
    pub(super) cache_validity: CacheValidity,
    pub(super) cache_mode: CacheMode,
    pub(super) read_stats: Arc<ReadSizeStats>,
    pub(super) read_handle: Arc<ReadHandle>,
    /// Whose it is.
    pub(super) credentials: Credentials,
    /// Whether one of its descriptors was closed since it was last used: mostly the
    /// only one, and the kernel will say so in a moment.
    pub(super) is_closing: Arc<AtomicBool>,
    /// If it may write.
    pub(super) writer: Option<Arc<Writer>>,
}

/// An open directory.
pub(super) struct DirHandle {
    pub(super) ino: Ino,
    /// In whose name it is listed.
    pub(super) credentials: Credentials,
    cache: Mutex<DirCache>,
}

/// What a closed handle leaves.
#[derive(Default)]
pub(super) struct ReleasedHandle {
    /// The file, if it was one.
    pub(super) ino: Option<Ino>,
    /// Its place in the read path, if it was a file.
    pub(super) read_handle: Option<Arc<ReadHandle>>,
    /// What was read through it, and the version that it had at the end.
    pub(super) read_totals: Option<(ReadTotals, Arc<OpenFile>)>,
    /// The file's version, where this was its last handle.
    pub(super) last_version: Option<Arc<OpenFile>>,
    /// Whether its reader took small blocks, where it was a direct one and that
    /// can be said.
    pub(super) small_blocks: Option<(Ino, bool)>,
    /// What the kernel read by itself, where this was its last handle.
    pub(super) backing: Option<Arc<PassthroughFile>>,
    /// What it wrote through.
    pub(super) writer: Option<(Ino, Arc<OpenInode>, Arc<Writer>)>,
}

#[derive(Default)]
struct DirCache {
    listing: Option<Arc<Listing>>,
    /// When a reader last asked for it.
    last_used: Option<Instant>,
    /// Whether it has been read from the start.
    is_started: bool,
    /// Stands for the listing that was lost with the daemon before this one.
    lost_digest: Option<ListingDigest>,
}

impl OpenInodeEntry {
    fn add_handles(&mut self, caching: CacheMode, by: isize) {
        self.handles = self.handles.saturating_add_signed(by);
        if caching == CacheMode::Direct {
            self.direct_handles = self.direct_handles.saturating_add_signed(by);
        }
        let file = self.inode.current();
        file.set_readers(self.handles);
        // Where the kernel caches for all of them, keeping it here as well would
        // be in vain.
        file.set_keep_segments(self.direct_handles > 0);
    }
}

impl Handles {
    /// The open file `ino` at `version`, which `opened` showed, one handle more;
    /// and the version that its handles left for it, if they did. `first.lend` is
    /// called under the table's lock, so that all agree on how it is read.
    pub(super) fn open_inode(
        &self,
        ino: Ino,
        version: FileVersion,
        mode: VolumeMode,
        opened: Option<(ReplicaId, Arc<dyn BackendFile>)>,
        first: OpenHooks<impl FnOnce() -> Option<Arc<PassthroughFile>>, impl Fn() -> OpenFile>,
    ) -> (OpenOutcome, Option<Arc<OpenFile>>) {
        let OpenHooks { cache_mode: caching, open_backing: lend, make_file: make } = first;
        let mut inodes = self.inodes.lock();
        if let Some(counted) = inodes.get_mut(&ino) {
            let retired = counted.inode.adopt_opened(version, mode, opened, make);
            let inode = Arc::clone(&counted.inode);
            let caching = inode.backing().map_or(caching, |_| CacheMode::Kernel);
            counted.add_handles(caching, 1);
            return (OpenOutcome { inode, cache_mode: caching }, retired);
        }
        let file = make();
        if let Some((replica, opened)) = opened {
            file.record_verified_open(replica, opened);
        }
        let backing = lend();
        // Counts as cached: nothing is kept here for its readers.
        let caching = backing.as_ref().map_or(caching, |_| CacheMode::Kernel);
        let inode = Arc::new(OpenInode::new(file, backing, self.gate(ino)));
        let mut counted =
            OpenInodeEntry { inode: Arc::clone(&inode), handles: 0, direct_handles: 0 };
        counted.add_handles(caching, 1);
        inodes.insert(ino, counted);
        (OpenOutcome { inode, cache_mode: caching }, None)
    }

    pub(super) fn insert_file(&self, handle: FileHandle, request: u64) -> HandleId {
        let ino = handle.ino;
        HandleId { number: self.insert(Handle::File(handle), request), ino }
    }

    pub(super) fn insert_dir(&self, ino: Ino, credentials: Credentials, request: u64) -> HandleId {
        let dir = DirHandle { ino, credentials, cache: Mutex::default() };
        HandleId { number: self.insert(Handle::Directory(Arc::new(dir)), request), ino }
    }

    fn insert(&self, handle: Handle, request: u64) -> u64 {
        let id = self.numbers.next();
        let _still = self.open_close_lock.lock();
        self.journal_open(id, &handle, request);
        self.open.lock().insert(id, handle);
        id
    }

    /// Closes a handle.
    pub(super) fn remove(&self, id: HandleId) -> ReleasedHandle {
        let removed = {
            let _still = self.open_close_lock.lock();
            let removed = self.open.lock().remove(id.number, id.ino);
            if removed.is_some() {
                self.journal_close(id.number);
            }
            removed
        };
        let Some(Handle::File(file)) = removed else { return ReleasedHandle::default() };
        let mut inodes = self.inodes.lock();
        let mut last = None;
        let mut backing = None;
        if let Some(counted) = inodes.get_mut(&file.ino) {
            counted.add_handles(file.cache_mode, -1);
            if counted.handles == 0 {
                last = Some(counted.inode.current());
                backing = counted.inode.backing().cloned();
                inodes.remove(&file.ino);
            }
        }
        let small =
            file.read_stats.has_small_reads().filter(|_| file.cache_mode == CacheMode::Direct);
        ReleasedHandle {
            ino: Some(file.ino),
            read_handle: Some(file.read_handle),
            read_totals: Some((file.read_stats.totals(), file.inode.current())),
            last_version: last,
            small_blocks: small.map(|small| (file.ino, small)),
            backing,
            writer: file.writer.map(|writer| (file.ino, file.inode, writer)),
        }
    }

    /// An open file.
    pub(super) fn file(&self, id: HandleId) -> Option<FileHandle> {
        match self.open.lock().get(id.number) {
            Some(Handle::File(file)) if file.ino == id.ino => Some(file.clone()),
            _ => None,
        }
    }

    /// All files that are open, by handle.
    pub(super) fn files(&self) -> Vec<(u64, FileHandle)> {
        let open = self.open.lock();
        let file = |(id, handle): (u64, &Handle)| match handle {
            Handle::File(file) => Some((id, file.clone())),
            Handle::Directory(_) => None,
        };
        open.iter().filter_map(file).collect()
    }

    /// An open directory.
    pub(super) fn dir(&self, id: HandleId) -> Option<Arc<DirHandle>> {
        match self.open.lock().get(id.number) {
            Some(Handle::Directory(dir)) if dir.ino == id.ino => Some(Arc::clone(dir)),
            _ => None,
        }
    }

    /// The open file with this number, if it is open.
    pub(super) fn find_inode(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        self.inodes.lock().get(&ino).map(|counted| Arc::clone(&counted.inode))
    }

    /// Whether it looks as if the file were not open, or not changed, much longer.
    pub(super) fn is_closing_soon(&self, ino: Ino) -> bool {
        let open = self.open.lock();
        let mut own = open.of_inode(ino).filter_map(|handle| match handle {
            Handle::File(file) => Some(&file.is_closing),
            Handle::Directory(_) => None,
        });
        let is = |closing: &Arc<AtomicBool>| closing.load(Ordering::Relaxed);
        let gate = self.gates.lock().get(&ino).and_then(Weak::upgrade);
        match own.next() {
            Some(first) => is(first) && own.all(is),
            None => gate.is_some_and(|gate| gate.has_in_flight()),
        }
    }

    /// What keeps reads and changes of a file apart, open or not.
    pub(super) fn gate(&self, ino: Ino) -> Arc<WriteGate> {
        let mut gates = self.gates.lock();
        if let Some(gate) = gates.get(&ino).and_then(Weak::upgrade) {
            return gate;
        }
        if gates.len() == gates.capacity() {
            gates.retain(|_, gate| gate.strong_count() > 0);
            // So the next look at all of them is as many gates away as there are.
            let live = gates.len();
            gates.reserve(live);
        }
        let gate = Arc::new(WriteGate::new(ino, Arc::clone(&self.unsettled)));
        gates.insert(ino, Arc::downgrade(&gate));
        gate
    }

    /// Whether a file that is in the directory `dir` is open to be written.
    pub(super) fn has_writer_in_dir(&self, dir: &Path) -> bool {
        let written: Vec<Ino> = self.open.lock().writable_inodes().collect();
        let is_in = |inode: Arc<OpenInode>| inode.current().path().parent() == Some(dir);
        written.into_iter().filter_map(|ino| self.find_inode(ino)).any(is_in)
    }

    /// All files that are open.
    pub(super) fn open_inodes(&self) -> Vec<(Ino, Arc<OpenInode>)> {
        let inodes = self.inodes.lock();
        inodes.iter().map(|(ino, counted)| (*ino, Arc::clone(&counted.inode))).collect()
    }

    /// How many files are open.
    pub(super) fn open_file_count(&self) -> usize {
        self.inodes.lock().len()
    }

    pub(super) fn len(&self) -> usize {
        self.open.lock().len()
    }
}

impl Handle {
    fn ino(&self) -> Ino {
        match self {
            Self::File(file) => file.ino,
            Self::Directory(dir) => dir.ino,
        }
    }

    fn is_writable(&self) -> bool {
        matches!(self, Self::File(file) if file.writer.is_some())
    }
}

impl FileHandle {
    /// Who caches what is read through it.
    pub(super) fn cache_mode(&self) -> CacheMode {
        self.cache_mode
    }
}

impl DirHandle {
    /// The listing kept, if it has the entries that come next for a reader at `offset`.
    pub(super) fn cached_listing(&self, offset: u64) -> Option<Arc<Listing>> {
        let mut kept = self.cache.lock();
        if offset == 0 && std::mem::replace(&mut kept.is_started, true) {
            kept.listing = None;
        }
        kept.last_used = Some(Instant::now());
        let listing = Arc::clone(kept.listing.as_ref()?);
        if !listing.packed.covers(offset) {
            // Makes room for the next one.
            kept.listing.take_if(|listing| !listing.packed.is_whole());
            return None;
        }
        if !listing.packed.is_whole() && listing.entries_from(offset).next().is_none() {
            // It has been read to the end.
            kept.listing = None;
        }
        Some(listing)
    }

    /// Keeps the directory as it is listed now, for a reader at `offset`; false where the
    /// offset is of another listing, which was lost.
    pub(super) fn cache_listing(&self, listing: &Arc<Listing>, offset: u64) -> bool {
        let mut kept = self.cache.lock();
        if listing.packed.is_whole() {
            let is_it = |lost: ListingDigest| {
                lost == digest_of_names(listing.entries_from(0).map(|entry| entry.name))
            };
            if offset > 0 && !kept.lost_digest.is_none_or(is_it) {
                return false;
            }
        }
        kept.lost_digest = None;
        kept.last_used = Some(Instant::now());
        kept.listing = listing.packed.is_within_budget().then(|| Arc::clone(listing));
        true
    }

    /// How long ago the window that is kept was used; `None` where none is.
    pub(super) fn window_idle_time(&self) -> Option<Duration> {
        let kept = self.cache.lock();
        let listing = kept.listing.as_ref()?;
        let used = kept.last_used.filter(|_| !listing.packed.is_whole());
        used.map(|used| used.elapsed())
    }

    /// Drops the window that is kept, if one is.
    pub(super) fn drop_window(&self) -> bool {
        let window = {
            let mut kept = self.cache.lock();
            kept.listing.take_if(|listing| !listing.packed.is_whole())
        };
        window.is_some()
    }
}
