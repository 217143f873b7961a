//! Globs over the volume's paths, as affinity rules and placement tables have them.

use globset::{ErrorKind, Glob, GlobBuilder, GlobSet, GlobSetBuilder};

/// The length of the longest glob. A path of a system call has at most 4096 bytes; alternatives
/// take more. A glob of a megabyte takes seconds to compile, whatever it matches.
pub const MAX_GLOB: usize = 16 << 10;

/// The length of all globs of one set together.
const MAX_ALL: usize = 1 << 20;

/// The reason that a text is not a glob, or that globs are too many.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("it has {0} bytes; the limit is {MAX_GLOB}")]
    TooLong(usize),
    #[error("they have {0} bytes; the limit is {MAX_ALL}")]
    TooManyBytes(usize),
    #[error("{0}")]
    Invalid(ErrorKind),
}

impl From<globset::Error> for GlobError {
    fn from(error: globset::Error) -> Self {
        Self::Invalid(error.kind().clone())
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

    #[test]
    fn the_limits_refuse_globs_before_they_are_compiled() {
        assert!(parse_glob(&"a".repeat(MAX_GLOB)).is_ok());
        assert_eq!(parse_glob(&"[".repeat(MAX_GLOB + 1)), Err(GlobError::TooLong(MAX_GLOB + 1)));
        let long = parse_glob(&"a".repeat(MAX_GLOB)).unwrap();
        assert!(glob_set(vec![long.clone(); 64]).is_ok());
        let error = glob_set(vec![long; 65]).map(drop).unwrap_err();
        assert_eq!(error, GlobError::TooManyBytes(65 * MAX_GLOB));
    }
}
