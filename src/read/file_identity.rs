//! What tells an open file from another that is at its path by now: when it was made, and
//! whether any name leads to it.
//!
//! A version tells them apart for readers. What follows a file from version to version, a
//! change of it, needs the file itself: file systems use the number of a removed file again.

use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::backend::{Attr, Generation, HandleDigest, Timestamp};
use crate::volume::VolumeMode;

#[derive(Default)]
pub(super) struct FileIdentity {
    birth_time: OnceLock<Timestamp>,
    /// One of each space: replicas may show different handles of it.
    handles: Mutex<Vec<HandleDigest>>,
    is_unlinked: OnceLock<()>,
}

impl FileIdentity {
    /// A replica shows this of it.
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

    /// That of an older version of the file.
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

    /// Whether `attr` may be the file's. Each copy of a file was made at another time.
    pub(super) fn is_match(&self, mode: VolumeMode, attr: &Attr) -> bool {
        let born = self.birth_time.get().copied();
        let is_other = |handle| Generation { born, handle }.is_distinct_from(&attr.generation);
        let handles = self.handles.lock();
        mode == VolumeMode::Copies
            || !is_other(None) && !handles.iter().any(|one| is_other(Some(*one)))
    }

    /// Whether a name leads to it.
    pub(super) fn has_name(&self) -> bool {
        self.is_unlinked.get().is_none()
    }
}
