//! Owners of locks.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// An owner of locks on one file.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct LockOwnerRecord {
    pub(in crate::fs) ino: u64,
    pub(in crate::fs) owner: u64,
    /// The handles through which it took locks.
    pub(in crate::fs) handles: BTreeSet<u64>,
    /// The index of the descriptor that has the locks, among those that are sent.
    pub(in crate::fs) file: u32,
}
