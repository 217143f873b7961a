//! The file system: what each operation means, whichever replica carries it out.
//!
//! Operations come from `fuse` in fanfs's own terms, as futures that [`run`] polls on the
//! threads that complete what they wait for ([`crate::replicas::task`]). Metadata goes to one
//! replica at a time and to the next where that one fails or is late
//! ([`crate::replicas::metadata_client`]); file data goes through [`crate::read`]. [`inodes`]
//! knows the inodes that the kernel knows and by which names, [`handles`] what is open.
//! Errnos are chosen in [`error`] alone.
//!
//! *Invariants:*
//! - No method blocks on a replica.
//! - Whenever the kernel is given attributes of an open file, its handles read
//!   that version from then on: a read is never cut at an older size than the
//!   kernel believes in.
//! - Paths sent to replicas are made of names that the kernel looked up, with no
//!   `.` or `..` among them.

mod activity;
mod append;
mod cache_mode;
mod entry_name;
mod entry_ref;
mod error;
mod file_replacement;
mod fsync;
mod getattr;
mod handles;
mod ino;
mod inode_ref;
mod inodes;
mod journal;
mod listing;
mod listing_memory;
mod lock;
mod name_freshness;
mod namespace_ops;
mod open;
mod passthrough;
mod path_queries;
mod payload_budget;
mod pending_writes;
mod range_ops;
mod read;
mod readdir;
mod recent_changes;
mod renames;
mod root_attrs;
mod set_id;
mod setattr;
mod snapshot;
mod stale_pages;
mod unanswered;
mod unsettled;
mod write;
mod write_gate;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::backend::{Attr, Backend, BackendError, RequestContext};
use crate::read::Reader;
use crate::replicas::metadata_client::{CallPolicy, CallTarget, MetadataClient, RunAs};
use crate::replicas::request_deadline::Deadlines;
use crate::replicas::{Replicas, task};
use crate::telemetry::VolumeCounters;
use crate::volume::{ReplicaId, VolumeMode};
use activity::ActivityLog;
use entry_name::ReplicaAttr;
use entry_ref::DirEntryRef;
use file_replacement::{AttrOwner, OpenFileCheck};
use handles::Handles;
use inodes::Inodes;
use listing_memory::ListingMemory;
use lock::Locks;
use name_freshness::{NameFreshness, ReplicaPath};
use passthrough::Passthrough;
use payload_budget::PayloadBudget;
use recent_changes::RecentChanges;
use renames::{RenameTracker, RetriedCall};
use stale_pages::PageDrops;

pub use activity::ReadActivity;
pub use cache_mode::{CacheMode, CacheModePolicy};
pub use entry_name::EntryName;
pub use error::Errno;
pub use handles::HandleId;
pub use ino::{Ino, ROOT};
pub use journal::recover_journal;
pub use listing::{ListedEntry, Listing};
pub use lock::{LockOwner, LockWait};
pub use namespace_ops::RenameRequest;
pub use open::{KernelOpen, OpenedFile};
pub use passthrough::{BackingId, PassthroughFile, PassthroughStatus};
pub use range_ops::{CopyRequest, FallocateRequest};
pub use readdir::{ReaddirPlusEntry, ReaddirPlusPage};
pub use snapshot::{FsSnapshot, SNAPSHOT_FORMAT, SnapshotError};
pub use stale_pages::KernelPages;
pub use write::{CreateRequest, CreatedFile, WriteRequest};

pub use crate::read::ReadData;
pub use crate::replicas::metadata_client::PinnedLatencies;
pub use crate::replicas::task::{run, run_on_session_thread};

/// What an operation is answered with.
pub type FsResult<T> = Result<T, Errno>;

/// An object as the kernel is told of it.
#[derive(Clone, Copy, Debug)]
pub struct InodeAttr {
    /// Its inode number on this mount.
    pub ino: Ino,
    /// Its attributes; the inode number in them is the replica's.
    pub attr: Attr,
}

/// How the file system behaves.
#[derive(Clone, Debug)]
pub struct FsPolicy {
    /// How the replicas relate.
    pub mode: VolumeMode,
    /// By when every call is answered.
    pub deadlines: Deadlines,
    /// How long one replica may take before the next is asked.
    pub attempt_deadline: Duration,
    /// How long the kernel may trust attributes.
    pub attribute_ttl: Duration,
    /// Who caches file data.
    pub cache_mode: CacheModePolicy,
    /// Whether the kernel is to read files from one replica by itself.
    pub passthrough: bool,
    /// Who carries out changes, where there may be any.
    pub write: Option<WritePolicy>,
    /// Who keeps the locks, where this machine's kernel does not.
    pub lock_replica: Option<ReplicaId>,
}

/// How changes are carried out.
#[derive(Clone, Copy, Debug)]
pub struct WritePolicy {
    /// By whom.
    pub replica: ReplicaId,
    /// By when one ends.
    pub deadlines: Deadlines,
    /// How long other replicas may show what was before.
    pub lag: Duration,
}

/// One volume as a file system.
pub struct Fs {
    policy: FsPolicy,
    client: Arc<MetadataClient>,
    replicas: Arc<Replicas>,
    reader: Arc<Reader>,
    inodes: Mutex<Inodes>,
    handles: Handles,
    /// Memory for listings.
    listing_memory: ListingMemory,
    /// Memory for what requests carry.
    payload_budget: PayloadBudget,
    /// The entries of these tables that the kernel may not know of.
    unanswered: Arc<Mutex<unanswered::UnansweredEntries>>,
    /// Whether the kernel maps files that are open direct.
    direct_mmap: AtomicBool,
    passthrough: Passthrough,
    /// What was changed a short while ago.
    recent_changes: RecentChanges,
    name_freshness: NameFreshness,
    /// Changes of files so far: tells answers from before one from those after it.
    change_seq: AtomicU64,
    renames: RenameTracker,
    locks: Locks,
    page_drops: PageDrops,
    activity: ActivityLog,
    /// What the root was last seen to be.
    last_root_attr: Mutex<Option<(ReplicaId, Attr)>>,
    counters: Arc<VolumeCounters>,
}

/// What is open and known, as `fanfs status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsGauges {
    /// Inodes that the kernel knows.
    pub inodes: usize,
    /// Open files and directories.
    pub handles: usize,
    /// Metadata calls that have not been answered.
    pub calls: usize,
}

impl Fs {
    /// A file system over `replicas`. `runtime` keeps the deadlines.
    pub fn new(
        policy: FsPolicy,
        replicas: Arc<Replicas>,
        reader: Arc<Reader>,
        counters: Arc<VolumeCounters>,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        let passthrough = Passthrough::new(policy.passthrough, replicas.len());
        let recent = RecentChanges::new(policy.write.map_or(Duration::ZERO, |write| write.lag));
        let own = Arc::clone(&counters);
        let to = policy.write.map_or("", |write| &replicas[write.replica].name);
        let intake = PayloadBudget::new(Arc::clone(&reader), policy.attempt_deadline, to);
        let calls = CallPolicy {
            mode: policy.mode,
            deadlines: policy.deadlines,
            attempt_deadline: policy.attempt_deadline,
        };
        let rules = reader.locator().affinities().rules().len();
        let client = MetadataClient::new(calls, Arc::clone(&replicas), rules, counters);
        Arc::new(Self {
            recent_changes: recent,
            name_freshness: NameFreshness::default(),
            change_seq: AtomicU64::new(0),
            renames: RenameTracker::default(),
            locks: Locks::new(runtime, reader.budget().clone()),
            page_drops: PageDrops::default(),
            activity: ActivityLog::default(),
            last_root_attr: Mutex::new(None),
            counters: own,
            inodes: Mutex::new(Inodes::new(policy.mode)),
            handles: Handles::default(),
            listing_memory: ListingMemory::new(Arc::clone(&reader)),
            payload_budget: intake,
            unanswered: Arc::default(),
            direct_mmap: AtomicBool::new(false),
            passthrough,
            client,
            replicas,
            reader,
            policy,
        })
    }

    fn path(&self, ino: Ino) -> FsResult<PathBuf> {
        self.inodes.lock().path(ino).ok_or(Errno::STALE)
    }

    fn call_target(&self, path: &Path) -> CallTarget {
        let target = CallTarget::new(path, self.reader.locator().pin(path));
        let now = Instant::now();
        match self.policy.write {
            Some(write) if self.recent_changes.has_path_changed(path, now) => {
                target.only_on(write.replica)
            }
            Some(write) if self.recent_changes.has_listing_changed(path, now) => {
                target.preferring(write.replica)
            }
            _ => self
                .name_freshness
                .preferred_replica(path, now)
                .map_or(target, |replica| target.preferring(replica)),
        }
    }

    /// The same for what is in the directory `path`.
    fn listing_target(&self, path: &Path) -> CallTarget {
        let target = self.call_target(path);
        match self.policy.write {
            Some(write)
                if self.recent_changes.has_listing_changed(path, Instant::now())
                    || self.handles.has_writer_in_dir(path) =>
            {
                target.only_on(write.replica)
            }
            _ => target,
        }
    }

    /// The same for a name, which may be one that the kernel was told of.
    fn call_target_of_name(&self, at: EntryName<'_>, path: &Path) -> CallTarget {
        let target = self.call_target(path);
        match self.policy.mode {
            VolumeMode::Shared if self.inodes.lock().child(at.parent, at.name).is_some() => {
                target.known_to_exist()
            }
            _ => target,
        }
    }

    /// The same for the path of an inode, which may have been changed by another.
    fn call_target_of_inode(&self, ino: Ino, path: &Path) -> CallTarget {
        let target = match self.policy.mode {
            VolumeMode::Shared => self.call_target(path).known_to_exist(),
            // The first replica decides what the tree looks like.
            VolumeMode::Copies => self.call_target(path),
        };
        match self.policy.write {
            Some(write) if self.is_recently_changed(ino) => target.only_on(write.replica),
            _ => target,
        }
    }

    /// Whether any handle may write the file.
    fn is_open_for_write(&self, ino: Ino) -> bool {
        self.policy.write.is_some()
            && self.handles.find_inode(ino).is_some_and(|open| open.has_writers())
    }

    /// The number of changes before a question.
    fn change_seq(&self) -> u64 {
        self.change_seq.load(Ordering::Acquire)
    }

    /// The number of one more change.
    fn next_change_seq(&self) -> u64 {
        self.change_seq.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether an answer of `replica` may be from before a change that was made
    /// while it was on its way, or that it does not know of.
    fn is_possibly_stale(&self, replica: ReplicaId, path: &Path, ino: Ino) -> bool {
        let now = Instant::now();
        let is_recent = || {
            self.recent_changes.has_path_changed(path, now)
                || self.recent_changes.has_inode_changed(ino, now)
                || self.is_open_for_write(ino)
        };
        self.policy.write.is_some_and(|write| write.replica != replica && is_recent())
    }

    /// How the affinity rules do, in their order.
    pub fn pinned_latencies(&self) -> Vec<PinnedLatencies> {
        self.client.pinned_latencies()
    }

    /// The kernel maps files that are open direct, or it does not.
    pub fn set_direct_mmap(&self, it_does: bool) {
        self.direct_mmap.store(it_does, Ordering::Relaxed);
    }

    /// Whether the kernel is to read files from one replica by itself.
    pub fn is_passthrough_wanted(&self) -> bool {
        self.passthrough.is_wanted()
    }

    /// The kernel cannot.
    pub fn disable_passthrough(&self, why: String) {
        self.passthrough.disable(why);
    }

    /// How that stands.
    pub fn passthrough_status(&self) -> PassthroughStatus {
        self.passthrough.status()
    }

    /// Whether anything can be changed.
    pub fn can_write(&self) -> bool {
        self.policy.write.is_some()
    }

    /// Whether a replica keeps the locks.
    pub fn has_lock_replica(&self) -> bool {
        self.policy.lock_replica.is_some()
    }

    /// How long the kernel may trust what it is told.
    pub fn attribute_ttl(&self) -> Duration {
        self.policy.attribute_ttl
    }

    /// Looks a name up; the kernel then knows the inode once more.
    pub async fn lookup(
        self: &Arc<Self>,
        caller: RequestContext,
        at: EntryName<'_>,
    ) -> FsResult<InodeAttr> {
        let since = Instant::now();
        let look_up = || self.try_lookup(caller, at, since);
        let answer = self.with_rename_retry(&[at.parent], RetriedCall::Lookup, look_up).await;
        self.after_page_drops(answer).await
    }

    async fn try_lookup(
        self: &Arc<Self>,
        caller: RequestContext,
        at: EntryName<'_>,
        since: Instant,
    ) -> FsResult<InodeAttr> {
        let EntryName { parent, name } = at;
        let mut asked = self.change_seq();
        let mut entry = self.entry_ref(parent, name)?;
        let mut path = entry.path();
        let mut target = self.call_target_of_name(at, &path).requested_at(since);
        if self.client.has_recent_lookup_timeout(target) {
            return Err(BackendError::Late.into());
        }
        loop {
            let op = self.stat_entry_op(at, entry);
            let rights = RunAs::DaemonThenCaller(caller);
            let answer = self.client.call(target, rights, op).await;
            if answer.as_ref().is_err_and(|error| *error == BackendError::Late) {
                self.client.record_lookup_timeout(target);
            }
            let (replica, (attr, check)) = answer?;
            let ino = self.inodes.lock().ino_for(parent, name, replica, &attr);
            let is_outdated = |ino| {
                self.is_possibly_stale(replica, &path, ino)
                    || self.attr_owner(ino, &attr, &check) == AttrOwner::Unknown
                    || !self.inodes.lock().is_current_entry(parent, name, ino, asked)
            };
            match ino.filter(|ino| is_outdated(*ino)) {
                // It was changed by another name, or removed meanwhile. It is looked up again,
                // by the path that its directory has now.
                Some(ino) => {
                    asked = self.change_seq();
                    target = self.call_target_of_inode(ino, &path).for_retry_of(target);
                    entry = self.entry_ref(parent, name)?;
                    path = entry.path();
                }
                None => {
                    let found = ReplicaAttr { replica, attr: &attr };
                    return self.entry_reply(at, found, &check, asked, caller.request);
                }
            }
        }
    }

    /// What a replica is asked for a lookup.
    fn stat_entry_op(
        self: &Arc<Self>,
        at: EntryName<'_>,
        entry: DirEntryRef,
    ) -> impl Fn(ReplicaId, &dyn Backend) -> crate::backend::Result<(Attr, OpenFileCheck)>
    + Send
    + Sync
    + 'static
    + use<> {
        let fs = Arc::clone(self);
        let parent = at.parent;
        let name = at.name.to_owned();
        let path = entry.path();
        move |replica, backend| {
            let at = EntryName { parent, name: &name };
            let place = ReplicaPath { replica, backend, path: &path };
            let attr = fs.stat_revalidated(at, place, &entry.name_on(replica))?;
            Ok((attr, fs.check_open_file_by_name(at, ReplicaAttr { replica, attr: &attr })))
        }
    }

    /// The kernel is about to be told of what has this name; it was asked for when
    /// there had been `asked` changes, by `request`.
    fn entry_reply(
        &self,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
        check: &OpenFileCheck,
        asked: u64,
        request: u64,
    ) -> FsResult<InodeAttr> {
        let ino = {
            let mut inodes = self.inodes.lock();
            self.detach_replaced_file(&mut inodes, at, found, check, asked);
            inodes.record_lookup(request, at, found, asked).ok_or(Errno::STALE)?
        };
        self.apply_attrs(ino, found.attr, check, asked);
        self.compact_journal_if_due();
        Ok(InodeAttr { ino, attr: *found.attr })
    }

    /// Attributes of the object at `path`, which is made of plain names.
    pub async fn stat_path(&self, path: PathBuf) -> FsResult<Attr> {
        let target = self.call_target(&path);
        let stat = move |_: ReplicaId, backend: &dyn Backend| backend.stat(&path);
        let (_, attr) = self.client.call(target, RunAs::DAEMON, stat).await?;
        Ok(attr)
    }

    /// The kernel forgets `count` lookups of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.inodes.lock().forget(ino, count);
        self.compact_journal_if_due();
    }

    /// What is open and known.
    pub fn gauges(&self) -> FsGauges {
        FsGauges {
            inodes: self.inodes.lock().len(),
            handles: self.handles.len(),
            calls: self.client.pending(),
        }
    }
}
