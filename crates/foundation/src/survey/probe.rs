//! The part of a survey that touches a replica; any call on a directory here may hang.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;

use super::export::{ExportError, ExportRoot, open_export};
use super::{NfsExport, ReplicaLocation, ReplicaSpec};
use crate::nfs::{Caller, Identity, Kind, NfsError, Position, Version};

/// Names of a root that are compared at most. The first level says whether two
/// trees are meant to be the same; it does not prove it.
const MAX_NAMES: usize = 1000;

/// The requests to a replica beyond its root's attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeOptions {
    /// When the survey ends.
    pub(super) end: Instant,
    /// List the root, asking for sizes until then; `None`: do not.
    pub(super) listing_until: Option<Instant>,
}

/// What a replica's path answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// It is a directory that can be opened.
    Directory(Box<RootInfo>),
    /// There is nothing there.
    Absent,
    /// It, or a part of the path, is something else.
    NotADirectory,
    /// It could not be looked at; the system's words.
    Failed(String),
    /// Nothing within the limit.
    TimedOut,
}

impl ProbeResult {
    /// The state of the replica, as the JSON of `check` and `doctor` names it.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Directory(_) => "ok",
            Self::Absent => "absent",
            Self::NotADirectory => "not-a-directory",
            Self::Failed(_) => "failed",
            Self::TimedOut => "silent",
        }
    }
}

/// A replica's root directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// The path without symbolic links; of an export, its address.
    pub canonical: PathBuf,
    /// The addresses of an export's server.
    pub servers: Vec<SocketAddr>,
    /// The terms with an export's server.
    pub terms: Option<ExportTerms>,
    /// The id of its mount in mountinfo (Linux 5.8).
    pub mount_id: Option<u64>,
    /// Device number, major and minor; 0:0 of an export.
    pub dev: (u32, u32),
    /// Inode number.
    pub ino: u64,
    /// When it was last changed: seconds and nanoseconds since the epoch.
    pub ctime: (i64, u32),
    /// Type and permission bits.
    pub mode: u16,
    /// The file system's size, bytes.
    pub size: u64,
    /// What an unprivileged user may still write, bytes.
    pub free: u64,
    /// Whether it is mounted read-only.
    pub is_read_only: bool,
    /// Names in it, where they were asked for.
    pub listing: Option<RootListing>,
}

/// The terms that a client and the server of an export have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportTerms {
    /// The version of NFS.
    pub version: Version,
    /// The addresses that the client uses: one, with NFSv4.1 all that lead to the same server.
    pub addresses: Vec<SocketAddr>,
    /// The longest read of the server, bytes.
    pub max_read: u32,
}

/// The names of a root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootListing {
    /// By name, without `.` and `..`.
    pub entries: BTreeMap<OsString, RootListingEntry>,
    /// Whether that is all of them. Replicas list in different orders, so an
    /// incomplete listing is not comparable.
    pub complete: bool,
}

/// The facts about one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootListingEntry {
    /// Inode number as listed; of a directory that something is mounted on, its own.
    pub ino: u64,
    /// `None` where the file system does not tell while listing.
    pub kind: Option<EntryKind>,
    /// Of regular files, bytes; `None` where there was no time to ask.
    pub size: Option<u64>,
}

/// What a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or FIFO.
    Special,
}

impl EntryKind {
    fn from_kind(kind: Kind) -> EntryKind {
        match kind {
            Kind::Regular => EntryKind::File,
            Kind::Directory => EntryKind::Directory,
            Kind::Symlink => EntryKind::Symlink,
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => EntryKind::Special,
        }
    }

    fn from_file_type(file_type: FileType) -> Option<EntryKind> {
        match file_type {
            FileType::RegularFile => Some(EntryKind::File),
            FileType::Directory => Some(EntryKind::Directory),
            FileType::Symlink => Some(EntryKind::Symlink),
            FileType::Unknown => None,
            _ => Some(EntryKind::Special),
        }
    }
}

pub(super) fn probe(subject: &ReplicaSpec, wanted: ProbeOptions) -> ProbeResult {
    match &subject.location {
        ReplicaLocation::Directory(path) => probe_directory(path, wanted),
        ReplicaLocation::Export(export) => probe_export(export, wanted),
    }
}

fn probe_directory(path: &Path, wanted: ProbeOptions) -> ProbeResult {
    match open_and_stat(path, wanted) {
        Ok(directory) => ProbeResult::Directory(Box::new(directory)),
        Err(Errno::NOENT) => ProbeResult::Absent,
        Err(Errno::NOTDIR) => ProbeResult::NotADirectory,
        Err(error) => ProbeResult::Failed(std::io::Error::from(error).to_string()),
    }
}

fn open_and_stat(path: &Path, wanted: ProbeOptions) -> Result<RootInfo, Errno> {
    // Opened, not only looked up: that is what triggers an automount, and what
    // reading will need the right to do.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    let canonical = std::fs::canonicalize(path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, mask)?;
    let space = rustix::fs::fstatvfs(&fd)?;
    let listing = wanted.listing_until.map(|until| list(fd, until)).transpose()?;
    let shows_mount = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    Ok(RootInfo {
        canonical,
        servers: Vec::new(),
        terms: None,
        mount_id: shows_mount.then_some(stat.stx_mnt_id),
        dev: (stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        ctime: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        mode: stat.stx_mode,
        size: space.f_blocks.saturating_mul(space.f_frsize),
        free: space.f_bavail.saturating_mul(space.f_frsize),
        is_read_only: space.f_flag.contains(StatVfsMountFlags::RDONLY),
        listing,
    })
}

/// Of the time for a survey, the part that an export has to answer in: the survey then shows its
/// error.
fn export_end(end: Instant) -> Instant {
    let left = end.saturating_duration_since(Instant::now());
    end - left / 10
}

fn probe_export(export: &NfsExport, wanted: ProbeOptions) -> ProbeResult {
    let end = export_end(wanted.end);
    let found = open_export(export, end.saturating_duration_since(Instant::now()))
        .and_then(|root| Ok(describe_export(export, &root, wanted)?));
    match found {
        Ok(root) => ProbeResult::Directory(Box::new(root)),
        Err(ExportError::Root(NfsError::Rpc(crate::nfs::RpcError::Late))) => ProbeResult::TimedOut,
        Err(error) => ProbeResult::Failed(error.to_string()),
    }
}

fn describe_export(
    export: &NfsExport,
    found: &ExportRoot,
    wanted: ProbeOptions,
) -> Result<RootInfo, NfsError> {
    let identity = Identity::of_process();
    let caller = Caller { identity: &identity, deadline: export_end(wanted.end) };
    let usage = found.client.usage(caller, found.root.handle)?;
    let listing = wanted.listing_until.map(|until| list_export(found, caller, until));
    let attributes = &found.root.attributes;
    let changed = attributes.changed;
    Ok(RootInfo {
        canonical: export.address.to_string().into(),
        servers: found.addresses.clone(),
        terms: Some(ExportTerms {
            version: found.client.version(),
            addresses: found.client.addresses().to_vec(),
            max_read: found.limits.max_read,
        }),
        mount_id: None,
        dev: (0, 0),
        ino: attributes.number,
        ctime: (changed.seconds, changed.nanoseconds),
        mode: attributes.permissions,
        size: usage.bytes,
        free: usage.available_bytes,
        is_read_only: true,
        listing: listing.transpose()?,
    })
}

fn list_export(
    found: &ExportRoot,
    caller: Caller<'_>,
    until: Instant,
) -> Result<RootListing, NfsError> {
    let mut listing = RootListing::default();
    let mut position = Position::START;
    loop {
        let page = found.client.list(caller, found.root.handle, position)?;
        for entry in page.entries {
            if listing.entries.len() == MAX_NAMES {
                return Ok(listing);
            }
            let kind = entry.object.map(|object| EntryKind::from_kind(object.kind));
            let file = entry.object.filter(|_| kind == Some(EntryKind::File));
            let entry_info =
                RootListingEntry { ino: entry.number, kind, size: file.map(|file| file.size) };
            listing.entries.insert(OsString::from_vec(entry.name), entry_info);
        }
        let Some(next) = page.next else {
            listing.complete = true;
            return Ok(listing);
        };
        if Instant::now() > until {
            return Ok(listing);
        }
        position = next;
    }
}

fn list(fd: OwnedFd, until: Instant) -> Result<RootListing, Errno> {
    let mut listing = RootListing { complete: true, ..RootListing::default() };
    for entry in Dir::read_from(&fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if listing.entries.len() == MAX_NAMES || Instant::now() > until {
            listing.complete = false;
            break;
        }
        let entry = stat_listed(&fd, &entry, until);
        listing.entries.insert(OsStr::from_bytes(name.to_bytes()).to_owned(), entry);
    }
    Ok(listing)
}

fn stat_listed(dir: impl AsFd, entry: &DirEntry, until: Instant) -> RootListingEntry {
    let ino = entry.ino();
    let kind = EntryKind::from_file_type(entry.file_type());
    if !matches!(kind, None | Some(EntryKind::File)) || Instant::now() > until {
        return RootListingEntry { ino, kind, size: None };
    }
    // No automount: that a name is an unmounted automount point is its type.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(dir, entry.file_name(), flags, StatxFlags::TYPE | StatxFlags::SIZE) {
        Ok(stat) => {
            let kind = EntryKind::from_file_type(FileType::from_raw_mode(stat.stx_mode.into()));
            RootListingEntry {
                ino,
                kind,
                size: (kind == Some(EntryKind::File)).then_some(stat.stx_size),
            }
        }
        Err(_) => RootListingEntry { ino, kind, size: None },
    }
}
