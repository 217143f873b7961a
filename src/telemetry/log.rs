//! Log lines, by tracing.
//!
//! `FANFS_LOG` takes the usual filter (`debug`, `fanfs::scheduler=trace`, ...);
//! without it, `info` and above of fanfs and `warn` of everything else. File
//! names are logged at `debug` only, and so is what tools say, which may have some.

use std::fs::File;

use tracing_subscriber::EnvFilter;

/// Sends log lines to `file`, or to standard error.
///
/// Does nothing where a subscriber is installed already (a test's).
pub fn init(file: Option<File>) {
    let filter =
        EnvFilter::try_from_env("FANFS_LOG").unwrap_or_else(|_| EnvFilter::new("warn,fanfs=info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let _ = match file {
        Some(file) => builder.with_ansi(false).with_writer(file).try_init(),
        None => builder.with_ansi(false).with_writer(std::io::stderr).try_init(),
    };
}
