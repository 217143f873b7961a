//! Globs over the volume's paths, as affinity rules and placement tables have them.

use globset::{ErrorKind, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

/// The length of the longest glob. A path of a system call has at most 4096 bytes; alternatives
/// take more. A glob of a megabyte takes seconds to compile, whatever it matches, and nested
/// alternatives take 180 bytes of a thread's stack for every two bytes.
pub const MAX_GLOB: usize = 16 << 10;

/// The length of all globs of one set together. A volume's file has at most 1 MiB, and a rule for
/// everything below a directory counts twice.
const MAX_ALL: usize = 2 << 20;

/// Why a text is refused as a glob (the message follows the text), or several globs as one set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("is too long for a glob: {0} bytes; use at most {MAX_GLOB}")]
    TooLong(usize),
    #[error("{0} bytes, and the limit is {MAX_ALL}")]
    TooManyBytes(usize),
    #[error("is not a glob: {0}")]
    Invalid(ErrorKind),
}

impl From<globset::Error> for GlobError {
    fn from(error: globset::Error) -> Self {
        Self::Invalid(error.kind().clone())
    }
}

/// The start of a text, for a message.
pub fn text_start(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Compiles one glob: `*` does not match `/`.
///
/// # Errors
/// If it is too long or not valid.
pub fn parse_glob(text: &str) -> Result<Glob, GlobError> {
    if text.len() > MAX_GLOB {
        return Err(GlobError::TooLong(text.len()));
    }
    Ok(GlobBuilder::new(text).literal_separator(true).build()?)
}

/// Makes a set of globs, which needs no regex for a plain path.
///
/// # Errors
/// If they are too large to match: a single matcher would panic then.
pub fn glob_set(globs: Vec<Glob>) -> Result<GlobSet, GlobError> {
    let bytes = globs.iter().map(|glob| glob.glob().len()).sum();
    if bytes > MAX_ALL {
        return Err(GlobError::TooManyBytes(bytes));
    }
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        set.add(glob);
    }
    Ok(set.build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread with the usual stack.
    #[test]
    fn the_deepest_glob_is_compiled_or_refused() {
        let deep = format!("{}a{}", "{".repeat(MAX_GLOB / 2 - 1), "}".repeat(MAX_GLOB / 2 - 1));
        let _ = parse_glob(&deep).and_then(|glob| glob_set(vec![glob]));
    }

    #[test]
    fn the_start_of_a_long_text_ends_with_dots() {
        assert_eq!(text_start("short"), "short");
        assert_eq!(text_start(&"\u{e4}".repeat(81)), "\u{e4}".repeat(80) + "...");
    }

    #[test]
    fn the_limits_refuse_globs_before_they_are_compiled() {
        assert!(parse_glob(&"a".repeat(MAX_GLOB)).is_ok());
        assert_eq!(parse_glob(&"[".repeat(MAX_GLOB + 1)), Err(GlobError::TooLong(MAX_GLOB + 1)));
        let long = parse_glob(&"a".repeat(MAX_GLOB)).unwrap();
        assert!(glob_set(vec![long.clone(); 128]).is_ok());
        let error = glob_set(vec![long; 129]).map(drop).unwrap_err();
        assert_eq!(error, GlobError::TooManyBytes(129 * MAX_GLOB));
    }
}
