//! What one replica has open of a file.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::BackendFile;

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
    /// Opened at an older version; whether it shows this one is not known.
    Older(Arc<dyn BackendFile>),
    /// Its own open showed this version.
    Open(Arc<dyn BackendFile>),
}

impl Held {
    /// The file, at whatever version it was opened.
    pub(super) fn file(&self) -> Option<&Arc<dyn BackendFile>> {
        match self {
            Self::Nothing => None,
            Self::Older(file) | Self::Open(file) => Some(file),
        }
    }
}
