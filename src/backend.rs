//! One replica's tree behind a trait, and the threads that call it.
//!
//! A [`Backend`] is one replica's tree: blocking calls on paths relative to its root.
//! [`DirBackend`] is a mounted directory, [`NfsBackend`] an NFS server's export. Limits, faults and delays are decorators
//! around another backend: [`RateLimited`], [`FaultInjector`]. Tests, benches and `fanfs demo`
//! stack the same decorators as the daemon does.
//!
//! A [`Replica`] is a backend together with its own bounded [`Pool`] of threads.
//!
//! *Invariant:* a backend's methods that block are called on its replica's pool or under a counted
//! [`InlinePermit`], and nowhere else. Its files are closed on the pool. So a hung replica holds
//! its own threads and a few inline callers, and nothing else. Backends know nothing of scheduling:
//! they neither retry nor choose.

mod bulkhead;
mod change_scope;
mod credentials;
mod decorator;
mod deferred_close;
mod dir_backend;
mod entry_ref;
mod error;
mod fault;
mod file_closer;
mod file_parts;
mod hung_path;
mod inline_change;
mod inline_permit;
mod inode_identity;
mod lane;
mod lazy_file;
mod mutation;
mod nfs_backend;
mod object_ref;
mod path_key;
mod pool;
mod queue_progress;
mod rate_limit;
mod requesting_thread;
mod submitted_read;
mod thread_name;

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::telemetry::ReplicaCounters;
use crate::volume::{FileId, FileVersion, ReplicaId};
use deferred_close::DeferredClose;
use file_closer::FileCloser;

pub use crate::nfs::ConnectionCounters;
pub use change_scope::{OngoingChange, in_change};
pub use credentials::{
    Credentials, CredentialsGuard, CredentialsRecord, DaemonCredentials, RequestContext,
    with_daemon_credentials,
};
pub use dir_backend::DirBackend;
pub use entry_ref::EntryRef;
pub use error::{BackendError, ErrorOrigin};
pub use fault::{Fault, FaultInjector, FaultOp, FaultRule, FaultScript};
pub use file_closer::{DroppedFile, DroppedFiles, collect_closes};
pub use file_parts::{ExportFileRecord, FileParts, OwnedFileParts};
pub use hung_path::HungPath;
pub use inline_change::{INTERRUPT_SIGNAL, InlineChange, Interruptions};
pub use inline_permit::{InlinePermit, InlinePermits};
pub use inode_identity::{Generation, HandleDigest, InodeIdentity};
pub use lane::Lane;
pub use lazy_file::LazyFile;
pub use mutation::{
    CreateMode, CreateOptions, FileMutation, Lock, LockKind, LockRequest, OpenAccess, SetAttr,
    SetTime, SyncMode, TreeMutation, WriteOpenOptions,
};
pub use nfs_backend::{NfsBackend, NfsTimes};
pub use object_ref::ObjectRef;
pub use path_key::PathKey;
pub use pool::{JobOptions, Pool, PoolLimits, ThreadlessCall, enter_call, report_progress};
pub use queue_progress::Ticket;
pub use rate_limit::RateLimited;
pub use requesting_thread::RequestingThread;
pub use submitted_read::{DataRoom, IsUnwanted, SubmitResult, SubmittedRead, SubmittedReadEnd};
pub use thread_name::{READ_THREAD_PREFIX, WRITE_THREAD_PREFIX};

/// The result of a backend call.
pub type Result<T> = std::result::Result<T, BackendError>;

/// Visits a directory's entries: it gets each entry's name, inode number and kind.
pub type EntryVisitor<'a> = dyn FnMut(&OsStr, u64, FileKind) + 'a;

/// One replica's tree.
///
/// Paths are relative to the replica's root; the empty path is the root. No method follows a
/// symbolic link or leaves the root. Methods block unless they say otherwise. An operation on a known object takes an
/// [`ObjectRef`]. One on a name in a known directory takes an [`EntryRef`]. A method with a path
/// may find any object; its caller compares the attributes in the answer with those of the object
/// it expects.
///
/// *Invariant:* no method has a default. A decorator that did not forward a new method would
/// answer in place of its replica; without a default it does not compile.
///
/// # Errors
/// [`BackendError::Os`] with the replica's errno. A call by path fails with
/// [`BackendError::Absent`] while the replica is out of service, and with
/// [`BackendError::WrongObject`] where another object has the path.
pub trait Backend: Send + Sync {
    /// Attributes of the object itself, symbolic links included.
    fn stat(&self, path: &Path) -> Result<Attr>;

    /// Attributes of the object with this name, symbolic links included.
    fn stat_entry(&self, name: &EntryRef) -> Result<Attr>;

    /// Attributes of several entries of one directory. If an entry is gone or its attributes cannot
    /// be read, only that entry fails.
    fn stat_entries(&self, dir: &ObjectRef, names: &[OsString]) -> Result<Vec<Result<Attr>>>;

    /// Calls `each` with the name, inode number and kind of every entry of a directory except `.`
    /// and `..`, in the replica's order.
    fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()>;

    /// Opens a directory for a listing and closes it: checks that the caller may list it.
    fn check_open_dir(&self, dir: &ObjectRef) -> Result<()>;

    /// Asks the server for the directory's attributes (`AT_STATX_FORCE_SYNC`). An NFS mount then
    /// validates its cached names in that directory. Otherwise it may believe for 30 s and longer
    /// that a name is missing or refers to an older file. Over NFSv3 and 4.2 (Linux 6.1 and 6.12)
    /// this had the same effect as opening the directory, and it needs no right to list it.
    fn revalidate_dir(&self, dir: &ObjectRef) -> Result<()>;

    /// A symbolic link's target, verbatim.
    fn read_link(&self, link: &ObjectRef) -> Result<OsString>;

    /// Opens a regular file for reading. Returns its attributes too, which saves the caller a
    /// second call.
    fn open(&self, path: &Path) -> Result<(Arc<dyn BackendFile>, Attr)>;

    /// Size and use of the file system that the root is on.
    fn stat_fs(&self) -> Result<StatFs>;

    /// One extended attribute's value.
    fn get_xattr(&self, object: &ObjectRef, name: &OsStr) -> Result<Vec<u8>>;

    /// Names of all extended attributes, each ended by a NUL byte.
    fn list_xattr(&self, object: &ObjectRef) -> Result<Vec<u8>>;

    /// Whether the replica is still the mount that came into service. If that mount is gone, or the
    /// replica is out of service, this examines the replica's path. It brings the replica into
    /// service if the path passes the checks ([`crate::survey::RosterEntry`]). Otherwise the
    /// replica is out of service, and this returns false.
    fn check_mount(&self) -> Result<bool>;

    /// Whether the replica is in service. While it is not, every call by path fails.
    fn is_in_service(&self) -> bool;

    /// Whether its files are read without a thread ([`BackendFile::submit_read`]). Never blocks.
    fn reads_without_threads(&self) -> bool;

    /// Counts of its own connections to its server, if it has any. Never blocks.
    fn connections(&self) -> Vec<ConnectionCounters> {
        Vec::new()
    }

    /// Takes the replica out of service if its root lies in `mount`, which is gone.
    /// Every call by path fails until [`Backend::check_mount`] brings the replica back. Open
    /// files stay open. Never blocks.
    fn handle_unmount(&self, mount: u64);

    /// The id of the mount that contains its root, in this process's mount table; `None` if there
    /// is no mount to watch.
    fn mount_id(&self) -> Option<u64>;

    /// Closes files that were dropped and are not closed yet. Over NFS, a file that is still open
    /// when it is removed leaves a `.nfs...` file behind.
    fn flush_closes(&self);

    /// Opens a regular file that may be written.
    fn open_to_write(&self, path: &Path, how: &WriteOpenOptions) -> Result<WritableFile>;

    /// Creates a regular file, or opens the existing file of that name.
    fn create(
        &self,
        name: &EntryRef,
        how: &WriteOpenOptions,
        create: CreateOptions,
    ) -> Result<WritableFile>;

    /// Changes the tree. Returns the new attributes of the object, for the changes after which a
    /// caller needs them.
    fn mutate(&self, change: &TreeMutation) -> Result<Option<Attr>>;

    /// Makes a file of this replica from the parts of one that another process had open. Never calls
    /// the replica. `None` if the file needs more than these parts.
    fn adopt(&self, parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>>;
}

impl dyn Backend + '_ {
    /// All entries that [`Backend::list`] visits.
    ///
    /// # Errors
    /// As [`Backend::list`]'s.
    pub fn entries(&self, dir: &ObjectRef) -> Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        self.list(dir, &mut |name, ino, kind| {
            entries.push(DirEntry { name: name.to_owned(), ino, kind });
        })?;
        Ok(entries)
    }
}

/// The result of [`Backend::open_to_write`].
pub struct WritableFile {
    /// The open file.
    pub file: Arc<dyn BackendFile>,
    /// Its attributes.
    pub attr: Attr,
    /// Whether it is open for reading as well.
    pub readable: bool,
}

/// A file open on one replica. As in [`Backend`], no method has a default.
///
/// # Errors
/// As [`Backend`]'s.
pub trait BackendFile: Send + Sync {
    /// Attributes of the open file.
    fn attr(&self) -> Result<Attr>;

    /// Reads into `buf` from `offset`; returns the number of bytes, 0 at the
    /// end of the file. Like pread(2), it may return fewer than asked for.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Begins a read. Never blocks. Refused by a file that only [`BackendFile::read_at`] can read.
    ///
    /// # Errors
    /// The read itself.
    fn submit_read(&self, read: Box<dyn SubmittedRead>) -> SubmitResult;

    /// Moves up to `len` bytes from `offset` into `pipe` as references to page cache pages. Returns
    /// the number of bytes, 0 at the end of the file. `None` if this file does not support it. Does
    /// not wait for room in the pipe.
    fn splice_at(&self, offset: u64, pipe: BorrowedFd<'_>, len: usize) -> Option<Result<usize>>;

    /// A descriptor from which the kernel can read the file directly; `None` if reading it takes
    /// more than a descriptor.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The parts with which another process can adopt this file ([`Backend::adopt`]); empty if that
    /// is impossible.
    fn parts(&self) -> FileParts<'_>;

    /// Whether the file is not open yet because its first use opens it.
    fn is_deferred(&self) -> bool;

    /// The next offset at or after `offset` with data, or with a hole.
    fn seek(&self, offset: u64, to: SeekTo) -> Result<u64>;

    /// Changes the file. A write returns the number of bytes written, which may be fewer than asked
    /// for, as with pwrite(2).
    fn mutate(&self, change: &FileMutation<'_>) -> Result<u64>;

    /// Sets or tests a lock. All locks set through one open file have one owner, and closing the
    /// file releases them. Returns the lock that was set, or the conflicting lock.
    fn lock(&self, request: &LockRequest) -> Result<Lock>;
}

/// The target of [`BackendFile::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// Seconds and nanoseconds since the epoch; seconds may be negative.
pub type Timestamp = (i64, u32);

/// Attributes of one object on one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Device and inode number, as this replica shows them.
    pub id: FileId,
    /// Kind of object.
    pub kind: FileKind,
    /// The permission bits of the mode, set-id and sticky bits included.
    pub perm: u16,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, major and minor, of a device node.
    pub rdev: (u32, u32),
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Preferred block size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change.
    pub ctime: Timestamp,
    /// Distinguishes it from earlier objects with the same inode number.
    pub generation: Generation,
}

impl Attr {
    #[must_use]
    fn with_handle(mut self, handle: Option<HandleDigest>) -> Self {
        self.generation.handle = handle;
        self
    }

    /// The version of the file's content that these attributes describe.
    pub fn version(&self) -> FileVersion {
        FileVersion { ino: self.id.ino, size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// The entry's name: any bytes but `/` and NUL.
    pub name: OsString,
    /// Inode number as the listing shows it.
    pub ino: u64,
    /// Kind of object.
    pub kind: FileKind,
}

/// Size and usage of a file system, as in statvfs(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Blocks of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Blocks free to ordinary users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred transfer size in bytes.
    pub bsize: u32,
    /// Unit of the block counts in bytes.
    pub frsize: u32,
    /// Longest name in bytes.
    pub namelen: u32,
}

/// A backend with its own threads and counters.
pub struct Replica {
    /// Its place in the volume.
    pub id: ReplicaId,
    /// Its name in the configuration.
    pub name: String,
    /// Counters of its calls, reads and errors.
    pub counters: Arc<ReplicaCounters>,
    backend: Arc<dyn Backend>,
    closer: Arc<FileCloser>,
    pool: Arc<Pool>,
    inline_permits: InlinePermits,
    reads_without_threads: bool,
}

impl Replica {
    /// Gives `backend` a pool of its own.
    pub fn new(
        id: ReplicaId,
        name: String,
        backend: Arc<dyn Backend>,
        limits: PoolLimits,
        counters: Arc<ReplicaCounters>,
    ) -> Self {
        let pool = Arc::new(Pool::new(&name, limits));
        let backend = Arc::new(DeferredClose::new(backend, Arc::clone(&pool)));
        let closer = backend.closer();
        let reads_without_threads = backend.reads_without_threads();
        Self {
            id,
            name,
            counters,
            reads_without_threads,
            backend,
            closer,
            pool,
            inline_permits: InlinePermits::new(limits.max_inline_calls),
        }
    }

    /// Marks this as the write replica: the names of its threads say so.
    #[must_use]
    pub fn as_write_replica(self) -> Self {
        self.pool.set_write_replica();
        self
    }

    /// Queues `job` for one of the replica's own threads.
    ///
    /// # Errors
    /// [`BackendError::QueueFull`] if the lane's queue is full or the pool has been stopped; `job`
    /// was then dropped without running.
    pub fn submit(
        &self,
        lane: Lane,
        job: impl FnOnce(&dyn Backend) + Send + 'static,
    ) -> Result<()> {
        self.submit_with(lane, JobOptions::default(), job).map(drop)
    }

    /// Like [`Replica::submit`], for a job about one object. While calls about that object hang,
    /// the job waits without a thread until its caller gives up. Returns the ticket for
    /// [`Replica::last_progress`].
    ///
    /// # Errors
    /// As [`Replica::submit`]'s.
    pub fn submit_with(
        &self,
        lane: Lane,
        errand: JobOptions,
        job: impl FnOnce(&dyn Backend) + Send + 'static,
    ) -> Result<Ticket> {
        let backend = Arc::clone(&self.backend);
        self.pool.submit_with(lane, errand, Box::new(move || job(&*backend)))
    }

    /// Counts of its own connections to its server.
    pub fn connections(&self) -> Vec<ConnectionCounters> {
        self.backend.connections()
    }

    /// Whether its files are read without a thread ([`BackendFile::submit_read`]).
    pub fn reads_without_threads(&self) -> bool {
        self.reads_without_threads
    }

    /// Enters a call that holds no thread. `None` if the pool has been stopped.
    pub fn begin_threadless_call(&self) -> Option<ThreadlessCall> {
        self.pool.begin_threadless_call()
    }

    /// Whether it takes no more jobs.
    pub fn is_stopped(&self) -> bool {
        self.pool.is_stopped()
    }

    /// When the replica last completed a part of a job ([`report_progress`]), or a job that was
    /// queued before this one. `None` if neither has happened since this job was queued.
    pub fn last_progress(&self, ticket: Ticket) -> Option<Instant> {
        self.pool.last_progress(ticket)
    }

    /// Permission for the calling thread to make one call on the replica itself. `None` if too many
    /// inline calls are in progress or calls about the object hang.
    pub fn try_inline_permit(&self, about: &PathKey) -> Option<InlinePermit<'_>> {
        if self.has_room_for(Lane::Read, about) { self.inline_permits.try_acquire() } else { None }
    }

    /// Inline calls in progress.
    pub fn inline_calls(&self) -> usize {
        self.inline_permits.in_use()
    }

    /// The same; `None` if there is no permit left.
    pub fn inline_calls_with_room(&self) -> Option<usize> {
        let calls = self.inline_permits.in_use();
        (calls < self.inline_permits.limit()).then_some(calls)
    }

    /// Replaces a hung thread if jobs wait. Call it regularly while calls are in flight. Returns
    /// whether a session thread has been inside the replica for a moment: then it must be called
    /// again.
    pub fn on_tick(&self) -> bool {
        let is_any_inside = self.pool.name_inline_callers();
        self.pool.replace_stuck_threads();
        self.closer.start_job_if_needed();
        file_closer::retry_dedicated_closes();
        is_any_inside
    }

    /// Whether another call about the object could start now. Hung calls may leave no room for it.
    pub fn has_room_for(&self, lane: Lane, about: &PathKey) -> bool {
        self.pool.has_room_for(lane, about)
    }

    /// The objects on which calls hang, the longest-hung first.
    pub fn hung_paths(&self) -> Vec<HungPath> {
        self.pool.hung_paths()
    }

    /// Runs `job` on the calling thread, which holds a permit.
    pub fn run_inline(
        &self,
        _leave: &InlinePermit<'_>,
        about: PathKey,
        job: impl FnOnce(&dyn Backend),
    ) {
        self.pool.run_inline(about, || job(&*self.backend));
    }

    /// Whether `dropped` is a file of this replica.
    pub fn has_opened(&self, dropped: &DroppedFile) -> bool {
        dropped.is_of(&self.closer)
    }

    /// Closes a file of this replica on the calling thread, which holds a permit. Calls `on_begin`
    /// once [`Replica::on_tick`] sees the call.
    pub fn close_inline(
        &self,
        _leave: &InlinePermit<'_>,
        about: PathKey,
        dropped: DroppedFile,
        on_begin: impl FnOnce(),
    ) {
        self.pool.close_inline(about, || {
            on_begin();
            dropped.close();
        });
    }

    /// Makes a file from the parts of another process's file ([`Backend::adopt`]). Never calls the
    /// replica.
    pub fn adopt(&self, parts: OwnedFileParts) -> Option<Arc<dyn BackendFile>> {
        self.backend.adopt(parts)
    }

    /// The backend itself, for a file that opens on first use. Its caller uses it only on the
    /// replica's pool.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    /// Threads that are inside a call on the replica right now.
    pub fn busy_threads(&self) -> usize {
        self.pool.busy_threads() + self.inline_permits.in_use()
    }

    /// Threads that have been inside one call for longer than `time`.
    pub fn stuck_threads(&self, time: Duration) -> usize {
        self.pool.stuck_threads(time)
    }

    /// Whether any call was stuck at the last check.
    pub fn has_stuck_calls(&self) -> bool {
        self.pool.has_stuck_calls()
    }

    /// See [`Backend::is_in_service`].
    pub fn is_in_service(&self) -> bool {
        self.backend.is_in_service()
    }

    /// See [`Backend::mount_id`].
    pub fn mount_id(&self) -> Option<u64> {
        self.backend.mount_id()
    }

    /// See [`Backend::handle_unmount`]. Never blocks.
    pub fn handle_unmount(&self, mount: u64) {
        self.backend.handle_unmount(mount);
    }

    /// Takes no more jobs and lets idle threads end. A thread inside a call ends when the call
    /// returns; nothing waits for it.
    pub fn stop(&self) {
        self.pool.stop();
    }
}
