//! The part of a survey that touches a replica; any call here may hang.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;

use super::ReplicaSpec;

/// Names of a root that are compared at most. The first level says whether two
/// trees are meant to be the same; it does not prove it.
const MAX_NAMES: usize = 1000;

/// The requests to a replica beyond its root's attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeOptions {
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

/// A replica's root directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// The path without symbolic links.
    pub canonical: PathBuf,
    /// The id of its mount in mountinfo (Linux 5.8).
    pub mount_id: Option<u64>,
    /// Device number, major and minor.
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
    match open_and_stat(subject, wanted) {
        Ok(directory) => ProbeResult::Directory(Box::new(directory)),
        Err(Errno::NOENT) => ProbeResult::Absent,
        Err(Errno::NOTDIR) => ProbeResult::NotADirectory,
        Err(error) => ProbeResult::Failed(std::io::Error::from(error).to_string()),
    }
}

fn open_and_stat(subject: &ReplicaSpec, wanted: ProbeOptions) -> Result<RootInfo, Errno> {
    // Opened, not only looked up: that is what triggers an automount, and what
    // reading will need the right to do.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&subject.path, flags, Mode::empty())?;
    let canonical = std::fs::canonicalize(&subject.path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, mask)?;
    let space = rustix::fs::fstatvfs(&fd)?;
    let listing = wanted.listing_until.map(|until| list(fd, until)).transpose()?;
    let shows_mount = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    Ok(RootInfo {
        canonical,
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
