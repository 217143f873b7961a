//! What a daemon says of itself at one moment.

use std::io;
use std::path::Path;
use std::time::Instant;

use crate::control::{self, FileActivity};
use crate::status::Status;

/// A daemon's status, and the files that are read.
pub(super) struct Sample {
    pub(super) taken_at: Instant,
    pub(super) status: Status,
    /// None of a daemon that does not know the request.
    pub(super) files: Option<Vec<FileActivity>>,
}

impl Sample {
    /// Asks the daemon that listens at `socket`.
    ///
    /// # Errors
    /// No daemon listens, or it does not answer.
    pub(super) fn take(socket: &Path) -> io::Result<Self> {
        let status = control::query_status(socket)?;
        let at = Instant::now();
        // A daemon older than the request refuses it.
        let files = control::query_file_activity(socket).ok();
        Ok(Self { taken_at: at, status, files })
    }
}
