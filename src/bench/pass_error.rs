//! Why a pass has no figures.

use std::sync::Arc;
use std::time::Duration;

use super::pass::ReaderError;
use super::scratch_mount::ScratchMountError;

/// Why a pass has no figures. `reader` is the name of the replica that it read from, or `fanfs`.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// An earlier pass found the replica hung.
    #[error("{reader}: skipped because it hung in an earlier pass")]
    Unresponsive {
        /// The replica.
        reader: String,
    },
    /// A call did not return.
    #[error("{reader}: no answer within {} s", .deadline.as_secs_f64())]
    TimedOut {
        /// The replica, or fanfs.
        reader: String,
        /// How long bench waited for the call.
        deadline: Duration,
    },
    /// A reader failed.
    #[error("{reader}: {error}")]
    Reader {
        /// The replica, or fanfs.
        reader: String,
        /// The reader's error.
        error: ReaderError,
    },
    /// fanfs could not be mounted over these replicas, for any pass.
    #[error(transparent)]
    Mount(#[from] Arc<ScratchMountError>),
    /// There is no mount over these replicas.
    #[error("fanfs is not mounted")]
    NotMounted,
}
