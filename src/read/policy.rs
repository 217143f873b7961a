//! How reads are cut and bounded, and what they can fail with.

use std::time::Duration;

use super::term::Deadlines;
use crate::backend::BackendError;
use crate::buffer::Pipes;
use crate::config::units::Share;

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
    pub fn is_another_version(&self) -> bool {
        matches!(self, Self::Failed(BackendError::Version | BackendError::Short))
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
    pub pipes: Option<Pipes>,
    /// Most callers' threads that may be inside a call on some replica at once.
    pub guests: usize,
    /// How much of what is delivered is compared with the deciding replica's; none in
    /// `shared` volumes.
    pub compare: Share,
}

/// What the thread that asks for a read may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// It may be inside a call on a replica, as a guest, until the read ends.
    MayVisit,
    /// It has other things to do.
    IsBusy,
}
