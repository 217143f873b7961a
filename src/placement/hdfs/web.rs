//! Asking the NameNode over WebHDFS.
//!
//! `GETFILEBLOCKLOCATIONS` is the documented question, `GET_BLOCK_LOCATIONS` the
//! one that older ones of Hadoop 2 know. Both are answered by the NameNode
//! itself, so no redirect is followed.
//!
//! Of several NameNodes one is active. A standby says so at once; one that is
//! silent gets its share of the time, and the next one the rest. The one that
//! answered is asked first the next time.
//!
//! *Invariant:* no error has a file's name in it, though the NameNode's
//! messages and the addresses asked do: only an exception's type is passed on.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Deserialize;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, http};

use super::answer::{parse_file_block_locations, parse_located_blocks};
use crate::placement::command::below;
use crate::placement::{Answering, ChunkMap, PlacementError, Provider, Query, Result};

/// The longest answer read: 40 000 blocks of three copies in the wordier form.
const LONGEST_ANSWER: usize = 64 << 20;

/// How WebHDFS is asked.
#[derive(Clone, Debug)]
pub struct WebSettings {
    /// The NameNodes, such as `http://nn1:9870`; in any order.
    pub urls: Vec<String>,
    /// Who asks, where the cluster believes it.
    pub user: Option<String>,
    /// PEM certificates to trust in place of the public ones.
    pub ca: Option<PathBuf>,
    /// The replicas' root in HDFS.
    pub root: String,
    /// How long an answer may take, over all NameNodes.
    pub limit: Duration,
}

/// Asks WebHDFS.
#[derive(Clone, Debug)]
pub struct WebHdfs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    agent: Agent,
    name_nodes: Vec<NameNode>,
    /// The NameNode that answered last.
    active: AtomicUsize,
    user: Option<String>,
    root: String,
    limit: Duration,
}

#[derive(Debug)]
struct NameNode {
    url: String,
    /// Whether it knows the older question only.
    is_old: AtomicBool,
}

/// The two questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    FileBlockLocations,
    LocatedBlocks,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::FileBlockLocations => "GETFILEBLOCKLOCATIONS",
            Op::LocatedBlocks => "GET_BLOCK_LOCATIONS",
        }
    }

    fn parse(self, answer: &[u8], size: u64) -> Result<ChunkMap> {
        match self {
            Op::FileBlockLocations => parse_file_block_locations(answer, size),
            Op::LocatedBlocks => parse_located_blocks(answer, size),
        }
    }
}

/// What came of one question to one NameNode.
enum Reply {
    Map(ChunkMap),
    /// It does not know the question.
    UnknownOp,
}

impl WebHdfs {
    /// Asks nobody yet.
    ///
    /// # Errors
    /// Where a URL is not the address of a NameNode, or there is no certificate
    /// to be had from `ca`.
    pub fn new(settings: WebSettings) -> Result<WebHdfs> {
        let WebSettings { urls, user, ca, root, limit } = settings;
        if urls.is_empty() {
            return Err(service("hdfs", "no NameNode's address is given"));
        }
        let name_nodes = urls.iter().map(|url| name_node(url)).collect::<Result<_>>()?;
        let roots = match &ca {
            Some(path) => {
                certificates(path).map_err(|what| service(&path.display().to_string(), &what))?
            }
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
        Ok(WebHdfs(Arc::new(Shared { agent, name_nodes, active, user, root, limit })))
    }

    /// As if every NameNode were old.
    #[cfg(test)]
    pub(super) fn prefer_old_question(&self) {
        self.0.name_nodes.iter().for_each(|name_node| name_node.is_old.store(true, Relaxed));
    }

    async fn ask(&self, query: &Query) -> Result<ChunkMap> {
        if query.size == 0 {
            return Ok(ChunkMap::default());
        }
        let shared = Arc::clone(&self.0);
        let limit = shared.limit;
        let (path, size) = (below(&shared.root, &query.path), query.size);
        // The last part is for the answer to get here before the limit.
        let deadline = Instant::now() + limit - limit / 20;
        let asking = tokio::task::spawn_blocking(move || shared.ask(&path, size, deadline));
        match tokio::time::timeout(limit, asking).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(service("hdfs", "asking was broken off")),
            Err(_) => Err(PlacementError::Late(limit)),
        }
    }
}

impl Provider for WebHdfs {
    fn name(&self) -> &'static str {
        "hdfs"
    }

    fn locate<'a>(&'a self, query: &'a Query) -> Answering<'a> {
        Box::pin(self.ask(query))
    }
}

impl Shared {
    /// Asks one NameNode after the other; what they say of the file is final.
    fn ask(&self, path: &[u8], size: u64, deadline: Instant) -> Result<ChunkMap> {
        let first = self.active.load(Relaxed);
        let count = self.name_nodes.len();
        let mut refusals = Vec::new();
        for turn in 0..count {
            let index = (first + turn) % count;
            let name_node = &self.name_nodes[index];
            let left = deadline.saturating_duration_since(Instant::now());
            let until = Instant::now() + left / (count - turn) as u32;
            match self.ask_one(name_node, path, size, until) {
                Err(error) if !matches!(error, PlacementError::NotFound) => {
                    refusals.push((name_node, error));
                }
                answer => {
                    self.active.store(index, Relaxed);
                    return answer;
                }
            }
        }
        Err(self.refused(refusals))
    }

    /// The errors of all NameNodes as one.
    fn refused(&self, mut refusals: Vec<(&NameNode, PlacementError)>) -> PlacementError {
        let is_late = |error: &PlacementError| matches!(error, PlacementError::Late(_));
        if refusals.iter().all(|(_, error)| is_late(error)) {
            return PlacementError::Late(self.limit);
        }
        if refusals.len() == 1 {
            return refusals.remove(0).1;
        }
        let each = |(name_node, error): &(&NameNode, PlacementError)| match error {
            PlacementError::Service { what, .. } => format!("{}: {what}", name_node.url),
            error => format!("{}: {error}", name_node.url),
        };
        let lines: Vec<_> = refusals.iter().map(each).collect();
        service("no NameNode answered", &lines.join("; "))
    }

    /// Asks one NameNode the question it knows.
    fn ask_one(&self, of: &NameNode, path: &[u8], size: u64, until: Instant) -> Result<ChunkMap> {
        let ops = [Op::FileBlockLocations, Op::LocatedBlocks];
        let is_old = of.is_old.load(Relaxed);
        for op in if is_old { [ops[1], ops[0]] } else { ops } {
            if let Reply::Map(map) = self.put(of, op, path, size, until)? {
                of.is_old.store(op == Op::LocatedBlocks, Relaxed);
                return Ok(map);
            }
        }
        Err(service(&of.url, "it knows neither GETFILEBLOCKLOCATIONS nor GET_BLOCK_LOCATIONS"))
    }

    fn put(&self, of: &NameNode, op: Op, path: &[u8], size: u64, until: Instant) -> Result<Reply> {
        let mut url = format!("{}/webhdfs/v1", of.url);
        encode(&mut url, path);
        // A long in Java.
        let length = size.min(i64::MAX as u64);
        let _ = write!(url, "?op={}&offset=0&length={length}", op.name());
        if let Some(user) = &self.user {
            url.push_str("&user.name=");
            encode(&mut url, user.as_bytes());
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PlacementError::Late(self.limit));
        }
        let failed = |error| self.failed(of, error);
        let request = self.agent.get(&url).config().timeout_global(Some(left)).build();
        let mut response = request.call().map_err(failed)?;
        let body = response.body_mut().with_config().limit(LONGEST_ANSWER as u64).read_to_vec();
        let body = body.map_err(failed)?;
        match response.status() {
            http::StatusCode::OK => Ok(Reply::Map(op.parse(&body, size)?)),
            status => refusal(of, op, status, &body),
        }
    }

    /// What went wrong below HTTP.
    fn failed(&self, of: &NameNode, error: ureq::Error) -> PlacementError {
        let what = match error {
            ureq::Error::Timeout(_) => return PlacementError::Late(self.limit),
            ureq::Error::BodyExceedsLimit(_) => return PlacementError::TooLong(LONGEST_ANSWER),
            // These quote the address asked.
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => "it cannot be asked".to_owned(),
            // "io: " before it says nothing.
            ureq::Error::Io(error) => error.to_string(),
            error => error.to_string(),
        };
        service(&of.url, &what)
    }
}

/// What is wrong where the status is not 200.
fn refusal(of: &NameNode, op: Op, status: http::StatusCode, body: &[u8]) -> Result<Reply> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Refusal {
        #[serde(rename = "RemoteException")]
        remote: Exception,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Exception {
        exception: String,
        message: String,
    }
    let Refusal { remote } = serde_json::from_slice(body).unwrap_or_default();
    let unknown = match (status.as_u16(), &*remote.exception) {
        (_, "FileNotFoundException") => return Err(PlacementError::NotFound),
        (400, "IllegalArgumentException") => remote.message.contains(op.name()),
        (_, "UnsupportedOperationException") | (404 | 501, _) => true,
        _ => false,
    };
    if unknown {
        return Ok(Reply::UnknownOp);
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
    Err(service(&of.url, &what))
}

fn service(at: &str, what: &str) -> PlacementError {
    let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    PlacementError::Service { at: at.to_owned(), what }
}

/// Checks the address of a NameNode.
fn name_node(url: &str) -> Result<NameNode> {
    let url = url.trim_end_matches('/');
    let wrong = || service(&format!("{url:?}"), "is no NameNode's address such as http://nn1:9870");
    let uri: http::Uri = url.parse().map_err(|_| wrong())?;
    let is_plain = uri.path().trim_matches('/').is_empty() && uri.query().is_none();
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    // A password in an address would go to the log.
    let is_open = uri.authority().is_some_and(|host| !host.as_str().contains('@'));
    if !(is_plain && is_web && is_open) {
        return Err(wrong());
    }
    Ok(NameNode { url: url.to_owned(), is_old: AtomicBool::new(false) })
}

/// The certificates in a PEM file.
fn certificates(path: &Path) -> std::result::Result<RootCerts, String> {
    let pem = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(format!("is not PEM: {error}")),
        }
    }
    if found.is_empty() {
        return Err("has no certificate in it".to_owned());
    }
    Ok(RootCerts::new_with_certs(&found))
}

/// Adds `bytes` to a URL; everything but the unreserved and `/` by number.
fn encode(url: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                url.push(char::from(*byte));
            }
            byte => {
                let _ = write!(url, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests;
