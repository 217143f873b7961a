//! What was changed lately.

use serde::{Deserialize, Serialize};

/// A hash of something that may be changed. The same in every process and release.
pub(in crate::fs) type ChangeMark = u64;

/// What was changed, with the age of each, milliseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::fs) struct RecentChangesRecord {
    pub(in crate::fs) marks: Vec<(ChangeMark, u32)>,
    /// The bits of each Bloom filter.
    pub(in crate::fs) filters: Vec<(u32, Vec<u64>)>,
}
