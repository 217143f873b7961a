//! Which replicas may be in service, and what must hold among them.
//!
//! There is one way to bring a replica into service: [`Seat::examine`] opens its path,
//! compares what is there with the rules below, and gives out an [`Admitted`], which
//! nothing else can make. Start, reload, upgrade, recovery after a kill and
//! re-admission all go through it.
//!
//! | rule | where it does not hold |
//! |---|---|
//! | the path is a directory that can be opened and answers | absent, tried again |
//! | with `require_mount` it is a mount, or on a network file system | absent, tried again |
//! | the file system is the one that this replica had before, in this daemon or in the one before it | absent, tried again |
//! | in `shared` mode it is the file system of the other replicas | a wrong configuration |
//! | no other replica is the same mount | a wrong configuration |
//! | the write replica of a volume that can be written is not mounted read-only | a wrong configuration |
//!
//! A wrong configuration that is seen while a volume starts or reloads is refused as a
//! whole ([`super::Finding::refuses`]); seen later it keeps that replica out.
//!
//! *Invariant:* the first replica that is admitted decides which file system a `shared`
//! volume is; a successor gets the [`Record`]s, so that it decides for all daemons of
//! one mount.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, Mode as FileMode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags, fstatfs,
    fstatvfs, openat, openat2, readlinkat, statx,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Subject;
use crate::volume::mounts::MountTable;
use crate::volume::{Mode, ReplicaId, ReplicaMap};

/// `NFS_SUPER_MAGIC` of statfs(2).
const NFS_MAGIC: u64 = 0x6969;

/// What a replica's root was when it was admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Device number, major and minor.
    pub dev: (u32, u32),
    /// Inode number of the root directory.
    pub ino: u64,
    /// The mount that it lies in; `None` before Linux 5.8. Another process in the same
    /// mount namespace sees the same number.
    pub mount: Option<u64>,
    /// `f_type` of statfs(2).
    magic: u64,
    /// `f_fsid` of statvfs(3): made from the UUID on most local file systems, 0 on NFS.
    id: u64,
    /// Source and root of the mount; `None` where the mount table does not have it.
    source: Option<(OsString, OsString)>,
    /// Whether the mount table says that the data is behind a network.
    is_network: bool,
    /// The path without symbolic links.
    canonical: OsString,
}

impl Record {
    /// Whether it is an NFS mount.
    pub fn is_nfs(&self) -> bool {
        self.magic == NFS_MAGIC
    }

    /// Whether the mount table has its mount.
    pub fn is_in_table(&self) -> bool {
        self.source.is_some()
    }

    /// Whether it is the same file system, mounted again.
    fn is_same(&self, other: &Self) -> bool {
        let is_from_there = match self.id != 0 && other.id != 0 {
            true => self.id == other.id,
            false => self.source == other.source,
        };
        self.ino == other.ino && self.magic == other.magic && is_from_there
    }

    /// Whether both can be replicas of one `shared` volume. The inode number is the
    /// server's. The device number is this machine's, and differs between two network
    /// mounts of one export; between local file systems it is the better witness.
    fn is_one_with(&self, other: &Self) -> bool {
        let are_local = !self.is_network && !other.is_network;
        self.ino == other.ino && !(are_local && self.dev != other.dev)
    }
}

/// A replica's root that passed all checks. Only [`Seat::examine`] makes one.
#[derive(Debug)]
pub struct Admitted {
    root: OwnedFd,
    record: Record,
}

impl Admitted {
    /// The root, opened with `O_PATH`, and its record.
    pub fn into_parts(self) -> (OwnedFd, Record) {
        (self.root, self.record)
    }
}

/// Why a replica is not brought into service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its path cannot be opened, or does not answer.
    Unreachable(Errno),
    /// `require_mount`, and no mount is there.
    NotMounted,
    /// Another file system is there than before.
    Changed,
    /// Another file system than that of this replica.
    OtherFileSystem(String),
    /// This replica is the same mount.
    Twice(String),
    /// The write replica is mounted read-only.
    ReadOnly,
}

/// The replicas of a volume, and what is known of each.
#[derive(Debug)]
pub struct Roster {
    subjects: Vec<Subject>,
    mode: Mode,
    /// The replica that must be writable.
    writer: Option<ReplicaId>,
    state: Mutex<ReplicaMap<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// What it was when it was admitted last, by this daemon or the one before.
    record: Option<Record>,
    /// Why it is out of service; `None` while it is in, or before it was looked at.
    refusal: Option<Why>,
    was_looked_at: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Why {
    text: String,
    /// See [`Refusal::refuses`].
    refuses: bool,
}

/// One replica's place in a roster.
#[derive(Clone, Debug)]
pub struct Seat {
    roster: Arc<Roster>,
    id: ReplicaId,
}

impl Roster {
    /// The replicas of a volume, none of them looked at. `writer` is the write replica of
    /// a volume that can be written.
    pub fn new(subjects: Vec<Subject>, mode: Mode, writer: Option<ReplicaId>) -> Arc<Self> {
        let state = Mutex::new(ReplicaMap::from_fn(subjects.len(), |_| State::default()));
        Arc::new(Self { subjects, mode, writer, state })
    }

    /// A replica that has nothing to agree with: a tool's, a test's.
    pub fn of_one(path: &Path) -> Seat {
        let name = path.display().to_string();
        // A daemon changes its working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let subject = Subject { name, path, require_mount: false };
        let roster = Self::new(vec![subject], Mode::Copies, None);
        Seat { roster, id: ReplicaId::new(0) }
    }

    /// One replica's place.
    pub fn seat(self: &Arc<Self>, id: ReplicaId) -> Seat {
        Seat { roster: Arc::clone(self), id }
    }

    /// What the daemon before knew of a replica.
    pub fn inherit(&self, id: ReplicaId, record: Record) {
        self.state.lock()[id].record = Some(record);
    }

    /// What is known of a replica, for the next daemon.
    pub fn record(&self, id: ReplicaId) -> Option<Record> {
        self.state.lock()[id].record.clone()
    }

    /// Why a replica is out of service, as of the last look at it.
    pub fn refusal(&self, id: ReplicaId) -> Option<String> {
        self.state.lock()[id].refusal.as_ref().map(|why| why.text.clone())
    }

    /// The same, where that is a wrong configuration.
    pub fn refused(&self, id: ReplicaId) -> Option<String> {
        let state = self.state.lock();
        state[id].refusal.as_ref().filter(|why| why.refuses).map(|why| why.text.clone())
    }

    /// The replica as configured.
    pub fn subject(&self, id: ReplicaId) -> &Subject {
        &self.subjects[id.index()]
    }

    fn judge(&self, state: &ReplicaMap<State>, id: ReplicaId, seen: &Seen) -> Result<(), Refusal> {
        let subject = self.subject(id);
        if subject.require_mount && !seen.is_mounted {
            return Err(Refusal::NotMounted);
        }
        let record = &seen.record;
        if state[id].record.as_ref().is_some_and(|before| !record.is_same(before)) {
            return Err(Refusal::Changed);
        }
        let others = state.iter().filter(|(other, _)| *other != id);
        for (other, known) in others.filter_map(|(id, state)| Some((id, state.record.as_ref()?))) {
            let name = || self.subject(other).name.clone();
            if self.mode == Mode::Shared && !record.is_one_with(known) {
                return Err(Refusal::OtherFileSystem(name()));
            }
            let are_mounts = subject.require_mount && self.subject(other).require_mount;
            if are_mounts && record.mount == known.mount && record.canonical == known.canonical {
                return Err(Refusal::Twice(name()));
            }
        }
        if self.writer == Some(id) && seen.is_read_only {
            return Err(Refusal::ReadOnly);
        }
        Ok(())
    }
}

impl Seat {
    /// Where the replica is.
    pub fn path(&self) -> &Path {
        &self.roster.subject(self.id).path
    }

    /// What it was when it was admitted last, by this daemon or the one before.
    pub fn record(&self) -> Option<Record> {
        self.roster.record(self.id)
    }

    /// Looks at the replica and admits it. Blocks for as long as the replica does.
    ///
    /// # Errors
    /// Why it stays out of service.
    pub fn examine(&self) -> Result<Admitted, Refusal> {
        let looked = look(self.path()).map_err(Refusal::Unreachable);
        // Judged and noted under one lock: of two that are unlike the first one counts.
        let mut state = self.roster.state.lock();
        let judged =
            looked.and_then(|seen| self.roster.judge(&state, self.id, &seen).map(|()| seen));
        let own = &mut state[self.id];
        let refusal = judged.as_ref().err();
        let refusal = refusal.map(|why| Why { text: why.text(self), refuses: why.refuses() });
        // What comes of the first look is said by the caller, who looks at all of them.
        let is_new = own.refusal != refusal && own.was_looked_at;
        own.was_looked_at = true;
        let before = std::mem::replace(&mut own.refusal, refusal);
        if let Ok(seen) = &judged {
            own.record = Some(seen.record.clone());
        }
        drop(state);
        let replica = &self.roster.subject(self.id).name;
        match &judged {
            Err(why) if is_new => tracing::warn!("{}; it stays out of service", why.text(self)),
            Ok(_) if before.is_some() => tracing::info!(%replica, "it is there and joins"),
            _ => {}
        }
        let Seen { root, record, .. } = judged?;
        Ok(Admitted { root, record })
    }
}

impl Refusal {
    /// Whether the configuration is wrong, rather than the replica not well.
    pub fn refuses(&self) -> bool {
        match self {
            // A path that can never be right was refused by the survey before.
            Self::Unreachable(_) | Self::NotMounted => false,
            Self::Changed | Self::OtherFileSystem(_) | Self::Twice(_) | Self::ReadOnly => true,
        }
    }

    fn text(&self, seat: &Seat) -> String {
        let subject = seat.roster.subject(seat.id);
        let (name, path) = (&subject.name, subject.path.display());
        match self {
            Self::Unreachable(Errno::NOENT) => format!("{name}: {path} does not exist"),
            Self::Unreachable(Errno::NOTDIR) => format!("{name}: {path} is not a directory"),
            Self::Unreachable(errno) => {
                format!("{name}: {path} cannot be opened: {}", std::io::Error::from(*errno))
            }
            Self::NotMounted => not_mounted(subject),
            Self::Changed => format!(
                "{name}: {path} is another file system than it was; mount the one that was there, \
                 or unmount the volume and mount it again"
            ),
            Self::OtherFileSystem(other) => {
                format!("{name}: {path} is not the same file system as {other}'s")
            }
            Self::Twice(other) => twice(name, other),
            Self::ReadOnly => read_only(subject),
        }
    }
}

pub(super) fn not_mounted(subject: &Subject) -> String {
    let (name, path) = (&subject.name, subject.path.display());
    format!("{name}: {path} is not a mount, nor on a network file system; mount it: `mount {path}`")
}

pub(super) fn twice(one: &str, other: &str) -> String {
    format!("{one} and {other} are the same mount, listed twice; remove one of them")
}

pub(super) fn read_only(subject: &Subject) -> String {
    let (name, path) = (&subject.name, subject.path.display());
    format!(
        "{name}: {path} is mounted read-only, and changes go to it; mount it read-write: \
         `mount -o remount,rw {path}`"
    )
}

/// What is at a replica's path.
struct Seen {
    root: OwnedFd,
    record: Record,
    is_mounted: bool,
    is_read_only: bool,
}

/// Any call here may hang.
fn look(path: &Path) -> Result<Seen, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, FileMode::empty())?;
    // What the kernel remembers of it is no proof that its server answers; and this is
    // what reading will need the right to do.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(&root, c".", flags, FileMode::empty(), ResolveFlags::BENEATH)?;
    let asked = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = statx(&root, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC, asked)?;
    let magic = fstatfs(&root)?.f_type as u64;
    let space = fstatvfs(&root)?;
    let canonical = readlinkat(CWD, format!("/proc/self/fd/{}", root.as_raw_fd()), Vec::new())?;
    let canonical = PathBuf::from(OsString::from_vec(canonical.into_bytes()));
    let has_mount = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    let id = has_mount.then_some(stat.stx_mnt_id);
    let table = MountTable::read().unwrap_or_default();
    let mount = match id {
        Some(id) => table.by_id(id),
        None => table.containing(&canonical),
    };
    // A mount is not in the table where its root is out of this process's reach, or where
    // it has gone just now: then its path leads to another one.
    if let (Some(id), None) = (id, mount) {
        let now = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
        if now.stx_mnt_id != id {
            return Err(Errno::STALE);
        }
    }
    let source = mount.map(|mount| (mount.source.clone(), mount.root.clone().into_os_string()));
    let record = Record {
        dev: (stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        mount: id,
        magic,
        id: space.f_fsid,
        source: id.and(source),
        is_network: mount.is_some_and(|mount| mount.is_network()),
        canonical: canonical.clone().into_os_string(),
    };
    let is_mounted = mount.is_some_and(|mount| mount.is_replica_at(&canonical));
    let is_read_only = space.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(Seen { root, record, is_mounted, is_read_only })
}
