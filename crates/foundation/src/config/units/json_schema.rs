//! The JSON schema of quantities: pattern, unit, examples.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{Rate, Share, Size, Time};

const SIZE: &str = r"[0-9]+(\.[0-9]*)?\s*([KMGTP]i?)?B";

/// The units of humantime.
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
