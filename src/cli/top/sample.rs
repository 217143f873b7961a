//! The state of a daemon at one moment.

use std::io;
use std::path::Path;
use std::time::Instant;

use crate::control::{self, FileActivity};
use crate::status::Status;

/// A daemon's status and its most recently read files.
pub(super) struct Sample {
    pub(super) taken_at: Instant,
    pub(super) status: Status,
    /// `None` if the daemon does not support the request.
    pub(super) files: Option<Vec<FileActivity>>,
}

impl Sample {
    /// Asks the daemon that listens at `socket`.
    ///
    /// # Errors
    /// If no daemon listens, or it does not answer.
    pub(super) fn take(socket: &Path) -> io::Result<Self> {
        let status = control::query_status(socket)?;
        let at = Instant::now();
        // An older daemon refuses this request.
        let files = control::query_file_activity(socket).ok();
        Ok(Self { taken_at: at, status, files })
    }
}
