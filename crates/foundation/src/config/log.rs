//! `[log]`: what the daemon of a volume logs, and how.

use tracing_subscriber::EnvFilter;

use super::checks::{check_range, parse_choice, parse_count};
use super::choices::{LOG_FORMATS, LogFormat};
use super::error::ConfigError;
use super::key_index::{KeyIndex, nearest};
use super::{defaults, raw};

/// The validated `[log]` table.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// A filter in the syntax of `FANFS_LOG`, which takes precedence.
    pub level: String,
    /// The format of log lines.
    pub format: LogFormat,
    /// Most times that the same message is logged in ten seconds; 0: no limit.
    pub rate: u32,
    /// Size at which the daemon rotates a log file, bytes; 0: never.
    pub max_size: u64,
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: defaults::LOG_LEVEL.to_owned(),
            format: defaults::LOG_FORMAT,
            rate: defaults::LOG_RATE,
            max_size: defaults::LOG_MAX_SIZE.0,
        }
    }
}

/// Checks `[log]`.
pub(super) fn validate(
    written: raw::Log,
    outline: &KeyIndex<'_>,
) -> Result<LogConfig, ConfigError> {
    let level = written.level.unwrap_or_else(|| defaults::LOG_LEVEL.to_owned());
    check_level(&level, outline)?;
    let format = match written.format.as_deref() {
        None => defaults::LOG_FORMAT,
        Some(format) => parse_choice(outline, "log.format", format, &LOG_FORMATS)?,
    };
    let rate = parse_count(
        outline,
        "log.rate",
        written.rate,
        defaults::LOG_RATE,
        defaults::LOG_RATE_RANGE,
    )?;
    let max_size = written.max_size.unwrap_or(defaults::LOG_MAX_SIZE);
    if max_size.0 > 0 {
        check_range(outline, "log.max_size", max_size, defaults::LOG_MAX_SIZE_RANGE)?;
    }
    Ok(LogConfig { level, format, rate, max_size: max_size.0 })
}

/// Refuses a single word that is not a level. `EnvFilter` would take it as a target and log all of
/// it, but it is more likely a misspelled level.
fn check_level(level: &str, outline: &KeyIndex<'_>) -> Result<(), ConfigError> {
    const KEY: &str = "log.level";
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    for part in level.split(',').map(str::trim) {
        // The fields of a span filter, in brackets, may contain commas.
        let named = part.rsplit_once('=').map_or(part, |(_, level)| level);
        if is_level(named) || level.contains('[') {
            continue;
        }
        let hint = match nearest(named, &LEVELS) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("use {}, or TARGET=LEVEL", LEVELS.join(", ")),
        };
        return Err(outline.refuse(KEY, format!("{named:?} is not a level; {hint}")));
    }
    match EnvFilter::builder().parse(level) {
        Ok(_) => Ok(()),
        Err(error) => Err(outline.refuse(KEY, format!("{level:?}: {error}"))),
    }
}
