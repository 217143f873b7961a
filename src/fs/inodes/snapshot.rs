//! The table of inodes as a record, from which the next daemon restores it.
//!
//! The kernel names inodes by numbers that it got from the predecessor, and does not look them up
//! again. So the next daemon must know every number, its names, and how often it was looked up.

use super::{CacheValidity, Ino, InodeEntry, Inodes, KernelAttrs, KernelCacheState};
use crate::backend::FileKind;
use crate::fs::entry_name::{EntryName, ReplicaAttr};
use crate::fs::records::{InodeEvent, InodeRecord, InodesRecord, KernelCacheRecord};
use crate::volume::{ReplicaId, VolumeMode};

impl Inodes {
    pub(in crate::fs) fn snapshot(&self) -> InodesRecord {
        let record = |(ino, node): (&Ino, &InodeEntry)| InodeRecord {
            ino: ino.0,
            names: node.names.iter().map(|(parent, name)| (parent.0, name.clone())).collect(),
            lookups: node.lookups,
            natural_ino: node.natural_ino.0,
            is_removed: node.removed_seq.is_some(),
            is_nameless: node.is_nameless,
            generation: node.generation,
            domain: node.domain,
            kind: node.kind,
            kernel_cache: match &node.kernel_cache {
                KernelCacheState::Empty => KernelCacheRecord::Empty,
                KernelCacheState::Version(version, cached) => {
                    KernelCacheRecord::Version(*version, cached.is_valid())
                }
                KernelCacheState::Mixed => KernelCacheRecord::Mixed,
            },
            has_small_block_reads: node.has_small_block_reads,
        };
        let substitutes =
            self.substitutes.iter().map(|(natural, ino)| (natural.0, ino.0)).collect();
        InodesRecord { nodes: self.nodes.iter().map(record).collect(), substitutes }
    }

    /// The table from its record. The count of changes starts at 0.
    pub(in crate::fs) fn restore(mode: VolumeMode, record: InodesRecord) -> Self {
        let mut inodes = Self::new(mode);
        inodes.substitutes =
            record.substitutes.into_iter().map(|(one, two)| (Ino(one), Ino(two))).collect();
        for record in record.nodes {
            let names = record.names.into_iter().map(|(parent, name)| (Ino(parent), name));
            let node = InodeEntry {
                names: names.collect(),
                lookups: record.lookups,
                removed_seq: record.is_removed.then_some(0),
                is_nameless: record.is_nameless,
                generation: record.generation,
                kernel_cache: match record.kernel_cache {
                    KernelCacheRecord::Empty => KernelCacheState::Empty,
                    KernelCacheRecord::Version(version, true) => {
                        KernelCacheState::Version(version, CacheValidity::valid())
                    }
                    KernelCacheRecord::Version(version, false) => {
                        KernelCacheState::Version(version, CacheValidity::default())
                    }
                    KernelCacheRecord::Mixed => KernelCacheState::Mixed,
                },
                // The next open settles it, at the cost of one notice.
                kernel_attrs: KernelAttrs::Ambiguous { last: 0 },
                has_small_block_reads: record.has_small_block_reads,
                ..InodeEntry::new(Ino(record.natural_ino), record.domain, record.kind)
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

    /// Replays a step that the lost table took. Returns the request of a lookup, and the inode.
    pub(in crate::fs) fn replay(&mut self, step: InodeEvent) -> Option<(u64, Ino)> {
        match step {
            InodeEvent::Lookup { request, ino, parent, name, replica, found } => {
                let at = EntryName { parent: Ino(parent), name: &name };
                let replica = ReplicaId::new(replica.into());
                let found = ReplicaAttr { replica, attr: &found.attr() };
                let ino = self.record_lookup_as(Ino(ino), request, at, found, u64::MAX);
                return Some((request, ino?));
            }
            InodeEvent::Forget { ino, count } => self.forget(Ino(ino), count),
            InodeEvent::Unlink { parent, name, ino, removed } => {
                let at = EntryName { parent: Ino(parent), name: &name };
                self.remove_link(at, ino.map(Ino), removed, 0);
            }
            InodeEvent::Rename { from, to, moved } => {
                let from = EntryName { parent: Ino(from.0), name: &from.1 };
                let to = EntryName { parent: Ino(to.0), name: &to.1 };
                self.rename(from, to, moved.map(Ino), 0);
            }
        }
        None
    }

    /// No replica has a file open any more: files without a name are freed.
    pub(in crate::fs) fn mark_unlinked_removed(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.is_nameless) {
            node.removed_seq = Some(0);
        }
    }

    /// It is unknown which versions of files the kernel has cached.
    pub(in crate::fs) fn mark_cache_unknown(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.kind == FileKind::Regular) {
            node.kernel_cache = KernelCacheState::Mixed;
        }
    }

    /// The state of the kernel's cache since the version that was opened last.
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
    use super::super::tests::attr;
    use super::*;
    use crate::backend::{Attr, Generation};

    fn found(ino: u64, kind: FileKind) -> Attr {
        let generation = Generation::from_birth_time((5, ino as u32));
        Attr { generation, ..attr(ino, kind, 1) }
    }

    /// A table that was recorded and restored knows the same paths, and drops an inode at the same
    /// lookups.
    #[test]
    fn a_restored_inode_table_is_unchanged() {
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
