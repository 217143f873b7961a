//! What can be wrong with a configuration, each in one line.
//!
//! `FILE:LINE: key `read.segment_size`: what is wrong; what to do`. One line,
//! because it ends up in a journal, in a mount helper's output or in a job log,
//! where the second line is the one that gets lost.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a configuration was refused. Its `Display` is one line.
#[derive(Debug, thiserror::Error)]
#[error("{}{problem}", LinePrefix(.file, *.line))]
pub struct ConfigError {
    file: PathBuf,
    line: Option<usize>,
    problem: Problem,
}

impl ConfigError {
    pub(super) fn new(file: &Path, line: Option<usize>, problem: Problem) -> Self {
        Self { file: file.to_path_buf(), line, problem }
    }

    pub(super) fn syntax(file: &Path, text: &str, error: &toml::de::Error) -> Self {
        let span = error.span();
        let line = span.as_ref().map(|span| line_of(text.as_bytes(), span.start));
        // The parser says what it expected but not what it found there.
        let found = span
            .and_then(|span| text.get(span))
            .map(str::trim)
            .filter(|found| (1..=40).contains(&found.len()))
            .map(|found| format!(" at {found:?}"))
            .unwrap_or_default();
        Self::new(file, line, Problem::Syntax { found, what: error.message().to_owned() })
    }
}

/// What is wrong, and what to do about it; the place is known to [`ConfigError`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("cannot be read: {what}; {advice}")]
    Unreadable { what: String, advice: &'static str },
    #[error("is larger than 1MiB; give fanfs the volume's configuration, a TOML file")]
    TooLarge,
    #[error("is not UTF-8; save it as UTF-8 text")]
    NotUtf8,
    #[error("not valid TOML{found}: {}", Escaped(.what))]
    Syntax { found: String, what: String },
    #[error("table {table} is not known; {hint}")]
    UnknownTable { table: String, hint: String },
    #[error("key `{key}` is not known; {hint}")]
    UnknownKey { key: String, hint: String },
    #[error("key `{key}` is missing; {advice}")]
    Missing { key: String, advice: &'static str },
    #[error("key `{key}`: {}", Escaped(.what))]
    Refused { key: String, what: String },
}

impl Problem {
    pub(super) fn unreadable(error: &io::Error) -> Self {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "let the user that runs fanfs read it",
            io::ErrorKind::IsADirectory => "give the file in it",
            io::ErrorKind::InvalidInput => "write the configuration to a regular file",
            _ => "check the file system it is on",
        };
        Self::Unreadable { what: error.to_string(), advice }
    }
}

/// The line, from 1, on which the byte at `offset` stands.
pub(super) fn line_of(text: &[u8], offset: usize) -> usize {
    1 + text.iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// `FILE:LINE: `, or `FILE: ` where there is no one line to blame.
struct LinePrefix<'a>(&'a Path, Option<usize>);

impl fmt::Display for LinePrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", Escaped(&self.0.to_string_lossy()))?;
        match self.1 {
            Some(line) => write!(f, "{line}: "),
            None => f.write_str(" "),
        }
    }
}

/// Text that is not ours, with control characters escaped: a line break in a
/// file name or in a quoted value must not break the one line.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_one() {
        let text = b"a\nb\n";
        assert_eq!([0, 1, 2, 3, 4, 99].map(|at| line_of(text, at)), [1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn an_error_is_one_line_whatever_is_in_it() {
        let problem = Problem::Refused { key: "a".into(), what: "b\nc\u{1b}".into() };
        let error = ConfigError::new(Path::new("x\ny.toml"), Some(3), problem);
        assert_eq!(error.to_string(), r"x\ny.toml:3: key `a`: b\nc\u{1b}");
    }
}
