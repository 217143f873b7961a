//! Recent changes.

use serde::{Deserialize, Serialize};

/// A hash of a name or an inode that was changed. The same in every process and release.
pub(in crate::fs) type ChangeMark = u64;

/// Recent changes, each with its age in milliseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::fs) struct RecentChangesRecord {
    pub(in crate::fs) marks: Vec<(ChangeMark, u32)>,
    /// The age of each Bloom filter, and its bits.
    pub(in crate::fs) filters: Vec<(u32, Vec<u64>)>,
}
