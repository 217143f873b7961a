//! The names and attributes that operations take and return.

use std::ffi::OsStr;

use super::ino::Ino;
use crate::backend::Attr;
use crate::volume::ReplicaId;

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct EntryName<'a> {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: &'a OsStr,
}

/// Attributes of an object, as one replica shows them.
#[derive(Clone, Copy)]
pub(super) struct ReplicaAttr<'a> {
    pub(super) replica: ReplicaId,
    pub(super) attr: &'a Attr,
}

/// An object, as the kernel sees it.
#[derive(Clone, Copy, Debug)]
pub struct InodeAttr {
    /// Its inode number on this mount.
    pub ino: Ino,
    /// Its attributes; the inode number in them is the replica's.
    pub attr: Attr,
}
