//! What one replica has open of a file.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::BackendFile;
use crate::volume::FileVersion;

/// The file on one replica.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) held: Mutex<Held>,
    /// Until when it is left alone. Locked during an open, which may hang; taken
    /// before `held`.
    pub(super) opening: Mutex<Option<Instant>>,
    /// When reading it failed.
    pub(super) failed: Mutex<Option<Instant>>,
}

/// What is open on one replica. Never locked for long.
#[derive(Default)]
pub(super) enum Held {
    #[default]
    Nothing,
    /// Open since an older version, or doubted; whether it shows this one is not known.
    Older(Arc<dyn BackendFile>, Opened),
    /// Its own open showed this version.
    Open(Arc<dyn BackendFile>),
}

/// Which version a descriptor showed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    At(FileVersion),
    Unknown,
}

impl Held {
    /// The file and the version that it showed, where the file is now at `version`.
    pub(super) fn at(&self, version: FileVersion) -> Option<(Arc<dyn BackendFile>, Opened)> {
        match self {
            Self::Nothing => None,
            Self::Older(file, opened) => Some((Arc::clone(file), *opened)),
            Self::Open(file) => Some((Arc::clone(file), Opened::At(version))),
        }
    }

    /// The file, at whatever version it was opened.
    pub(super) fn file(&self) -> Option<&Arc<dyn BackendFile>> {
        match self {
            Self::Nothing => None,
            Self::Older(file, _) | Self::Open(file) => Some(file),
        }
    }
}
