//! The inodes that the kernel knows, and their names.
//!
//! Calls on replicas use paths, so each inode remembers a name in a parent, which is an inode
//! itself. A path is put together from there to the root. An inode with several hard links has
//! several names, and its path is by the name that was looked up last.
//!
//! **Inode numbers.** In `shared` mode they are the replica's own. So hard links are one inode, and
//! numbers are the same through every replica and after every remount. A file system mounted below
//! the replica's root may repeat numbers, so its numbers are hashed with the place of that mount.
//! In `copies` mode each tree has its own numbers, so a number is a hash of the path. For files
//! with several links it is a hash of the replica and the number there. A file that replaces an
//! open one ([`super::tables`]) has a number derived from the open one's.
//!
//! *Invariant:* a number that the kernel knows identifies one object until the kernel forgets it
//! ([`numbering`]). A removed object keeps its number, and requests on it fail.

mod kernel_attrs;
mod numbering;
mod removed_dir;
mod snapshot;
mod table;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::{SmallVec, smallvec};

use super::entry_name::{EntryName, ReplicaAttr};
use super::ino::{Ino, InoMap, ROOT};
use super::journal::Unflushed;
use super::records::{InodeEvent, JournalEntry};
use super::step_log::StepLog;
use crate::backend::{Attr, FileKind, Generation};
use crate::volume::{FileVersion, VolumeMode};
use kernel_attrs::KernelAttrs;

pub(super) use super::records::LinkRemoval;
pub(super) use kernel_attrs::AttrNotice;
pub(super) use table::InodeTable;

/// Numbers that fanfs makes have this bit. Replicas that count from 1 never reach it.
const HASHED_INO_BIT: u64 = 1 << 63;

/// A map by names. Its hashes are seeded, as those of the standard map, and cost less.
type NameMap<V> = HashMap<OsString, V, foldhash::quality::RandomState>;

/// All known inodes.
pub(super) struct Inodes {
    mode: VolumeMode,
    nodes: InoMap<InodeEntry>,
    /// For each natural number that is not used, the number that the object has instead.
    substitutes: InoMap<Ino>,
    /// Records the steps of this table.
    log: Arc<StepLog>,
    /// The last recorded step. [`InodeTable`] flushes it when the table is unlocked.
    unflushed: Unflushed,
    /// Count of attributes noted so far. It tells whether any were noted since a notice.
    noted_attrs: u64,
}

struct InodeEntry {
    /// Names that it was looked up by, the latest last; none for the root, and for an inode that
    /// has lost all its names.
    names: Vec<(Ino, OsString)>,
    lookups: u64,
    /// The known names in this directory, and their inodes. Each is also in the `names` of that
    /// inode, and the other way round.
    entries: NameMap<Ino>,
    /// Names in this directory that were changed or removed, with the number of the change. All
    /// other names were last changed at or before `changed_names_floor`.
    changed_names: NameMap<u64>,
    changed_names_floor: u64,
    /// The number that it would have if the kernel knew no other object by it.
    natural_ino: Ino,
    /// The change that removed it, if any: replicas may reuse its number.
    removed_seq: Option<u64>,
    /// Its last attributes, if it is a directory that was removed here.
    removed_dir_attr: Option<Box<Attr>>,
    /// Whether it lost its last name while a handle had it open.
    is_nameless: bool,
    /// When it was made, if a replica shows that.
    generation: Generation,
    /// The number of the last change of its data or attributes through this mount.
    changed_seq: u64,
    /// Identifies the file system that it is on; 0 for the root's.
    domain: u64,
    kind: FileKind,
    kernel_cache: KernelCacheState,
    kernel_attrs: KernelAttrs,
    /// Whether its last direct reader took small blocks.
    has_small_block_reads: bool,
}

/// What the kernel may have cached of a file, by its opens.
#[derive(Clone, Debug)]
enum KernelCacheState {
    /// The kernel has not opened it, so it has nothing cached.
    Empty,
    /// The kernel opened it at this version last.
    Version(FileVersion, CacheValidity),
    /// It may have several versions cached.
    Mixed,
}

/// What the kernel has cached of a file since it was first opened at a version.
///
/// Direct opens count as well: pages get in through them too, if the file is mapped. A reply to an
/// open that does not say "keep" drops what other handles had cached.
///
/// The kernel drops its pages after it has received the reply to that open, and may receive the
/// reply to a later open first. If the later reply said "keep", the kernel could begin a read with
/// pages of the version before, and end it without them. So no reply says "keep" before a read has
/// come through a handle of this version: by then the kernel has finished that handle's open.
#[derive(Clone, Debug, Default)]
pub(super) struct CacheValidity(Arc<AtomicBool>);

impl CacheValidity {
    /// The kernel has nothing of any earlier version cached.
    fn valid() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// A read has come through a handle that was opened at the version.
    pub(super) fn mark_read(&self) {
        if !self.is_valid() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether both belong to the same version and opens.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the kernel has no pages of an older version.
    pub(super) fn is_valid(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Changed names remembered one by one in each directory.
const MAX_CHANGED_NAMES: usize = 256;

/// No path has more names; a longer chain is a cycle.
const MAX_DEPTH: usize = 1 << 16;

/// Names remembered for one inode. An inode with more links is still reached by the names that it
/// was looked up by last.
const MAX_LINK_NAMES: usize = 8;

impl InodeEntry {
    fn new(natural: Ino, domain: u64, kind: FileKind) -> Self {
        Self {
            names: Vec::new(),
            lookups: 0,
            entries: NameMap::default(),
            changed_names: NameMap::default(),
            changed_names_floor: 0,
            natural_ino: natural,
            removed_seq: None,
            removed_dir_attr: None,
            is_nameless: false,
            generation: Generation::default(),
            changed_seq: 0,
            domain,
            kind,
            kernel_cache: KernelCacheState::Empty,
            kernel_attrs: KernelAttrs::Unset,
            has_small_block_reads: false,
        }
    }
}

impl Inodes {
    pub(super) fn new(mode: VolumeMode) -> Self {
        let root = InodeEntry { lookups: 1, ..InodeEntry::new(ROOT, 0, FileKind::Directory) };
        let nodes = InoMap::from_iter([(ROOT, root)]);
        Self {
            mode,
            nodes,
            substitutes: InoMap::default(),
            log: Arc::default(),
            unflushed: Unflushed::default(),
            noted_attrs: 0,
        }
    }

    fn record_step(&mut self, step: impl FnOnce() -> InodeEvent) {
        let step = self.log.append(|| JournalEntry::Inode(step()));
        self.add_unflushed(step);
    }

    /// Adds a step that another table took under this one's lock. It is flushed with this one's.
    pub(super) fn add_unflushed(&mut self, step: Unflushed) {
        self.unflushed = self.unflushed.max(step);
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The path from the root; `None` for an unknown inode, and for one that has lost its name.
    pub(super) fn path(&self, ino: Ino) -> Option<PathBuf> {
        self.path_by_name(ino, self.nodes.get(&ino)?.names.last())
    }

    /// Its paths by all known names.
    pub(super) fn paths(&self, ino: Ino) -> Vec<PathBuf> {
        let names = self.nodes.get(&ino).map_or(&[][..], |node| &node.names);
        names.iter().filter_map(|name| self.path_by_name(ino, Some(name))).collect()
    }

    fn path_by_name(&self, ino: Ino, name: Option<&(Ino, OsString)>) -> Option<PathBuf> {
        let mut at = ino;
        let mut next = name;
        // On the stack in a usual tree.
        let mut names = SmallVec::<[&OsString; 16]>::new();
        while at != ROOT {
            let (parent, name) = next?;
            names.push(name);
            at = *parent;
            next = self.nodes.get(&at)?.names.last();
            if names.len() > MAX_DEPTH {
                return None;
            }
        }
        let mut path = PathBuf::with_capacity(names.iter().map(|name| name.len() + 1).sum());
        path.extend(names.into_iter().rev());
        Some(path)
    }

    /// The inode and all known inodes beneath it; `None` if these are more than `most`.
    pub(super) fn subtree(&self, top: Ino, most: usize) -> Option<Vec<Ino>> {
        let mut tree = vec![top];
        let mut visited = 0;
        while let Some(ino) = tree.get(visited).copied() {
            visited += 1;
            let beneath = self.nodes.get(&ino).map(|node| &node.entries);
            if tree.len() + beneath.map_or(0, HashMap::len) > most.max(1) {
                return None;
            }
            tree.extend(beneath.into_iter().flat_map(HashMap::values));
        }
        Some(tree)
    }

    /// The inode that this name is known to lead to.
    pub(super) fn child(&self, parent: Ino, name: &OsStr) -> Option<Ino> {
        self.nodes.get(&parent)?.entries.get(name).copied()
    }

    /// The directory that the inode was last looked up in.
    pub(super) fn parent(&self, ino: Ino) -> Option<Ino> {
        Some(self.nodes.get(&ino)?.names.last()?.0)
    }

    /// Whether `ino`, found by this name after `asked` changes, is still there. It may have been
    /// removed or renamed before the answer came.
    pub(super) fn is_current_entry(&self, parent: Ino, name: &OsStr, ino: Ino, asked: u64) -> bool {
        let gone = self.nodes.get(&ino).and_then(|node| node.removed_seq);
        let turned = self.nodes.get(&parent).map_or(0, |dir| {
            dir.changed_names.get(name).copied().unwrap_or(0).max(dir.changed_names_floor)
        });
        gone.unwrap_or(0).max(turned) <= asked
    }

    /// Records that change number `change` has changed what the name leads to.
    fn mark_name_changed(&mut self, parent: Ino, name: &OsStr, change: u64) {
        let Some(dir) = self.nodes.get_mut(&parent) else { return };
        if dir.changed_names.len() >= MAX_CHANGED_NAMES {
            dir.changed_names.clear();
            dir.changed_names_floor = change;
        }
        dir.changed_names.insert(name.to_owned(), change);
    }

    /// Records the answer to `request`, by which the kernel learns of an object once more. The
    /// object was found after `asked` changes. `None` if it was removed or renamed since.
    pub(super) fn record_lookup(
        &mut self,
        request: u64,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
        asked: u64,
    ) -> Option<Ino> {
        let ino = self.ino_for(at.parent, at.name, found.replica, found.attr)?;
        self.record_lookup_as(ino, request, at, found, asked)
    }

    /// The same, under a number that the kernel already has or is about to get.
    pub(super) fn record_lookup_as(
        &mut self,
        ino: Ino,
        request: u64,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
        asked: u64,
    ) -> Option<Ino> {
        let EntryName { parent, name } = at;
        let ReplicaAttr { replica, attr } = found;
        if !self.is_current_entry(parent, name, ino, asked) {
            return None;
        }
        self.add_lookup(ino, at, found)?;
        // The object has one link: a name known from earlier was changed, or belonged to another
        // file with its number.
        let is_single = attr.nlink <= 1 || attr.kind == FileKind::Directory;
        self.add_name(ino, parent, name, is_single);
        let step = self.log.append_for_request(request, ino.into(), || {
            let parent = parent.0;
            let name = name.to_owned();
            let replica = replica.index() as u16;
            let found = attr.into();
            let ino = ino.0;
            JournalEntry::Inode(InodeEvent::Lookup { request, ino, parent, name, replica, found })
        });
        self.add_unflushed(step);
        Some(ino)
    }

    /// The last handle was closed: without a name the object is removed, by change number `change`.
    pub(super) fn mark_closed(&mut self, ino: Ino, change: u64) {
        if let Some(node) = self.nodes.get_mut(&ino)
            && node.is_nameless
        {
            node.removed_seq = Some(change);
        }
    }

    /// Records that change number `change` changed its data or attributes.
    pub(super) fn mark_changed(&mut self, ino: Ino, change: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.changed_seq = change;
        }
    }

    /// Whether an answer to a question that was asked after `changes` changes still holds: the
    /// inode was not changed since.
    pub(super) fn is_unchanged_since(&self, ino: Ino, changes: u64) -> bool {
        self.nodes.get(&ino).is_none_or(|node| node.changed_seq <= changes)
    }

    /// Makes this the inode's latest name, and its only one if `is_single`.
    fn add_name(&mut self, ino: Ino, parent: Ino, name: &OsStr, is_single: bool) {
        match self.child(parent, name) {
            Some(other) if other == ino => {}
            other => {
                if let Some(other) = other {
                    // The name belonged to another inode.
                    self.remove_name(other, parent, name);
                }
                if let Some(node) = self.nodes.get_mut(&parent) {
                    node.entries.insert(name.to_owned(), ino);
                }
            }
        }
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        node.is_nameless = false;
        node.names.retain(|(p, n)| !(*p == parent && n == name));
        let keep = if is_single { 0 } else { MAX_LINK_NAMES - 1 };
        let left: SmallVec<[_; 1]> =
            node.names.drain(..node.names.len().saturating_sub(keep)).collect();
        node.names.push((parent, name.to_owned()));
        for (parent, name) in left {
            self.remove_entry(parent, &name);
        }
    }

    fn remove_name(&mut self, ino: Ino, parent: Ino, name: &OsStr) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.names.retain(|(p, n)| !(*p == parent && n == name));
        }
        self.remove_entry(parent, name);
    }

    /// Records that change number `change` removed a name of `ino`. The name may lead to another
    /// inode since.
    pub(super) fn remove_link(
        &mut self,
        at: EntryName<'_>,
        ino: Option<Ino>,
        removed: LinkRemoval,
        change: u64,
    ) {
        let EntryName { parent, name } = at;
        self.mark_name_changed(parent, name, change);
        self.record_step(|| {
            let parent = parent.0;
            let name = name.to_owned();
            let ino = ino.map(|ino| ino.0);
            InodeEvent::Unlink { parent, name, ino, removed }
        });
        let Some(ino) = ino.filter(|ino| self.child(parent, name) == Some(*ino)) else { return };
        self.remove_name(ino, parent, name);
        if removed == LinkRemoval::OtherLinksLeft {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.removed_seq = (removed == LinkRemoval::ObjectRemoved).then_some(change);
            node.is_nameless = removed == LinkRemoval::StillOpen;
            // Other known names were out of date.
            for (parent, name) in std::mem::take(&mut node.names) {
                self.remove_entry(parent, &name);
            }
        }
    }

    /// Records that change number `change` renamed `moved`. Lookups may have found either name in
    /// its new state since.
    pub(super) fn rename(
        &mut self,
        from: EntryName<'_>,
        to: EntryName<'_>,
        moved: Option<Ino>,
        change: u64,
    ) {
        self.mark_name_changed(from.parent, from.name, change);
        self.mark_name_changed(to.parent, to.name, change);
        self.record_step(|| {
            let [from, to] = [from, to].map(|at| (at.parent.0, at.name.to_owned()));
            InodeEvent::Rename { from, to, moved: moved.map(|ino| ino.0) }
        });
        let Some(moved) = moved else { return };
        if self.child(from.parent, from.name) == Some(moved) {
            self.remove_name(moved, from.parent, from.name);
        }
        if self.nodes.contains_key(&moved) {
            self.add_name(moved, to.parent, to.name, false);
        }
    }

    /// Records that change number `change` exchanged two names.
    pub(super) fn exchange(
        &mut self,
        first: EntryName<'_>,
        second: EntryName<'_>,
        inos: [Option<Ino>; 2],
        change: u64,
    ) {
        self.rename(first, second, inos[0], change);
        self.rename(second, first, inos[1], change);
    }

    /// Whether the kernel has not opened the inode, so has no pages of it.
    pub(super) fn is_never_opened(&self, ino: Ino) -> bool {
        let node = self.nodes.get(&ino);
        node.is_some_and(|node| matches!(node.kernel_cache, KernelCacheState::Empty))
    }

    /// Records an open at `version`; returns what the kernel has cached since.
    pub(super) fn record_open(&mut self, ino: Ino, version: FileVersion) -> CacheValidity {
        let Some(node) = self.nodes.get_mut(&ino) else { return CacheValidity::default() };
        let cached = match &node.kernel_cache {
            KernelCacheState::Version(seen, cached) if *seen == version => return cached.clone(),
            KernelCacheState::Empty => CacheValidity::valid(),
            KernelCacheState::Version(..) | KernelCacheState::Mixed => CacheValidity::default(),
        };
        node.kernel_cache = KernelCacheState::Version(version, cached.clone());
        cached
    }

    /// Handles read another version now than at their open: the kernel may have both cached.
    pub(super) fn mark_cache_mixed(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.kernel_cache = KernelCacheState::Mixed;
        }
    }

    /// Records whether a direct reader took small blocks.
    pub(super) fn set_small_block_reads(&mut self, ino: Ino, small: bool) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.has_small_block_reads = small;
        }
    }

    /// Whether the last direct reader took small blocks.
    pub(super) fn has_small_block_reads(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.has_small_block_reads)
    }

    /// The kernel has forgotten `count` lookups.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) {
        if ino == ROOT {
            return;
        }
        if self.nodes.contains_key(&ino) {
            self.decrease_lookups(ino, count);
            self.record_step(|| InodeEvent::Forget { ino: ino.0, count });
        }
    }

    /// Whether the kernel has forgotten the inode.
    pub(super) fn is_forgotten(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_none_or(|node| node.lookups == 0)
    }

    /// The kernel did not learn of the inode, once. Another entry records this.
    pub(super) fn undo_lookup(&mut self, ino: Ino) {
        if ino != ROOT {
            self.decrease_lookups(ino, 1);
        }
    }

    fn decrease_lookups(&mut self, ino: Ino, count: u64) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
            self.drop_if_unused(ino);
        }
    }

    /// Removes a name from a directory.
    fn remove_entry(&mut self, parent: Ino, name: &OsStr) {
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.entries.remove(name);
            self.drop_if_unused(parent);
        }
    }

    /// Drops an inode unless the kernel knows it or a child's path needs it.
    fn drop_if_unused(&mut self, ino: Ino) {
        let mut unsure: SmallVec<[_; 2]> = smallvec![ino];
        while let Some(ino) = unsure.pop() {
            let unused = |node: &InodeEntry| node.lookups == 0 && node.entries.is_empty();
            if ino == ROOT || !self.nodes.get(&ino).is_some_and(unused) {
                continue;
            }
            let Some(node) = self.nodes.remove(&ino) else { continue };
            self.drop_substitute(ino, node.natural_ino);
            for (parent, name) in node.names {
                if let Some(node) = self.nodes.get_mut(&parent) {
                    node.entries.remove(&name);
                    unsure.push(parent);
                }
            }
        }
    }
}

/// The same number for the same value in every process (`DefaultHasher::new` has fixed keys).
fn hashed_ino(value: &impl Hash) -> Ino {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    Ino(hasher.finish() | HASHED_INO_BIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{FileId, ReplicaId};

    pub(super) fn attr(ino: u64, kind: FileKind, nlink: u32) -> Attr {
        Attr {
            id: FileId { dev: FileId::ROOT_DEV, ino },
            kind,
            perm: 0o644,
            nlink,
            uid: 0,
            gid: 0,
            rdev: (0, 0),
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: (0, 0),
            mtime: (0, 0),
            ctime: (0, 0),
            generation: Generation::default(),
        }
    }

    impl Inodes {
        pub(super) fn remember(
            &mut self,
            parent: Ino,
            name: &OsStr,
            replica: ReplicaId,
            attr: &Attr,
            asked: u64,
        ) -> Option<Ino> {
            let found = ReplicaAttr { replica, attr };
            self.record_lookup(0, EntryName { parent, name }, found, asked)
        }
    }

    pub(super) fn at(name: &str) -> EntryName<'_> {
        EntryName { parent: ROOT, name: name.as_ref() }
    }

    fn r(i: usize) -> ReplicaId {
        ReplicaId::new(i)
    }

    fn table(mode: VolumeMode) -> Inodes {
        Inodes::new(mode)
    }

    const DIR: FileKind = FileKind::Directory;
    const FILE: FileKind = FileKind::Regular;

    #[test]
    fn shared_mode_keeps_inode_numbers_and_hard_links() {
        let mut t = table(VolumeMode::Shared);
        let d = t.remember(ROOT, "d".as_ref(), r(0), &attr(10, DIR, 2), 0).unwrap();
        let a = t.remember(d, "a".as_ref(), r(0), &attr(11, FILE, 2), 0).unwrap();
        let b = t.remember(ROOT, "b".as_ref(), r(1), &attr(11, FILE, 2), 0).unwrap();
        assert_eq!((d.0, a.0), (10, 11));
        assert_eq!(a, b);
        assert_eq!(t.path(a).unwrap(), PathBuf::from("b"));
    }

    #[test]
    fn copies_mode_derives_numbers_from_paths() {
        let mut t = table(VolumeMode::Copies);
        let a = t.remember(ROOT, "a".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        let same = t.remember(ROOT, "a".as_ref(), r(1), &attr(99, FILE, 1), 0).unwrap();
        let other = t.remember(ROOT, "b".as_ref(), r(0), &attr(12, FILE, 1), 0).unwrap();
        assert_eq!(a, same);
        assert_ne!(a, other);
        let x = t.remember(ROOT, "x".as_ref(), r(0), &attr(20, FILE, 2), 0).unwrap();
        let y = t.remember(ROOT, "y".as_ref(), r(0), &attr(20, FILE, 2), 0).unwrap();
        assert_eq!(x, y);
    }

    /// Numbers of an open file, and of the files that have its name after it.
    #[test]
    fn the_replacement_of_an_open_copy_has_another_number() {
        let mut t = table(VolumeMode::Copies);
        let find =
            |t: &mut Inodes| t.remember(ROOT, "f".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        let first = find(&mut t);
        t.remove_link(at("f"), Some(first), LinkRemoval::StillOpen, 0);
        let second = find(&mut t);
        assert_ne!(first, second);
        assert_eq!((t.path(first), t.path(second)), (None, Some("f".into())));
        assert_eq!(t.listed_ino(ROOT, "f".as_ref(), 0), second);
        t.remove_link(at("f"), Some(second), LinkRemoval::StillOpen, 0);
        let third = find(&mut t);
        assert!(third != first && third != second);
        t.forget(first, 1);
        t.forget(second, 1);
        assert_eq!((find(&mut t), t.path(third)), (third, Some("f".into())), "it is still there");
        t.forget(third, 2);
        assert_eq!((find(&mut t), t.len()), (first, 2));
    }

    #[test]
    fn a_mount_inside_the_replica_does_not_collide() {
        let mut t = table(VolumeMode::Shared);
        let mut inner = attr(11, DIR, 2);
        inner.id.dev = 6;
        let outer = t.remember(ROOT, "o".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        let mount = t.remember(ROOT, "m".as_ref(), r(0), &inner, 0).unwrap();
        assert_ne!(outer, mount);
        let mut file = attr(11, FILE, 1);
        file.id.dev = 6;
        file.id.ino = 12;
        let inside = t.remember(mount, "f".as_ref(), r(0), &file, 0).unwrap();
        assert_ne!(inside.0, 12);
        assert!(t.is_same(inside, r(0), &file));
    }

    #[test]
    fn forgotten_inodes_are_freed_but_needed_parents_stay() {
        let mut t = table(VolumeMode::Shared);
        let d = t.remember(ROOT, "d".as_ref(), r(0), &attr(10, DIR, 2), 0).unwrap();
        let f = t.remember(d, "f".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        t.forget(d, 1);
        assert_eq!(t.path(f).unwrap(), PathBuf::from("d/f"));
        t.forget(f, 1);
        assert_eq!(t.len(), 1);
        assert!(t.path(d).is_none());
    }

    #[test]
    fn a_moved_directory_has_its_new_path() {
        let mut t = table(VolumeMode::Shared);
        let d = t.remember(ROOT, "old".as_ref(), r(0), &attr(10, DIR, 2), 0).unwrap();
        t.remember(ROOT, "new".as_ref(), r(0), &attr(10, DIR, 2), 0).unwrap();
        assert_eq!(t.path(d).unwrap(), PathBuf::from("new"));
        t.forget(d, 2);
        assert_eq!(t.len(), 1);
    }

    #[test]
    fn a_renamed_directory_takes_its_children_along() {
        let mut t = table(VolumeMode::Shared);
        let d = t.remember(ROOT, "old".as_ref(), r(0), &attr(10, DIR, 2), 0).unwrap();
        let f = t.remember(d, "f".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        t.rename(at("old"), at("new"), Some(d), 1);
        assert_eq!(t.path(f).unwrap(), PathBuf::from("new/f"));
        assert_eq!(t.child(ROOT, "old".as_ref()), None);
    }

    #[test]
    fn a_subtree_is_a_directory_and_all_below_it() {
        let mut t = table(VolumeMode::Shared);
        let d = t.remember(ROOT, "d".as_ref(), r(0), &attr(10, DIR, 2), 0).unwrap();
        let e = t.remember(d, "e".as_ref(), r(0), &attr(11, DIR, 2), 0).unwrap();
        let f = t.remember(e, "f".as_ref(), r(0), &attr(12, FILE, 1), 0).unwrap();
        let other = t.remember(ROOT, "g".as_ref(), r(0), &attr(13, FILE, 1), 0).unwrap();
        assert_eq!((t.subtree(other, 1), t.subtree(f, 0)), (Some(vec![other]), Some(vec![f])));
        assert_eq!((t.subtree(d, 3), t.subtree(d, 2)), (Some(vec![d, e, f]), None));
    }

    #[test]
    fn a_replaced_file_has_no_path() {
        let mut t = table(VolumeMode::Shared);
        let a = t.remember(ROOT, "a".as_ref(), r(0), &attr(10, FILE, 1), 0).unwrap();
        let b = t.remember(ROOT, "b".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        t.remove_link(at("b"), Some(b), LinkRemoval::ObjectRemoved, 1);
        t.rename(at("a"), at("b"), Some(a), 1);
        assert_eq!((t.path(a), t.path(b)), (Some("b".into()), None));
        t.remember(ROOT, "c".as_ref(), r(0), &attr(12, FILE, 1), 1).unwrap();
        t.exchange(at("b"), at("c"), [Some(a), Some(Ino(12))], 2);
        assert_eq!(t.path(a), Some("c".into()));
        assert_eq!(t.child(ROOT, "b".as_ref()), Some(Ino(12)));
    }

    /// Between the rename and its answer a lookup may find the new name.
    #[test]
    fn a_lookup_during_a_rename_keeps_the_new_file() {
        let mut t = table(VolumeMode::Shared);
        let new = t.remember(ROOT, "next".as_ref(), r(0), &attr(10, FILE, 1), 0).unwrap();
        let old = t.remember(ROOT, "f".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        t.remember(ROOT, "f".as_ref(), r(0), &attr(10, FILE, 1), 0).unwrap();
        t.remove_link(at("f"), Some(old), LinkRemoval::ObjectRemoved, 1);
        t.rename(at("next"), at("f"), Some(new), 1);
        assert_eq!((t.path(new), t.path(old)), (Some("f".into()), None));
        assert!(t.is_same(new, r(0), &attr(10, FILE, 1)));
    }

    #[test]
    fn both_names_of_one_file_are_kept() {
        let mut t = table(VolumeMode::Shared);
        let a = t.remember(ROOT, "a".as_ref(), r(0), &attr(10, FILE, 2), 0).unwrap();
        t.remember(ROOT, "b".as_ref(), r(0), &attr(10, FILE, 2), 0).unwrap();
        assert_eq!(t.paths(a), [PathBuf::from("a"), "b".into()]);
        t.remove_link(at("b"), Some(a), LinkRemoval::OtherLinksLeft, 1);
        assert_eq!(t.path(a), Some("a".into()));
    }

    #[test]
    fn a_name_belongs_to_the_last_inode_found_there() {
        let mut t = table(VolumeMode::Shared);
        let old = t.remember(ROOT, "f".as_ref(), r(0), &attr(10, FILE, 1), 0).unwrap();
        let new = t.remember(ROOT, "f".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        assert_eq!((t.path(old), t.path(new)), (None, Some("f".into())));
        t.forget(old, 1);
        assert_eq!(t.path(new), Some("f".into()));
        t.forget(new, 1);
        assert_eq!(t.len(), 1);
    }

    #[test]
    fn the_page_cache_is_valid_only_for_the_opened_version() {
        let mut t = table(VolumeMode::Shared);
        let f = t.remember(ROOT, "f".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        let v1 = attr(11, FILE, 1).version();
        let v2 = FileVersion { size: 5, ..v1 };
        t.record_open(f, v1).mark_read();
        assert!(t.record_open(f, v1).is_valid());
        t.record_open(f, v2).mark_read();
        assert!(t.record_open(f, v2).is_valid());
        assert!(!t.record_open(f, v1).is_valid());
    }

    #[test]
    fn the_page_cache_is_valid_only_after_a_read() {
        let mut t = table(VolumeMode::Shared);
        let f = t.remember(ROOT, "f".as_ref(), r(0), &attr(11, FILE, 1), 0).unwrap();
        let v1 = attr(11, FILE, 1).version();
        let v2 = FileVersion { size: 5, ..v1 };
        let old = t.record_open(f, v1);
        let first = t.record_open(f, v2);
        assert!(!t.record_open(f, v2).is_valid());
        old.mark_read();
        assert!(!t.record_open(f, v2).is_valid(), "a handle of another version was read");
        first.mark_read();
        assert!(t.record_open(f, v2).is_valid());
        t.mark_cache_mixed(f);
        first.mark_read();
        assert!(!t.record_open(f, v2).is_valid());
    }
}
