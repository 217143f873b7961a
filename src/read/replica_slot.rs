//! A file's descriptor on one replica.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::BackendFile;
use crate::volume::FileVersion;

/// The state of a file on one replica.
#[derive(Default)]
pub(super) struct ReplicaSlot {
    pub(super) descriptor: Mutex<Descriptor>,
    /// Locked during an open, which may hang; taken before the others. A thread that ends reads of
    /// others must not wait for it: it may be the one that receives the answer to the open.
    pub(super) opening: Mutex<()>,
    /// When its version ban ends. Never locked for long; taken before `descriptor`.
    pub(super) banned_until: Mutex<Option<Instant>>,
    /// When a read of it last failed or hung.
    pub(super) failed_at: Mutex<Option<Instant>>,
}

/// The open file on one replica. Its lock is never held for long.
#[derive(Default)]
pub(super) enum Descriptor {
    #[default]
    Closed,
    /// Open since an older version, or in doubt; it may not have this version.
    Unverified(Arc<dyn BackendFile>, LastVersion),
    /// Its own open showed this version.
    Verified(Arc<dyn BackendFile>),
}

/// The last version that a descriptor showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastVersion {
    Known(FileVersion),
    Unknown,
}

impl ReplicaSlot {
    /// Whether the replica does not have this version, as far as is known.
    pub(super) fn is_banned(&self) -> bool {
        self.banned_until.lock().is_some_and(|until| Instant::now() < until)
    }
}

impl Descriptor {
    /// The file and the last version that it showed. `version` is the present one.
    pub(super) fn with_last_version(
        &self,
        version: FileVersion,
    ) -> Option<(Arc<dyn BackendFile>, LastVersion)> {
        match self {
            Self::Closed => None,
            Self::Unverified(file, opened) => Some((Arc::clone(file), *opened)),
            Self::Verified(file) => Some((Arc::clone(file), LastVersion::Known(version))),
        }
    }

    /// The file, at any version.
    pub(super) fn file(&self) -> Option<&Arc<dyn BackendFile>> {
        match self {
            Self::Closed => None,
            Self::Unverified(file, _) | Self::Verified(file) => Some(file),
        }
    }
}
