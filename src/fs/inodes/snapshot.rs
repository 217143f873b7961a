//! The table of inodes written down, as another daemon goes on with it.
//!
//! The kernel names inodes by numbers that it got from the daemon before, and does
//! not look them up again. So the next daemon has to know every one of them, by
//! which names, and how often it was looked up.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use super::{CacheValidity, Ino, InodeEntry, Inodes, KernelAttrs, KernelCacheState, LinkRemoval};
use crate::backend::{Attr, FileKind, Generation};
use crate::fs::entry_name::{EntryName, ReplicaAttr};
use crate::volume::{FileId, FileVersion, ReplicaId, VolumeMode};

/// All of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::fs) struct InodesRecord {
    nodes: Vec<InodeRecord>,
    second: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct InodeRecord {
    ino: u64,
    names: Vec<(u64, OsString)>,
    lookups: u64,
    natural: u64,
    is_gone: bool,
    is_nameless: bool,
    generation: Generation,
    domain: u64,
    kind: FileKind,
    seen: KernelCacheRecord,
    small_blocks: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum KernelCacheRecord {
    Never,
    At(FileVersion, bool),
    MovedOn,
}

/// One step that the table took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) enum InodeEvent {
    /// The kernel was told of what has this name, or was about to be, by this request.
    Remember {
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
    Remove { parent: u64, name: OsString, ino: Option<u64>, left: LinkRemovalRecord },
    /// A name was changed.
    Rename { from: (u64, OsString), to: (u64, OsString), moved: Option<u64> },
}

/// As much of an object's attributes as its number depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) struct IdentityAttrs {
    dev: u64,
    ino: u64,
    kind: FileKind,
    nlink: u32,
    generation: Generation,
}

/// As [`LinkRemoval`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) enum LinkRemovalRecord {
    Names,
    Open,
    Nothing,
}

impl From<LinkRemoval> for LinkRemovalRecord {
    fn from(removed: LinkRemoval) -> Self {
        match removed {
            LinkRemoval::OtherLinksLeft => Self::Names,
            LinkRemoval::StillOpen => Self::Open,
            LinkRemoval::ObjectRemoved => Self::Nothing,
        }
    }
}

impl From<LinkRemovalRecord> for LinkRemoval {
    fn from(left: LinkRemovalRecord) -> Self {
        match left {
            LinkRemovalRecord::Names => Self::OtherLinksLeft,
            LinkRemovalRecord::Open => Self::StillOpen,
            LinkRemovalRecord::Nothing => Self::ObjectRemoved,
        }
    }
}

impl From<&Attr> for IdentityAttrs {
    fn from(attr: &Attr) -> Self {
        let FileId { dev, ino } = attr.id;
        Self { dev, ino, kind: attr.kind, nlink: attr.nlink, generation: attr.generation }
    }
}

impl IdentityAttrs {
    fn attr(self) -> Attr {
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

impl Inodes {
    /// Writes the table down.
    pub(in crate::fs) fn snapshot(&self) -> InodesRecord {
        let record = |(ino, node): (&Ino, &InodeEntry)| InodeRecord {
            ino: ino.0,
            names: node.names.iter().map(|(parent, name)| (parent.0, name.clone())).collect(),
            lookups: node.lookups,
            natural: node.natural_ino.0,
            is_gone: node.removed_seq.is_some(),
            is_nameless: node.is_nameless,
            generation: node.generation,
            domain: node.domain,
            kind: node.kind,
            seen: match &node.kernel_cache {
                KernelCacheState::Empty => KernelCacheRecord::Never,
                KernelCacheState::Version(version, cached) => {
                    KernelCacheRecord::At(*version, cached.is_valid())
                }
                KernelCacheState::Mixed => KernelCacheRecord::MovedOn,
            },
            small_blocks: node.has_small_block_reads,
        };
        let second = self.substitutes.iter().map(|(natural, ino)| (natural.0, ino.0)).collect();
        InodesRecord { nodes: self.nodes.iter().map(record).collect(), second }
    }

    /// The table that was written down. Changes are counted anew.
    pub(in crate::fs) fn restore(mode: VolumeMode, record: InodesRecord) -> Self {
        let mut inodes = Self::new(mode);
        inodes.substitutes =
            record.second.into_iter().map(|(one, two)| (Ino(one), Ino(two))).collect();
        for record in record.nodes {
            let names = record.names.into_iter().map(|(parent, name)| (Ino(parent), name));
            let node = InodeEntry {
                names: names.collect(),
                lookups: record.lookups,
                removed_seq: record.is_gone.then_some(0),
                is_nameless: record.is_nameless,
                generation: record.generation,
                kernel_cache: match record.seen {
                    KernelCacheRecord::Never => KernelCacheState::Empty,
                    KernelCacheRecord::At(version, true) => {
                        KernelCacheState::Version(version, CacheValidity::valid())
                    }
                    KernelCacheRecord::At(version, false) => {
                        KernelCacheState::Version(version, CacheValidity::default())
                    }
                    KernelCacheRecord::MovedOn => KernelCacheState::Mixed,
                },
                // It comes to be known at the next open, at the cost of one notice.
                kernel_attrs: KernelAttrs::Ambiguous,
                has_small_block_reads: record.small_blocks,
                ..InodeEntry::new(Ino(record.natural), record.domain, record.kind)
            };
            inodes.nodes.insert(Ino(record.ino), node);
        }
        let mut entries = Vec::new();
        for (ino, node) in &inodes.nodes {
            entries.extend(node.names.iter().map(|(parent, name)| (*parent, name.clone(), *ino)));
        }
        for (parent, name, ino) in entries {
            if let Some(node) = inodes.nodes.get_mut(&parent) {
                node.entries.insert(name, ino);
            }
        }
        inodes
    }

    /// Takes a step again that the table took before it was lost. Returns the request that
    /// entered an inode, and the inode.
    pub(in crate::fs) fn replay(&mut self, step: InodeEvent) -> Option<(u64, Ino)> {
        match step {
            InodeEvent::Remember { request, ino, parent, name, replica, found } => {
                let at = EntryName { parent: Ino(parent), name: &name };
                let replica = ReplicaId::new(replica.into());
                let found = ReplicaAttr { replica, attr: &found.attr() };
                let ino = self.record_lookup_as(Ino(ino), request, at, found, u64::MAX);
                return Some((request, ino?));
            }
            InodeEvent::Forget { ino, count } => self.forget(Ino(ino), count),
            InodeEvent::Remove { parent, name, ino, left } => {
                let at = EntryName { parent: Ino(parent), name: &name };
                self.remove_link(at, ino.map(Ino), left.into(), 0);
            }
            InodeEvent::Rename { from, to, moved } => {
                let from = EntryName { parent: Ino(from.0), name: &from.1 };
                let to = EntryName { parent: Ino(to.0), name: &to.1 };
                self.rename(from, to, moved.map(Ino), 0);
            }
        }
        None
    }

    /// Nothing is open on the replicas any more: they have freed what has no name.
    pub(in crate::fs) fn mark_unlinked_removed(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.is_nameless) {
            node.removed_seq = Some(0);
        }
    }

    /// Nobody knows which versions of files the kernel has cached.
    pub(in crate::fs) fn mark_cache_unknown(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.kind == FileKind::Regular) {
            node.kernel_cache = KernelCacheState::Mixed;
        }
    }

    /// What is cached of the file since it was opened at the version opened last.
    pub(in crate::fs) fn cache_validity(&self, ino: Ino) -> Option<&CacheValidity> {
        match &self.nodes.get(&ino)?.kernel_cache {
            KernelCacheState::Version(_, cached) => Some(cached),
            KernelCacheState::Empty | KernelCacheState::Mixed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ROOT;
    use super::*;

    fn found(ino: u64, kind: FileKind) -> Attr {
        let generation = Generation::from_birth_time((5, ino as u32));
        IdentityAttrs { dev: FileId::ROOT_DEV, ino, kind, nlink: 1, generation }.attr()
    }

    /// What is written down and read again knows the same paths, and forgets at the
    /// same lookups.
    #[test]
    fn a_table_that_was_written_down_is_the_same() {
        let mut t = Inodes::new(VolumeMode::Shared);
        let replica = ReplicaId::new(0);
        let d =
            t.remember(ROOT, "d".as_ref(), replica, &found(10, FileKind::Directory), 0).unwrap();
        let f = t.remember(d, "f".as_ref(), replica, &found(11, FileKind::Regular), 0).unwrap();
        t.remember(d, "f".as_ref(), replica, &found(11, FileKind::Regular), 0).unwrap();
        t.forget(d, 1);
        let bytes = postcard::to_stdvec(&t.snapshot()).unwrap();
        let mut again = Inodes::restore(VolumeMode::Shared, postcard::from_bytes(&bytes).unwrap());
        assert_eq!((again.len(), again.path(f)), (3, t.path(f)));
        assert_eq!(again.child(d, "f".as_ref()), Some(f));
        again.forget(f, 1);
        assert_eq!(again.len(), 3);
        again.forget(f, 1);
        assert_eq!(again.len(), 1);
    }
}
