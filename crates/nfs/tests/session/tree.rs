//! The files of a server.

use super::status;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    LookUp,
    Read { offset: u64 },
    Other,
}

/// An object's attributes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    /// Of `nfs_ftype4`.
    pub(crate) kind: u8,
    pub(crate) size: u64,
    pub(crate) file_system: u64,
    pub(crate) number: u64,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) owner: u32,
    pub(crate) group: u32,
    pub(crate) accessed: (i64, u32),
    pub(crate) modified: (i64, u32),
    pub(crate) changed: (i64, u32),
}

impl Attributes {
    /// The directory above the export.
    pub(crate) const ROOT: Self = Self { file_system: 0, ..Self::sample(1, 2, 4) };

    const fn sample(number: u64, kind: u8, size: u64) -> Self {
        let time = (7, 8);
        Self {
            kind,
            size,
            file_system: 1,
            number,
            mode: 0o755,
            links: 3,
            owner: 1000,
            group: 1000,
            accessed: time,
            modified: time,
            changed: time,
        }
    }
}

/// A name in a directory, and what the server tells about it.
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) found: Result<Attributes, u32>,
}

/// What a server exports. An object is a number. The errors are numbers of `nfsstat4`.
pub(crate) trait Tree: Send + Sync {
    /// The root of the export.
    fn export(&self) -> u64;

    /// Waits as long as such a call is to wait.
    ///
    /// # Errors
    /// If it is to fail.
    fn pass(&self, _kind: Kind) -> Result<(), u32> {
        Ok(())
    }

    /// Whether calls wait for nothing. Otherwise each has a thread.
    fn answers_at_once(&self) -> bool;

    fn look_up(&self, dir: u64, name: &[u8]) -> Result<u64, u32>;

    fn attributes(&self, object: u64) -> Result<Attributes, u32>;

    /// The bytes, and whether the file ends after them.
    fn read(&self, file: u64, offset: u64, count: usize) -> Result<(Vec<u8>, bool), u32>;

    fn list(&self, dir: u64) -> Result<Vec<Listed>, u32>;

    /// How many names are in one reply.
    fn names_in_part(&self) -> usize;

    fn read_link(&self, link: u64) -> Result<Vec<u8>, u32>;
}

/// The bytes of the file of a [`Sample`].
pub(crate) fn pattern() -> Vec<u8> {
    (0..100_000).map(|i: usize| (i * 31 + i / 509) as u8).collect()
}

/// A directory with a file, a directory, a link, and a file whose attributes a listing lacks.
pub(crate) struct Sample;

/// An object: its number, its kind and its name.
type Node = (u64, u8, &'static str);

const EXPORT: Node = (2, 2, "export");
/// In the export.
const NODES: [Node; 4] = [(3, 2, "dir"), (4, 1, "file"), (6, 1, "hidden"), (5, 5, "link")];

impl Tree for Sample {
    fn export(&self) -> u64 {
        EXPORT.0
    }

    fn answers_at_once(&self) -> bool {
        true
    }

    fn look_up(&self, _dir: u64, name: &[u8]) -> Result<u64, u32> {
        let found = NODES.into_iter().find(|node| node.2.as_bytes() == name);
        found.map(|node| node.0).ok_or(status::NOENT)
    }

    fn attributes(&self, object: u64) -> Result<Attributes, u32> {
        let all = [EXPORT].into_iter().chain(NODES);
        let node = { all }.find(|node| node.0 == object).expect("a handle of this server");
        Ok(Attributes::sample(node.0, node.1, if node.2 == "file" { 100_000 } else { 4 }))
    }

    fn read(&self, _file: u64, offset: u64, count: usize) -> Result<(Vec<u8>, bool), u32> {
        let (data, offset) = (pattern(), offset as usize);
        let end = (offset + count).min(data.len());
        Ok((data[offset.min(end)..end].to_vec(), end == data.len()))
    }

    fn list(&self, dir: u64) -> Result<Vec<Listed>, u32> {
        let all: &[Node] = if dir == EXPORT.0 { &NODES } else { &[] };
        let listed = |node: &Node| Listed {
            name: node.2.as_bytes().to_vec(),
            found: if node.2 == "hidden" { Err(5) } else { self.attributes(node.0) },
        };
        Ok(all.iter().map(listed).collect())
    }

    fn names_in_part(&self) -> usize {
        2
    }

    fn read_link(&self, _link: u64) -> Result<Vec<u8>, u32> {
        Ok(b"file".to_vec())
    }
}
