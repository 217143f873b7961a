//! Log lines, by tracing.
//!
//! `FANFS_LOG` takes the usual filter (`debug`, `fanfs::scheduler=trace`, ...);
//! without it, `info` and above of fanfs and `warn` of everything else. File
//! names are logged at `debug` only, and so is what tools say, which may have some.

use std::fs::File;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Below `debug`, where everything is wanted.
const QUIET: &str = "fuser=error";

/// Sends log lines to `file`, or to standard error.
///
/// Does nothing where a subscriber is installed already (a test's).
pub fn init(file: Option<File>) {
    let filter = EnvFilter::try_from_env("FANFS_LOG");
    let filter = filter.unwrap_or_else(|_| EnvFilter::new("warn,fanfs=info"));
    // The FUSE library warns of each call that fanfs does not offer.
    let filter = match (filter.max_level_hint(), QUIET.parse()) {
        (Some(most), Ok(quiet)) if most <= LevelFilter::INFO => filter.add_directive(quiet),
        _ => filter,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let _ = match file {
        Some(file) => builder.with_ansi(false).with_writer(file).try_init(),
        None => builder.with_ansi(false).with_writer(std::io::stderr).try_init(),
    };
}
