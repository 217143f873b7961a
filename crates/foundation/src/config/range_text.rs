//! Ranges and durations as the documents and the schema show them.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::units::Time;

/// A range of quantities.
pub(super) fn bounds<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("`\"{}\"` to `\"{}\"`", range.start(), range.end())
}

/// A range of numbers.
pub(super) fn number_bounds<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("{} to {}", range.start(), range.end())
}

/// A range of durations.
pub(super) fn times(range: &RangeInclusive<Time>) -> String {
    format!("`\"{}\"` to `\"{}\"`", time_text(*range.start()), time_text(*range.end()))
}

/// A duration in the units of the documents: `5min`, where humantime prints `5m`.
pub(super) fn time_text(time: Time) -> String {
    let text = time.to_string();
    let words = text.split(' ').map(|word| match word.strip_suffix('m') {
        Some(minutes) => format!("{minutes}min"),
        None => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}
