//! Owners of locks.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// An owner of locks on one file.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct LockOwnerRecord {
    pub(in crate::fs) ino: u64,
    pub(in crate::fs) owner: u64,
    /// The handles that it took locks through.
    pub(in crate::fs) handles: BTreeSet<u64>,
    /// The descriptor that has the locks, among those that are sent along.
    pub(in crate::fs) file: u32,
}
