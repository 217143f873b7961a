//! The entries of a directory that a worker compares together.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::progress::ObjectNumber;
use crate::volume::ReplicaSet;

/// Some entries of a directory.
pub(super) struct EntryBatch {
    pub(super) dir: Arc<Path>,
    /// The replicas that are compared there.
    pub(super) compared_on: ReplicaSet,
    pub(super) entries: Vec<BatchEntry>,
}

/// One name in a directory.
pub(super) struct BatchEntry {
    pub(super) number: ObjectNumber,
    pub(super) name: OsString,
    /// The replicas whose listings have it.
    pub(super) listed_on: ReplicaSet,
}
