//! What one replica has open of a file.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::BackendFile;
use crate::volume::FileVersion;

/// The file on one replica.
#[derive(Default)]
pub(super) struct ReplicaSlot {
    pub(super) descriptor: Mutex<Descriptor>,
    /// Until when it is left alone. Locked during an open, which may hang; taken
    /// before `held`.
    pub(super) banned_until: Mutex<Option<Instant>>,
    /// When reading it failed.
    pub(super) failed_at: Mutex<Option<Instant>>,
}

/// What is open on one replica. Never locked for long.
#[derive(Default)]
pub(super) enum Descriptor {
    #[default]
    Closed,
    /// Open since an older version, or doubted; whether it shows this one is not known.
    Unverified(Arc<dyn BackendFile>, LastVersion),
    /// Its own open showed this version.
    Verified(Arc<dyn BackendFile>),
}

/// Which version a descriptor showed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastVersion {
    Known(FileVersion),
    Unknown,
}

impl Descriptor {
    /// The file and the version that it showed, where the file is now at `version`.
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

    /// The file, at whatever version it was opened.
    pub(super) fn file(&self) -> Option<&Arc<dyn BackendFile>> {
        match self {
            Self::Closed => None,
            Self::Unverified(file, _) | Self::Verified(file) => Some(file),
        }
    }
}
