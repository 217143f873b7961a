//! How reads are cut and bounded, and what they can fail with.

use std::time::Duration;

use crate::backend::BackendError;
use crate::buffer::PipePool;
use crate::config::units::Share;
use crate::replicas::request_deadline::Deadlines;

/// Why a read was not answered with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Every candidate failed; this is the most telling of their errors.
    #[error("all replicas failed: {0}")]
    Failed(BackendError),
    /// No candidate delivered before the deadline.
    #[error("no replica answered before the deadline")]
    Deadline,
    /// The volume is being unmounted.
    #[error("the volume is being unmounted")]
    Stopped,
}

impl ReadError {
    /// Whether no replica has the version any more that was to be read.
    pub fn is_version_mismatch(&self) -> bool {
        matches!(self, Self::Failed(BackendError::VersionMismatch | BackendError::Truncated))
    }
}

/// How reads are cut, bounded and remembered.
#[derive(Clone, Debug)]
pub struct ReadPolicy {
    /// The unit of dispatch, bytes.
    pub segment: u64,
    /// Longest readahead window, bytes.
    pub readahead_max: u64,
    /// Most bytes of file data in memory.
    pub budget: u64,
    /// By when a request is answered.
    pub deadlines: Deadlines,
    /// How long one replica may take before another is asked.
    pub attempt_deadline: Duration,
    /// Where segments wait as pages, if they do.
    pub pipes: Option<PipePool>,
    /// How much of what is delivered is compared with the deciding replica's; none in
    /// `shared` volumes.
    pub compare_share: Share,
}

/// What the thread that asks for a read may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerThread {
    /// It may be inside a call on a replica, as a guest, until the read ends.
    MayInline,
    /// It has other things to do.
    MustQueue,
}
