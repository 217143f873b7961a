//! The names and attributes that operations on the tables take.

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

/// Attributes of an object, as a replica shows them.
#[derive(Clone, Copy)]
pub(super) struct ReplicaAttr<'a> {
    pub(super) replica: ReplicaId,
    pub(super) attr: &'a Attr,
}
