//! Opening a file for reading.
//!
//! One replica opens the file and shows its version. If the kernel will read the file from a
//! replica by itself ([`crate::fs::passthrough`]), that replica opens it too, unless it was the
//! first. As long as the kernel reads it, later opens go to that replica first, so that its mount
//! checks whether the file has changed.
//!
//! An open makes two requests to the kernel: to borrow the file, and to forget attributes. Both are
//! system calls, which are made with no table locked. The file is lent before the open is entered
//! into the tables. The first open that is entered decides how all of them read the file. So a file
//! that another open lent at the same time is taken back. The kernel uses a lent file only if the
//! reply to an open names it. The kernel forgets attributes after the open was entered, and before
//! it is answered ([`crate::fs::inodes`]). A first open may also read the file
//! ([`super::pages_at_open`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use smallvec::smallvec;

use super::OpenFiles;
use super::pages_at_open::PageStore;
use super::replica_open::ReplicaOpen;
use crate::backend::{Backend, BackendError, BackendFile, Credentials, RequestContext};
use crate::fs::cache_mode::{CacheMode, ReadSizeStats};
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::{FileHandle, OpenInode, OpenMethod, OpenOutcome};
use crate::fs::ino::Ino;
use crate::fs::inodes::{AttrNotice, CacheValidity, Inodes};
use crate::fs::kernel_open::KernelOpen;
use crate::fs::passthrough::PassthroughFile;
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::AttrOwner;
use crate::replicas::metadata_client::{CallTarget, EarlyAnswer, Fallback, RunAs};
use crate::sync::before_io;
use crate::volume::{FileVersion, ReplicaId, ReplicaSet};

/// A file that was just opened.
#[derive(Clone)]
pub struct OpenedFile {
    /// Identifies the handle in later calls.
    pub handle: HandleId,
    /// Where data that is read through it is cached.
    pub cache_mode: CacheMode,
    /// Whether the kernel may keep its cached pages of the file. This applies to both cache modes,
    /// or pages of another version would stay.
    pub keep_cache: bool,
    /// The file that the kernel reads by itself.
    pub backing: Option<Arc<PassthroughFile>>,
    /// Whether the handle may write.
    pub is_writable: bool,
}

/// A request to open a file for reading.
pub(super) struct OpenRequest {
    pub(super) ino: Ino,
    caller: Credentials,
    /// Whether the caller executes the file; the kernel has checked its permission.
    to_run: bool,
    /// The kernel's number of the request.
    request: u64,
    /// Whether the kernel does not open the file, but reads it.
    is_implicit: bool,
    /// The version of the file, if a replica that opens it should also read it.
    pub(super) reads: Option<FileVersion>,
}

impl OpenRequest {
    /// Opens the file for the daemon, to read it.
    pub(super) fn by_daemon(ino: Ino, reads: Option<FileVersion>) -> Self {
        let caller = Credentials::DAEMON;
        Self { ino, caller, to_run: false, request: 0, is_implicit: true, reads }
    }

    /// The credentials with which other replicas open the file later: the same that it is open with
    /// now.
    pub(super) fn credentials(&self) -> &Credentials {
        if self.to_run { &Credentials::DAEMON } else { &self.caller }
    }

    /// Whether the caller has the daemon's own credentials.
    pub(super) fn is_by_daemon(&self) -> bool {
        self.caller.is_daemon()
    }

    fn run_as(&self) -> RunAs {
        match self.to_run {
            true => RunAs::CallerThenDaemon(self.caller.clone()),
            false => RunAs::Only(self.caller.clone()),
        }
    }
}

/// A replica's open of an inode, and the state before the replica was asked.
struct InodeOpen {
    found: ReplicaOpen,
    path: PathBuf,
    target: CallTarget,
    /// The number of changes before the replica was asked.
    asked: u64,
}

/// The file that the kernel will read by itself, if any.
type BackingCandidate = Option<(ReplicaId, Arc<dyn BackendFile>)>;

/// An open that has been entered into the tables.
struct EnteredOpen {
    cache_validity: CacheValidity,
    /// The bytes that the kernel gets.
    store: Option<PageStore>,
    outcome: OpenOutcome,
    /// Present if the kernel may hold attributes of another version.
    notice: Option<AttrNotice>,
}

/// The file that was lent to the kernel for an open that is not entered yet.
enum Lent {
    /// The file was open already, so the way of reading it is decided.
    NotTried,
    /// The file, if it could be lent.
    Tried(Option<Arc<PassthroughFile>>),
}

/// An open that has not been entered.
struct NotEntered {
    lent: Lent,
    /// The reply to the open; `None` if the open must be repeated.
    answer: Option<Errno>,
}

impl Lent {
    fn into_file(self) -> Option<Arc<PassthroughFile>> {
        match self {
            Self::NotTried => None,
            Self::Tried(file) => file,
        }
    }
}

/// Placement queries per file, at most, to find the replicas that are local to all its chunks.
const MAX_PLACEMENT_SAMPLES: u64 = 1024;

/// No cluster has smaller chunks, bytes.
const MIN_CHUNK_SIZE: u64 = 1 << 20;

impl OpenFiles {
    /// Opens a regular file for reading, or `to_run` it: then the kernel has checked that the
    /// caller may.
    pub async fn open(
        &self,
        caller: RequestContext,
        ino: Ino,
        to_run: bool,
        kernel: &impl KernelOpen,
    ) -> FsResult<OpenedFile> {
        let request = OpenRequest {
            ino,
            caller: caller.credentials(),
            to_run,
            request: caller.request,
            is_implicit: false,
            reads: self.wants_content(ino),
        };
        self.open_to_read(request, kernel).await
    }

    /// Opens a regular file for reading.
    pub(super) async fn open_to_read(
        &self,
        request: OpenRequest,
        kernel: &impl KernelOpen,
    ) -> FsResult<OpenedFile> {
        let ino = request.ino;
        let mut begun = self.calls.start_call(&[ino]);
        let known = self.open_immutable(&request, begun.started_at).await;
        let opened = loop {
            if let Some(opened) = known {
                break opened;
            }
            let path = self.tables.path(ino)?;
            let target = self.calls.target_of_inode(ino, &path).requested_at(begun.started_at);
            let opened = match self.open_on_replica(&request, path, target).await {
                Ok(opened) => opened,
                Err(errno) => {
                    begun =
                        self.calls.retry_after_rename(begun, RetriedCall::Lookup, errno).await?;
                    continue;
                }
            };
            let backing = self.open_backing_candidate(&request, &opened).await;
            // `None`: it was changed here since the replica was asked, or all its handles were
            // closed.
            match self.register_open(&request, opened, backing, kernel) {
                Some(Ok(opened)) => break opened,
                Some(Err(errno)) => return Err(errno),
                None => {}
            }
        };
        match self.tables.page_stores.is_held(ino) {
            false => Ok(opened),
            true => Ok(self.after_page_stores(ino, begun.started_at, opened).await),
        }
    }

    /// Returns an open's reply once no other open gives the kernel pages of the file.
    async fn after_page_stores(&self, ino: Ino, since: Instant, opened: OpenedFile) -> OpenedFile {
        if !self.calls.wait_for_page_stores(ino, since).await {
            return opened;
        }
        let file = self.tables.handles.file(opened.handle);
        let mut inodes = self.tables.inodes.lock();
        if self.tables.page_stores.is_held(ino) {
            // The kernel may get pages of an older version later.
            inodes.mark_cache_mixed(ino);
        }
        let has_own_pages = file.is_some_and(|file| {
            let version = file.inode.current().version();
            file.cache_validity.is_valid() && inodes.sole_kernel_version(ino) == Some(version)
        });
        OpenedFile { keep_cache: opened.keep_cache && has_own_pages, ..opened }
    }

    async fn open_on_replica(
        &self,
        request: &OpenRequest,
        path: PathBuf,
        mut target: CallTarget,
    ) -> FsResult<InodeOpen> {
        let ino = request.ino;
        loop {
            let asked = self.tables.change_seq();
            let backing =
                self.tables.handles.find_inode(ino).and_then(|inode| inode.backing().cloned());
            let first = backing.as_ref().map(|backing| backing.replica);
            let preferred = first.map_or(target, |first| target.preferring(first));
            let (replica, found) = self.ask_to_open(request, preferred, &path, backing).await?;
            let is_outdated = self.tables.is_possibly_stale(replica, &path, ino)
                || self.tables.attr_owner(ino, &found.attr, &found.file_check)
                    == AttrOwner::Unknown
                || !self.tables.inodes.lock().is_unchanged_since(ino, asked);
            if is_outdated {
                target = self.calls.target_of_inode(ino, &path).for_retry_of(target);
            } else if self.tables.inodes.lock().is_same(ino, replica, &found.attr) {
                return Ok(InodeOpen { found, path, target, asked });
            } else {
                return Err(Errno::STALE);
            }
        }
    }

    /// Asks replicas to open the file at the path, first to read it too if the request wants that.
    async fn ask_to_open(
        &self,
        request: &OpenRequest,
        target: CallTarget,
        path: &Path,
        backing: Option<Arc<PassthroughFile>>,
    ) -> FsResult<(ReplicaId, ReplicaOpen)> {
        let open = self.open_op(request.ino, path.to_owned(), backing);
        let client = &self.calls.client;
        // A replica outside a rule would seem quicker than those that also read.
        let answer = match request.reads.filter(|_| !target.is_pinned()) {
            None => client.call(target, request.run_as(), open).await,
            Some(version) => {
                let early = EarlyAnswer::default();
                let late = Some(Fallback::Early(early.clone()));
                let read = self.read_op(open, version, early);
                client.call_with_fallback(late, target, request.run_as(), read).await
            }
        };
        let (replica, found) = answer.map_err(Errno::of_known_inode)?;
        if found.is_read_late {
            self.tables.reader.pause_reads_at_open();
        }
        Ok((replica, found))
    }

    /// The file that the kernel will read by itself, if any. If another replica than the opener is
    /// chosen for that, it opens the file too.
    async fn open_backing_candidate(
        &self,
        request: &OpenRequest,
        opened: &InodeOpen,
    ) -> BackingCandidate {
        let InodeOpen { found, path, target, .. } = opened;
        let opener = found.replica;
        let wanted = self.passthrough_replica(path, found)?;
        // If it is open already, that is decided. If all its handles are closed meanwhile, the
        // opener serves.
        if wanted == opener || self.tables.handles.find_inode(request.ino).is_some() {
            return Some((opener, Arc::clone(&found.file)));
        }
        let version = found.attr.version();
        let mode = self.tables.policy.mode;
        let open = {
            let path = path.clone();
            move |replica: ReplicaId, backend: &dyn Backend| {
                // If the other replica fails or is late, the opener serves.
                if replica == opener {
                    return Ok(None);
                }
                let (file, attr) = backend.open(&path)?;
                match version.is_same_version(&attr.version(), mode) {
                    true => Ok(Some(file)),
                    false => Err(BackendError::VersionMismatch),
                }
            }
        };
        let target = self.calls.target(path).for_retry_of(*target);
        let run_as = RunAs::Only(request.credentials().clone());
        let order = smallvec![wanted, opener];
        match self.calls.client.call_in_order(order, target, run_as, open).await {
            Ok((replica, Some(file))) => Some((replica, file)),
            _ => Some((opener, Arc::clone(&found.file))),
        }
    }

    /// The replica from which the kernel will read the file, if any.
    fn passthrough_replica(&self, path: &Path, found: &ReplicaOpen) -> Option<ReplicaId> {
        let version = found.attr.version();
        // An empty file has nothing to read.
        if !self.passthrough.is_wanted() || version.size == 0 {
            return None;
        }
        let pinned =
            self.tables.reader.locator().pin(path).map_or(ReplicaSet::EMPTY, |pin| pin.replicas);
        let mut local = ReplicaSet::EMPTY;
        if let Some(at) = self.tables.reader.locator().locate_file(path, version) {
            let now = Instant::now();
            let all = ReplicaSet::ALL;
            let step = (version.size / MAX_PLACEMENT_SAMPLES).max(MIN_CHUNK_SIZE);
            local = (0..version.size).step_by(step as usize).fold(all, |local, offset| {
                local.and(at.placement.holders(offset, now).map_or(all, |holders| holders.local))
            });
        }
        let standings = self.tables.reader.replica_snapshots();
        let usable = self.calls.replicas.availability().usable;
        self.passthrough.choose_replica(&standings, usable, [pinned, local], version.size)
    }

    /// Enters the open file into the tables. If this is the file's first open, the kernel may read
    /// `backing` by itself. `None` if the version may be older than a change that has ended since,
    /// or if all handles were closed since.
    fn register_open(
        &self,
        request: &OpenRequest,
        opened: InodeOpen,
        backing: BackingCandidate,
        kernel: &impl KernelOpen,
    ) -> Option<FsResult<OpenedFile>> {
        let ino = request.ino;
        let attr = opened.found.attr;
        let lent = self.lend_to_kernel(ino, backing, attr.size, kernel);
        let entered = match self.try_enter_open(request, opened, lent) {
            Ok(entered) => entered,
            Err(NotEntered { lent, answer }) => {
                self.return_backing(lent.into_file());
                return answer.map(Err);
            }
        };
        let EnteredOpen { cache_validity, store, outcome, notice } = entered;
        let OpenOutcome { inode, cache_mode, retired, unused_backing } = outcome;
        self.return_backing(unused_backing);
        self.send_attr_notice(notice, kernel);
        if let Some(old) = retired {
            self.tables.reader.retire_file(&old);
        }
        let is_current = store.is_none_or(|store| self.store_pages(ino, store));
        if !is_current {
            // The kernel may have taken the stored file's size.
            before_io("a notice to the kernel");
            kernel.invalidate_attrs();
        }
        let is_stale = self.tables.reader.take_stale_pages(&inode.current());
        let keep_cache = cache_validity.is_valid() && is_current && !is_stale;
        let backing = inode.backing().cloned();
        if backing.is_some() {
            self.passthrough.count_open();
        }
        inode.current().set_last_attr(&attr);
        let handle = self.insert_reader(request, inode, cache_validity, cache_mode);
        Some(Ok(OpenedFile { handle, cache_mode, keep_cache, backing, is_writable: false }))
    }

    /// Enters a handle that only reads.
    pub(super) fn insert_reader(
        &self,
        request: &OpenRequest,
        inode: Arc<OpenInode>,
        cache_validity: CacheValidity,
        cache_mode: CacheMode,
    ) -> HandleId {
        // Other replicas open the file with a reader's credentials, because a writer may lack read
        // permission.
        inode.current().set_credentials(request.credentials());
        let handle = FileHandle {
            ino: request.ino,
            inode,
            cache_validity,
            cache_mode,
            read_stats: ReadSizeStats::default(),
            read_handle: Arc::new(self.tables.reader.new_handle()),
            credentials: request.credentials().clone(),
            is_closing: AtomicBool::default(),
            writer: None,
            is_implicit: request.is_implicit,
        };
        self.tables.handles.insert_file(handle, request.request)
    }

    /// Where data that is read through a new handle is cached.
    pub(super) fn choose_cache_mode(&self, inodes: &Inodes, ino: Ino, size: u64) -> CacheMode {
        let can_map = self.direct_mmap.load(Ordering::Relaxed);
        self.tables.policy.cache_mode.choose(size, inodes.has_small_block_reads(ino), can_map)
    }

    /// Lends the kernel the file of `size` bytes that it will read by itself, if this looks like
    /// the first open.
    fn lend_to_kernel(
        &self,
        ino: Ino,
        backing: BackingCandidate,
        size: u64,
        kernel: &impl KernelOpen,
    ) -> Lent {
        let Some((replica, file)) = backing else { return Lent::Tried(None) };
        if self.tables.handles.find_inode(ino).is_some() {
            return Lent::NotTried;
        }
        let name = &self.calls.replicas[replica].name;
        Lent::Tried(self.passthrough.open_backing(replica, name, file, size, kernel))
    }

    /// Makes the kernel forget attributes of a file that an open has entered. Call it before that
    /// open is answered.
    pub(in crate::fs) fn send_attr_notice(
        &self,
        notice: Option<AttrNotice>,
        kernel: &impl KernelOpen,
    ) {
        if let Some(notice) = notice {
            before_io("a notice to the kernel");
            kernel.invalidate_attrs();
            self.tables.inodes.lock().finish_attr_notice(notice);
        }
    }

    fn try_enter_open(
        &self,
        request: &OpenRequest,
        opened: InodeOpen,
        lent: Lent,
    ) -> Result<EnteredOpen, NotEntered> {
        let ino = request.ino;
        // Held, so nothing changes between these checks and the entry.
        let mut inodes = self.tables.inodes.lock();
        let is_closed_since =
            || matches!(lent, Lent::NotTried) && self.tables.handles.find_inode(ino).is_none();
        if !inodes.is_unchanged_since(ino, opened.asked) || is_closed_since() {
            return Err(NotEntered { lent, answer: None });
        }
        // With ESTALE the kernel looks the name up again, and opens the object that has it now.
        if !self.is_open_of_inode(&inodes, ino, &opened.found) {
            return Err(NotEntered { lent, answer: Some(Errno::STALE) });
        }
        inodes.record_kernel_attrs(ino, opened.found.attr.version());
        Ok(self.enter_open(&mut inodes, request, opened, lent.into_file()))
    }

    /// Whether the replica has opened the kernel's inode, and the file that the kernel reads by
    /// itself, if it reads one.
    fn is_open_of_inode(&self, inodes: &Inodes, ino: Ino, found: &ReplicaOpen) -> bool {
        if !inodes.is_same(ino, found.replica, &found.attr)
            || self.tables.attr_owner(ino, &found.attr, &found.file_check) != AttrOwner::OpenFile
        {
            return false;
        }
        let Some(open) = self.tables.handles.find_inode(ino) else { return true };
        let is_same_version = || {
            open.current().version().is_same_version(&found.attr.version(), self.tables.policy.mode)
        };
        open.backing().is_none() || found.is_backing_file.unwrap_or_else(is_same_version)
    }

    fn enter_open(
        &self,
        inodes: &mut Inodes,
        request: &OpenRequest,
        opened: InodeOpen,
        backing: Option<Arc<PassthroughFile>>,
    ) -> EnteredOpen {
        let ino = request.ino;
        let InodeOpen { found, path, .. } = opened;
        let version = found.attr.version();
        let mode = self.tables.policy.mode;
        let store = self.prepare_store(inodes, ino, found.content);
        let cache_validity = match self.tables.is_open_for_write(ino) {
            false => inodes.record_open(ino, version),
            // While it may be written, what the kernel caches is not of one version.
            true => CacheValidity::default(),
        };
        // It may have been renamed since it was opened.
        let path = inodes.path(ino).unwrap_or(path);
        let make_file = || {
            self.tables
                .reader
                .new_open_file(path.clone(), version, mode, request.credentials().clone())
                .with_generation(found.attr.generation)
        };
        let cache_mode = self.choose_cache_mode(inodes, ino, version.size);
        let method = OpenMethod { cache_mode, backing, make_file };
        let file = Some((found.replica, found.file));
        let outcome = self.tables.handles.open_inode(ino, version, mode, file, method);
        EnteredOpen { cache_validity, store, outcome, notice: inodes.attr_notice(ino) }
    }
}
