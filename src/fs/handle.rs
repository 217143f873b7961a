//! What is open: files and directories, by handle and by inode.

pub(super) mod carried;
mod id;
mod table;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLockReadGuard};

use super::caching::{Blocks, Read};
use super::inode::Cached;
use super::journal::Journal;
use super::unsettled::Unsettled;
use super::written::{Gate, Writer};
use super::{Backing, Caching, Errno, Ino, Listing};
use crate::backend::{BackendFile, Identity};
use crate::read::{OpenFile, ReadHandle};
use crate::volume::{FileVersion, Mode, ReplicaId};
use carried::{Digest, digest};
use id::Numbers;
use table::Table;

pub use id::HandleId;

/// Everything open.
#[derive(Default)]
pub(super) struct Handles {
    numbers: Numbers,
    open: Mutex<Table>,
    inodes: Mutex<HashMap<Ino, Counted>>,
    /// Of files that are open, or being changed.
    gates: Mutex<HashMap<Ino, Weak<Gate>>>,
    /// Files that an older change may still reach.
    pub(super) unsettled: Arc<Unsettled>,
    /// Where what is opened and closed is written down, if it is.
    journal: OnceLock<Arc<Journal>>,
    /// Locked by who opens or closes, and before the tables.
    still: Mutex<()>,
}

struct Counted {
    inode: Arc<OpenInode>,
    handles: usize,
    /// Those of them that are direct.
    direct: usize,
}

/// A regular file that is open: all its handles read the same version, or, while
/// it is written, what the write replica has.
pub(super) struct OpenInode {
    state: Mutex<Current>,
    /// What the kernel reads by itself, for as long as any handle is open.
    backing: Option<Arc<Backing>>,
    /// Keeps reads and changes of it apart.
    pub(super) gate: Arc<Gate>,
}

/// What is done at a file's open, some of it only if it was not open before.
pub(super) struct FirstOpen<L, M> {
    /// Who caches, unless the kernel reads by itself.
    pub(super) caching: Caching,
    /// Lends the kernel what it is to read by itself.
    pub(super) lend: L,
    /// A version that is not open yet.
    pub(super) make: M,
}

/// What an open came to.
pub(super) struct Answered {
    pub(super) inode: Arc<OpenInode>,
    pub(super) caching: Caching,
}

struct Current {
    file: Arc<OpenFile>,
    /// When a replica last said that this is the version there is; `None` where it is not
    /// known which there is.
    checked: Option<Instant>,
    /// Handles that may write.
    writers: Vec<Arc<Writer>>,
    /// How often it came to be written.
    epoch: u64,
}

/// How to read a file now.
pub(super) enum ReadFrom {
    /// Any replica that has this version; the epoch that it belongs to.
    Version(Arc<OpenFile>, u64),
    /// The write replica, through this if there is one.
    Written(Option<Arc<Writer>>),
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
    pub(super) cached: Cached,
    caching: Caching,
    pub(super) blocks: Arc<Blocks>,
    pub(super) read: Arc<ReadHandle>,
    /// Whose it is.
    pub(super) who: Identity,
    /// Whether one of its descriptors was closed since it was last used: mostly the
    /// only one, and the kernel will say so in a moment.
    pub(super) closing: Arc<AtomicBool>,
    /// If it may write.
    pub(super) writer: Option<Arc<Writer>>,
}

/// An open directory.
pub(super) struct DirHandle {
    pub(super) ino: Ino,
    /// In whose name it is listed.
    pub(super) who: Identity,
    kept: Mutex<Kept>,
}

/// What a closed handle leaves.
#[derive(Default)]
pub(super) struct Closed {
    /// The file, if it was one.
    pub(super) ino: Option<Ino>,
    /// Its place in the read path, if it was a file.
    pub(super) read: Option<Arc<ReadHandle>>,
    /// What was read through it, and the version that it had at the end.
    pub(super) counted: Option<(Read, Arc<OpenFile>)>,
    /// The file's version, where this was its last handle.
    pub(super) last: Option<Arc<OpenFile>>,
    /// Whether its reader took small blocks, where it was a direct one and that
    /// can be said.
    pub(super) small_blocks: Option<(Ino, bool)>,
    /// What the kernel read by itself, where this was its last handle.
    pub(super) backing: Option<Arc<Backing>>,
    /// What it wrote through.
    pub(super) writer: Option<(Ino, Arc<OpenInode>, Arc<Writer>)>,
}

#[derive(Default)]
struct Kept {
    listing: Option<Arc<Listing>>,
    /// When a reader last asked for it.
    used: Option<Instant>,
    /// Whether it has been read from the start.
    begun: bool,
    /// Stands for the listing that was lost with the daemon before this one.
    lost: Option<Digest>,
}

impl Counted {
    fn count(&mut self, caching: Caching, by: isize) {
        self.handles = self.handles.saturating_add_signed(by);
        if caching == Caching::Direct {
            self.direct = self.direct.saturating_add_signed(by);
        }
        let file = self.inode.current();
        file.set_readers(self.handles);
        // Where the kernel caches for all of them, keeping it here as well would
        // be in vain.
        file.set_keep(self.direct > 0);
    }
}

impl OpenInode {
    fn new(file: OpenFile, backing: Option<Arc<Backing>>, gate: Arc<Gate>) -> Self {
        let file = Arc::new(file);
        let state = Current { file, checked: Some(Instant::now()), writers: Vec::new(), epoch: 0 };
        Self { state: Mutex::new(state), backing, gate }
    }

    /// The version to read now, if it is not being written.
    pub(super) fn current(&self) -> Arc<OpenFile> {
        Arc::clone(&self.state.lock().file)
    }

    /// What `own`, a handle's writer if it has one, is to be read from now.
    pub(super) fn read_from(&self, own: Option<&Arc<Writer>>) -> ReadFrom {
        let state = self.state.lock();
        if state.writers.is_empty() {
            return ReadFrom::Version(Arc::clone(&state.file), state.epoch);
        }
        let readable = own.into_iter().chain(&state.writers).find(|writer| writer.readable);
        ReadFrom::Written(readable.cloned())
    }

    /// Whether a read that began at `epoch` was of one version.
    pub(super) fn is_still(&self, epoch: u64) -> bool {
        self.state.lock().epoch == epoch
    }

    /// Keeps writes from beginning for as long as the result lives, if none has since
    /// `epoch`. Never waits.
    pub(super) fn hold_back_writes(&self, epoch: u64) -> Option<RwLockReadGuard<'_, ()>> {
        // Whoever writes has begun an epoch first.
        self.gate.try_read().filter(|_| self.is_still(epoch))
    }

    /// One of the handles that may write it.
    pub(super) fn any_writer(&self) -> Option<Arc<Writer>> {
        self.state.lock().writers.first().cloned()
    }

    /// A handle by which he may write it.
    pub(super) fn writer_of(&self, who: &Identity) -> Option<Arc<Writer>> {
        self.state.lock().writers.iter().find(|writer| writer.who == *who).cloned()
    }

    /// What a change through any of its handles came to, if it may have been lost.
    pub(super) fn trouble(&self) -> Option<Errno> {
        self.state.lock().writers.iter().find_map(|writer| writer.peek())
    }

    /// Whether any handle may write it.
    pub(super) fn is_written(&self) -> bool {
        !self.state.lock().writers.is_empty()
    }

    /// A handle may write it from now on.
    pub(super) fn begin_writing(&self, writer: Arc<Writer>) {
        let mut state = self.state.lock();
        state.epoch += u64::from(state.writers.is_empty());
        state.writers.push(writer);
    }

    /// A handle may not write it any more. Returns the version that is left for the
    /// one that `make` makes of it, where it was the last.
    pub(super) fn end_writing(
        &self,
        writer: &Arc<Writer>,
        make: impl FnOnce(&OpenFile) -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        state.writers.retain(|other| !Arc::ptr_eq(other, writer));
        if !state.writers.is_empty() {
            return None;
        }
        Some(state.replace(make))
    }

    /// Its rights or owner were changed here, and nothing of its data: `version` is what
    /// that made of it. Who has it open need not open it again, and might not be allowed
    /// to any more.
    pub(super) fn touched(
        &self,
        version: FileVersion,
        make: impl FnOnce(&OpenFile) -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        let own = state.file.version();
        let is_touched = FileVersion { ctime: version.ctime, ..own } == version && own != version;
        if !is_touched || !state.writers.is_empty() {
            return None;
        }
        let old = state.replace(make);
        state.file.takes_over(&old);
        Some(old)
    }

    /// It has another name: `make` makes the same version of it.
    pub(super) fn moved(&self, make: impl FnOnce(&OpenFile) -> OpenFile) -> Arc<OpenFile> {
        self.state.lock().replace(make)
    }

    /// What the kernel reads by itself.
    pub(super) fn backing(&self) -> Option<&Arc<Backing>> {
        self.backing.as_ref()
    }

    /// Whether its version has not been checked for `ttl`.
    pub(super) fn is_due(&self, ttl: Duration, now: Instant) -> bool {
        let checked = self.state.lock().checked;
        checked.is_none_or(|checked| now.saturating_duration_since(checked) >= ttl)
    }

    /// Nobody knows a newer version than the one that is read.
    pub(super) fn was_looked_at(&self) {
        self.state.lock().checked = Some(Instant::now());
    }

    /// The version that is read may not be the one there is.
    pub(super) fn is_not_known(&self) {
        self.state.lock().checked = None;
    }

    /// Moves on to `version`, if that is another one; returns the one left.
    /// `make` is called under this inode's lock and must not ask it anything.
    pub(super) fn adopt(
        &self,
        version: FileVersion,
        mode: Mode,
        make: impl FnOnce() -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        self.adopt_opened(version, mode, None, make)
    }

    /// As [`OpenInode::adopt`], for a replica's open that showed `version`. What
    /// it opened goes to that version and to no other.
    fn adopt_opened(
        &self,
        version: FileVersion,
        mode: Mode,
        opened: Option<(ReplicaId, Arc<dyn BackendFile>)>,
        make: impl FnOnce() -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        state.checked = Some(Instant::now());
        if !state.writers.is_empty() {
            // Its version is what it will be when they are through; what was opened
            // keeps the file there meanwhile.
            if let Some((replica, file)) = opened {
                state.file.holds(replica, file);
            }
            return None;
        }
        let left = if state.file.version().agrees(&version, mode) {
            None
        } else {
            let next = make();
            next.inherit(&state.file);
            Some(std::mem::replace(&mut state.file, Arc::new(next)))
        };
        if let Some((replica, file)) = opened {
            state.file.opened_by(replica, file);
        }
        left
    }
}

impl Current {
    /// Moves on to what `make` makes of the present version; returns that one.
    fn replace(&mut self, make: impl FnOnce(&OpenFile) -> OpenFile) -> Arc<OpenFile> {
        let next = make(&self.file);
        next.inherit(&self.file);
        self.checked = Some(Instant::now());
        std::mem::replace(&mut self.file, Arc::new(next))
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
        mode: Mode,
        opened: Option<(ReplicaId, Arc<dyn BackendFile>)>,
        first: FirstOpen<impl FnOnce() -> Option<Arc<Backing>>, impl Fn() -> OpenFile>,
    ) -> (Answered, Option<Arc<OpenFile>>) {
        let FirstOpen { caching, lend, make } = first;
        let mut inodes = self.inodes.lock();
        if let Some(counted) = inodes.get_mut(&ino) {
            let retired = counted.inode.adopt_opened(version, mode, opened, make);
            let inode = Arc::clone(&counted.inode);
            let caching = inode.backing().map_or(caching, |_| Caching::Kernel);
            counted.count(caching, 1);
            return (Answered { inode, caching }, retired);
        }
        let file = make();
        if let Some((replica, opened)) = opened {
            file.opened_by(replica, opened);
        }
        let backing = lend();
        // Counts as cached: nothing is kept here for its readers.
        let caching = backing.as_ref().map_or(caching, |_| Caching::Kernel);
        let inode = Arc::new(OpenInode::new(file, backing, self.gate(ino)));
        let mut counted = Counted { inode: Arc::clone(&inode), handles: 0, direct: 0 };
        counted.count(caching, 1);
        inodes.insert(ino, counted);
        (Answered { inode, caching }, None)
    }

    pub(super) fn insert_file(
        &self,
        (ino, inode): (Ino, Arc<OpenInode>),
        (cached, caching): (Cached, Caching),
        read: ReadHandle,
        (who, request): (Identity, u64),
        writer: Option<Arc<Writer>>,
    ) -> HandleId {
        let (read, blocks) = (Arc::new(read), Arc::default());
        let closing = Arc::default();
        let handle = FileHandle { ino, inode, cached, caching, blocks, read, who, closing, writer };
        HandleId { number: self.insert(Handle::File(handle), request), ino }
    }

    pub(super) fn insert_directory(&self, ino: Ino, (who, request): (Identity, u64)) -> HandleId {
        let dir = DirHandle { ino, who, kept: Mutex::default() };
        HandleId { number: self.insert(Handle::Directory(Arc::new(dir)), request), ino }
    }

    fn insert(&self, handle: Handle, request: u64) -> u64 {
        let id = self.numbers.next();
        let _still = self.still.lock();
        self.opened(id, &handle, request);
        self.open.lock().insert(id, handle);
        id
    }

    /// Closes a handle.
    pub(super) fn remove(&self, id: HandleId) -> Closed {
        let removed = {
            let _still = self.still.lock();
            let removed = self.open.lock().remove(id.number, id.ino);
            if removed.is_some() {
                self.closed(id.number);
            }
            removed
        };
        let Some(Handle::File(file)) = removed else { return Closed::default() };
        let mut inodes = self.inodes.lock();
        let (mut last, mut backing) = (None, None);
        if let Some(counted) = inodes.get_mut(&file.ino) {
            counted.count(file.caching, -1);
            if counted.handles == 0 {
                last = Some(counted.inode.current());
                backing = counted.inode.backing().cloned();
                inodes.remove(&file.ino);
            }
        }
        let small = file.blocks.are_small().filter(|_| file.caching == Caching::Direct);
        Closed {
            ino: Some(file.ino),
            read: Some(file.read),
            counted: Some((file.blocks.counted(), file.inode.current())),
            last,
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
    pub(super) fn directory(&self, id: HandleId) -> Option<Arc<DirHandle>> {
        match self.open.lock().get(id.number) {
            Some(Handle::Directory(dir)) if dir.ino == id.ino => Some(Arc::clone(dir)),
            _ => None,
        }
    }

    /// The open file with this number, if it is open.
    pub(super) fn inode(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        self.inodes.lock().get(&ino).map(|counted| Arc::clone(&counted.inode))
    }

    /// Whether it looks as if the file were not open, or not changed, much longer.
    pub(super) fn is_closing(&self, ino: Ino) -> bool {
        let open = self.open.lock();
        let mut own = open.of(ino).filter_map(|handle| match handle {
            Handle::File(file) => Some(&file.closing),
            Handle::Directory(_) => None,
        });
        let is = |closing: &Arc<AtomicBool>| closing.load(Ordering::Relaxed);
        let gate = self.gates.lock().get(&ino).and_then(Weak::upgrade);
        match own.next() {
            Some(first) => is(first) && own.all(is),
            None => gate.is_some_and(|gate| gate.is_busy()),
        }
    }

    /// What keeps reads and changes of a file apart, open or not.
    pub(super) fn gate(&self, ino: Ino) -> Arc<Gate> {
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
        let gate = Arc::new(Gate::new(ino, Arc::clone(&self.unsettled)));
        gates.insert(ino, Arc::downgrade(&gate));
        gate
    }

    /// Whether a file that is in the directory `dir` is open to be written.
    pub(super) fn is_written_in(&self, dir: &Path) -> bool {
        let written: Vec<Ino> = self.open.lock().written().collect();
        let is_in = |inode: Arc<OpenInode>| inode.current().path().parent() == Some(dir);
        written.into_iter().filter_map(|ino| self.inode(ino)).any(is_in)
    }

    /// All files that are open.
    pub(super) fn open_inodes(&self) -> Vec<(Ino, Arc<OpenInode>)> {
        let inodes = self.inodes.lock();
        inodes.iter().map(|(ino, counted)| (*ino, Arc::clone(&counted.inode))).collect()
    }

    /// How many files are open.
    pub(super) fn open_files(&self) -> usize {
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

    fn may_write(&self) -> bool {
        matches!(self, Self::File(file) if file.writer.is_some())
    }
}

impl FileHandle {
    /// Who caches what is read through it.
    pub(super) fn caching(&self) -> Caching {
        self.caching
    }
}

impl DirHandle {
    /// The listing kept, if it has the entries that come next for a reader at `offset`.
    pub(super) fn listing(&self, offset: u64) -> Option<Arc<Listing>> {
        let mut kept = self.kept.lock();
        if offset == 0 && std::mem::replace(&mut kept.begun, true) {
            kept.listing = None;
        }
        kept.used = Some(Instant::now());
        let listing = Arc::clone(kept.listing.as_ref()?);
        if !listing.packed.covers(offset) {
            // Makes room for the next one.
            kept.listing.take_if(|listing| !listing.packed.is_whole());
            return None;
        }
        if !listing.packed.is_whole() && listing.from(offset).next().is_none() {
            // It has been read to the end.
            kept.listing = None;
        }
        Some(listing)
    }

    /// Keeps the directory as it is listed now, for a reader at `offset`; false where the
    /// offset is of another listing, which was lost.
    pub(super) fn keep(&self, listing: &Arc<Listing>, offset: u64) -> bool {
        let mut kept = self.kept.lock();
        if listing.packed.is_whole() {
            let is_it = |lost: Digest| lost == digest(listing.from(0).map(|entry| entry.name));
            if offset > 0 && !kept.lost.is_none_or(is_it) {
                return false;
            }
        }
        kept.lost = None;
        kept.used = Some(Instant::now());
        kept.listing = listing.packed.is_paid().then(|| Arc::clone(listing));
        true
    }

    /// How long ago the window that is kept was used; `None` where none is.
    pub(super) fn idle(&self) -> Option<Duration> {
        let kept = self.kept.lock();
        let listing = kept.listing.as_ref()?;
        let used = kept.used.filter(|_| !listing.packed.is_whole());
        used.map(|used| used.elapsed())
    }

    /// Drops the window that is kept, if one is.
    pub(super) fn drop_window(&self) -> bool {
        let window = {
            let mut kept = self.kept.lock();
            kept.listing.take_if(|listing| !listing.packed.is_whole())
        };
        window.is_some()
    }
}
