//! Why it is not known where a file's chunks are.

use std::io;
use std::time::Duration;

use crate::config::Flat;

/// Why a provider has no answer. Each is one line without names of files:
/// it goes to the log.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// It took too long.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Late(Duration),
    /// The program could not be started.
    #[error("{program} cannot be run: {error}")]
    Start {
        /// Its name.
        program: String,
        /// What starting it failed with.
        error: io::Error,
    },
    /// The program said that it failed.
    #[error("{program} failed ({status}): {said}")]
    Failed {
        /// Its name.
        program: String,
        /// How it ended.
        status: String,
        /// The end of what it wrote to standard error, on one line.
        said: String,
    },
    /// The answer is longer than any that makes sense.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// The answer does not have the form that it should have.
    #[error("line {line} of the answer: {}", Flat(.what))]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// The answer has the right form and cannot be.
    #[error("the answer makes no sense: {}", Flat(.0))]
    Nonsense(String),
    /// The service could not be asked.
    #[error("{}: {}", Flat(.at), Flat(.what))]
    Service {
        /// Its address.
        at: String,
        /// What went wrong.
        what: String,
    },
    /// The file is not known to the provider.
    #[error("the file is not known there")]
    NotFound,
}

impl PlacementError {
    /// What is wrong with line `line`, from 1, of a tool's output.
    pub fn line(line: usize, what: impl Into<String>) -> Self {
        Self::Line { line, what: what.into() }
    }
}
