//! The inodes that the kernel knows, and the steps of their table.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::backend::{Attr, FileKind, Generation};
use crate::volume::{FileId, FileVersion};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::fs) struct InodesRecord {
    pub(in crate::fs) nodes: Vec<InodeRecord>,
    /// Natural numbers, each with the number that the object has instead.
    pub(in crate::fs) substitutes: Vec<(u64, u64)>,
}

impl InodesRecord {
    /// It is unknown which versions of files the kernel has cached.
    pub(in crate::fs) fn mark_cache_unknown(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.kind == FileKind::Regular) {
            node.kernel_cache = KernelCacheRecord::Mixed;
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct InodeRecord {
    pub(in crate::fs) ino: u64,
    /// Its names, each with the directory's inode number.
    pub(in crate::fs) names: Vec<(u64, OsString)>,
    pub(in crate::fs) lookups: u64,
    pub(in crate::fs) natural_ino: u64,
    pub(in crate::fs) is_removed: bool,
    pub(in crate::fs) is_nameless: bool,
    pub(in crate::fs) generation: Generation,
    pub(in crate::fs) domain: u64,
    pub(in crate::fs) kind: FileKind,
    pub(in crate::fs) kernel_cache: KernelCacheRecord,
    pub(in crate::fs) has_small_block_reads: bool,
}

/// What the kernel has cached of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) enum KernelCacheRecord {
    Empty,
    /// The version opened last, and whether nothing older is cached.
    Version(FileVersion, bool),
    Mixed,
}

/// A step of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) enum InodeEvent {
    /// By this request the kernel learned of the object with this name, or was about to.
    Lookup {
        request: u64,
        ino: u64,
        parent: u64,
        name: OsString,
        replica: u16,
        found: IdentityAttrs,
    },
    /// The kernel forgot some lookups.
    Forget { ino: u64, count: u64 },
    /// A name was removed.
    Unlink { parent: u64, name: OsString, ino: Option<u64>, removed: LinkRemoval },
    /// A name was changed.
    Rename { from: (u64, OsString), to: (u64, OsString), moved: Option<u64> },
}

/// The attributes that an object's number depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) struct IdentityAttrs {
    pub(in crate::fs) dev: u64,
    pub(in crate::fs) ino: u64,
    pub(in crate::fs) kind: FileKind,
    pub(in crate::fs) nlink: u32,
    pub(in crate::fs) generation: Generation,
}

/// What remains of an object that has lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) enum LinkRemoval {
    /// Other names.
    OtherLinksLeft,
    /// An open handle.
    StillOpen,
    /// Nothing: a replica may reuse its number.
    ObjectRemoved,
}

impl From<&Attr> for IdentityAttrs {
    fn from(attr: &Attr) -> Self {
        let FileId { dev, ino } = attr.id;
        Self { dev, ino, kind: attr.kind, nlink: attr.nlink, generation: attr.generation }
    }
}

impl IdentityAttrs {
    /// The attributes; unknown ones are 0.
    pub(in crate::fs) fn attr(self) -> Attr {
        let Self { dev, ino, kind, nlink, generation } = self;
        Attr {
            id: FileId { dev, ino },
            kind,
            perm: 0,
            nlink,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: 0,
            blocks: 0,
            blksize: 0,
            atime: (0, 0),
            mtime: (0, 0),
            ctime: (0, 0),
            generation,
        }
    }
}
