//! The volume file's JSON schema, from the comments and attributes of [`raw`].
//!
//! Editors (taplo, and VS Code through it) complete and check a volume file with it, and
//! fanfs.toml(5) is written from it. It says what JSON schema can say: keys, types, units,
//! choices, what is required. What it cannot, keys that contradict each other and ranges of
//! quantities, is [`super::validate`]'s, and stands in it as text under names of our own:
//! `x-unit`, `x-default` (a default that is no fixed value) and `x-range`.
//!
//! *Invariant:* whatever [`super::load`] accepts, the schema accepts.

use std::borrow::Cow;
use std::fmt::Display;
use std::ops::RangeInclusive;

use schemars::generate::SchemaSettings;
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::raw::{self, RawConfig};
use super::units::{Rate, Share, Size, Time};

/// The schema, in the dialect that taplo reads (draft 7).
pub fn schema() -> Value {
    let generator = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = generator.into_generator().into_root_schema_for::<RawConfig>();
    TomlTransform.transform(&mut schema);
    schema.insert("title".to_owned(), "fanfs volume".into());
    schema.to_value()
}

/// The tables and their keys, in the order of the documents; JSON has them in another.
pub fn tables() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    raw::tables().iter().map(|table| (*table, raw::keys(table)))
}

/// What a Rust type says and a TOML file cannot: that a key is null, or how wide a number is.
/// And comments come as paragraphs instead of lines.
struct TomlTransform;

impl Transform for TomlTransform {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(Value::Array(types)) = schema.get_mut("type") {
            types.retain(|kind| kind != "null");
            if let [kind] = types.as_slice() {
                let kind = kind.clone();
                schema.insert("type".to_owned(), kind);
            }
        }
        // That of an `Option`.
        if schema.get("default").is_some_and(Value::is_null) {
            schema.remove("default");
        }
        // serde takes `2` for a float, and so does JSON; an integer's width is no news.
        schema.remove("format");
        if let Some(Value::String(text)) = schema.get_mut("description") {
            *text = text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
        }
        transform_subschemas(self, schema);
    }
}

/// What can be written, of a list of choices.
pub(super) fn names<T>(choices: &[(&'static str, T)]) -> Vec<&'static str> {
    choices.iter().map(|(name, _)| *name).collect()
}

/// A range of quantities, as they are written.
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

/// A duration with the unit that the documents use: `5min`, which humantime prints as `5m`.
pub(super) fn time_text(time: Time) -> String {
    let text = time.to_string();
    let words = text.split(' ').map(|word| match word.strip_suffix('m') {
        Some(minutes) => format!("{minutes}min"),
        None => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

const SIZE: &str = r"[0-9]+(\.[0-9]*)?\s*([KMGTP]i?)?B";

/// Those of humantime.
const TIME_UNITS: &str = "nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds?|secs?|s|minutes?|mins?|m|\
                          hours?|hrs?|h|days?|d|weeks?|wks?|w|months?|M|years?|yrs?|y";

macro_rules! quantity_schema {
    ($($quantity:ty: $unit:literal, $pattern:expr, $examples:expr;)*) => {$(
        impl JsonSchema for $quantity {
            fn schema_name() -> Cow<'static, str> {
                $unit.into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "pattern": $pattern,
                    "examples": $examples,
                    "x-unit": $unit,
                })
            }
        }
    )*};
}

quantity_schema! {
    Size: "size", format!(r"^\s*{SIZE}\s*$"), ["64KiB", "1MiB", "1GB"];
    Rate: "rate", format!(r"^\s*{SIZE}/s\s*$"), ["100MiB/s", "1GB/s"];
    Time: "duration",
        format!(r"^\s*([0-9]+(\.[0-9]+)?\s*({TIME_UNITS})\s*)+$"),
        ["250ms", "30s", "1min 30s"];
    Share: "share", r"^\s*[0-9]*\.?[0-9]*\s*%\s*$", ["0.1%", "1%", "100%"];
}
