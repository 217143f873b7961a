//! `[metrics]`: where a volume publishes its metrics.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::checks::{check_path, check_range};
use super::error::ConfigError;
use super::key_index::KeyIndex;
use super::{defaults, raw};

/// Where the daemon publishes metrics; nowhere by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsConfig {
    /// The address of the HTTP endpoint.
    pub listen: Option<ListenAddress>,
    /// The file for node_exporter.
    pub textfile: Option<TextfileConfig>,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A file for the textfile collector of node_exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextfileConfig {
    /// An absolute path that ends in `.prom`.
    pub path: PathBuf,
    /// How often the daemon writes it.
    pub interval: Duration,
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The longest path of a socket. The kernel allows 107 bytes, and the daemon first creates the
/// socket under a longer name.
const MAX_SOCKET_PATH: usize = 100;

/// Checks `[metrics]`.
pub(super) fn validate(
    written: raw::Metrics,
    outline: &KeyIndex<'_>,
) -> Result<MetricsConfig, ConfigError> {
    let listen = written.listen.map(|text| parse_listen(&text, outline)).transpose()?;
    let interval = written.interval.unwrap_or(defaults::METRICS_INTERVAL);
    check_range(outline, "metrics.interval", interval, defaults::METRICS_INTERVAL_RANGE)?;
    if written.interval.is_some() && written.textfile.is_none() {
        let what = "has no effect without `metrics.textfile`; add `textfile`, or remove `interval`";
        return Err(outline.refuse("metrics.interval", what));
    }
    let textfile = |path: String| {
        const KEY: &str = "metrics.textfile";
        check_path(outline, KEY, &path)?;
        if Path::new(&path).extension().is_none_or(|extension| extension != "prom") {
            let what = format!(
                "{path:?} does not end in .prom; rename it, because node_exporter reads only \
                 such files"
            );
            return Err(outline.refuse(KEY, what));
        }
        Ok(TextfileConfig { path: path.into(), interval: interval.0 })
    };
    Ok(MetricsConfig { listen, textfile: written.textfile.map(textfile).transpose()? })
}

fn parse_listen(text: &str, outline: &KeyIndex<'_>) -> Result<ListenAddress, ConfigError> {
    const KEY: &str = "metrics.listen";
    if let Some(path) = text.strip_prefix("unix:") {
        check_path(outline, KEY, path)?;
        if path.len() > MAX_SOCKET_PATH || path.ends_with('/') {
            let what = format!(
                "{path:?} is not a socket's path; use at most {MAX_SOCKET_PATH} bytes, without a / \
                 at the end"
            );
            return Err(outline.refuse(KEY, what));
        }
        return Ok(ListenAddress::Unix(path.into()));
    }
    let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let address = text.parse().or_else(|_| text.parse().map(loopback));
    match address {
        Ok(address) if address.port() > 0 => Ok(ListenAddress::Tcp(address)),
        _ => {
            let what = format!(
                "{text:?} is not an address; use an IP address and a port, such as \
                 \"127.0.0.1:19469\" or \"[::1]:19469\", only a port (1 to 65535), or \
                 \"unix:/PATH\""
            );
            Err(outline.refuse(KEY, what))
        }
    }
}
