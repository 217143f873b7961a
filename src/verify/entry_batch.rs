//! The entries of a directory that a worker compares together.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::progress::ObjectNumber;
use crate::volume::ReplicaSet;

/// Some entries of a directory.
pub(super) struct EntryBatch {
    pub(super) dir: Arc<Path>,
    /// The replicas on which the directory is compared.
    pub(super) compared_on: ReplicaSet,
    pub(super) entries: Vec<BatchEntry>,
}

/// One name in a directory.
pub(super) struct BatchEntry {
    pub(super) number: ObjectNumber,
    pub(super) name: OsString,
    /// The replicas that list it.
    pub(super) listed_on: ReplicaSet,
}
