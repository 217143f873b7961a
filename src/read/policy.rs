//! The limits of reads, and their errors.

use std::time::Duration;

use crate::backend::BackendError;
use crate::buffer::PipePool;
use crate::config::units::Share;
use crate::replicas::request_deadline::Deadlines;

/// Why a read was not answered with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Every candidate failed; this is the most significant of their errors.
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
    /// Whether no replica has the requested version any more.
    pub fn is_version_mismatch(&self) -> bool {
        matches!(self, Self::Failed(BackendError::VersionMismatch | BackendError::Truncated))
    }
}

/// The pools of pipes for segments that stay pages, if that is enabled.
#[derive(Clone, Debug, Default)]
pub struct SegmentPipes {
    /// For pages of a replica's page cache.
    pub cached: Option<PipePool>,
    /// For packets of an export's server.
    pub received: Option<PipePool>,
}

/// How reads are divided and limited.
#[derive(Clone, Debug)]
pub struct ReadPolicy {
    /// The unit of dispatch, bytes.
    pub segment: u64,
    /// Longest readahead window, bytes; 0 disables readahead.
    pub readahead_max: u64,
    /// Most bytes of file data in memory.
    pub budget: u64,
    /// The time limits of a request.
    pub deadlines: Deadlines,
    /// How long an attempt at one replica may take before another replica is asked.
    pub attempt_deadline: Duration,
    /// Pipes for segments that stay pages.
    pub pipes: SegmentPipes,
    /// The share of delivered segments that is compared with the deciding replica's; none in
    /// `shared` volumes.
    pub compare_share: Share,
}
