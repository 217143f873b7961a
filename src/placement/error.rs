//! Why a file's placement is unknown.

use std::io;
use std::time::Duration;

use crate::config::Escaped;

/// Why a provider has no answer, on one line. The message of a tool or a service may name
/// files: the log has it at debug level, and above that [`PlacementError::without_file_names`].
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The provider took too long.
    #[error("no answer within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    /// The program could not be started.
    #[error("cannot run {program}: {error}")]
    StartFailed {
        /// Its name.
        program: String,
        /// The cause.
        error: io::Error,
    },
    /// The program reported a failure.
    #[error("{program} failed ({status}): {said}")]
    ProgramFailed {
        /// Its name.
        program: String,
        /// Its exit status or the signal that ended it.
        status: String,
        /// The end of its error output, on one line.
        said: String,
    },
    /// The answer is too long to be valid.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// The answer does not have the form that it should have.
    #[error("line {line} of the answer: {}", Escaped(.what))]
    UnexpectedLine {
        /// From 1.
        line: usize,
        /// The fault, and the text that was expected.
        what: String,
    },
    /// The answer has the right form but is impossible.
    #[error("the answer is invalid: {}", Escaped(.0))]
    InvalidAnswer(String),
    /// The query to the service failed.
    #[error("{}: {}", Escaped(.at), Escaped(.what))]
    ServiceFailed {
        /// Its address.
        at: String,
        /// The cause.
        what: String,
    },
    /// The provider needs a feature that this program was built without.
    #[cfg(not(feature = "hdfs"))]
    #[error(
        "this fanfs was built without WebHDFS (cargo feature `hdfs`); use `command` instead of \
             `url`, or a fanfs that has it"
    )]
    WebHdfsNotBuilt,
    /// The file is not known to the provider.
    #[error("the provider does not know the file")]
    NotFound,
}

impl PlacementError {
    /// The error for a part of a provider that panicked.
    pub fn from_panic(error: &tokio::task::JoinError) -> Self {
        Self::InvalidAnswer(format!("it made fanfs panic; this is a bug in fanfs ({error})"))
    }

    /// The error for line `line`, from 1, of a tool's output.
    pub fn unexpected_line(line: usize, what: impl Into<String>) -> Self {
        Self::UnexpectedLine { line, what: what.into() }
    }
    /// The error's text without anything that may name a file.
    pub fn without_file_names(&self) -> String {
        match self {
            // These texts are fanfs's or the system's, not a tool's.
            Self::TimedOut(_) | Self::StartFailed { .. } | Self::TooLong(_) | Self::NotFound => {
                self.to_string()
            }
            Self::ProgramFailed { program, status, .. } => format!("{program} failed ({status})"),
            Self::UnexpectedLine { line, .. } => {
                format!("line {line} of the answer is not valid")
            }
            Self::InvalidAnswer(_) => "the answer is invalid".to_owned(),
            Self::ServiceFailed { at, .. } => format!("the service failed: {}", Escaped(at)),
            #[cfg(not(feature = "hdfs"))]
            Self::WebHdfsNotBuilt => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_messages_contain_no_file_names() {
        let name = || "/secret".to_owned();
        let program = "tool".to_owned();
        let status = "exit status: 3".to_owned();
        let not_there = || io::Error::from_raw_os_error(2);
        let said = |error: PlacementError| error.without_file_names();
        assert_eq!(said(PlacementError::TimedOut(Duration::from_secs(3))), "no answer within 3s");
        let start = PlacementError::StartFailed { program: program.clone(), error: not_there() };
        assert_eq!(said(start), format!("cannot run tool: {}", not_there()));
        let failed = PlacementError::ProgramFailed { program, status, said: name() };
        assert!(failed.to_string().contains("/secret"));
        assert_eq!(said(failed), "tool failed (exit status: 3)");
        assert_eq!(said(PlacementError::TooLong(7)), "the answer is longer than 7 bytes");
        let line = PlacementError::unexpected_line(12, name());
        assert_eq!(said(line), "line 12 of the answer is not valid");
        assert_eq!(said(PlacementError::InvalidAnswer(name())), "the answer is invalid");
        let service =
            PlacementError::ServiceFailed { at: "http://nn1:9870".to_owned(), what: name() };
        assert_eq!(said(service), "the service failed: http://nn1:9870");
        assert_eq!(said(PlacementError::NotFound), "the provider does not know the file");
    }
}
