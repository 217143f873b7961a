//! Entries of requests that may not have been answered.

use serde::{Deserialize, Serialize};

use crate::fs::handle_id::HandleId;
use crate::fs::ino::Ino;

/// An entry that a request made in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::fs) enum UnansweredEntry {
    /// An open file or directory.
    Handle { number: u64, ino: u64 },
    /// A lookup by which the kernel knows an inode once more.
    Lookup(u64),
}

/// The last entries, oldest first, by the number of their request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::fs) struct UnansweredRecord(pub(in crate::fs) Vec<(u64, UnansweredEntry)>);

impl From<HandleId> for UnansweredEntry {
    fn from(HandleId { number, ino }: HandleId) -> Self {
        Self::Handle { number, ino: ino.0 }
    }
}

impl From<Ino> for UnansweredEntry {
    fn from(ino: Ino) -> Self {
        Self::Lookup(ino.0)
    }
}
