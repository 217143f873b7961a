//! Distinguishes an open file from another one that is at its path now: by birth time and file
//! handles, and by whether it still has a name.
//!
//! For readers the version distinguishes them. Following a file from version to version needs its
//! identity: file systems reuse the number of a removed file.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::backend::{Attr, Generation, HandleDigest, Timestamp};
use crate::volume::VolumeMode;

#[derive(Default)]
pub(super) struct FileIdentity {
    birth_time: OnceLock<Timestamp>,
    /// One for each space: replicas may have different handles for it.
    handles: Mutex<Vec<HandleDigest>>,
    is_unlinked: OnceLock<()>,
}

impl FileIdentity {
    /// Adds the generation that a replica reports.
    pub(super) fn add_generation(&self, generation: Generation) {
        if let Some(born) = generation.born {
            self.birth_time.get_or_init(|| born);
        }
        if let Some(handle) = generation.handle {
            let mut handles = self.handles.lock();
            if !handles.iter().any(|known| known.space == handle.space) {
                handles.push(handle);
            }
        }
    }

    pub(super) fn set_unlinked(&self) {
        self.is_unlinked.get_or_init(|| ());
    }

    /// Takes over the identity of an older version of the file.
    pub(super) fn inherit(&self, older: &Self) {
        let handles = older.handles.lock().clone();
        let born = older.birth_time.get().copied();
        self.add_generation(Generation { born, handle: None });
        handles
            .into_iter()
            .for_each(|one| self.add_generation(Generation { born, handle: Some(one) }));
        if older.is_unlinked.get().is_some() {
            self.set_unlinked();
        }
    }

    /// Whether `attr` may be the file's. In `copies` volumes always true, as each copy has its own
    /// birth time.
    pub(super) fn is_match(&self, mode: VolumeMode, attr: &Attr) -> bool {
        let born = self.birth_time.get().copied();
        let is_other = |handle| Generation { born, handle }.is_distinct_from(&attr.generation);
        let handles = self.handles.lock();
        mode == VolumeMode::Copies
            || !is_other(None) && !handles.iter().any(|one| is_other(Some(*one)))
    }

    /// Whether the file still has a name.
    pub(super) fn has_name(&self) -> bool {
        self.is_unlinked.get().is_none()
    }
}
