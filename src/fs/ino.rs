//! Inode numbers.

use std::collections::HashMap;

/// An inode number on this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// A map by inode numbers. Its hashes are seeded, as those of the standard map, at a fifth of the
/// cost.
pub(super) type InoMap<V> = HashMap<Ino, V, foldhash::fast::RandomState>;

/// The root's inode number, fixed by the FUSE protocol.
pub const ROOT: Ino = Ino(1);
