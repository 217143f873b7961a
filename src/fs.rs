//! The file system: what each operation means, whichever replica carries it out.
//!
//! Operations come from `fuse` in fanfs's own terms and are answered through a
//! callback, now or later, on any thread. Metadata goes to one replica at a time
//! and to the next where that one fails or is late ([`call`]); file data goes
//! through [`crate::read`]. [`inode`] knows the inodes that the kernel knows and
//! by which names, [`handle`] what is open. Errnos are chosen in [`error`] alone.
//!
//! *Invariants:*
//! - No method blocks on a replica.
//! - Whenever the kernel is given attributes of an open file, its handles read
//!   that version from then on: a read is never cut at an older size than the
//!   kernel believes in.
//! - Paths sent to replicas are made of names that the kernel looked up, with no
//!   `.` or `..` among them.

mod append;
mod arrivals;
mod attributes;
mod author;
mod busy;
mod caching;
mod call;
mod carried;
mod change;
mod directory;
mod error;
mod handle;
mod inode;
mod intake;
mod journal;
mod listing;
mod lock;
mod look;
mod moves;
mod name;
mod newer;
mod object;
mod open;
mod passthrough;
mod ranges;
mod read;
mod recent;
mod replaced;
mod root;
mod shelf;
mod stat;
mod sync;
mod unanswered;
mod unsettled;
mod write;
mod written;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::backend::{Attr, BackendError, Replica, Requester};
use crate::read::{Deadlines, Reader};
use crate::telemetry::VolumeCounters;
use crate::volume::{Mode, ReplicaId, ReplicaMap};
use busy::Busy;
use call::{Caller, Rights, Spot};
use handle::Handles;
use inode::Inodes;
use intake::Intake;
use lock::Locks;
use moves::{Done, Moves};
use name::Named;
use newer::{At, Newer};
use passthrough::Passthrough;
use recent::Recent;
use replaced::{Looked, Whose};
use shelf::Shelf;

pub use busy::FileUse;
pub use caching::{Caching, CachingPolicy};
pub use call::PinnedTimes;
pub use carried::{Carried, FORMAT};
pub use directory::{PlusEntry, PlusPage};
pub use error::Errno;
pub use handle::HandleId;
pub use inode::{Ino, ROOT};
pub use journal::recover;
pub use listing::{Listed, Listing};
pub use lock::{LockOwner, Waiting};
pub use open::{OpenReply, Opened};
pub use passthrough::{Backing, Lent, PassthroughStatus};
pub use write::{Created, WriteRequest};

pub use crate::read::ReadData;

/// What an operation is answered with.
pub type Answer<T> = Result<T, Errno>;

/// An object as the kernel is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its inode number on this mount.
    pub ino: Ino,
    /// Its attributes; the inode number in them is the replica's.
    pub attr: Attr,
}

/// How the file system behaves.
#[derive(Clone, Debug)]
pub struct FsPolicy {
    /// How the replicas relate.
    pub mode: Mode,
    /// By when every call is answered.
    pub deadlines: Deadlines,
    /// How long one replica may take before the next is asked.
    pub attempt_deadline: Duration,
    /// How long the kernel may trust attributes.
    pub attribute_ttl: Duration,
    /// Who caches file data.
    pub caching: CachingPolicy,
    /// Whether the kernel is to read files from one replica by itself.
    pub passthrough: bool,
    /// Who carries out changes, where there may be any.
    pub write: Option<WritePolicy>,
    /// Who keeps the locks, where this machine's kernel does not.
    pub locks: Option<ReplicaId>,
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
    caller: Arc<Caller>,
    reader: Arc<Reader>,
    inodes: Mutex<Inodes>,
    handles: Handles,
    /// Memory for listings.
    shelf: Shelf,
    /// Memory for what requests carry.
    intake: Intake,
    /// The entries of these tables that the kernel may not know of.
    unanswered: Arc<Mutex<unanswered::Unanswered>>,
    /// Whether the kernel maps files that are open direct.
    maps_direct: AtomicBool,
    passthrough: Passthrough,
    /// What was changed a short while ago.
    recent: Recent,
    newer: Newer,
    /// Changes of files so far: tells answers from before one from those after it.
    changes: AtomicU64,
    moves: Moves,
    locks: Locks,
    busy: Busy,
    /// What the root was last seen to be.
    root: Mutex<Option<(ReplicaId, Attr)>>,
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
        let recent = Recent::new(policy.write.map_or(Duration::ZERO, |write| write.lag));
        let own = Arc::clone(&counters);
        let to = policy.write.map_or("", |write| &replicas[write.replica].name);
        let intake = Intake::new(Arc::clone(&reader), policy.attempt_deadline, to);
        let caller = Caller::new(&policy, replicas, Arc::clone(&reader), counters, &runtime);
        Arc::new(Self {
            recent,
            newer: Newer::default(),
            changes: AtomicU64::new(0),
            moves: Moves::default(),
            locks: Locks::new(runtime, reader.budget().clone()),
            busy: Busy::default(),
            root: Mutex::new(None),
            counters: own,
            inodes: Mutex::new(Inodes::new(policy.mode)),
            handles: Handles::default(),
            shelf: Shelf::new(Arc::clone(&reader)),
            intake,
            unanswered: Arc::default(),
            maps_direct: AtomicBool::new(false),
            passthrough,
            caller: Arc::new(caller),
            reader,
            policy,
        })
    }

    fn path(&self, ino: Ino) -> Answer<PathBuf> {
        self.inodes.lock().path(ino).ok_or(Errno::STALE)
    }

    fn spot(&self, path: &Path) -> Spot {
        let spot = Spot::new(path, self.reader.locator().pin(path));
        let now = Instant::now();
        match self.policy.write {
            Some(write) if self.recent.covers(path, now) => spot.only(write.replica),
            Some(write) if self.recent.covers_listing(path, now) => spot.first(write.replica),
            _ => self.newer.first(path, now).map_or(spot, |replica| spot.first(replica)),
        }
    }

    /// The same for what is in the directory `path`.
    fn listing_spot(&self, path: &Path) -> Spot {
        let spot = self.spot(path);
        match self.policy.write {
            Some(write)
                if self.recent.covers_listing(path, Instant::now())
                    || self.handles.is_written_in(path) =>
            {
                spot.only(write.replica)
            }
            _ => spot,
        }
    }

    /// The same for a name, which may be one that the kernel was told of.
    fn spot_of_name(&self, (parent, name): (Ino, &OsStr), path: &Path) -> Spot {
        let spot = self.spot(path);
        match self.policy.mode {
            Mode::Shared if self.inodes.lock().named(parent, name).is_some() => spot.known(),
            _ => spot,
        }
    }

    /// The same for the path of an inode, which may have been changed by another.
    fn spot_of(&self, ino: Ino, path: &Path) -> Spot {
        let spot = match self.policy.mode {
            Mode::Shared => self.spot(path).known(),
            // The first replica decides what the tree looks like.
            Mode::Copies => self.spot(path),
        };
        match self.policy.write {
            Some(write) if self.is_changed(ino) => spot.only(write.replica),
            _ => spot,
        }
    }

    /// Whether any handle may write the file.
    fn is_written(&self, ino: Ino) -> bool {
        self.policy.write.is_some() && self.handles.inode(ino).is_some_and(|open| open.is_written())
    }

    /// The number of changes before a question.
    fn now(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The number of one more change.
    fn one_more(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether an answer of `replica` may be from before a change that was made
    /// while it was on its way, or that it does not know of.
    fn is_overtaken(&self, replica: ReplicaId, path: &Path, ino: Ino) -> bool {
        let now = Instant::now();
        let is_recent = || {
            self.recent.covers(path, now)
                || self.recent.covers_inode(ino, now)
                || self.is_written(ino)
        };
        self.policy.write.is_some_and(|write| write.replica != replica && is_recent())
    }

    /// How the affinity rules do, in their order.
    pub fn pinned(&self) -> Vec<PinnedTimes> {
        self.caller.pinned()
    }

    /// The kernel maps files that are open direct, or it does not.
    pub fn maps_direct(&self, it_does: bool) {
        self.maps_direct.store(it_does, Ordering::Relaxed);
    }

    /// Whether the kernel is to read files from one replica by itself.
    pub fn wants_passthrough(&self) -> bool {
        self.passthrough.is_wanted()
    }

    /// The kernel cannot.
    pub fn has_no_passthrough(&self, why: String) {
        self.passthrough.is_impossible(why);
    }

    /// How that stands.
    pub fn passthrough(&self) -> PassthroughStatus {
        self.passthrough.status()
    }

    /// Whether anything can be changed.
    pub fn can_write(&self) -> bool {
        self.policy.write.is_some()
    }

    /// Whether a replica keeps the locks.
    pub fn forwards_locks(&self) -> bool {
        self.policy.locks.is_some()
    }

    /// How long the kernel may trust what it is told.
    pub fn attribute_ttl(&self) -> Duration {
        self.policy.attribute_ttl
    }

    /// Looks a name up; the kernel then knows the inode once more.
    pub fn lookup(
        self: &Arc<Self>,
        who: Requester,
        parent: Ino,
        name: &OsStr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let (name, since) = (name.to_owned(), Instant::now());
        let look_up = move |fs: &Arc<Self>, done: Done<Entry>| match fs.name(parent, &name) {
            Ok(at) => {
                let spot = fs.spot_of_name((parent, &name), &at.path()).since(since);
                if fs.caller.has_just_passed_its_deadline(spot) {
                    return done(Err(BackendError::Late.into()));
                }
                fs.look_up(who, (parent, name.clone()), at, spot, done);
            }
            Err(errno) => done(Err(errno)),
        };
        self.by_path((&[parent], false), look_up, done);
    }

    fn look_up(
        self: &Arc<Self>,
        who: Requester,
        (parent, name): (Ino, OsString),
        named: Named,
        spot: Spot,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let (fs, path, asked) = (Arc::clone(self), named.path(), self.now());
        let (open, its, at) = (Arc::clone(self), name.clone(), path.clone());
        self.caller.call_by_replica(
            spot,
            Rights::Enough(who),
            move |replica, backend| {
                let known = (parent, its.as_os_str());
                let at = At { replica, backend, path: &at };
                let attr = open.stat_as_named(known, at, &named.on(replica))?;
                Ok((attr, open.look_at_named((parent, &its), replica, &attr)))
            },
            move |answer| {
                let (replica, (attr, looked)) = match answer {
                    Ok(found) => found,
                    Err(error) => {
                        if error == BackendError::Late {
                            fs.caller.passed_its_deadline(spot);
                        }
                        return done(Err(error.into()));
                    }
                };
                let number = fs.inodes.lock().number(parent, &name, replica, &attr);
                let is_old = |ino| {
                    fs.is_overtaken(replica, &path, ino)
                        || fs.whose(ino, &attr, &looked) == Whose::Unclear
                        || !fs.inodes.lock().is_there(parent, &name, ino, asked)
                };
                if number.is_some_and(is_old) {
                    // It was changed by another name, or removed meanwhile.
                    let again = number.map_or(spot, |ino| fs.spot_of(ino, &path));
                    let spot = again.instead_of(spot);
                    return fs.look_up_by_new_path(who, (parent, name), spot, done);
                }
                done(fs.enter((parent, &name), (replica, &attr), &looked, asked, who.request));
            },
        );
    }

    /// Looks a name up once more, by the path that its directory has now.
    fn look_up_by_new_path(
        self: &Arc<Self>,
        who: Requester,
        (parent, name): (Ino, OsString),
        spot: Spot,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        match self.name(parent, &name) {
            Ok(named) => self.look_up(who, (parent, name), named, spot, done),
            Err(errno) => done(Err(errno)),
        }
    }

    /// The kernel is about to be told of what has this name; it was asked for when
    /// there had been `asked` changes, by `request`.
    fn enter(
        &self,
        (parent, name): (Ino, &OsStr),
        (replica, attr): (ReplicaId, &Attr),
        looked: &Looked,
        asked: u64,
        request: u64,
    ) -> Answer<Entry> {
        let ino = {
            let mut inodes = self.inodes.lock();
            self.part_from_replaced(&mut inodes, (parent, name), (replica, attr), looked, asked);
            let known = inodes.remember_for(request, (parent, name), (replica, attr), asked);
            known.ok_or(Errno::STALE)?
        };
        self.learned(ino, attr, looked, asked);
        self.keep_journal_short();
        Ok(Entry { ino, attr: *attr })
    }

    /// Attributes of what is at `path`, which is made of plain names.
    pub fn look(&self, path: PathBuf, done: impl FnOnce(Answer<Attr>) + Send + 'static) {
        self.caller.call(
            self.spot(&path),
            Rights::DAEMON,
            move |backend| backend.stat(&path),
            move |answer| done(answer.map_err(Errno::from).map(|(_, attr)| attr)),
        );
    }

    /// The kernel forgets `count` lookups of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.inodes.lock().forget(ino, count);
        self.keep_journal_short();
    }

    /// What is open and known.
    pub fn gauges(&self) -> FsGauges {
        FsGauges {
            inodes: self.inodes.lock().len(),
            handles: self.handles.len(),
            calls: self.caller.pending(),
        }
    }
}
