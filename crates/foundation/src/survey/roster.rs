//! The checks that a replica passes before it comes into service.
//!
//! There is one way to bring a replica into service: [`RosterEntry::examine`] opens its path,
//! applies the rules below, and returns an [`AdmittedRoot`], which no other function can
//! make. Start, reload, upgrade, recovery after a kill and re-admission all use it.
//!
//! | rule | if it does not hold |
//! |---|---|
//! | the path is a directory, or the address an export; it can be opened and answers | absent, tried again |
//! | with `require_mount`: it is a mount, or on a network file system | absent, tried again |
//! | the file system is the same as at this replica's last admission | wrong configuration |
//! | in `shared` mode: the file system is that of the other replicas | wrong configuration |
//! | no other replica is the same mount | wrong configuration |
//! | the write replica of a writable volume is not read-only | wrong configuration |
//!
//! Start and reload refuse a wrong configuration as a whole
//! ([`AdmissionRefusal::is_config_error`]). At any other time it keeps that replica out of service,
//! and fanfs tries the replica again.
//!
//! *Invariant:* the first replica admitted decides which file system a `shared` volume
//! is. A successor inherits the [`RootRecord`]s, so the decision holds for all daemons of a
//! mount. The journal of a daemon that may be killed has the record of each replica before
//! that replica is in service ([`Roster::on_admission`]).

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, Mode as FileMode, OFlags, ResolveFlags, StatVfsMountFlags, StatxFlags, fstatfs,
    fstatvfs, openat, openat2, readlinkat, statx,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::export::{ExportRoot, open_export};
use super::{NfsExport, ReplicaLocation, ReplicaSpec};
use crate::mount_table::MountTable;
use crate::volume::{ReplicaId, ReplicaMap, VolumeMode};

/// What `FANFS_LOG` and JSON log lines call this module, whichever crate it is in.
const LOG_TARGET: &str = "fanfs::survey::roster";

/// How long a server may take to show an export.
const EXPORT_LIMIT: Duration = Duration::from_secs(5);

/// `NFS_SUPER_MAGIC` of statfs(2).
const NFS_MAGIC: u64 = 0x6969;

/// Identity of a replica's root at its admission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootRecord {
    /// Device number, major and minor; 0:0 of an export.
    pub dev: (u32, u32),
    /// Inode number of the root directory.
    pub ino: u64,
    /// Id of its mount; `None` before Linux 5.8, and of an export. The id is the same for all
    /// processes of the mount namespace.
    pub mount: Option<u64>,
    /// `f_type` of statfs(2).
    magic: u64,
    /// `f_fsid` of statvfs(3): from the UUID on most local file systems, 0 on NFS.
    id: u64,
    /// Source and root of the mount, or the address of an export; `None` where the mount table lacks
    /// the mount.
    source: Option<(OsString, OsString)>,
    /// Whether the mount table shows a network file system.
    is_network: bool,
    /// The path without symbolic links; of an export, its address.
    canonical: OsString,
}

impl RootRecord {
    /// Whether it is an NFS mount or an export.
    pub fn is_nfs(&self) -> bool {
        self.magic == NFS_MAGIC
    }

    /// Whether the mount table has its mount.
    pub fn is_in_mount_table(&self) -> bool {
        self.mount.is_some() && self.source.is_some()
    }

    /// Whether it is the same file system, mounted again.
    fn is_same_file_system(&self, other: &Self) -> bool {
        let is_from_there = match self.id != 0 && other.id != 0 {
            true => self.id == other.id,
            false => self.source == other.source,
        };
        self.ino == other.ino && self.magic == other.magic && is_from_there
    }

    /// Whether both can be replicas of one `shared` volume. The inode number comes from
    /// the server. The device number comes from this machine: two network mounts of one
    /// export have different ones, so it decides between local file systems only.
    fn is_shared_volume_with(&self, other: &Self) -> bool {
        let are_local = !self.is_network && !other.is_network;
        self.ino == other.ino && !(are_local && self.dev != other.dev)
    }
}

/// A replica's root that passed all checks. Only [`RosterEntry::examine`] makes one.
pub struct AdmittedRoot {
    root: OpenRoot,
    record: RootRecord,
}

/// A replica's root, in the form in which it is read.
pub enum OpenRoot {
    /// A directory, opened with `O_PATH`.
    Directory(OwnedFd),
    /// An export, with a client for its server.
    Export(Box<ExportRoot>),
}

impl AdmittedRoot {
    /// The root and its record.
    pub fn into_parts(self) -> (OpenRoot, RootRecord) {
        (self.root, self.record)
    }
}

/// Why a replica stays out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionRefusal {
    /// Its path cannot be opened, or does not answer.
    Unreachable(Errno),
    /// Its export cannot be opened: the errno, and the reason.
    NoExport(Errno, String),
    /// `require_mount` is set, and the path is not mounted.
    NotMounted,
    /// The file system differs from that of the last admission.
    FileSystemChanged,
    /// The file system differs from that of the named replica.
    OtherFileSystem(String),
    /// The named replica is the same mount.
    SameMount(String),
    /// The write replica is mounted read-only.
    ReadOnly,
}

/// The replicas of a volume, each with its record and its refusal.
pub struct Roster {
    replicas: Vec<ReplicaSpec>,
    mode: VolumeMode,
    /// The replica that must be writable.
    write_replica: Option<ReplicaId>,
    state: Mutex<ReplicaMap<AdmissionState>>,
    /// See [`Roster::on_admission`].
    on_admission: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct AdmissionState {
    /// From the last admission, by this daemon or its predecessor.
    record: Option<RootRecord>,
    /// Why it is out of service; `None` in service and before the first look.
    refusal: Option<RefusalReason>,
    was_examined: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RefusalReason {
    text: String,
    /// See [`AdmissionRefusal::is_config_error`].
    is_config_error: bool,
}

/// One replica's place in a roster.
#[derive(Clone)]
pub struct RosterEntry {
    roster: Arc<Roster>,
    id: ReplicaId,
}

impl Roster {
    /// The replicas of a volume, not examined yet. `writer` is the write replica of a
    /// writable volume.
    pub fn new(
        subjects: Vec<ReplicaSpec>,
        mode: VolumeMode,
        writer: Option<ReplicaId>,
    ) -> Arc<Self> {
        let state = Mutex::new(ReplicaMap::from_fn(subjects.len(), |_| AdmissionState::default()));
        Arc::new(Self {
            replicas: subjects,
            mode,
            write_replica: writer,
            state,
            on_admission: OnceLock::new(),
        })
    }

    /// A directory that is compared with no other replica, for tools and tests.
    pub fn single(path: &Path) -> RosterEntry {
        let name = path.display().to_string();
        // A daemon changes its working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let subject = ReplicaSpec { name, location: path.into(), require_mount: false };
        Self::single_entry(subject)
    }

    /// A replica that is compared with no other.
    pub fn single_entry(spec: ReplicaSpec) -> RosterEntry {
        let roster = Self::new(vec![spec], VolumeMode::Copies, None);
        RosterEntry { roster, id: ReplicaId::new(0) }
    }

    /// One replica's place.
    pub fn entry(self: &Arc<Self>, id: ReplicaId) -> RosterEntry {
        RosterEntry { roster: Arc::clone(self), id }
    }

    /// Takes over a replica's record from the predecessor.
    pub fn inherit(&self, id: ReplicaId, record: RootRecord) {
        self.state.lock()[id].record = Some(record);
    }

    /// A replica's record, for the successor.
    pub fn record(&self, id: ReplicaId) -> Option<RootRecord> {
        self.state.lock()[id].record.clone()
    }

    /// Calls `note` now, and then after each admission, before the replica is in service.
    /// Call this once: the first `note` stays.
    pub fn on_admission(&self, note: impl Fn() + Send + Sync + 'static) {
        // It is called now because a replica may have been admitted just before.
        self.on_admission.get_or_init(|| Box::new(note))();
    }

    /// Why a replica was out of service at its last examination.
    pub fn refusal(&self, id: ReplicaId) -> Option<String> {
        self.state.lock()[id].refusal.as_ref().map(|why| why.text.clone())
    }

    /// The same, if the reason is a wrong configuration.
    pub fn config_refusal(&self, id: ReplicaId) -> Option<String> {
        let state = self.state.lock();
        state[id].refusal.as_ref().filter(|why| why.is_config_error).map(|why| why.text.clone())
    }

    /// The replica as configured.
    pub fn spec(&self, id: ReplicaId) -> &ReplicaSpec {
        &self.replicas[id.index()]
    }

    fn check_rules(
        &self,
        state: &ReplicaMap<AdmissionState>,
        id: ReplicaId,
        seen: &OpenedRoot,
    ) -> Result<(), AdmissionRefusal> {
        let subject = self.spec(id);
        if subject.require_mount && !seen.is_mounted {
            return Err(AdmissionRefusal::NotMounted);
        }
        let record = &seen.record;
        if state[id].record.as_ref().is_some_and(|before| !record.is_same_file_system(before)) {
            return Err(AdmissionRefusal::FileSystemChanged);
        }
        let others = state.iter().filter(|(other, _)| *other != id);
        for (other, known) in others.filter_map(|(id, state)| Some((id, state.record.as_ref()?))) {
            let name = || self.spec(other).name.clone();
            if self.mode == VolumeMode::Shared && !record.is_shared_volume_with(known) {
                return Err(AdmissionRefusal::OtherFileSystem(name()));
            }
            let are_mounts = subject.require_mount && self.spec(other).require_mount;
            if are_mounts && record.mount == known.mount && record.canonical == known.canonical {
                return Err(AdmissionRefusal::SameMount(name()));
            }
        }
        if self.write_replica == Some(id) && seen.is_read_only {
            return Err(AdmissionRefusal::ReadOnly);
        }
        Ok(())
    }
}

impl RosterEntry {
    /// Where the replica is.
    pub fn location(&self) -> &ReplicaLocation {
        &self.roster.spec(self.id).location
    }

    /// Its record from the last admission, by this daemon or its predecessor.
    pub fn record(&self) -> Option<RootRecord> {
        self.roster.record(self.id)
    }

    /// Examines the replica and admits it. Blocks as long as the replica does.
    ///
    /// # Errors
    /// Why the replica stays out of service.
    pub fn examine(&self) -> Result<AdmittedRoot, AdmissionRefusal> {
        let looked = match self.location() {
            ReplicaLocation::Directory(path) => {
                open_directory(path).map_err(AdmissionRefusal::Unreachable)
            }
            ReplicaLocation::Export(export) => open_export_root(export),
        };
        // One lock for the decision and its record: of two replicas that differ, the
        // first one admitted decides.
        let mut state = self.roster.state.lock();
        let judged =
            looked.and_then(|seen| self.roster.check_rules(&state, self.id, &seen).map(|()| seen));
        let own = &mut state[self.id];
        let refusal = judged.as_ref().err();
        let refusal = refusal.map(|why| RefusalReason {
            text: why.text(self),
            is_config_error: why.is_config_error(),
        });
        // The caller reports the first result, as it examines all replicas.
        let is_new = own.refusal != refusal && own.was_examined;
        own.was_examined = true;
        let before = std::mem::replace(&mut own.refusal, refusal);
        if let Ok(seen) = &judged {
            own.record = Some(seen.record.clone());
        }
        drop(state);
        let replica = &self.roster.spec(self.id).name;
        match &judged {
            Err(why) if is_new => {
                tracing::warn!(target: LOG_TARGET, "{}; it stays out of service", why.text(self));
            }
            Ok(_) if before.is_some() => {
                tracing::info!(target: LOG_TARGET, %replica, "the replica joins the volume");
            }
            _ => {}
        }
        let OpenedRoot { root, record, .. } = judged?;
        if let Some(note) = self.roster.on_admission.get() {
            note();
        }
        Ok(AdmittedRoot { root, record })
    }
}

impl AdmissionRefusal {
    /// Whether the configuration is wrong, rather than the replica unhealthy.
    pub fn is_config_error(&self) -> bool {
        match self {
            // The survey has refused paths that can never be right.
            Self::Unreachable(_) | Self::NoExport(..) | Self::NotMounted => false,
            Self::FileSystemChanged
            | Self::OtherFileSystem(_)
            | Self::SameMount(_)
            | Self::ReadOnly => true,
        }
    }

    fn text(&self, seat: &RosterEntry) -> String {
        let subject = seat.roster.spec(seat.id);
        let replica = subject.label();
        match self {
            Self::Unreachable(Errno::NOENT) => absent_text(subject),
            Self::Unreachable(Errno::NOTDIR) => not_a_directory_text(subject),
            Self::Unreachable(errno) => {
                format!("{replica} cannot be opened: {}", std::io::Error::from(*errno))
            }
            Self::NoExport(_, why) => format!("{replica} cannot be opened: {why}"),
            Self::NotMounted => not_mounted_text(subject),
            Self::FileSystemChanged => format!(
                "{replica} has a different file system than before; mount the previous file system \
                 there, or unmount the volume and mount it again"
            ),
            Self::OtherFileSystem(other) => format!(
                "{replica} is not on the same file system as replica {other}; mount the same \
                 export at both, or set mode = \"copies\" if they are independent copies"
            ),
            Self::SameMount(other) => same_mount_text(&subject.name, other),
            Self::ReadOnly => read_only_text(subject),
        }
    }
}

pub(super) fn absent_text(subject: &ReplicaSpec) -> String {
    format!("{} does not exist; create the directory and mount it there", subject.label())
}

pub(super) fn not_a_directory_text(subject: &ReplicaSpec) -> String {
    format!("{} is not a directory; set `path` to its mount point", subject.label())
}

pub(super) fn not_mounted_text(subject: &ReplicaSpec) -> String {
    format!(
        "{} is not a mount point and not on a network file system; mount it: `mount {}`",
        subject.label(),
        subject.location
    )
}

pub(super) fn same_mount_text(one: &str, other: &str) -> String {
    format!("replicas {one} and {other} are the same mount; remove one of them")
}

pub(super) fn read_only_text(subject: &ReplicaSpec) -> String {
    format!(
        "{} is the write replica, but it is mounted read-only; mount it read-write: \
         `mount -o remount,rw {}`",
        subject.label(),
        subject.location
    )
}

/// A replica's root, before the checks.
struct OpenedRoot {
    root: OpenRoot,
    record: RootRecord,
    is_mounted: bool,
    is_read_only: bool,
}

fn open_export_root(export: &NfsExport) -> Result<OpenedRoot, AdmissionRefusal> {
    let root = open_export(export, EXPORT_LIMIT)
        .map_err(|error| AdmissionRefusal::NoExport(error.errno(), error.to_string()))?;
    let address = OsString::from(export.address.to_string());
    let record = RootRecord {
        dev: (0, 0),
        ino: root.root.attributes.number,
        mount: None,
        magic: NFS_MAGIC,
        // Gateways of one cluster may number its file systems differently.
        id: 0,
        source: Some((address.clone(), "/".into())),
        is_network: true,
        canonical: address,
    };
    let root = OpenRoot::Export(Box::new(root));
    Ok(OpenedRoot { root, record, is_mounted: true, is_read_only: true })
}

/// Any call here may hang.
fn open_directory(path: &Path) -> Result<OpenedRoot, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, FileMode::empty())?;
    // The kernel's cache does not prove that the server answers, so open the root. Reading
    // needs the right to do so anyway.
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
    // The table lacks a mount whose root this process cannot reach, and a mount that has
    // just gone. In the second case the path leads to another mount.
    if let (Some(id), None) = (id, mount) {
        let now = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
        if now.stx_mnt_id != id {
            return Err(Errno::STALE);
        }
    }
    let source = mount.map(|mount| (mount.source.clone(), mount.root.clone().into_os_string()));
    let record = RootRecord {
        dev: (stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        mount: id,
        magic,
        id: space.f_fsid,
        source: id.and(source),
        is_network: mount.is_some_and(|mount| mount.is_network()),
        canonical: canonical.clone().into_os_string(),
    };
    let is_mounted = mount.is_some_and(|mount| mount.is_mounted_replica_at(&canonical));
    let is_read_only = space.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(OpenedRoot { root: OpenRoot::Directory(root), record, is_mounted, is_read_only })
}
