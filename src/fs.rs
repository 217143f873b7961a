//! The file system: what each operation means, whichever replica carries it out.
//!
//! Operations come from `fuse` in fanfs's own terms and are answered through a
//! callback, now or later, on any thread. Metadata goes to one replica at a time
//! and to the next where that one fails or is late ([`metadata_client`]); file data goes
//! through [`crate::read`]. [`inodes`] knows the inodes that the kernel knows and
//! by which names, [`handles`] what is open. Errnos are chosen in [`error`] alone.
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
mod entry_ref;
mod error;
mod file_replacement;
mod fsync;
mod getattr;
mod handles;
mod inode_ref;
mod inodes;
mod journal;
mod listing;
mod listing_memory;
mod lock;
mod metadata_client;
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
mod unanswered;
mod unsettled;
mod write;
mod write_gate;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::backend::{Attr, BackendError, Replica, RequestContext};
use crate::read::{Deadlines, Reader};
use crate::telemetry::VolumeCounters;
use crate::volume::{ReplicaId, ReplicaMap, VolumeMode};
use activity::ActivityLog;
use entry_ref::DirEntryRef;
use file_replacement::{AttrOwner, OpenFileCheck};
use handles::Handles;
use inodes::Inodes;
use listing_memory::ListingMemory;
use lock::Locks;
use metadata_client::{CallTarget, MetadataClient, RunAs};
use name_freshness::{NameFreshness, ReplicaPath};
use passthrough::Passthrough;
use payload_budget::PayloadBudget;
use recent_changes::RecentChanges;
use renames::{RenameTracker, ReplyFn};

pub use activity::ReadActivity;
pub use cache_mode::{CacheMode, CacheModePolicy};
pub use error::Errno;
pub use handles::HandleId;
pub use inodes::{Ino, ROOT};
pub use journal::recover_journal;
pub use listing::{ListedEntry, Listing};
pub use lock::{LockOwner, LockWait};
pub use metadata_client::PinnedLatencies;
pub use open::{OpenResponder, OpenedFile};
pub use passthrough::{BackingId, PassthroughFile, PassthroughStatus};
pub use readdir::{ReaddirPlusEntry, ReaddirPlusPage};
pub use snapshot::{FsSnapshot, SNAPSHOT_FORMAT};
pub use write::{CreatedFile, WriteRequest};

pub use crate::read::ReadData;

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
        replicas: ReplicaMap<Arc<Replica>>,
        reader: Arc<Reader>,
        counters: Arc<VolumeCounters>,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        let passthrough = Passthrough::new(policy.passthrough, replicas.len());
        let recent = RecentChanges::new(policy.write.map_or(Duration::ZERO, |write| write.lag));
        let own = Arc::clone(&counters);
        let to = policy.write.map_or("", |write| &replicas[write.replica].name);
        let intake = PayloadBudget::new(Arc::clone(&reader), policy.attempt_deadline, to);
        let caller =
            MetadataClient::new(&policy, replicas, Arc::clone(&reader), counters, &runtime);
        Arc::new(Self {
            recent_changes: recent,
            name_freshness: NameFreshness::default(),
            change_seq: AtomicU64::new(0),
            renames: RenameTracker::default(),
            locks: Locks::new(runtime, reader.budget().clone()),
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
            client: Arc::new(caller),
            reader,
            policy,
        })
    }

    fn path(&self, ino: Ino) -> FsResult<PathBuf> {
        self.inodes.lock().path(ino).ok_or(Errno::STALE)
    }

    fn call_target(&self, path: &Path) -> CallTarget {
        let spot = CallTarget::new(path, self.reader.locator().pin(path));
        let now = Instant::now();
        match self.policy.write {
            Some(write) if self.recent_changes.has_path_changed(path, now) => {
                spot.only_on(write.replica)
            }
            Some(write) if self.recent_changes.has_listing_changed(path, now) => {
                spot.preferring(write.replica)
            }
            _ => self
                .name_freshness
                .preferred_replica(path, now)
                .map_or(spot, |replica| spot.preferring(replica)),
        }
    }

    /// The same for what is in the directory `path`.
    fn listing_target(&self, path: &Path) -> CallTarget {
        let spot = self.call_target(path);
        match self.policy.write {
            Some(write)
                if self.recent_changes.has_listing_changed(path, Instant::now())
                    || self.handles.has_writer_in_dir(path) =>
            {
                spot.only_on(write.replica)
            }
            _ => spot,
        }
    }

    /// The same for a name, which may be one that the kernel was told of.
    fn call_target_of_name(&self, (parent, name): (Ino, &OsStr), path: &Path) -> CallTarget {
        let spot = self.call_target(path);
        match self.policy.mode {
            VolumeMode::Shared if self.inodes.lock().child(parent, name).is_some() => {
                spot.known_to_exist()
            }
            _ => spot,
        }
    }

    /// The same for the path of an inode, which may have been changed by another.
    fn call_target_of_inode(&self, ino: Ino, path: &Path) -> CallTarget {
        let spot = match self.policy.mode {
            VolumeMode::Shared => self.call_target(path).known_to_exist(),
            // The first replica decides what the tree looks like.
            VolumeMode::Copies => self.call_target(path),
        };
        match self.policy.write {
            Some(write) if self.is_recently_changed(ino) => spot.only_on(write.replica),
            _ => spot,
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
    pub fn lookup(
        self: &Arc<Self>,
        who: RequestContext,
        parent: Ino,
        name: &OsStr,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let (name, since) = (name.to_owned(), Instant::now());
        let look_up = move |fs: &Arc<Self>, done: ReplyFn<InodeAttr>| match fs
            .entry_ref(parent, &name)
        {
            Ok(at) => {
                let spot = fs.call_target_of_name((parent, &name), &at.path()).requested_at(since);
                if fs.client.has_recent_lookup_timeout(spot) {
                    return done(Err(BackendError::Late.into()));
                }
                fs.lookup_on_replica(who, (parent, name.clone()), at, spot, done);
            }
            Err(errno) => done(Err(errno)),
        };
        self.call_with_rename_retry((&[parent], false), look_up, done);
    }

    fn lookup_on_replica(
        self: &Arc<Self>,
        who: RequestContext,
        (parent, name): (Ino, OsString),
        named: DirEntryRef,
        spot: CallTarget,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let (fs, path, asked) = (Arc::clone(self), named.path(), self.change_seq());
        let (open, its, at) = (Arc::clone(self), name.clone(), path.clone());
        self.client.call_by_replica(
            spot,
            RunAs::DaemonThenCaller(who),
            move |replica, backend| {
                let known = (parent, its.as_os_str());
                let at = ReplicaPath { replica, backend, path: &at };
                let attr = open.stat_revalidated(known, at, &named.name_on(replica))?;
                Ok((attr, open.check_open_file_by_name((parent, &its), replica, &attr)))
            },
            move |answer| {
                let (replica, (attr, looked)) = match answer {
                    Ok(found) => found,
                    Err(error) => {
                        if error == BackendError::Late {
                            fs.client.record_lookup_timeout(spot);
                        }
                        return done(Err(error.into()));
                    }
                };
                let number = fs.inodes.lock().ino_for(parent, &name, replica, &attr);
                let is_old = |ino| {
                    fs.is_possibly_stale(replica, &path, ino)
                        || fs.attr_owner(ino, &attr, &looked) == AttrOwner::Unknown
                        || !fs.inodes.lock().is_current_entry(parent, &name, ino, asked)
                };
                if number.is_some_and(is_old) {
                    // It was changed by another name, or removed meanwhile.
                    let again = number.map_or(spot, |ino| fs.call_target_of_inode(ino, &path));
                    let spot = again.for_retry_of(spot);
                    return fs.retry_lookup(who, (parent, name), spot, done);
                }
                done(fs.entry_reply(
                    (parent, &name),
                    (replica, &attr),
                    &looked,
                    asked,
                    who.request,
                ));
            },
        );
    }

    /// Looks a name up once more, by the path that its directory has now.
    fn retry_lookup(
        self: &Arc<Self>,
        who: RequestContext,
        (parent, name): (Ino, OsString),
        spot: CallTarget,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        match self.entry_ref(parent, &name) {
            Ok(named) => self.lookup_on_replica(who, (parent, name), named, spot, done),
            Err(errno) => done(Err(errno)),
        }
    }

    /// The kernel is about to be told of what has this name; it was asked for when
    /// there had been `asked` changes, by `request`.
    fn entry_reply(
        &self,
        (parent, name): (Ino, &OsStr),
        (replica, attr): (ReplicaId, &Attr),
        looked: &OpenFileCheck,
        asked: u64,
        request: u64,
    ) -> FsResult<InodeAttr> {
        let ino = {
            let mut inodes = self.inodes.lock();
            self.detach_replaced_file(&mut inodes, (parent, name), (replica, attr), looked, asked);
            let known = inodes.record_lookup(request, (parent, name), (replica, attr), asked);
            known.ok_or(Errno::STALE)?
        };
        self.apply_attrs(ino, attr, looked, asked);
        self.compact_journal_if_due();
        Ok(InodeAttr { ino, attr: *attr })
    }

    /// Attributes of what is at `path`, which is made of plain names.
    pub fn stat_path(&self, path: PathBuf, done: impl FnOnce(FsResult<Attr>) + Send + 'static) {
        self.client.call(
            self.call_target(&path),
            RunAs::DAEMON,
            move |backend| backend.stat(&path),
            move |answer| done(answer.map_err(Errno::from).map(|(_, attr)| attr)),
        );
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
