//! The inodes that the kernel knows, and the names it knows them by.
//!
//! Replicas are asked by path, so each inode remembers a name in a parent that
//! is itself an inode; a path is put together from there to the root. An inode
//! with several hard links has several names, the one looked up last is used.
//!
//! **Inode numbers.** In `shared` mode they are the replica's own, so that hard
//! links are one inode and numbers are the same through every replica and after
//! every remount. Numbers in file systems mounted below the replica's root are
//! mixed with the place of that mount, as they may repeat. In `copies` mode each
//! tree has numbers of its own, so a number is made of the path; of the number
//! in the first replica for files with several links.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::{Attr, FileKind};
use crate::volume::{FileId, FileVersion, Mode, ReplicaId};

/// An inode number on this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// The root's, fixed by the FUSE protocol.
pub const ROOT: Ino = Ino(1);

/// Numbers that are made, not taken from a replica, have this bit; replicas
/// that count from 1 never reach it.
const MADE: u64 = 1 << 63;

/// All known inodes.
pub(super) struct Inodes {
    mode: Mode,
    nodes: HashMap<Ino, Node>,
}

struct Node {
    /// Names it was looked up by, the latest last; none for the root.
    names: Vec<(Ino, OsString)>,
    lookups: u64,
    /// Known inodes that have a name in it.
    children: u64,
    /// Stands for the file system it lies in; 0 for the root's.
    domain: u64,
    kind: FileKind,
    seen: Seen,
    /// Who read it directly last took small blocks.
    small_blocks: bool,
}

/// What the kernel was told of a file when it opened it.
#[derive(Clone, Debug)]
enum Seen {
    /// It has not opened it since it knows it, so it has nothing cached.
    Never,
    /// It opened it at this version last.
    At(FileVersion, Cached),
    /// It may have several versions cached.
    MovedOn,
}

/// What the kernel has cached of a file since it was first opened at a version.
///
/// Direct opens are opens as all others here: pages get in through them too,
/// where the file is mapped, and an answer to one that does not say "keep what
/// you have" drops what other handles had cached.
///
/// The kernel carries out "drop what you have" after the answer to that open,
/// and may get the answer to a later one first. Told "keep what you have" there,
/// it would begin a read with pages of the version before and end it without
/// them. So nobody is told that before a read has come through a handle of this
/// version: by then the kernel is through with that handle's open.
#[derive(Clone, Debug, Default)]
pub(super) struct Cached(Arc<AtomicBool>);

impl Cached {
    /// Nothing is cached of any version before.
    fn good() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// A read has come through a handle that was opened at the version.
    pub(super) fn read(&self) {
        if !self.is_good() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether none of it is of an older version.
    pub(super) fn is_good(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Names remembered for one inode. An inode with more links is still reached by
/// those it was looked up by last.
const NAMES: usize = 8;

impl Inodes {
    pub(super) fn new(mode: Mode) -> Self {
        let root = Node {
            names: Vec::new(),
            lookups: 1,
            children: 0,
            domain: 0,
            kind: FileKind::Directory,
            seen: Seen::Never,
            small_blocks: false,
        };
        Self { mode, nodes: HashMap::from([(ROOT, root)]) }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The path from the root; `None` for an unknown inode.
    pub(super) fn path(&self, ino: Ino) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = self.nodes.get(&ino)?;
        while let Some((parent, name)) = at.names.last() {
            names.push(name);
            at = self.nodes.get(parent)?;
        }
        Some(names.into_iter().rev().collect())
    }

    /// The directory that the inode was last looked up in.
    pub(super) fn parent(&self, ino: Ino) -> Option<Ino> {
        Some(self.nodes.get(&ino)?.names.last()?.0)
    }

    /// The number of the object called `name` in `parent`.
    pub(super) fn number(
        &self,
        parent: Ino,
        name: &OsStr,
        replica: ReplicaId,
        attr: &Attr,
    ) -> Option<Ino> {
        let domain = self.domain(parent, name, attr)?;
        self.number_in(domain, || Some(self.path(parent)?.join(name)), replica, attr)
    }

    /// The number to show for a name in a listing, which says `ino` of it.
    pub(super) fn listed(&self, parent: Ino, name: &OsStr, ino: u64) -> Ino {
        match self.mode {
            Mode::Shared if ino > ROOT.0 => Ino(ino),
            Mode::Shared => made(&(0u64, ino)),
            Mode::Copies => made(&self.path(parent).unwrap_or_default().join(name)),
        }
    }

    fn number_in(
        &self,
        domain: u64,
        path: impl FnOnce() -> Option<PathBuf>,
        replica: ReplicaId,
        attr: &Attr,
    ) -> Option<Ino> {
        let linked = attr.nlink > 1 && attr.kind != FileKind::Directory;
        Some(match self.mode {
            Mode::Shared if domain == 0 && attr.id.ino > ROOT.0 => Ino(attr.id.ino),
            Mode::Shared => made(&(domain, attr.id.ino)),
            Mode::Copies if linked => made(&(replica, attr.id.dev, attr.id.ino)),
            Mode::Copies => made(&path()?),
        })
    }

    fn domain(&self, parent: Ino, name: &OsStr, attr: &Attr) -> Option<u64> {
        let parent_domain = self.nodes.get(&parent)?.domain;
        let at_home = attr.id.dev == FileId::HOME;
        Some(match (at_home, parent_domain) {
            (true, _) => 0,
            (false, 0) => made(&(parent, name)).0,
            (false, domain) => domain,
        })
    }

    /// The kernel is told of an object: it knows it once more.
    pub(super) fn remember(
        &mut self,
        parent: Ino,
        name: &OsStr,
        replica: ReplicaId,
        attr: &Attr,
    ) -> Option<Ino> {
        let domain = self.domain(parent, name, attr)?;
        let ino = self.number(parent, name, replica, attr)?;
        let node = self.nodes.entry(ino).or_insert_with(|| Node {
            names: Vec::new(),
            lookups: 0,
            children: 0,
            domain,
            kind: attr.kind,
            seen: Seen::Never,
            small_blocks: false,
        });
        node.lookups += 1;
        node.kind = attr.kind;
        let mut left = None;
        match node.names.iter().position(|(p, n)| *p == parent && n == name) {
            Some(at) if at + 1 == node.names.len() => return Some(ino),
            Some(at) => {
                let name = node.names.remove(at);
                node.names.push(name);
                return Some(ino);
            }
            None => {
                // A directory has one name; an earlier one was moved away.
                let full = node.names.len() >= NAMES || node.kind == FileKind::Directory;
                if full && !node.names.is_empty() {
                    left = Some(node.names.remove(0).0);
                }
                node.names.push((parent, name.to_owned()));
            }
        }
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children += 1;
        }
        if let Some(parent) = left {
            self.leave(parent);
        }
        Some(ino)
    }

    /// Whether `attr`, found where `ino` is said to be, are that inode's.
    pub(super) fn is_same(&self, ino: Ino, replica: ReplicaId, attr: &Attr) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        if ino == ROOT {
            return attr.kind == FileKind::Directory;
        }
        let found = self.number_in(node.domain, || self.path(ino), replica, attr);
        node.kind == attr.kind && (found == Some(ino) || self.mode == Mode::Copies)
    }

    /// The file was opened at `version`: what the kernel has cached of it.
    pub(super) fn opened(&mut self, ino: Ino, version: FileVersion) -> Cached {
        let Some(node) = self.nodes.get_mut(&ino) else { return Cached::default() };
        let cached = match &node.seen {
            Seen::At(seen, cached) if *seen == version => return cached.clone(),
            Seen::Never => Cached::good(),
            Seen::At(..) | Seen::MovedOn => Cached::default(),
        };
        node.seen = Seen::At(version, cached.clone());
        cached
    }

    /// Handles read another version now than they were opened at: the kernel may
    /// have both cached.
    pub(super) fn moved_on(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.seen = Seen::MovedOn;
        }
    }

    /// Who read it directly took small blocks, or did not.
    pub(super) fn read_in_small_blocks(&mut self, ino: Ino, small: bool) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.small_blocks = small;
        }
    }

    /// Whether the last who read it directly took small blocks.
    pub(super) fn is_read_in_small_blocks(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| node.small_blocks)
    }

    /// The kernel forgets `count` lookups.
    pub(super) fn forget(&mut self, ino: Ino, count: u64) {
        if ino == ROOT {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.lookups = node.lookups.saturating_sub(count);
            self.drop_if_unused(ino);
        }
    }

    fn leave(&mut self, parent: Ino) {
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.children = node.children.saturating_sub(1);
            self.drop_if_unused(parent);
        }
    }

    /// A node stays while the kernel knows it or a child's path needs it.
    fn drop_if_unused(&mut self, mut ino: Ino) {
        loop {
            let unused = |node: &Node| node.lookups == 0 && node.children == 0;
            if ino == ROOT || !self.nodes.get(&ino).is_some_and(unused) {
                return;
            }
            let Some(node) = self.nodes.remove(&ino) else { return };
            let mut parents = node.names.into_iter().map(|(parent, _)| parent);
            let Some(last) = parents.next_back() else { return };
            for parent in parents {
                self.leave(parent);
            }
            if let Some(parent) = self.nodes.get_mut(&last) {
                parent.children = parent.children.saturating_sub(1);
            }
            ino = last;
        }
    }
}

/// The same number for the same value in every run of the program.
/// (`DefaultHasher::new` has fixed keys.)
fn made(value: &impl Hash) -> Ino {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    Ino(hasher.finish() | MADE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(ino: u64, kind: FileKind, nlink: u32) -> Attr {
        Attr {
            id: FileId { dev: FileId::HOME, ino },
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
        }
    }

    fn r(i: usize) -> ReplicaId {
        ReplicaId::new(i)
    }

    fn table(mode: Mode) -> Inodes {
        Inodes::new(mode)
    }

    const DIR: FileKind = FileKind::Directory;
    const FILE: FileKind = FileKind::Regular;

    #[test]
    fn shared_mode_keeps_the_replicas_numbers_and_links_are_one_inode() {
        let mut t = table(Mode::Shared);
        let d = t.remember(ROOT, "d".as_ref(), r(0), &attr(10, DIR, 2)).unwrap();
        let a = t.remember(d, "a".as_ref(), r(0), &attr(11, FILE, 2)).unwrap();
        let b = t.remember(ROOT, "b".as_ref(), r(1), &attr(11, FILE, 2)).unwrap();
        assert_eq!((d.0, a.0), (10, 11));
        assert_eq!(a, b);
        assert_eq!(t.path(a).unwrap(), PathBuf::from("b"));
    }

    #[test]
    fn copies_mode_makes_numbers_of_paths() {
        let mut t = table(Mode::Copies);
        let a = t.remember(ROOT, "a".as_ref(), r(0), &attr(11, FILE, 1)).unwrap();
        let same = t.remember(ROOT, "a".as_ref(), r(1), &attr(99, FILE, 1)).unwrap();
        let other = t.remember(ROOT, "b".as_ref(), r(0), &attr(12, FILE, 1)).unwrap();
        assert_eq!(a, same);
        assert_ne!(a, other);
        let x = t.remember(ROOT, "x".as_ref(), r(0), &attr(20, FILE, 2)).unwrap();
        let y = t.remember(ROOT, "y".as_ref(), r(0), &attr(20, FILE, 2)).unwrap();
        assert_eq!(x, y);
    }

    #[test]
    fn a_mount_inside_the_replica_does_not_collide() {
        let mut t = table(Mode::Shared);
        let mut inner = attr(11, DIR, 2);
        inner.id.dev = 6;
        let outer = t.remember(ROOT, "o".as_ref(), r(0), &attr(11, FILE, 1)).unwrap();
        let mount = t.remember(ROOT, "m".as_ref(), r(0), &inner).unwrap();
        assert_ne!(outer, mount);
        let mut file = attr(11, FILE, 1);
        file.id.dev = 6;
        file.id.ino = 12;
        let inside = t.remember(mount, "f".as_ref(), r(0), &file).unwrap();
        assert_ne!(inside.0, 12);
        assert!(t.is_same(inside, r(0), &file));
    }

    #[test]
    fn forgotten_inodes_go_and_parents_stay_while_needed() {
        let mut t = table(Mode::Shared);
        let d = t.remember(ROOT, "d".as_ref(), r(0), &attr(10, DIR, 2)).unwrap();
        let f = t.remember(d, "f".as_ref(), r(0), &attr(11, FILE, 1)).unwrap();
        t.forget(d, 1);
        assert_eq!(t.path(f).unwrap(), PathBuf::from("d/f"));
        t.forget(f, 1);
        assert_eq!(t.len(), 1);
        assert!(t.path(d).is_none());
    }

    #[test]
    fn a_directory_that_moved_has_its_new_path() {
        let mut t = table(Mode::Shared);
        let d = t.remember(ROOT, "old".as_ref(), r(0), &attr(10, DIR, 2)).unwrap();
        t.remember(ROOT, "new".as_ref(), r(0), &attr(10, DIR, 2)).unwrap();
        assert_eq!(t.path(d).unwrap(), PathBuf::from("new"));
        t.forget(d, 2);
        assert_eq!(t.len(), 1);
    }

    #[test]
    fn the_cache_is_good_only_at_the_version_opened_last() {
        let mut t = table(Mode::Shared);
        let f = t.remember(ROOT, "f".as_ref(), r(0), &attr(11, FILE, 1)).unwrap();
        let v1 = attr(11, FILE, 1).version();
        let v2 = FileVersion { size: 5, ..v1 };
        t.opened(f, v1).read();
        assert!(t.opened(f, v1).is_good());
        t.opened(f, v2).read();
        assert!(t.opened(f, v2).is_good());
        assert!(!t.opened(f, v1).is_good());
    }

    #[test]
    fn the_cache_is_good_only_after_a_read() {
        let mut t = table(Mode::Shared);
        let f = t.remember(ROOT, "f".as_ref(), r(0), &attr(11, FILE, 1)).unwrap();
        let v1 = attr(11, FILE, 1).version();
        let v2 = FileVersion { size: 5, ..v1 };
        let old = t.opened(f, v1);
        let first = t.opened(f, v2);
        assert!(!t.opened(f, v2).is_good());
        old.read();
        assert!(!t.opened(f, v2).is_good(), "a handle of another version was read");
        first.read();
        assert!(t.opened(f, v2).is_good());
        t.moved_on(f);
        first.read();
        assert!(!t.opened(f, v2).is_good());
    }
}
