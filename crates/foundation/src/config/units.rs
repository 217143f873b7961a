//! Sizes, rates, durations and shares: a number and its unit, never a number alone.
//!
//! A bare `64` means bytes to one reader and MiB to another, and a buffer that is a million times
//! too large ends in the kernel's OOM killer. So the unit is required and has one spelling. `M`
//! alone is not a unit: it is 1000000 to `bytesize` and 1048576 to `dd`.
//!
//! Whole numbers are exact; fractions ("1.5GiB") are rounded down to whole bytes. These types
//! accept everything that they print.

mod json_schema;

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// The largest size or rate accepted: 1 PiB. No buffer or chunk comes near it. 64 replicas times
/// the largest thread count times this size fits into a `u64`, so later code need not handle
/// overflow.
const MAX_SIZE: u64 = bytesize::PIB;

/// The units of a size, largest first. [`Size`] prints the first that divides it exactly.
const SIZE_UNITS: [(&str, u64); 11] = [
    ("PiB", bytesize::PIB),
    ("PB", bytesize::PB),
    ("TiB", bytesize::TIB),
    ("TB", bytesize::TB),
    ("GiB", bytesize::GIB),
    ("GB", bytesize::GB),
    ("MiB", bytesize::MIB),
    ("MB", bytesize::MB),
    ("KiB", bytesize::KIB),
    ("KB", bytesize::KB),
    ("B", 1),
];

/// A number of bytes, at most 1 PiB when parsed: "64KiB", "1GB", "0B".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Bytes per second, at most 1 PiB when parsed: "100MiB/s".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

/// A duration: "250ms", "30s", "1min 30s".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// A part of a whole, 0 to 1, written as a percentage: "1%", "0.1%", "0%".
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

/// Why a text is not a quantity, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A number without a unit.
    #[error("{text} has no unit; give one, such as \"{example}\"")]
    NoUnit {
        /// As written.
        text: String,
        /// A valid value of the expected kind.
        example: &'static str,
    },
    /// A number with an unknown unit.
    #[error("{text:?} has an unknown unit `{unit}`; use one of {known}")]
    UnknownUnit {
        /// As written.
        text: String,
        /// The unknown unit.
        unit: String,
        /// The known units.
        known: &'static str,
    },
    /// A text that does not begin with a number.
    #[error("{text:?} is not a {noun}; write a number and a unit, such as \"{example}\"")]
    Malformed {
        /// As written.
        text: String,
        /// The expected kind.
        noun: &'static str,
        /// A valid value of that kind.
        example: &'static str,
    },
    /// More than any volume can use.
    #[error("{text:?} is too large; use at most {max}")]
    TooLarge {
        /// As written.
        text: String,
        /// The largest accepted.
        max: &'static str,
    },
}

/// The common part of all quantities: one visitor and one set of errors serve them all.
trait Quantity: FromStr<Err = UnitError> {
    const NOUN: &'static str;
    const EXAMPLE: &'static str;

    fn no_unit(text: impl fmt::Display) -> UnitError {
        UnitError::NoUnit { text: text.to_string(), example: Self::EXAMPLE }
    }

    fn malformed(text: &str) -> UnitError {
        UnitError::Malformed { text: text.to_owned(), noun: Self::NOUN, example: Self::EXAMPLE }
    }
}

impl Quantity for Size {
    const NOUN: &'static str = "size";
    const EXAMPLE: &'static str = "1MiB";
}

impl Quantity for Rate {
    const NOUN: &'static str = "rate";
    const EXAMPLE: &'static str = "100MiB/s";
}

impl Quantity for Time {
    const NOUN: &'static str = "duration";
    const EXAMPLE: &'static str = "30s";
}

impl Quantity for Share {
    const NOUN: &'static str = "share";
    const EXAMPLE: &'static str = "1%";
}

/// Parses the bytes in `text`. Errors quote `whole`, which may end in "/s".
fn parse_bytes<Q: Quantity>(
    text: &str,
    whole: &str,
    known: &'static str,
    max: &'static str,
) -> Result<u64, UnitError> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let unit = text[digits..].trim();
    if digits == 0 {
        return Err(Q::malformed(whole));
    }
    if !SIZE_UNITS.iter().any(|(name, _)| *name == unit) {
        let unit = unit.to_owned();
        return Err(UnitError::UnknownUnit { text: whole.to_owned(), unit, known });
    }
    let size = text.parse::<ByteSize>().map_err(|_| Q::malformed(whole))?.as_u64();
    if size > MAX_SIZE {
        return Err(UnitError::TooLarge { text: whole.to_owned(), max });
    }
    Ok(size)
}

/// Whether `text` has digits and no unit. `humantime` accepts "0" as a duration and `bytesize` any
/// number as a size; fanfs refuses both.
fn is_bare_number(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b" ._+-".contains(&b))
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let size = text.trim();
        if is_bare_number(size) {
            return Err(Self::no_unit(format_args!("{text:?}")));
        }
        let known = "B, KB, MB, GB, TB, PB (powers of 1000), KiB, MiB, GiB, TiB, PiB (of 1024)";
        parse_bytes::<Self>(size, text, known, "1PiB").map(Self)
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let rate = text.trim();
        if is_bare_number(rate.strip_suffix("/s").unwrap_or(rate)) {
            return Err(Self::no_unit(format_args!("{text:?}")));
        }
        let known = "B/s, KB/s, MB/s, GB/s, TB/s, PB/s, KiB/s, MiB/s, GiB/s, TiB/s, PiB/s";
        match rate.strip_suffix("/s") {
            Some(size) => parse_bytes::<Self>(size, text, known, "1PiB/s").map(Self),
            None if rate.starts_with(|c: char| c.is_ascii_digit()) => {
                let unit = rate.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
                let unit = unit.trim().to_owned();
                Err(UnitError::UnknownUnit { text: text.to_owned(), unit, known })
            }
            None => Err(Self::malformed(text)),
        }
    }
}

impl FromStr for Time {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if is_bare_number(text) {
            return Err(Self::no_unit(format_args!("{text:?}")));
        }
        let known = "us, ms, s, min, h";
        humantime::parse_duration(text).map(Self).map_err(|error| match error {
            humantime::DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => {
                UnitError::UnknownUnit { text: text.to_owned(), unit, known }
            }
            humantime::DurationError::NumberOverflow => {
                UnitError::TooLarge { text: text.to_owned(), max: "1h" }
            }
            _ => Self::malformed(text),
        })
    }
}

impl FromStr for Share {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let share = text.trim();
        let Some(number) = share.strip_suffix('%') else {
            return Err(match is_bare_number(share) {
                true => Self::no_unit(format_args!("{text:?}")),
                false => Self::malformed(text),
            });
        };
        let number = number.trim_end();
        // `f64` also accepts "inf", "1e2" and "-0".
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(Self::malformed(text));
        }
        let percent: f64 = number.parse().map_err(|_| Self::malformed(text))?;
        if percent > 100.0 {
            return Err(UnitError::TooLarge { text: text.to_owned(), max: "100%" });
        }
        Ok(Self(percent / 100.0))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not 0.1 * 100 = 10.000000000000002.
        let percent = (self.0 * 1e14).round() / 1e12;
        write!(f, "{percent}%")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact =
            |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        let (unit, factor) = SIZE_UNITS.iter().find(exact).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", Size(self.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

/// Accepts a string. A number gets the advice to add a unit instead of "invalid type".
struct QuantityVisitor<Q>(PhantomData<Q>);

impl<Q: Quantity> Visitor<'_> for QuantityVisitor<Q> {
    type Value = Q;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} in quotes, such as \"{}\"", Q::NOUN, Q::EXAMPLE)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Q, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Q, E> {
        Err(E::custom(Q::no_unit(number)))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Q, E> {
        Err(E::custom(Q::no_unit(number)))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Q, E> {
        Err(E::custom(Q::no_unit(number)))
    }
}

macro_rules! deserialize_quantity {
    ($($quantity:ty),*) => {$(
        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(QuantityVisitor(PhantomData))
            }
        }
    )*};
}
deserialize_quantity!(Size, Rate, Time, Share);

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> Result<u64, UnitError> {
        text.parse::<Size>().map(|size| size.0)
    }

    fn refused(text: &str) -> String {
        size(text).unwrap_err().to_string()
    }

    #[test]
    fn sizes_are_exact() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("64 KiB"), Ok(64 << 10));
        assert_eq!(size("1GB"), Ok(1_000_000_000));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("0B"), Ok(0));
        assert_eq!(size("1PiB"), Ok(1 << 50));
    }

    #[test]
    fn a_size_needs_a_unit_that_means_one_thing() {
        for bare in ["1048576", "0", "1.5", " 7 ", "1_000", "-1"] {
            assert!(refused(bare).contains("has no unit"), "{bare}");
        }
        for unit in ["1M", "1k", "1mib", "1Mb", "1Mi", "1MiB/s", "1EiB", "1 fathom", "1µB"] {
            assert!(refused(unit).contains("unknown unit"), "{unit}");
        }
        for text in ["", "MiB", "-1MiB", "1.2.3MiB", ".MiB", "lots", "½MiB"] {
            assert!(refused(text).contains("is not a size"), "{text}");
        }
        for large in ["1025TiB", "99999999999999999999999PB"] {
            assert!(refused(large).contains("at most 1PiB"), "{large}");
        }
    }

    #[test]
    fn rates_are_sizes_per_second() {
        let rate = |text: &str| text.parse::<Rate>().map_err(|error| error.to_string());
        assert_eq!(rate("100MiB/s"), Ok(Rate(100 << 20)));
        assert_eq!(rate("1 GB/s"), Ok(Rate(1_000_000_000)));
        for bare in ["100", "100/s"] {
            assert!(rate(bare).unwrap_err().contains("has no unit"), "{bare}");
        }
        for unit in ["100MiB", "100Mbit/s", "100MiB/h"] {
            assert!(rate(unit).unwrap_err().contains("unknown unit"), "{unit}");
        }
        assert!(rate("fast").unwrap_err().contains("is not a rate"));
        assert!(rate("2PiB/s").unwrap_err().contains("at most 1PiB/s"));
    }

    #[test]
    fn durations_need_a_unit_too() {
        let time = |text: &str| text.parse::<Time>().map_err(|error| error.to_string());
        assert_eq!(time("250ms"), Ok(Time(Duration::from_millis(250))));
        assert_eq!(time("1min 30s"), Ok(Time(Duration::from_secs(90))));
        assert_eq!(time("0s"), Ok(Time(Duration::ZERO)));
        for bare in ["30", "0", "1.5"] {
            assert!(time(bare).unwrap_err().contains("has no unit"), "{bare}");
        }
        assert!(time("30 parsecs").unwrap_err().contains("unknown unit `parsecs`"));
        assert!(time("99999999999999999999s").unwrap_err().contains("too large"));
        for text in ["", "soon", "-5s", "1s 5"] {
            assert!(time(text).unwrap_err().contains("is not a duration"), "{text}");
        }
    }

    #[test]
    fn shares_are_percentages() {
        let share = |text: &str| text.parse::<Share>().map_err(|error| error.to_string());
        assert_eq!(share("1%"), Ok(Share(0.01)));
        assert_eq!(share(" 0.1 %"), Ok(Share(0.001)));
        assert_eq!(share("0%"), Ok(Share(0.0)));
        assert_eq!(share("100%"), Ok(Share(1.0)));
        for bare in ["1", "0.5", "0"] {
            assert!(share(bare).unwrap_err().contains("has no unit"), "{bare}");
        }
        for text in ["", "%", "some", "-1%", "1e1%", "inf%", "1.2.3%", "1%%"] {
            assert!(share(text).unwrap_err().contains("is not a share"), "{text}");
        }
        assert!(share("100.1%").unwrap_err().contains("at most 100%"));
        for text in ["1%", "0.1%", "33.3%", "0%", "100%", "0.0001%"] {
            assert_eq!(share(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn printed_values_parse_again() {
        for bytes in [0, 1, 1000, 1024, 65_536, 1_000_000_007, 256 << 20, 3 << 29, 1 << 50] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
            assert_eq!(Rate(bytes).to_string().parse(), Ok(Rate(bytes)));
            assert_eq!(
                Time(Duration::from_millis(bytes)).to_string().parse(),
                Ok(Time(Duration::from_millis(bytes)))
            );
        }
        assert_eq!(Size(256 << 20).to_string(), "256MiB");
        assert_eq!(Size(1_000_000_000).to_string(), "1GB");
    }
}
