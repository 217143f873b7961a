//! Why there are no figures of a pass.

use std::sync::Arc;
use std::time::Duration;

use super::pass::ReaderError;
use super::scratch_mount::ScratchMountError;

/// Why there are no figures of a pass, with the name of the replica that it read from, or
/// `fanfs`.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// A pass before it has found the replica hung.
    #[error("{reader} did not answer before")]
    Unresponsive {
        /// The replica.
        reader: String,
    },
    /// A call did not return.
    #[error("{reader}: no answer within {} s", .deadline.as_secs_f64())]
    TimedOut {
        /// The replica, or fanfs.
        reader: String,
        /// How long the call was waited for.
        deadline: Duration,
    },
    /// A reader failed.
    #[error("{reader}: {error}")]
    Reader {
        /// The replica, or fanfs.
        reader: String,
        /// Why.
        error: ReaderError,
    },
    /// fanfs could not be mounted over these replicas, for any pass.
    #[error(transparent)]
    Mount(#[from] Arc<ScratchMountError>),
    /// There is no mount over these replicas.
    #[error("fanfs is not mounted")]
    NotMounted,
}
