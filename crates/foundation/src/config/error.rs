//! The errors of a configuration, each in one line.
//!
//! The form is `FILE:LINE: key `read.segment_size`: problem; fix`. One line, because errors go to
//! journals, mount helpers' output and job logs, which often lose a second line.

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
        // The parser names the expected kinds of value, but not the kind that it found.
        let found = span
            .and_then(|span| text.get(span))
            .map(str::trim)
            .filter(|found| (1..=40).contains(&found.len()))
            .map(|found| format!(" at {found:?}"))
            .unwrap_or_default();
        Self::new(file, line, Problem::Syntax { found, what: error.message().to_owned() })
    }
}

/// The problem and its fix; [`ConfigError`] has the place.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("cannot be read: {what}; {advice}")]
    Unreadable { what: String, advice: &'static str },
    #[error("is larger than 1MiB; use a volume's configuration file (TOML)")]
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
            io::ErrorKind::PermissionDenied => "make it readable for the user that runs fanfs",
            io::ErrorKind::IsADirectory => "name a file in it",
            io::ErrorKind::InvalidInput => "use a regular file",
            _ => "check the file system it is on",
        };
        Self::Unreadable { what: error.to_string(), advice }
    }
}

/// The line, from 1, of the byte at `offset`.
pub(super) fn line_of(text: &[u8], offset: usize) -> usize {
    1 + text.iter().take(offset).filter(|byte| **byte == b'\n').count()
}

/// `FILE:LINE: `, or `FILE: ` for an error that has no single line.
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

/// Foreign text with control characters escaped: a line break in a file name or a quoted value
/// must not split the error.
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
    fn an_error_is_always_a_single_line() {
        let problem = Problem::Refused { key: "a".into(), what: "b\nc\u{1b}".into() };
        let error = ConfigError::new(Path::new("x\ny.toml"), Some(3), problem);
        assert_eq!(error.to_string(), r"x\ny.toml:3: key `a`: b\nc\u{1b}");
    }
}
