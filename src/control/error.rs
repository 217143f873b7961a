//! The errors that a peer gets instead of an answer.

use std::error::Error;
use std::fmt;

/// A line that is not a valid request.
#[derive(Debug, thiserror::Error)]
#[error("{}", Printable(.0))]
pub struct InvalidRequest(#[from] serde_json::Error);

/// The error on one line: it may repeat text from the peer.
struct Printable<'a>(&'a serde_json::Error);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text.replace(|c: char| c.is_control(), " "))
    }
}

/// Why there is no answer, for the peer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The request is invalid.
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// The peer may not ask for a change.
    #[error("only root and the user that mounted the volume may do this")]
    NotPermitted,
    /// Too many peers already wait for slow answers.
    #[error("too many clients wait for such a request; try again later")]
    Busy,
    /// The daemon could not carry out the request.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

impl ControlError {
    /// The daemon could not carry out the request.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}
