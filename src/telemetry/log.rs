//! Sets up log lines, with tracing.
//!
//! `FANFS_LOG` takes a tracing filter (`debug`, `fanfs::scheduler=trace`, ...). Without it, the
//! volume's configuration decides; by default it is `info` for fanfs and `warn` for everything
//! else. File names appear only at `debug`, as does the output of external tools, which may contain
//! file names.
//!
//! Lines go to a file or to standard error, as text or as JSON, or to systemd's journal.
//! [`throttle`] keeps one repeated message from filling the log; [`mod@file`] rotates a file;
//! [`line_writer`] counts lines that could not be written.

mod file;
mod line_writer;
mod throttle;

use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::{LevelFilter, ParseError};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{LogConfig, LogFormat};

pub use file::LogFile;
pub use line_writer::{LogSnapshot, RunAsDaemon, snapshot};

/// Used at `info` and coarser levels; at `debug`, fuser's warnings are wanted too.
const FUSER_DIRECTIVE: &str = "fuser=error";

/// Sends log lines to `file`, to standard error, or to the journal, as `log` says.
///
/// Does nothing if a subscriber is already installed (by a test).
pub fn init(file: Option<LogFile>, log: &LogConfig, as_daemon: RunAsDaemon) {
    let file = file.map(|file| file.with_max_size(log.max_size));
    let writer = BoxMakeWriter::new(line_writer::make_writer(file, as_daemon));
    let output = output_layer(log.format, writer);
    let limit = throttle::LogThrottle::new(log.rate);
    let _ =
        tracing_subscriber::registry().with(output.layer).with(filter(log)).with(limit).try_init();
    if let Some(error) = output.journal_error {
        tracing::warn!(%error, "systemd's journal cannot be reached; fanfs logs text instead");
    }
    if let Err(error) = filter_of_environment() {
        tracing::warn!(%error, "FANFS_LOG is not a valid filter; fanfs uses `[log] level`");
    }
}

/// Logs pending reports of suppressed and lost lines; called at the end of a process.
pub fn report_pending() {
    throttle::report_suppressed();
    line_writer::report_unreported();
}

/// The filter in `FANFS_LOG`, if it is set.
fn filter_of_environment() -> Result<Option<EnvFilter>, ParseError> {
    match std::env::var("FANFS_LOG") {
        Ok(filter) if !filter.is_empty() => EnvFilter::try_new(filter).map(Some),
        _ => Ok(None),
    }
}

fn filter(log: &LogConfig) -> EnvFilter {
    let filter = filter_of_environment().ok().flatten();
    let filter = filter.unwrap_or_else(|| EnvFilter::new(&log.level));
    // The FUSE library warns of each operation that fanfs does not offer.
    let filter = match (filter.max_level_hint(), FUSER_DIRECTIVE.parse()) {
        (Some(most), Ok(quiet)) if most <= LevelFilter::INFO => filter.add_directive(quiet),
        _ => filter,
    };
    // The throttle's own reports are about messages that the filter let through, or warn. A finer
    // level here would make every debug line of a library cost a walk through the filter.
    let finest = filter.max_level_hint().unwrap_or(LevelFilter::TRACE).max(LevelFilter::WARN);
    match format!("{}={finest}", throttle::TARGET).parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    }
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The output of log lines.
struct OutputLayer {
    layer: BoxedLayer,
    /// Why lines for the journal are written as text.
    journal_error: Option<std::io::Error>,
}

fn output_layer(format: LogFormat, writer: BoxMakeWriter) -> OutputLayer {
    let plain = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(writer);
    let output = |layer, journal_error| OutputLayer { layer, journal_error };
    match format {
        LogFormat::Text => output(plain.with_target(false).boxed(), None),
        LogFormat::Json => output(plain.json().boxed(), None),
        LogFormat::Journald => match tracing_journald::layer() {
            Ok(journal) => output(configure_journal(journal).boxed(), None),
            Err(error) => output(plain.with_target(false).boxed(), Some(error)),
        },
    }
}

/// Uses the priorities of syslog(3): `info` is not a notice.
fn configure_journal(journal: tracing_journald::Layer) -> tracing_journald::Layer {
    let priorities = PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        ..PriorityMappings::new()
    };
    journal
        .with_priority_mappings(priorities)
        .with_field_prefix(Some("FANFS".to_owned()))
        .with_syslog_identifier("fanfs".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Libraries log through the `log` crate, which asks only for the finest level of all.
    #[test]
    fn the_filter_has_no_finer_level_than_configured() {
        for (level, finest) in [("warn", LevelFilter::WARN), ("info", LevelFilter::INFO)] {
            let log = LogConfig { level: level.into(), ..LogConfig::default() };
            assert_eq!(filter(&log).max_level_hint(), Some(finest));
        }
    }
}
