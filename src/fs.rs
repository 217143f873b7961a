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

mod caching;
mod call;
mod directory;
mod error;
mod handle;
mod inode;
mod open;
mod passthrough;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::backend::{Attr, Backend, BackendError, FileKind, Replica, SeekTo, StatFs};
use crate::read::{OpenFile, Reader, Thread};
use crate::telemetry::VolumeCounters;
use crate::volume::{ByteRange, Mode, ReplicaMap};
use call::{Caller, Spot};
use handle::{FileHandle, Handles};
use inode::Inodes;
use passthrough::Passthrough;

pub use caching::{Caching, CachingPolicy};
pub use call::PinnedTimes;
pub use directory::{Listing, PlusEntry, PlusPage};
pub use error::Errno;
pub use inode::{Ino, ROOT};
pub use open::{OpenReply, Opened};
pub use passthrough::{Backing, Lent, PassthroughStatus};

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
    pub deadline: Duration,
    /// How long one replica may take before the next is asked.
    pub attempt_deadline: Duration,
    /// How long the kernel may trust attributes.
    pub attribute_ttl: Duration,
    /// Who caches file data.
    pub caching: CachingPolicy,
    /// Whether the kernel is to read files from one replica by itself.
    pub passthrough: bool,
}

/// One volume as a file system.
pub struct Fs {
    policy: FsPolicy,
    caller: Arc<Caller>,
    reader: Arc<Reader>,
    inodes: Mutex<Inodes>,
    handles: Handles,
    /// Whether the kernel maps files that are open direct.
    maps_direct: AtomicBool,
    passthrough: Passthrough,
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
        let caller = Caller::new(&policy, replicas, Arc::clone(&reader), counters, &runtime);
        Arc::new(Self {
            inodes: Mutex::new(Inodes::new(policy.mode)),
            handles: Handles::default(),
            maps_direct: AtomicBool::new(false),
            passthrough,
            caller: Arc::new(caller),
            reader,
            policy,
        })
    }

    /// Finds out the root's identity. Ask it once, before anything else.
    pub fn start(self: &Arc<Self>, done: impl FnOnce(Answer<Entry>) + Send + 'static) {
        self.caller.call(
            self.spot(&PathBuf::new()),
            |backend| backend.stat(&PathBuf::new()),
            move |answer| {
                done(answer.map_err(Errno::from).map(|(_, attr)| Entry { ino: ROOT, attr }));
            },
        );
    }

    fn path(&self, ino: Ino) -> Answer<PathBuf> {
        self.inodes.lock().path(ino).ok_or(Errno::STALE)
    }

    fn spot(&self, path: &Path) -> Spot {
        Spot::new(path, self.reader.locator().pin(path))
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

    /// How long the kernel may trust what it is told.
    pub fn attribute_ttl(&self) -> Duration {
        self.policy.attribute_ttl
    }

    /// Looks a name up; the kernel then knows the inode once more.
    pub fn lookup(
        self: &Arc<Self>,
        parent: Ino,
        name: &OsStr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let path = match self.path(parent) {
            Ok(parent) => parent.join(name),
            Err(errno) => return done(Err(errno)),
        };
        let (fs, name) = (Arc::clone(self), name.to_owned());
        self.caller.call(
            self.spot(&path),
            move |backend| backend.stat(&path),
            move |answer| {
                done(answer.map_err(Errno::from).and_then(|(replica, attr)| {
                    let ino = fs
                        .inodes
                        .lock()
                        .remember(parent, &name, replica, &attr)
                        .ok_or(Errno::STALE)?;
                    fs.learned(ino, &attr);
                    Ok(Entry { ino, attr })
                }));
            },
        );
    }

    /// Attributes of what is at `path`, which is made of plain names.
    pub fn look(&self, path: PathBuf, done: impl FnOnce(Answer<Attr>) + Send + 'static) {
        self.caller.call(
            self.spot(&path),
            move |backend| backend.stat(&path),
            move |answer| done(answer.map_err(Errno::from).map(|(_, attr)| attr)),
        );
    }

    /// The kernel forgets `count` lookups of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        self.inodes.lock().forget(ino, count);
    }

    /// An inode's attributes; through the open file where `handle` is given and
    /// its name is gone.
    pub fn attributes(
        self: &Arc<Self>,
        ino: Ino,
        handle: Option<u64>,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        // The kernel names no handle for an fstat(2); any open one will do.
        let named = handle.and_then(|handle| self.handles.file(handle)).map(|file| file.inode);
        let inode = named.or_else(|| self.handles.inode(ino));
        // What the kernel reads by itself is what its attributes are to be of.
        let lent = inode.as_ref().and_then(|inode| inode.backing().cloned());
        let first = lent.as_ref().map(|backing| backing.replica);
        let open = inode.map(|inode| inode.current());
        let path = match (self.path(ino), &open) {
            (Ok(path), _) => path,
            (Err(_), Some(open)) => open.path().to_owned(),
            (Err(errno), None) => return done(Err(errno)),
        };
        let fs = Arc::clone(self);
        self.caller.call_first(
            first,
            self.spot(&path),
            move |replica, backend| match &lent {
                Some(backing) if backing.replica == replica => backing.attr(),
                _ => backend.stat(&path),
            },
            move |answer| {
                let same = |(replica, attr): &(_, Attr)| {
                    ino == ROOT || fs.inodes.lock().is_same(ino, *replica, attr)
                };
                match (answer, open) {
                    (Ok(found), _) if same(&found) => {
                        fs.learned(ino, &found.1);
                        done(Ok(Entry { ino, attr: found.1 }));
                    }
                    // Its name is gone or stands for another file: ask the open one.
                    (Ok(_) | Err(BackendError::Os(rustix::io::Errno::NOENT)), Some(open)) => {
                        fs.open_attributes(ino, open, done);
                    }
                    (Ok(_), None) => done(Err(Errno::STALE)),
                    (Err(error), _) => done(Err(error.into())),
                }
            },
        );
    }

    fn open_attributes(
        self: &Arc<Self>,
        ino: Ino,
        open: Arc<OpenFile>,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let fs = Arc::clone(self);
        self.caller.call_by_replica(
            self.spot(open.path()),
            move |replica, backend| open.held_or_on(replica, backend)?.attr(),
            move |answer| {
                done(answer.map_err(Errno::from).map(|(_, attr)| {
                    fs.learned(ino, &attr);
                    Entry { ino, attr }
                }));
            },
        );
    }

    /// The kernel is about to be told `attr` of this inode: handles that have it
    /// open read that version from now on.
    fn learned(&self, ino: Ino, attr: &Attr) {
        if attr.kind != FileKind::Regular {
            return;
        }
        let Some(open) = self.handles.inode(ino) else { return };
        let (mode, version) = (self.policy.mode, attr.version());
        let path = open.current().path().to_owned();
        let retired = {
            // Held, so that opens and this are in one order for both tables.
            let mut inodes = self.inodes.lock();
            let retired = open.adopt(version, mode, || self.reader.file(path, version, mode));
            if retired.is_some() {
                inodes.moved_on(ino);
            }
            retired
        };
        if let Some(old) = retired {
            self.reader.retire(&old);
        }
    }

    /// A symbolic link's target, verbatim.
    pub fn read_link(&self, ino: Ino, done: impl FnOnce(Answer<OsString>) + Send + 'static) {
        self.on_path(ino, |backend, path| backend.read_link(path), done);
    }

    /// One extended attribute.
    pub fn get_xattr(
        &self,
        ino: Ino,
        name: &OsStr,
        done: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        let name = name.to_owned();
        self.on_path(ino, move |backend, path| backend.get_xattr(path, &name), done);
    }

    /// Names of all extended attributes, each ended by a NUL byte.
    pub fn list_xattr(&self, ino: Ino, done: impl FnOnce(Answer<Vec<u8>>) + Send + 'static) {
        self.on_path(ino, |backend, path| backend.list_xattr(path), done);
    }

    /// Size and use of the volume: one replica's, never their sum.
    pub fn stat_fs(&self, done: impl FnOnce(Answer<StatFs>) + Send + 'static) {
        self.on_path(ROOT, |backend, _| backend.stat_fs(), done);
    }

    fn on_path<T: Send + 'static>(
        &self,
        ino: Ino,
        op: impl Fn(&dyn Backend, &Path) -> crate::backend::Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Answer<T>) + Send + 'static,
    ) {
        match self.path(ino) {
            Ok(path) => self.caller.call(
                self.spot(&path),
                move |backend| op(backend, &path),
                move |answer| {
                    done(answer.map_err(Errno::from).map(|(_, value)| value));
                },
            ),
            Err(errno) => done(Err(errno)),
        }
    }

    /// Reads a range of an open file; fewer bytes come only at its end. A small
    /// read may be carried out on the calling thread, as far as others are left
    /// to take requests.
    pub fn read(
        self: &Arc<Self>,
        handle: u64,
        range: ByteRange,
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        file.cached.read();
        file.blocks.read(range.len());
        let current = file.inode.current();
        let at_end = range.start >= current.version().size;
        if at_end && file.inode.is_due(self.policy.attribute_ttl, Instant::now()) {
            // The file may have grown since.
            let fs = Arc::clone(self);
            return self
                .attributes(file.ino, Some(handle), move |_| fs.read_now(file, range, true, done));
        }
        self.read_now(file, range, false, done);
    }

    fn read_now(
        self: &Arc<Self>,
        file: FileHandle,
        range: ByteRange,
        checked: bool,
        done: impl FnOnce(Answer<ReadData>) + Send + 'static,
    ) {
        let (fs, current) = (Arc::clone(self), file.inode.current());
        let read_handle = Arc::clone(&file.read);
        let sink = Box::new(move |answer: Result<ReadData, crate::read::ReadError>| match answer {
            Ok(data) => done(Ok(data)),
            Err(error) if error.is_another_version() && !checked => {
                // Nobody has this version any more: look what there is now.
                let again = Arc::clone(&fs);
                fs.attributes(file.ino, None, move |answer| match answer {
                    Ok(_) => again.read_now(file, range, true, done),
                    Err(errno) => done(Err(errno)),
                });
            }
            Err(error) => done(Err(error.into())),
        });
        // After a check it is some replica's thread that gets here.
        let thread = if checked { Thread::IsBusy } else { Thread::MayVisit };
        self.reader.read(&current, &read_handle, range, thread, sink);
    }

    /// The next data or hole of an open file.
    pub fn seek(
        &self,
        handle: u64,
        offset: u64,
        to: SeekTo,
        done: impl FnOnce(Answer<u64>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let current = file.inode.current();
        self.caller.call_by_replica(
            self.spot(current.path()),
            move |replica, backend| current.on(replica, backend)?.seek(offset, to),
            move |answer| done(answer.map_err(Errno::from).map(|(_, offset)| offset)),
        );
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
