//! The kernel's mount table: what a path is mounted from.
//!
//! In go the bytes of `/proc/self/mountinfo` (proc_pid_mountinfo(5)) and of
//! `/proc/self/mountstats`; out come [`Mount`]s and, for NFS, an [`NfsMount`]
//! with the connections it uses. Neither file makes the kernel ask a server, so
//! reading them is safe beside a hung mount; statfs(2) on each path is not, and
//! says neither the source nor the options.
//!
//! Parsing is pure and takes bytes: mount points need not be UTF-8, and blanks
//! and backslashes come as octal escapes.
//!
//! *Invariant:* [`MountTable::containing`] answers as a path walk would; a mount
//! that is covered by a later one is never returned.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub mod fanfs_mounts;
mod nfs;
pub mod option_rules;
mod stats;

pub use nfs::{AttributeCacheTimes, NfsMount, NfsVersion, Recovery, Transport};
pub use stats::{CallStats, NfsStats, QueueStats};

/// File systems whose data is behind a network, or may be, by the names the
/// kernel registers. `fuse` and `fuse.*` are handled beside it: whether a FUSE
/// daemon asks a network cannot be seen, and most that hold replicas do.
const NETWORK_TYPES: &[&str] = &[
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
];

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id; reused by the kernel after an unmount.
    pub id: u64,
    /// The mount that this one is attached to. The root's is not in the table.
    pub parent: u64,
    /// Device number, major and minor, of the files in it. btrfs files show another.
    pub dev: (u32, u32),
    /// The directory of the file system that is its root: not `/` for a bind mount.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Comma-separated options of the mount, without those of the file system: `ro`, `nosuid`.
    pub options: OsString,
    /// With its subtype: `nfs4`, `fuse.sshfs`.
    pub fs_type: String,
    /// The device, or `SERVER:/path`; the file system decides what stands here.
    pub source: OsString,
    /// Comma-separated options of the file system, without those of the mount.
    pub super_options: OsString,
}

impl Mount {
    /// Whether its data is behind a network, as far as the type tells.
    pub fn is_network(&self) -> bool {
        let fs_type = self.fs_type.as_str();
        fs_type == "fuse" || fs_type.starts_with("fuse.") || NETWORK_TYPES.contains(&fs_type)
    }

    /// The value of option `key`; "" for an option without one.
    pub fn option(&self, key: &str) -> Option<&OsStr> {
        self.super_options.as_bytes().split(|b| *b == b',').find_map(|option| {
            match option.strip_prefix(key.as_bytes())? {
                [] => Some(OsStr::new("")),
                [b'=', value @ ..] => Some(OsStr::from_bytes(value)),
                _ => None,
            }
        })
    }

    /// Whether a replica at the canonical `path`, which lies in this mount,
    /// counts as mounted; see [`is_mounted_replica`].
    pub fn is_mounted_replica_at(&self, path: &Path) -> bool {
        self.mount_point == path || self.is_network()
    }

    fn parse(line: &[u8]) -> Option<Mount> {
        // Split at single blanks: an empty source leaves an empty field.
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        // Six fields, then any number of optional ones up to a lone hyphen.
        let hyphen = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
        let &[fs_type, source, super_options] = fields.get(hyphen + 1..hyphen + 4)? else {
            return None;
        };
        let (major, minor) = utf8(fields[2])?.split_once(':')?;
        Some(Mount {
            id: parse_number(fields[0])?,
            parent: parse_number(fields[1])?,
            dev: (major.parse().ok()?, minor.parse().ok()?),
            root: unescape(fields[3]).into(),
            mount_point: unescape(fields[4]).into(),
            options: unescape(fields[5]),
            fs_type: unescape(fs_type).to_string_lossy().into_owned(),
            source: unescape(source),
            super_options: unescape(super_options),
        })
    }
}

/// All mounts that this process sees, in the order in which they were mounted.
#[derive(Clone, Debug, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
    transports: Vec<nfs::MountTransports>,
}

impl MountTable {
    /// The table of this process's mount namespace.
    ///
    /// # Errors
    /// Where `/proc/self/mountinfo` cannot be read. mountstats is optional: it
    /// is readable by the process's owner only, which a set-id program is not.
    pub fn read() -> io::Result<MountTable> {
        let table = MountTable::parse(&std::fs::read("/proc/self/mountinfo")?);
        Ok(match std::fs::read("/proc/self/mountstats") {
            Ok(stats) => table.with_stats(&stats),
            Err(_) => table,
        })
    }

    /// Reads the format of `/proc/self/mountinfo`. A line that does not have it
    /// is left out: one odd mount must not make all others unknown.
    pub fn parse(mountinfo: &[u8]) -> MountTable {
        let mounts = mountinfo.split(|b| *b == b'\n').filter_map(Mount::parse).collect();
        MountTable { mounts, transports: Vec::new() }
    }

    /// Adds what `/proc/self/mountstats` says about the mounts' connections.
    #[must_use]
    pub fn with_stats(mut self, mountstats: &[u8]) -> MountTable {
        self.transports = nfs::parse_mountstats(mountstats);
        self
    }

    /// The mount with that id.
    pub fn by_id(&self, id: u64) -> Option<&Mount> {
        self.mounts.iter().find(|mount| mount.id == id)
    }

    /// All of them, in the order in which they were mounted, those that are covered by
    /// others as well.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// What is mounted at the canonical, absolute `path`, on top of all else there.
    pub fn top_mount_at(&self, path: &Path) -> Option<&Mount> {
        self.containing(path).filter(|mount| mount.mount_point == path)
    }

    /// The mount that the canonical, absolute `path` lies in.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        // The longest matching mount point alone is not enough: /a/b is still
        // listed after /a was mounted over it. So go down as a path walk does,
        // from each mount to the first child on the way.
        let mut found: Option<&Mount> = None;
        for _ in 0..self.mounts.len() {
            match self.next_on_path(found, path) {
                Some(next) => found = Some(next),
                None => break,
            }
        }
        found
    }

    fn next_on_path(&self, from: Option<&Mount>, path: &Path) -> Option<&Mount> {
        self.mounts
            .iter()
            .rev()
            .filter(|mount| match from {
                Some(from) => mount.parent == from.id && mount.id != from.id,
                None => mount.parent == mount.id || self.by_id(mount.parent).is_none(),
            })
            .filter(|mount| path.starts_with(&mount.mount_point))
            .min_by_key(|mount| mount.mount_point.components().count())
    }

    /// What the tables say about an NFS mount; `None` for other types.
    pub fn nfs(&self, mount: &Mount) -> Option<NfsMount> {
        NfsMount::new(mount, &self.transports)
    }
}

/// Whether the canonical `path` is itself a mount point or lies beneath a
/// network file system's mount. An unmounted directory is neither, unless the
/// directory it stands in for is on the network itself.
pub fn is_mounted_replica(table: &MountTable, path: &Path) -> bool {
    table.containing(path).is_some_and(|mount| mount.is_mounted_replica_at(path))
}

/// Undoes the kernel's `seq_escape`: `\ooo`, three octal digits, is one byte.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

fn utf8(field: &[u8]) -> Option<&str> {
    std::str::from_utf8(field).ok()
}

fn parse_number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    utf8(field)?.parse().ok()
}

#[cfg(test)]
mod tests;
