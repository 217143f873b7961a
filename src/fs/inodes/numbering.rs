//! By which number the kernel knows an object.
//!
//! An object's *natural* number follows from the attributes that a replica shows. File systems may
//! reuse the number of a removed object at once. The kernel may still hold that object, by an
//! `O_PATH` descriptor or as a working directory. Then the new object gets a number derived from
//! the natural one, and keeps it until the kernel forgets it. A generation would not do: the kernel
//! answers EIO on an inode that it holds under another generation. Callers that have just looked
//! the name up would get it too. ESTALE makes the kernel look the name up again.
//!
//! An object is dead if it was removed here, or if a replica shows its number with another birth
//! time or another type.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::{HASHED_INO_BIT, Ino, InodeEntry, Inodes, ROOT, hashed_ino};
use crate::backend::{Attr, FileKind, Generation, InodeIdentity};
use crate::fs::entry_name::{EntryName, ReplicaAttr};
use crate::volume::{FileId, ReplicaId, VolumeMode};

/// Limit on files that had one name in turn and are still open. Up to this many, the last one keeps
/// its number when those before it are closed.
const MAX_REPLACED: usize = 16;

impl InodeEntry {
    /// Whether `attr`, found under its number, belong to another object.
    fn is_other_object(&self, mode: VolumeMode, attr: &Attr) -> bool {
        let is_other =
            || self.generation.is_distinct_from(&attr.generation) || self.kind != attr.kind;
        self.removed_seq.is_some() || mode == VolumeMode::Shared && is_other()
    }
}

impl Inodes {
    /// The number of the object called `name` in `parent`.
    pub(in crate::fs) fn ino_for(
        &self,
        parent: Ino,
        name: &OsStr,
        replica: ReplicaId,
        attr: &Attr,
    ) -> Option<Ino> {
        let natural = self.natural_ino(parent, name, replica, attr)?;
        Some(match self.mode {
            VolumeMode::Shared => self.ino_for_natural(natural, attr),
            VolumeMode::Copies if has_other_links(attr) => natural,
            VolumeMode::Copies => self.ino_by_name(natural, parent, name),
        })
    }

    /// The number of the object with this natural number and these attributes.
    fn ino_for_natural(&self, natural: Ino, attr: &Attr) -> Ino {
        let latest = self.current_ino(natural);
        match self.nodes.get(&latest) {
            Some(node) if node.is_other_object(self.mode, attr) => {
                let mut numbers =
                    std::iter::successors(Some(latest), |last| Some(hashed_ino(&last.0)));
                numbers.find(|number| !self.nodes.contains_key(number)).unwrap_or(latest)
            }
            _ => latest,
        }
    }

    /// The number of the latest object with this natural number.
    fn current_ino(&self, natural: Ino) -> Ino {
        self.substitutes.get(&natural).copied().unwrap_or(natural)
    }

    fn natural_ino(
        &self,
        parent: Ino,
        name: &OsStr,
        replica: ReplicaId,
        attr: &Attr,
    ) -> Option<Ino> {
        let domain = self.domain(parent, name, attr)?;
        self.natural_ino_in(domain, || Some(self.path(parent)?.join(name)), replica, attr)
    }

    fn natural_ino_in(
        &self,
        domain: u64,
        path: impl FnOnce() -> Option<PathBuf>,
        replica: ReplicaId,
        attr: &Attr,
    ) -> Option<Ino> {
        Some(match self.mode {
            VolumeMode::Shared if domain == 0 && attr.id.ino > ROOT.0 => Ino(attr.id.ino),
            VolumeMode::Shared => hashed_ino(&(domain, attr.id.ino)),
            VolumeMode::Copies if has_other_links(attr) => {
                hashed_ino(&(replica, attr.id.dev, attr.id.ino))
            }
            VolumeMode::Copies => hashed_ino(&path()?),
        })
    }

    fn domain(&self, parent: Ino, name: &OsStr, attr: &Attr) -> Option<u64> {
        let parent_domain = self.nodes.get(&parent)?.domain;
        let at_home = attr.id.dev == FileId::ROOT_DEV;
        Some(match (at_home, parent_domain) {
            (true, _) => 0,
            (false, 0) => hashed_ino(&(parent, name)).0,
            (false, domain) => domain,
        })
    }

    /// Records one more lookup by which the kernel learns of the object as `ino`.
    pub(super) fn add_lookup(
        &mut self,
        ino: Ino,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
    ) -> Option<()> {
        let EntryName { parent, name } = at;
        let ReplicaAttr { replica, attr } = found;
        let domain = self.domain(parent, name, attr)?;
        let natural = match self.mode {
            VolumeMode::Shared => self.natural_ino(parent, name, replica, attr)?,
            VolumeMode::Copies => ino,
        };
        if ino != natural {
            self.substitutes.insert(natural, ino);
        }
        let node =
            self.nodes.entry(ino).or_insert_with(|| InodeEntry::new(natural, domain, attr.kind));
        node.lookups += 1;
        node.kind = attr.kind;
        // Not every replica of a volume shows it.
        node.generation = attr.generation.or(node.generation);
        Some(())
    }

    /// The kernel no longer holds `ino`.
    pub(super) fn drop_substitute(&mut self, ino: Ino, natural: Ino) {
        if self.substitutes.get(&natural) == Some(&ino) {
            self.substitutes.remove(&natural);
        }
    }

    /// Whether the kernel knows another object by the number of `found`, which was just made under
    /// the name `at`.
    pub(in crate::fs) fn is_ino_in_use(&self, at: EntryName<'_>, found: ReplicaAttr<'_>) -> bool {
        let EntryName { parent, name } = at;
        let ReplicaAttr { replica, attr } = found;
        let Some(natural) = self.natural_ino(parent, name, replica, attr) else { return false };
        let latest = self.current_ino(natural);
        // The kernel knew it by that name already: it existed, and was opened.
        let is_it = |node: &InodeEntry| {
            self.child(parent, name) == Some(latest) && !node.is_other_object(self.mode, attr)
        };
        self.nodes.get(&latest).is_some_and(|node| node.lookups > 0 && !is_it(node))
    }

    /// Identifies the object on a replica, if its number there is known.
    pub(in crate::fs) fn known_object(&self, ino: Ino) -> Option<InodeIdentity> {
        let node = self.nodes.get(&ino)?;
        let Ino(number) = node.natural_ino;
        let is_theirs =
            self.mode == VolumeMode::Shared && node.domain == 0 && number & HASHED_INO_BIT == 0;
        (is_theirs && ino != ROOT)
            .then_some(InodeIdentity { ino: number, generation: node.generation })
    }

    /// Its generation, which distinguishes it from other objects with its number.
    pub(in crate::fs) fn generation(&self, ino: Ino) -> Generation {
        self.nodes.get(&ino).map(|node| node.generation).unwrap_or_default()
    }

    /// Whether `attr`, found at the place of `ino`, belong to that inode.
    pub(in crate::fs) fn is_same(&self, ino: Ino, replica: ReplicaId, attr: &Attr) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        if ino == ROOT {
            return attr.kind == FileKind::Directory;
        }
        let found = self.natural_ino_in(node.domain, || self.path(ino), replica, attr);
        let is_it = match self.mode {
            // Does not compare the device: a nested mount may be on the root's device in one
            // replica and not in another.
            VolumeMode::Shared => {
                found == Some(node.natural_ino) && !node.is_other_object(self.mode, attr)
            }
            VolumeMode::Copies => true,
        };
        node.kind == attr.kind && is_it
    }

    /// The number of the object with this name; `first` is derived from its path. A file that was
    /// replaced while open keeps that number, and its replacement has the next one.
    fn ino_by_name(&self, first: Ino, parent: Ino, name: &OsStr) -> Ino {
        let numbers = || std::iter::successors(Some(first), |number| Some(hashed_ino(&number.0)));
        let named = self.child(parent, name);
        if let Some(known) = named.filter(|known| numbers().take(MAX_REPLACED).any(|n| n == *known))
        {
            return known;
        }
        let is_dead = |node: &InodeEntry| node.is_nameless || node.removed_seq.is_some();
        let is_free = |number: &Ino| !self.nodes.get(number).is_some_and(is_dead);
        numbers().find(is_free).unwrap_or(first)
    }

    /// The number to show for a name in a listing, where the replica shows `ino`.
    pub(in crate::fs) fn listed_ino(&self, parent: Ino, name: &OsStr, ino: u64) -> Ino {
        match self.mode {
            VolumeMode::Shared if ino > ROOT.0 => self.current_ino(Ino(ino)),
            VolumeMode::Shared => self.current_ino(hashed_ino(&(0u64, ino))),
            VolumeMode::Copies => {
                let first = hashed_ino(&self.path(parent).unwrap_or_default().join(name));
                self.ino_by_name(first, parent, name)
            }
        }
    }
}

/// Whether the object may have another name.
fn has_other_links(attr: &Attr) -> bool {
    attr.nlink > 1 && attr.kind != FileKind::Directory
}

#[cfg(test)]
mod tests {
    use super::super::LinkRemoval;
    use super::super::tests::{at, attr};
    use super::*;

    const FILE: FileKind = FileKind::Regular;

    fn find(t: &mut Inodes, name: &str, attr: &Attr) -> Ino {
        t.remember(ROOT, name.as_ref(), ReplicaId::new(0), attr, u64::MAX).unwrap()
    }

    fn remove(t: &mut Inodes, name: &str, ino: Ino) {
        t.remove_link(at(name), Some(ino), LinkRemoval::ObjectRemoved, 1);
    }

    #[test]
    fn a_removed_inode_keeps_its_number_until_forgotten() {
        for kind in [FILE, FileKind::Directory] {
            let (mut t, found) = (Inodes::new(VolumeMode::Shared), attr(10, kind, 1));
            let old = find(&mut t, "a", &found);
            remove(&mut t, "a", old);
            let late = t.remember(ROOT, "a".as_ref(), ReplicaId::new(0), &found, 0);
            assert_eq!(late, None, "it was found before it was removed");
            let new = find(&mut t, "a", &found);
            assert_ne!(new, old);
            assert_eq!((t.path(old), t.path(new)), (None, Some("a".into())));
            assert!(!t.is_same(old, ReplicaId::new(0), &found));
            assert!(t.is_same(new, ReplicaId::new(0), &found));
            assert_eq!(find(&mut t, "a", &found), new);
            assert_eq!(t.listed_ino(ROOT, "a".as_ref(), 10), new);
            assert_eq!(t.known_object(new).unwrap().ino, 10, "its number on the replica");
            t.forget(old, 1);
            assert_eq!(find(&mut t, "a", &found), new, "the kernel knows it by this number");
            t.forget(new, 3);
            assert_eq!((find(&mut t, "a", &found), t.substitutes.len()), (old, 0));
        }
    }

    #[test]
    fn objects_reusing_a_number_get_distinct_numbers() {
        let (mut t, found) = (Inodes::new(VolumeMode::Shared), attr(10, FILE, 1));
        let mut held = std::collections::HashSet::new();
        for _ in 0..40 {
            let ino = find(&mut t, "a", &found);
            remove(&mut t, "a", ino);
            assert!(held.insert(ino));
        }
        held.iter().for_each(|ino| t.forget(*ino, 1));
        assert_eq!((t.len(), find(&mut t, "a", &found)), (1, Ino(10)));
    }

    #[test]
    fn another_birth_time_or_type_means_another_object() {
        let mut t = Inodes::new(VolumeMode::Shared);
        let first = Attr { generation: Generation::from_birth_time((5, 0)), ..attr(10, FILE, 1) };
        let old = find(&mut t, "a", &first);
        assert_eq!(find(&mut t, "a", &attr(10, FILE, 1)), old, "a replica that does not say it");
        let second = Attr { generation: Generation::from_birth_time((6, 0)), ..first };
        let new = find(&mut t, "b", &second);
        assert_ne!(new, old);
        let third = Attr { kind: FileKind::Directory, ..attr(10, FILE, 2) };
        assert!(![old, new].contains(&find(&mut t, "c", &third)));
        assert!(t.is_same(old, ReplicaId::new(0), &first));
        assert!(!t.is_same(old, ReplicaId::new(0), &second));
        assert!(t.is_same(new, ReplicaId::new(0), &second));
    }

    /// A bind mount inside a local replica is on the root's device there.
    #[test]
    fn replicas_may_disagree_about_the_root_device() {
        let mut t = Inodes::new(VolumeMode::Shared);
        let found = attr(10, FileKind::Directory, 1);
        let dir = find(&mut t, "d", &found);
        let elsewhere = Attr { id: FileId { dev: 7, ..found.id }, ..found };
        assert!(t.is_same(dir, ReplicaId::new(0), &found));
        assert!(t.is_same(dir, ReplicaId::new(1), &elsewhere));
    }

    /// A link is another name of the same object, also of one with a second number.
    #[test]
    fn a_hard_link_has_the_number_of_its_object() {
        let (mut t, found) = (Inodes::new(VolumeMode::Shared), attr(10, FILE, 2));
        let old = find(&mut t, "a", &found);
        remove(&mut t, "a", old);
        let new = find(&mut t, "b", &found);
        assert!(
            !t.is_ino_in_use(at("b"), ReplicaAttr { replica: ReplicaId::new(0), attr: &found })
        );
        assert!(t.is_ino_in_use(at("c"), ReplicaAttr { replica: ReplicaId::new(0), attr: &found }));
        t.forget(old, 1);
        assert_eq!(find(&mut t, "c", &found), new);
    }

    #[test]
    fn the_next_daemon_keeps_reused_numbers_distinct() {
        let (mut t, found) = (Inodes::new(VolumeMode::Shared), attr(10, FILE, 1));
        let old = find(&mut t, "a", &found);
        remove(&mut t, "a", old);
        let new = find(&mut t, "a", &found);
        let mut next = Inodes::restore(VolumeMode::Shared, t.snapshot());
        assert_eq!(find(&mut next, "a", &found), new);
        remove(&mut next, "a", new);
        let third = find(&mut next, "a", &found);
        assert!(third != old && third != new);
        // A file that is open without a name is lost with its daemon.
        next.remove_link(at("a"), Some(third), LinkRemoval::StillOpen, 2);
        assert_eq!(find(&mut next, "a", &found), third, "it is found by a name again");
        next.remove_link(at("a"), Some(third), LinkRemoval::StillOpen, 2);
        next.mark_unlinked_removed();
        assert!(![old, new, third].contains(&find(&mut next, "a", &found)));
    }
}
