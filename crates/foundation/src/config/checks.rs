//! Checks of single values: paths, ranges, counts, choices.

use std::fmt::Display;
use std::num::TryFromIntError;
use std::ops::RangeInclusive;
use std::path::{Component, Path};

use super::error::ConfigError;
use super::key_index::{KeyIndex, nearest};

/// Checks that `path` means the same directory wherever the daemon starts, and that other
/// spellings of it compare equal. Paths with `..` do not: their meaning depends on symbolic links.
pub(super) fn check_path(outline: &KeyIndex<'_>, key: &str, path: &str) -> Result<(), ConfigError> {
    let advice = if !path.starts_with('/') {
        "is not absolute; start it with /"
    } else if path.contains('\0') {
        "contains a NUL character; remove it"
    } else if Path::new(path).components().any(|part| part == Component::ParentDir) {
        "contains `..`; write the path without it"
    } else {
        return Ok(());
    };
    Err(outline.refuse(key, format!("{path:?} {advice}")))
}

pub(super) fn check_range<T: PartialOrd + Display>(
    outline: &KeyIndex<'_>,
    key: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ConfigError> {
    if range.contains(&value) {
        return Ok(());
    }
    let what = format!("{value} is out of range; use {} to {}", range.start(), range.end());
    Err(outline.refuse(key, what))
}

pub(super) fn parse_count<T>(
    outline: &KeyIndex<'_>,
    key: &str,
    written: Option<i64>,
    default: T,
    range: RangeInclusive<i64>,
) -> Result<T, ConfigError>
where
    T: TryFrom<i64, Error = TryFromIntError>,
{
    let Some(written) = written else { return Ok(default) };
    check_range(outline, key, written, range)?;
    Ok(T::try_from(written).expect("ranges of counts fit their types"))
}

pub(super) fn parse_choice<T: Copy>(
    outline: &KeyIndex<'_>,
    key: &str,
    written: &str,
    choices: &[(&str, T)],
) -> Result<T, ConfigError> {
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == written) {
        return Ok(*choice);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    let hint = nearest(written, &names).map(|near| format!(" (did you mean {near:?}?)"));
    let hint = hint.unwrap_or_default();
    Err(outline.refuse(key, format!("{written:?} is not valid; use {}{hint}", quoted.join(" or "))))
}
