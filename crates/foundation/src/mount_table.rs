//! The kernel's mount table: the mount that a path lies in.
//!
//! The input is the bytes of `/proc/self/mountinfo` (proc_pid_mountinfo(5)) and of
//! `/proc/self/mountstats`. The output is [`Mount`]s and, for NFS, an [`NfsMount`] with its
//! connections. The kernel asks no server for either file, so reading them is safe beside a hung
//! mount. statfs(2) on each path is not safe, and returns neither source nor options.
//!
//! Parsing is pure and takes bytes: mount points need not be UTF-8, and blanks and backslashes come
//! as octal escapes.
//!
//! *Invariant:* [`MountTable::containing`] returns the mount that a path walk would reach, never
//! one that a later mount covers.

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

/// File systems whose data is, or may be, behind a network, by their names in the kernel. The code
/// handles `fuse` and `fuse.*` separately: the kernel does not show whether a FUSE daemon uses a
/// network, and most FUSE file systems with replicas do.
const NETWORK_TYPES: &[&str] = &[
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
];

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id. The kernel reuses it after an unmount.
    pub id: u64,
    /// The mount that this one is attached to. The root's is not in the table.
    pub parent: u64,
    /// Device number, major and minor, of its files. Files of btrfs show another one.
    pub dev: (u32, u32),
    /// The directory of the file system that is the mount's root; not `/` for a bind mount.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Comma-separated options of the mount, without those of the file system: `ro`, `nosuid`.
    pub options: OsString,
    /// The type with its subtype: `nfs4`, `fuse.sshfs`.
    pub fs_type: String,
    /// The device, or `SERVER:/path`; the format depends on the file system.
    pub source: OsString,
    /// Comma-separated options of the file system, without those of the mount.
    pub super_options: OsString,
}

impl Mount {
    /// Whether its data is behind a network, judged by the type.
    pub fn is_network(&self) -> bool {
        let fs_type = self.fs_type.as_str();
        fs_type == "fuse" || fs_type.starts_with("fuse.") || NETWORK_TYPES.contains(&fs_type)
    }

    /// The value of option `key`; "" for an option without a value.
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
        // Six fields, then any number of optional ones up to a single hyphen.
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

/// All mounts that this process sees, in mount order.
#[derive(Clone, Debug, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
    transports: Vec<nfs::MountTransports>,
}

impl MountTable {
    /// The table of this process's mount namespace.
    ///
    /// # Errors
    /// If `/proc/self/mountinfo` cannot be read. mountstats is optional: only the process's owner
    /// may read it, and a set-id program is not the owner.
    pub fn read() -> io::Result<MountTable> {
        let table = MountTable::parse(&std::fs::read("/proc/self/mountinfo")?);
        Ok(match std::fs::read("/proc/self/mountstats") {
            Ok(stats) => table.with_stats(&stats),
            Err(_) => table,
        })
    }

    /// Parses `/proc/self/mountinfo`. It skips malformed lines, so one strange mount does not hide
    /// the others.
    pub fn parse(mountinfo: &[u8]) -> MountTable {
        let mounts = mountinfo.split(|b| *b == b'\n').filter_map(Mount::parse).collect();
        MountTable { mounts, transports: Vec::new() }
    }

    /// Adds the mounts' connections from `/proc/self/mountstats`.
    #[must_use]
    pub fn with_stats(mut self, mountstats: &[u8]) -> MountTable {
        self.transports = nfs::parse_mountstats(mountstats);
        self
    }

    /// The mount with that id.
    pub fn by_id(&self, id: u64) -> Option<&Mount> {
        self.mounts.iter().find(|mount| mount.id == id)
    }

    /// All mounts in mount order, including covered ones.
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// The topmost mount at the canonical, absolute `path`.
    pub fn top_mount_at(&self, path: &Path) -> Option<&Mount> {
        self.containing(path).filter(|mount| mount.mount_point == path)
    }

    /// The mount that the canonical, absolute `path` lies in.
    pub fn containing(&self, path: &Path) -> Option<&Mount> {
        // The longest matching mount point is not enough: /a/b stays in the list after a mount
        // over /a covers it. So descend as a path walk does, from each mount to its first child
        // on the path.
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

    /// The details of an NFS mount; `None` for other types.
    pub fn nfs(&self, mount: &Mount) -> Option<NfsMount> {
        NfsMount::new(mount, &self.transports)
    }
}

/// Whether the canonical `path` is a mount point or lies on a network file system. An unmounted
/// mount point is neither, unless its parent directory is on a network file system.
pub fn is_mounted_replica(table: &MountTable, path: &Path) -> bool {
    table.containing(path).is_some_and(|mount| mount.is_mounted_replica_at(path))
}

/// Reverses the kernel's `seq_escape`: `\ooo`, three octal digits, is one byte.
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
