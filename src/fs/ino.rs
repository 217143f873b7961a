//! Inode numbers.

/// An inode number on this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

/// The root's inode number, fixed by the FUSE protocol.
pub const ROOT: Ino = Ino(1);
