//! Open files and directories, by handle and by inode.

mod open_inode;
mod snapshot;
mod table;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::cache_mode::{CacheMode, ReadSizeStats, ReadTotals};
use super::handle_id::{HandleId, HandleNumbers};
use super::ino::{Ino, InoMap};
use super::inodes::CacheValidity;
use super::journal::Unflushed;
use super::listing::Listing;
use super::listing_cache::{ListingCache, digest_of_listing};
use super::passthrough::PassthroughFile;
use super::records::JournalEntry;
use super::step_log::StepLog;
use super::unsettled::UnsettledChanges;
use super::write_gate::{WriteGate, Writer};
use crate::backend::{Backend, BackendFile, Credentials};
use crate::read::{OpenFile, ReadHandle};
use crate::sync::{LockRank, RankedMutex, RankedMutexGuard};
use crate::volume::{FileVersion, ReplicaId, VolumeMode};
use table::HandleTable;

pub(super) use open_inode::{OpenInode, ReadSource, VersionAge};
pub(super) use snapshot::HandlesRestore;

/// Everything open.
pub(super) struct Handles {
    numbers: HandleNumbers,
    open: RankedMutex<HandleTable>,
    inodes: RankedMutex<InoMap<OpenInodeEntry>>,
    /// The gates of files that are open or being changed.
    gates: RankedMutex<InoMap<Weak<WriteGate>>>,
    /// Files that an older change may still reach.
    pub(super) unsettled: Arc<UnsettledChanges>,
    /// Records opens and closes in the journal.
    log: Arc<StepLog>,
    /// Locked while a handle is entered or removed, or a listing is kept, and the journal records
    /// it.
    open_close_lock: RankedMutex<()>,
}

struct OpenInodeEntry {
    inode: Arc<OpenInode>,
    handles: usize,
    /// Those of `handles` that are direct.
    direct_handles: usize,
}

/// How to open a file. Parts of it apply only if the file was not open before.
pub(super) struct OpenMethod<M> {
    /// Where data is cached, unless the kernel reads by itself.
    pub(super) cache_mode: CacheMode,
    /// The file that the kernel reads by itself, if this is the first open.
    pub(super) backing: Option<Arc<PassthroughFile>>,
    /// A version that is not open yet.
    pub(super) make_file: M,
}

/// A file, after one more handle was opened on it.
pub(super) struct OpenOutcome {
    pub(super) inode: Arc<OpenInode>,
    pub(super) cache_mode: CacheMode,
    /// The version that the handles of the file have left.
    pub(super) retired: Option<Arc<OpenFile>>,
    /// The backing file of this open, which is not used because the file was open before.
    pub(super) unused_backing: Option<Arc<PassthroughFile>>,
}

/// An open file or directory.
enum Handle {
    File(Arc<FileHandle>),
    Directory(Arc<DirHandle>),
}

/// An open file.
pub(super) struct FileHandle {
    pub(super) ino: Ino,
    pub(super) inode: Arc<OpenInode>,
    pub(super) cache_validity: CacheValidity,
    pub(super) cache_mode: CacheMode,
    pub(super) read_stats: ReadSizeStats,
    pub(super) read_handle: Arc<ReadHandle>,
    /// The credentials of the process that opened it.
    pub(super) credentials: Credentials,
    /// Whether one of its descriptors was closed since it was last used. Mostly that was the only
    /// one, and the kernel is about to release the handle.
    pub(super) is_closing: AtomicBool,
    /// Present if the handle may write.
    pub(super) writer: Option<Arc<Writer>>,
    /// Whether the kernel does not know the handle: it reads the file without opening it. The next
    /// daemon opens such files itself.
    pub(super) is_implicit: bool,
}

/// An open directory.
pub(super) struct DirHandle {
    pub(super) ino: Ino,
    /// The credentials to list it with.
    pub(super) credentials: Credentials,
    pub(super) listing: Arc<ListingCache>,
}

/// What remains to be done for a closed handle.
#[derive(Default)]
pub(super) struct ReleasedHandle {
    /// The inode, if it was a file.
    pub(super) ino: Option<Ino>,
    /// Its place in the read path, if it was a file.
    pub(super) read_handle: Option<Arc<ReadHandle>>,
    /// The totals of its reads, and the file's version at the close.
    pub(super) read_totals: Option<(ReadTotals, Arc<OpenFile>)>,
    /// The file's version, if this was its last handle.
    pub(super) last_version: Option<Arc<OpenFile>>,
    /// Whether its reader took small blocks; `None` if the handle was not direct or had too few
    /// reads.
    pub(super) small_blocks: Option<(Ino, bool)>,
    /// The file that the kernel read by itself, if this was its last handle.
    pub(super) backing: Option<Arc<PassthroughFile>>,
    /// The writer of the handle.
    pub(super) writer: Option<(Ino, Arc<OpenInode>, Arc<Writer>)>,
}

impl OpenInodeEntry {
    fn add_handles(&mut self, caching: CacheMode, by: isize) {
        self.handles = self.handles.saturating_add_signed(by);
        if caching == CacheMode::Direct {
            self.direct_handles = self.direct_handles.saturating_add_signed(by);
        }
        let file = self.inode.current();
        file.set_readers(self.handles);
        // If the kernel caches for all handles, segments kept here as well are of no use.
        file.set_keep_segments(self.direct_handles > 0);
    }
}

impl Handles {
    /// No open files or directories. Opens and closes are recorded in `log`.
    pub(super) fn new(log: Arc<StepLog>) -> Self {
        Self {
            numbers: HandleNumbers::default(),
            open: RankedMutex::new(LockRank::Handles, HandleTable::default()),
            inodes: RankedMutex::new(LockRank::OpenInodes, InoMap::default()),
            gates: RankedMutex::new(LockRank::WriteGates, InoMap::default()),
            unsettled: Arc::new(UnsettledChanges::new(Arc::clone(&log))),
            log,
            open_close_lock: RankedMutex::new(LockRank::OpenClose, ()),
        }
    }

    /// Adds a handle to the open file `ino` at `version`, which `opened` showed. The first open
    /// that is entered decides, under the table's lock, whether the kernel reads the file by
    /// itself. All other opens follow it.
    pub(super) fn open_inode(
        &self,
        ino: Ino,
        version: FileVersion,
        mode: VolumeMode,
        opened: Option<(ReplicaId, Arc<dyn BackendFile>)>,
        method: OpenMethod<impl Fn() -> OpenFile>,
    ) -> OpenOutcome {
        let OpenMethod { cache_mode, backing, make_file } = method;
        let mut inodes = self.inodes.lock();
        if let Some(counted) = inodes.get_mut(&ino) {
            let retired = counted.inode.adopt_opened(version, mode, opened, make_file);
            let inode = Arc::clone(&counted.inode);
            let cache_mode = inode.backing().map_or(cache_mode, |_| CacheMode::Kernel);
            counted.add_handles(cache_mode, 1);
            return OpenOutcome { inode, cache_mode, retired, unused_backing: backing };
        }
        let file = make_file();
        if let Some((replica, opened)) = opened {
            file.record_verified_open(replica, opened);
        }
        // The handle counts as cached: no segments are kept here for its readers.
        let cache_mode = backing.as_ref().map_or(cache_mode, |_| CacheMode::Kernel);
        let inode = Arc::new(OpenInode::new(file, backing, self.gate(ino)));
        let mut counted =
            OpenInodeEntry { inode: Arc::clone(&inode), handles: 0, direct_handles: 0 };
        counted.add_handles(cache_mode, 1);
        inodes.insert(ino, counted);
        OpenOutcome { inode, cache_mode, retired: None, unused_backing: None }
    }

    pub(super) fn insert_file(&self, handle: FileHandle, request: u64) -> HandleId {
        let ino = handle.ino;
        HandleId { number: self.insert(Handle::File(Arc::new(handle)), request), ino }
    }

    pub(super) fn insert_dir(&self, ino: Ino, credentials: Credentials, request: u64) -> HandleId {
        let dir = DirHandle { ino, credentials, listing: Arc::default() };
        HandleId { number: self.insert(Handle::Directory(Arc::new(dir)), request), ino }
    }

    fn insert(&self, handle: Handle, request: u64) -> u64 {
        let number = self.numbers.next();
        let recorded = {
            let _open_close = self.open_close_lock.lock();
            let id = HandleId { number, ino: handle.ino() };
            if handle.is_writable() {
                self.log.track(request, id.into());
            }
            let recorded = match handle.is_implicit() {
                true => Unflushed::default(),
                false => self.log.append_for_request(request, id.into(), || {
                    JournalEntry::Open(request, Box::new(handle.record(number, None, false)))
                }),
            };
            self.open.lock().insert(number, handle);
            recorded
        };
        self.log.flush(recorded);
        number
    }

    /// Closes a handle.
    pub(super) fn remove(&self, id: HandleId) -> (ReleasedHandle, Unflushed) {
        let mut recorded = Unflushed::default();
        let removed = {
            let _open_close = self.open_close_lock.lock();
            let removed = self.open.lock().remove(id.number, id.ino);
            if removed.as_ref().is_some_and(|handle| !handle.is_implicit()) {
                recorded = self.log.append(|| JournalEntry::Close(id.number));
            }
            removed
        };
        match removed {
            Some(Handle::File(file)) => (self.release_file(&file), recorded),
            Some(Handle::Directory(_)) | None => (ReleasedHandle::default(), recorded),
        }
    }

    fn release_file(&self, file: &FileHandle) -> ReleasedHandle {
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
            read_handle: Some(Arc::clone(&file.read_handle)),
            read_totals: Some((file.read_stats.totals(), file.inode.current())),
            last_version: last,
            small_blocks: small.map(|small| (file.ino, small)),
            backing,
            writer: file
                .writer
                .as_ref()
                .map(|writer| (file.ino, Arc::clone(&file.inode), Arc::clone(writer))),
        }
    }

    /// Keeps `listing` for the open directory `dir`, for a reader at `offset`. False if the offset
    /// belongs to another listing, which was lost.
    pub(super) fn set_listing(
        &self,
        number: u64,
        dir: &DirHandle,
        listing: &Arc<Listing>,
        offset: u64,
    ) -> bool {
        // Hashes all names, so before taking the lock.
        let digest = listing.packed.is_whole().then(|| digest_of_listing(listing));
        let mut recorded = Unflushed::default();
        {
            let _open_close = self.open_close_lock.lock();
            if !dir.listing.set(listing, offset) {
                return false;
            }
            if let Some(digest) = digest {
                recorded = self.log.append(|| JournalEntry::Listed(number, digest));
            }
        }
        self.log.flush(recorded);
        true
    }

    /// Nothing is opened or closed while the guard lives.
    pub(super) fn block_open_close(&self) -> RankedMutexGuard<'_, ()> {
        self.open_close_lock.lock()
    }

    /// The open file of a handle.
    pub(super) fn file(&self, id: HandleId) -> Option<Arc<FileHandle>> {
        match self.open.lock().get(id.number) {
            Some(Handle::File(file)) if file.ino == id.ino => Some(Arc::clone(file)),
            _ => None,
        }
    }

    /// All open files, by handle.
    pub(super) fn files(&self) -> Vec<(u64, Arc<FileHandle>)> {
        let open = self.open.lock();
        let file = |(id, handle): (u64, &Handle)| match handle {
            Handle::File(file) => Some((id, Arc::clone(file))),
            Handle::Directory(_) => None,
        };
        open.iter().filter_map(file).collect()
    }

    /// The open directory of a handle.
    pub(super) fn dir(&self, id: HandleId) -> Option<Arc<DirHandle>> {
        match self.open.lock().get(id.number) {
            Some(Handle::Directory(dir)) if dir.ino == id.ino => Some(Arc::clone(dir)),
            _ => None,
        }
    }

    /// The open file of this inode.
    pub(super) fn find_inode(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        self.inodes.lock().get(&ino).map(|counted| Arc::clone(&counted.inode))
    }

    /// Whether the file is likely to be closed soon, or its changes in flight to end soon.
    pub(super) fn is_closing_soon(&self, ino: Ino) -> bool {
        let open = self.open.lock();
        let mut own = open.of_inode(ino).filter_map(|handle| match handle {
            Handle::File(file) => Some(&file.is_closing),
            Handle::Directory(_) => None,
        });
        let is = |closing: &AtomicBool| closing.load(Ordering::Relaxed);
        let gate = self.gates.lock().get(&ino).and_then(Weak::upgrade);
        match own.next() {
            Some(first) => is(first) && own.all(is),
            None => gate.is_some_and(|gate| gate.has_in_flight()),
        }
    }

    /// The gate that separates reads and changes of a file, open or not.
    pub(super) fn gate(&self, ino: Ino) -> Arc<WriteGate> {
        let mut gates = self.gates.lock();
        if let Some(gate) = gates.get(&ino).and_then(Weak::upgrade) {
            return gate;
        }
        if gates.len() == gates.capacity() {
            gates.retain(|_, gate| gate.strong_count() > 0);
            // So the next scan comes only after as many new gates as there are live ones.
            let live = gates.len();
            gates.reserve(live);
        }
        let gate = Arc::new(WriteGate::new(ino, Arc::clone(&self.unsettled)));
        gates.insert(ino, Arc::downgrade(&gate));
        gate
    }

    /// Whether a file in the directory `dir` is open for writing.
    pub(super) fn has_writer_in_dir(&self, dir: &Path) -> bool {
        let written: Vec<Ino> = self.open.lock().writable_inodes().collect();
        let is_in = |inode: Arc<OpenInode>| inode.current().path().parent() == Some(dir);
        written.into_iter().filter_map(|ino| self.find_inode(ino)).any(is_in)
    }

    /// All open files.
    pub(super) fn open_inodes(&self) -> Vec<(Ino, Arc<OpenInode>)> {
        let inodes = self.inodes.lock();
        inodes.iter().map(|(ino, counted)| (*ino, Arc::clone(&counted.inode))).collect()
    }

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

    fn is_implicit(&self) -> bool {
        matches!(self, Self::File(file) if file.is_implicit)
    }
}

impl FileHandle {
    pub(super) fn cache_mode(&self) -> CacheMode {
        self.cache_mode
    }

    /// The file as the write replica has it open, opened there if need be. Blocks.
    pub(super) fn file_on_write_replica(
        &self,
        replica: ReplicaId,
        backend: &dyn Backend,
    ) -> crate::backend::Result<Arc<dyn BackendFile>> {
        let own = self.writer.iter().cloned().chain(self.inode.any_writer());
        match own.into_iter().find(|writer| writer.readable) {
            Some(writer) => Ok(Arc::clone(&writer.file)),
            None => {
                let current = self.inode.current();
                current.set_credentials(&self.credentials);
                current.open_unchecked(replica, backend)
            }
        }
    }
}
