//! Why a peer gets an error instead of an answer.

use std::error::Error;
use std::fmt;

/// A line that is no request.
#[derive(Debug, thiserror::Error)]
#[error("{}", Printable(.0))]
pub struct InvalidRequest(#[from] serde_json::Error);

/// One line: an error may repeat what the peer sent.
struct Printable<'a>(&'a serde_json::Error);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text.replace(|c: char| c.is_control(), " "))
    }
}

/// Why there is no answer, as the peer reads it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// It did not ask.
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    /// It may not ask for a change.
    #[error("that is for root and who mounted it")]
    NotPermitted,
    /// Others wait for slow answers already.
    #[error("too many ask that at once")]
    Busy,
    /// The daemon could not do what was asked for.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

impl ControlError {
    /// The daemon could not do what was asked for.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}
