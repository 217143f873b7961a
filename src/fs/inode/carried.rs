//! The table of inodes written down, as another daemon goes on with it.
//!
//! The kernel names inodes by numbers that it got from the daemon before, and does
//! not look them up again. So the next daemon has to know every one of them, by
//! which names, and how often it was looked up.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use super::{Cached, Ino, Inodes, Node, Removed, Seen, Told};
use crate::backend::{Attr, FileKind, Generation};
use crate::volume::{FileId, FileVersion, Mode, ReplicaId};

/// All of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::fs) struct InodesRecord {
    nodes: Vec<NodeRecord>,
    second: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NodeRecord {
    ino: u64,
    names: Vec<(u64, OsString)>,
    lookups: u64,
    natural: u64,
    is_gone: bool,
    is_nameless: bool,
    generation: Generation,
    domain: u64,
    kind: FileKind,
    seen: SeenRecord,
    small_blocks: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum SeenRecord {
    Never,
    At(FileVersion, bool),
    MovedOn,
}

/// One step that the table took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) enum Step {
    /// The kernel was told of what has this name, or was about to be, by this request.
    Remember { request: u64, ino: u64, parent: u64, name: OsString, replica: u16, found: Found },
    /// The kernel forgot some lookups.
    Forget { ino: u64, count: u64 },
    /// A name was removed.
    Remove { parent: u64, name: OsString, ino: Option<u64>, left: Left },
    /// A name was changed.
    Rename { from: (u64, OsString), to: (u64, OsString), moved: Option<u64> },
}

/// As much of an object's attributes as its number depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) struct Found {
    dev: u64,
    ino: u64,
    kind: FileKind,
    nlink: u32,
    generation: Generation,
}

/// As [`Removed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) enum Left {
    Names,
    Open,
    Nothing,
}

impl From<Removed> for Left {
    fn from(removed: Removed) -> Self {
        match removed {
            Removed::OneOfSeveral => Self::Names,
            Removed::Name => Self::Open,
            Removed::All => Self::Nothing,
        }
    }
}

impl From<Left> for Removed {
    fn from(left: Left) -> Self {
        match left {
            Left::Names => Self::OneOfSeveral,
            Left::Open => Self::Name,
            Left::Nothing => Self::All,
        }
    }
}

impl From<&Attr> for Found {
    fn from(attr: &Attr) -> Self {
        let FileId { dev, ino } = attr.id;
        Self { dev, ino, kind: attr.kind, nlink: attr.nlink, generation: attr.generation }
    }
}

impl Found {
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
    pub(in crate::fs) fn carry(&self) -> InodesRecord {
        let record = |(ino, node): (&Ino, &Node)| NodeRecord {
            ino: ino.0,
            names: node.names.iter().map(|(parent, name)| (parent.0, name.clone())).collect(),
            lookups: node.lookups,
            natural: node.natural.0,
            is_gone: node.gone.is_some(),
            is_nameless: node.is_nameless,
            generation: node.generation,
            domain: node.domain,
            kind: node.kind,
            seen: match &node.seen {
                Seen::Never => SeenRecord::Never,
                Seen::At(version, cached) => SeenRecord::At(*version, cached.is_good()),
                Seen::MovedOn => SeenRecord::MovedOn,
            },
            small_blocks: node.small_blocks,
        };
        let second = self.second.iter().map(|(natural, ino)| (natural.0, ino.0)).collect();
        InodesRecord { nodes: self.nodes.iter().map(record).collect(), second }
    }

    /// The table that was written down. Changes are counted anew.
    pub(in crate::fs) fn restore(mode: Mode, record: InodesRecord) -> Self {
        let mut inodes = Self::new(mode);
        inodes.second = record.second.into_iter().map(|(one, two)| (Ino(one), Ino(two))).collect();
        for record in record.nodes {
            let names = record.names.into_iter().map(|(parent, name)| (Ino(parent), name));
            let node = Node {
                names: names.collect(),
                lookups: record.lookups,
                gone: record.is_gone.then_some(0),
                is_nameless: record.is_nameless,
                generation: record.generation,
                seen: match record.seen {
                    SeenRecord::Never => Seen::Never,
                    SeenRecord::At(version, true) => Seen::At(version, Cached::good()),
                    SeenRecord::At(version, false) => Seen::At(version, Cached::default()),
                    SeenRecord::MovedOn => Seen::MovedOn,
                },
                // It comes to be known at the next open, at the cost of one notice.
                told: Told::Several,
                small_blocks: record.small_blocks,
                ..Node::new(Ino(record.natural), record.domain, record.kind)
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
    pub(in crate::fs) fn take(&mut self, step: Step) -> Option<(u64, Ino)> {
        match step {
            Step::Remember { request, ino, parent, name, replica, found } => {
                let (at, attr) = ((Ino(parent), &*name), found.attr());
                let found = (ReplicaId::new(replica.into()), &attr);
                let ino = self.remember_as(Ino(ino), request, at, found, u64::MAX);
                return Some((request, ino?));
            }
            Step::Forget { ino, count } => self.forget(Ino(ino), count),
            Step::Remove { parent, name, ino, left } => {
                self.removed((Ino(parent), &name), ino.map(Ino), left.into(), 0);
            }
            Step::Rename { from, to, moved } => {
                let (from, to) = ((Ino(from.0), &*from.1), (Ino(to.0), &*to.1));
                self.renamed(from, to, moved.map(Ino), 0);
            }
        }
        None
    }

    /// Nothing is open on the replicas any more: they have freed what has no name.
    pub(in crate::fs) fn was_lost(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.is_nameless) {
            node.gone = Some(0);
        }
    }

    /// Nobody knows which versions of files the kernel has cached.
    pub(in crate::fs) fn has_lost_sight(&mut self) {
        for node in self.nodes.values_mut().filter(|node| node.kind == FileKind::Regular) {
            node.seen = Seen::MovedOn;
        }
    }

    /// What is cached of the file since it was opened at the version opened last.
    pub(in crate::fs) fn cached(&self, ino: Ino) -> Option<&Cached> {
        match &self.nodes.get(&ino)?.seen {
            Seen::At(_, cached) => Some(cached),
            Seen::Never | Seen::MovedOn => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ROOT;
    use super::*;

    fn found(ino: u64, kind: FileKind) -> Attr {
        let generation = Generation::born((5, ino as u32));
        Found { dev: FileId::HOME, ino, kind, nlink: 1, generation }.attr()
    }

    /// What is written down and read again knows the same paths, and forgets at the
    /// same lookups.
    #[test]
    fn a_table_that_was_written_down_is_the_same() {
        let mut t = Inodes::new(Mode::Shared);
        let replica = ReplicaId::new(0);
        let d =
            t.remember(ROOT, "d".as_ref(), replica, &found(10, FileKind::Directory), 0).unwrap();
        let f = t.remember(d, "f".as_ref(), replica, &found(11, FileKind::Regular), 0).unwrap();
        t.remember(d, "f".as_ref(), replica, &found(11, FileKind::Regular), 0).unwrap();
        t.forget(d, 1);
        let bytes = postcard::to_stdvec(&t.carry()).unwrap();
        let mut again = Inodes::restore(Mode::Shared, postcard::from_bytes(&bytes).unwrap());
        assert_eq!((again.len(), again.path(f)), (3, t.path(f)));
        assert_eq!(again.named(d, "f".as_ref()), Some(f));
        again.forget(f, 1);
        assert_eq!(again.len(), 3);
        again.forget(f, 1);
        assert_eq!(again.len(), 1);
    }
}
