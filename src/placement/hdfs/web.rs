//! Asking the NameNode over WebHDFS.
//!
//! `GETFILEBLOCKLOCATIONS` is the documented operation, `GET_BLOCK_LOCATIONS` the one that
//! older releases of Hadoop 2 know. The NameNode itself answers both, so no redirect is
//! followed.
//!
//! Of several NameNodes one is active. A standby refuses at once. A silent NameNode gets its
//! share of the time, and the next ones get the rest. The NameNode that answered is asked first
//! the next time.
//!
//! *Invariant:* no error contains a file's name. The NameNode's messages and the URLs of the
//! requests contain it, so only an exception's type is passed on.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::Deserialize;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, http};

use super::answer::{parse_file_block_locations, parse_located_blocks};
use crate::placement::command::path_below;
use crate::placement::{ChunkMap, LocateFuture, PlacementError, Provider, Query, Result};

/// The longest answer that is read: 40 000 blocks of three copies in the longer form.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Bytes of a URL that are encoded: all but the unreserved ones (RFC 3986) and `/`.
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The settings of a WebHDFS client.
#[derive(Clone, Debug)]
pub struct WebHdfsSettings {
    /// The NameNodes, such as `http://nn1:9870`; in any order.
    pub urls: Vec<String>,
    /// The user name to send, for a cluster that trusts it.
    pub user: Option<String>,
    /// PEM certificates to trust in place of the public ones.
    pub ca_file: Option<PathBuf>,
    /// The replicas' root in HDFS.
    pub root: String,
    /// How long an answer may take, over all NameNodes.
    pub timeout: Duration,
}

/// Asks WebHDFS.
#[derive(Clone, Debug)]
pub struct WebHdfs(Arc<WebHdfsClient>);

#[derive(Debug)]
struct WebHdfsClient {
    agent: Agent,
    name_nodes: Vec<NameNode>,
    /// The NameNode that answered last.
    active_index: AtomicUsize,
    user: Option<String>,
    root: String,
    timeout: Duration,
}

#[derive(Debug)]
struct NameNode {
    url: String,
    /// Whether it knows only the older operation.
    uses_old_op: AtomicBool,
}

/// A NameNode that did not answer the query.
struct NameNodeFailure<'a> {
    name_node: &'a NameNode,
    error: PlacementError,
}

/// The two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WebHdfsOp {
    FileBlockLocations,
    LocatedBlocks,
}

impl WebHdfsOp {
    fn name(self) -> &'static str {
        match self {
            WebHdfsOp::FileBlockLocations => "GETFILEBLOCKLOCATIONS",
            WebHdfsOp::LocatedBlocks => "GET_BLOCK_LOCATIONS",
        }
    }

    fn parse(self, answer: &[u8], size: u64) -> Result<ChunkMap> {
        match self {
            WebHdfsOp::FileBlockLocations => parse_file_block_locations(answer, size),
            WebHdfsOp::LocatedBlocks => parse_located_blocks(answer, size),
        }
    }
}

/// The outcome of one operation at one NameNode.
enum OpOutcome {
    Map(ChunkMap),
    /// The NameNode does not know the operation.
    UnknownOp,
}

impl WebHdfs {
    /// Makes a client, which asks no NameNode yet.
    ///
    /// # Errors
    /// If a URL is not the address of a NameNode, or `ca_file` has no usable certificate.
    pub fn new(settings: WebHdfsSettings) -> Result<WebHdfs> {
        let WebHdfsSettings { urls, user, ca_file: ca, root, timeout: limit } = settings;
        if urls.is_empty() {
            return Err(service_error("hdfs", "the configuration has no address of a NameNode"));
        }
        let name_nodes = urls.iter().map(|url| parse_name_node(url)).collect::<Result<_>>()?;
        let roots = match &ca {
            Some(path) => load_certificates(path)
                .map_err(|error| service_error(&path.display().to_string(), &error.to_string()))?,
            None => RootCerts::WebPki,
        };
        let agent = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A NameNode is inside the cluster; $http_proxy is for outside.
            .proxy(None)
            .user_agent(concat!("fanfs/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let active = AtomicUsize::new(0);
        Ok(WebHdfs(Arc::new(WebHdfsClient {
            agent,
            name_nodes,
            active_index: active,
            user,
            root,
            timeout: limit,
        })))
    }

    /// Treats every NameNode as old.
    #[cfg(test)]
    pub(super) fn force_old_op(&self) {
        self.0.name_nodes.iter().for_each(|name_node| name_node.uses_old_op.store(true, Relaxed));
    }

    async fn query(&self, query: &Query) -> Result<ChunkMap> {
        if query.size == 0 {
            return Ok(ChunkMap::default());
        }
        let shared = Arc::clone(&self.0);
        let limit = shared.timeout;
        let path = path_below(&shared.root, &query.path);
        let size = query.size;
        // The last 5 % of the time is for the answer to arrive before the limit.
        let deadline = Instant::now() + limit - limit / 20;
        let asking =
            tokio::task::spawn_blocking(move || shared.query_name_nodes(&path, size, deadline));
        match tokio::time::timeout(limit, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(service_error("hdfs", "the query ended without an answer")),
            Err(_) => Err(PlacementError::TimedOut(limit)),
        }
    }
}

impl Provider for WebHdfs {
    fn name(&self) -> &'static str {
        "hdfs"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> LocateFuture<'a> {
        Box::pin(self.query(query))
    }
}

impl WebHdfsClient {
    /// Asks one NameNode after the other. An answer about the file is final, also that it does
    /// not exist.
    fn query_name_nodes(&self, path: &[u8], size: u64, deadline: Instant) -> Result<ChunkMap> {
        let first = self.active_index.load(Relaxed);
        let count = self.name_nodes.len();
        let mut failures = Vec::new();
        for turn in 0..count {
            let index = (first + turn) % count;
            let name_node = &self.name_nodes[index];
            let left = deadline.saturating_duration_since(Instant::now());
            let until = Instant::now() + left / (count - turn) as u32;
            match self.query_name_node(name_node, path, size, until) {
                Err(error) if !matches!(error, PlacementError::NotFound) => {
                    failures.push(NameNodeFailure { name_node, error });
                }
                answer => {
                    self.active_index.store(index, Relaxed);
                    return answer;
                }
            }
        }
        Err(self.combined_error(failures))
    }

    /// The errors of all NameNodes as one.
    fn combined_error(&self, mut failures: Vec<NameNodeFailure<'_>>) -> PlacementError {
        let is_late =
            |failure: &NameNodeFailure<'_>| matches!(failure.error, PlacementError::TimedOut(_));
        if failures.iter().all(is_late) {
            return PlacementError::TimedOut(self.timeout);
        }
        if failures.len() == 1 {
            return failures.remove(0).error;
        }
        let line = |failure: &NameNodeFailure<'_>| match &failure.error {
            PlacementError::ServiceFailed { what, .. } => {
                format!("{}: {what}", failure.name_node.url)
            }
            error => format!("{}: {error}", failure.name_node.url),
        };
        let lines: Vec<_> = failures.iter().map(line).collect();
        service_error("no NameNode answered", &lines.join("; "))
    }

    /// Asks one NameNode, first with the operation that it is expected to know.
    fn query_name_node(
        &self,
        of: &NameNode,
        path: &[u8],
        size: u64,
        until: Instant,
    ) -> Result<ChunkMap> {
        let ops = [WebHdfsOp::FileBlockLocations, WebHdfsOp::LocatedBlocks];
        let is_old = of.uses_old_op.load(Relaxed);
        for op in if is_old { [ops[1], ops[0]] } else { ops } {
            if let OpOutcome::Map(map) = self.send_op(of, op, path, size, until)? {
                of.uses_old_op.store(op == WebHdfsOp::LocatedBlocks, Relaxed);
                return Ok(map);
            }
        }
        Err(service_error(
            &of.url,
            "it knows neither GETFILEBLOCKLOCATIONS nor GET_BLOCK_LOCATIONS",
        ))
    }

    fn send_op(
        &self,
        of: &NameNode,
        op: WebHdfsOp,
        path: &[u8],
        size: u64,
        until: Instant,
    ) -> Result<OpOutcome> {
        let mut url = format!("{}/webhdfs/v1", of.url);
        url.extend(percent_encode(path, ENCODED));
        // The length is a long in Java.
        let length = size.min(i64::MAX as u64);
        let _ = write!(url, "?op={}&offset=0&length={length}", op.name());
        if let Some(user) = &self.user {
            url.push_str("&user.name=");
            url.extend(percent_encode(user.as_bytes(), ENCODED));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PlacementError::TimedOut(self.timeout));
        }
        let failed = |error| self.transport_error(of, error);
        let request = self.agent.get(&url).config().timeout_global(Some(left)).build();
        let mut response = request.call().map_err(failed)?;
        let body = response.body_mut().with_config().limit(MAX_RESPONSE_BYTES as u64).read_to_vec();
        let body = body.map_err(failed)?;
        match response.status() {
            http::StatusCode::OK => Ok(OpOutcome::Map(op.parse(&body, size)?)),
            status => status_error(of, op, status, &body),
        }
    }

    /// The error of a request that failed below HTTP.
    fn transport_error(&self, of: &NameNode, error: ureq::Error) -> PlacementError {
        let what = match error {
            ureq::Error::Timeout(_) => return PlacementError::TimedOut(self.timeout),
            ureq::Error::BodyExceedsLimit(_) => return PlacementError::TooLong(MAX_RESPONSE_BYTES),
            // These errors quote the URL.
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => "the request is not valid".to_owned(),
            // The prefix "io: " says nothing.
            ureq::Error::Io(error) => error.to_string(),
            error => error.to_string(),
        };
        service_error(&of.url, &what)
    }
}

/// The outcome of a status other than 200.
fn status_error(
    of: &NameNode,
    op: WebHdfsOp,
    status: http::StatusCode,
    body: &[u8],
) -> Result<OpOutcome> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ErrorBody {
        #[serde(rename = "RemoteException")]
        remote: RemoteException,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct RemoteException {
        exception: String,
        message: String,
    }
    let ErrorBody { remote } = serde_json::from_slice(body).unwrap_or_default();
    let unknown = match (status.as_u16(), &*remote.exception) {
        (_, "FileNotFoundException") => return Err(PlacementError::NotFound),
        (400, "IllegalArgumentException") => remote.message.contains(op.name()),
        (_, "UnsupportedOperationException") | (404 | 501, _) => true,
        _ => false,
    };
    if unknown {
        return Ok(OpOutcome::UnknownOp);
    }
    let is_type = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric());
    let mut what = format!("HTTP status {}", status.as_u16());
    match &*remote.exception {
        "" => {}
        name if is_type(name) => {
            let _ = write!(what, ", {name:.80}");
        }
        _ => what.push_str(", an exception without a name"),
    }
    Err(service_error(&of.url, &what))
}

fn service_error(at: &str, what: &str) -> PlacementError {
    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    PlacementError::ServiceFailed { at: at.to_owned(), what }
}

/// Checks the address of a NameNode.
fn parse_name_node(url: &str) -> Result<NameNode> {
    let url = url.trim_end_matches('/');
    let wrong = || {
        service_error(
            &format!("{url:?}"),
            "is not the address of a NameNode such as http://nn1:9870",
        )
    };
    let uri: http::Uri = url.parse().map_err(|_| wrong())?;
    let is_plain = uri.path().trim_matches('/').is_empty() && uri.query().is_none();
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    // A password in an address would go to the log.
    let is_open = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
    if !(is_plain && is_web && is_open) {
        return Err(wrong());
    }
    Ok(NameNode { url: url.to_owned(), uses_old_op: AtomicBool::new(false) })
}

/// Why no certificates can be loaded.
#[derive(Debug, thiserror::Error)]
enum CertificateError {
    #[error("{0}")]
    Unreadable(#[from] std::io::Error),
    #[error("is not PEM: {0}")]
    NotPem(ureq::Error),
    #[error("has no certificate in it")]
    Missing,
}

/// The certificates in a PEM file.
fn load_certificates(path: &Path) -> std::result::Result<RootCerts, CertificateError> {
    let pem = std::fs::read(path)?;
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(CertificateError::NotPem(error)),
        }
    }
    if found.is_empty() {
        return Err(CertificateError::Missing);
    }
    Ok(RootCerts::new_with_certs(&found))
}

#[cfg(test)]
mod tests;
