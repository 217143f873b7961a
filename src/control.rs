//! The control socket: other processes ask a mounted volume for its state, or for a handover.
//!
//! Each mount has one Unix socket, in [`runtime_dir`], which only its owner may enter. [`Peer`]
//! also decides which requests a peer may send. A request is one line of JSON, and so is the
//! answer. A trace sends lines until the peer hangs up. Then the connection ends.
//!
//! *Invariant:* the number of peers is bounded. A peer costs bounded memory, and one that does
//! not read costs it for a bounded time, whatever it sends.

mod error;
mod peer;

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Uid, geteuid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use crate::explain::ExplainFacts;
use crate::fs;
use crate::owned_path::DevIno;
use crate::read::TraceStream;
use crate::status::{self, DaemonInfo, Status};
use crate::volume::path_serde;
use peer::{ConnectionLimiter, ReserveFd};

pub use error::{ControlError, InvalidRequest};
pub use peer::Peer;

/// A request to a daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum ControlRequest {
    /// The state of the volume. Answered by a [`Status`].
    Status,
    /// The facts about a file. Answered by [`ExplainFacts`].
    Explain {
        /// Its path in the volume, without a leading `/`.
        #[serde(with = "path_serde")]
        path: PathBuf,
    },
    /// The files that were read most recently, and the processes that read them. Answered by an
    /// array of [`FileActivity`].
    Busiest,
    /// A trace of all reads, until the peer hangs up. Answered by lines of
    /// [`crate::telemetry::trace`].
    Trace,
    /// Hand the mount over to a process of this program. Answered by [`HandoverReport`].
    Upgrade {
        /// Its absolute path.
        #[serde(with = "path_serde")]
        program: PathBuf,
    },
    /// Continue with the configuration as it is now. Answered by [`HandoverReport`].
    Reload {
        /// The absolute path of the volume's file, if it is another one.
        volume: Option<PathBuf>,
    },
}

/// The most files in the answer to [`ControlRequest::Busiest`]: more than any terminal has
/// lines, and about 100 KiB.
pub const MAX_ACTIVE_FILES: usize = 1024;

/// A file that is read, and the process that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileActivity {
    /// Its path in the volume, without a leading `/`; bytes that are not UTF-8 are
    /// replaced.
    pub path: String,
    /// The handle that it is open by; `None` for the sum over closed handles.
    pub handle: Option<u64>,
    /// The process or thread that read last, by its id in the daemon's PID namespace; 0 if the
    /// kernel did not report it.
    pub pid: u32,
    /// Bytes requested from fanfs; the kernel's page cache answers other reads itself.
    pub bytes: u64,
    /// The number of reads.
    pub reads: u64,
    /// Time since the last read, milliseconds.
    pub idle_ms: u64,
}

impl From<fs::ReadActivity> for FileActivity {
    fn from(from: fs::ReadActivity) -> Self {
        let fs::ReadActivity { path, handle, process: pid, bytes, reads, idle } = from;
        Self {
            path: path.to_string_lossy().into_owned(),
            handle,
            pid,
            bytes,
            reads,
            idle_ms: idle.as_millis() as u64,
        }
    }
}

/// The result of a handover.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HandoverReport {
    /// The process that serves the mount now.
    pub pid: u32,
    /// How long no request was taken, milliseconds.
    pub stalled_ms: u64,
    /// Open files and directories.
    pub handles: u64,
}

impl ControlRequest {
    /// Parses a request: a line of JSON, at most [`MAX_REQUEST_BYTES`] bytes.
    ///
    /// # Errors
    /// [`InvalidRequest`], on one line.
    pub fn parse(line: &[u8]) -> Result<Self, InvalidRequest> {
        Ok(serde_json::from_slice(line)?)
    }

    /// Whether it changes the mount.
    pub fn is_mutating(&self) -> bool {
        match self {
            Self::Status | Self::Explain { .. } | Self::Busiest | Self::Trace => false,
            Self::Upgrade { .. } | Self::Reload { .. } => true,
        }
    }

    /// Whether the answer may take longer than [`CONTROL_TIMEOUT`].
    fn is_slow(&self) -> bool {
        !matches!(self, Self::Status | Self::Busiest)
    }
}

/// A listening control socket; dropping it removes the socket.
pub struct ControlServer {
    path: PathBuf,
    /// The socket, which another daemon may replace: this mount may be detached by then.
    socket: DevIno,
    task: tokio::task::JoinHandle<()>,
    /// Connections that have not ended.
    open_connections: Arc<AtomicUsize>,
}

/// The longest request, bytes.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;

/// The longest answer, bytes: a status of many replicas has some ten KiB, the facts about a
/// file with very many chunks some MiB.
const MAX_RESPONSE_BYTES: u64 = 1 << 30;

/// How long a peer may take to read a line of a trace: it may be a pager. The reads that it
/// misses meanwhile are counted for it.
const TRACE_WRITE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long a peer may take to send its request, or a daemon to answer.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// The same if a placement provider is asked: the longest timeout of one, and a quarter more.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(3600 + 900);

/// The same for a handover: the sum of its steps' timeouts, and a little more.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// The answer to a request that failed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorResponse {
    error: String,
}

/// The directory of this user's sockets and logs: `/run/fanfs` for root, else `fanfs` in
/// `$XDG_RUNTIME_DIR`, or a directory of the user's in `/tmp`. `$FANFS_RUNTIME_DIR` overrides
/// it; see [`check_runtime_dir`].
pub fn runtime_dir() -> PathBuf {
    let [own, xdg] = ["FANFS_RUNTIME_DIR", "XDG_RUNTIME_DIR"].map(std::env::var_os);
    resolve_runtime_dir(geteuid(), own, xdg)
}

/// `$FANFS_RUNTIME_DIR` is relative. The processes of a mount have different working
/// directories, so it would name several directories.
#[derive(Debug, thiserror::Error)]
#[error("FANFS_RUNTIME_DIR is {}, a relative path; set it to an absolute one", .0.display())]
pub struct RelativeRuntimeDir(PathBuf);

/// Checks that `$FANFS_RUNTIME_DIR` can be used as [`runtime_dir`].
///
/// # Errors
/// [`RelativeRuntimeDir`] if it is relative.
pub fn check_runtime_dir() -> Result<(), RelativeRuntimeDir> {
    match std::env::var_os("FANFS_RUNTIME_DIR").map(PathBuf::from) {
        Some(dir) if dir.is_relative() && !dir.as_os_str().is_empty() => {
            Err(RelativeRuntimeDir(dir))
        }
        _ => Ok(()),
    }
}

/// An empty variable counts as unset. So does a relative `$XDG_RUNTIME_DIR`, as the XDG
/// convention requires.
fn resolve_runtime_dir(uid: Uid, own: Option<OsString>, xdg: Option<OsString>) -> PathBuf {
    let is_set = |dir: &OsString| !dir.is_empty();
    if let Some(dir) = own.filter(is_set) {
        return dir.into();
    }
    if uid.is_root() {
        return "/run/fanfs".into();
    }
    match xdg.map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join("fanfs"),
        None => format!("/tmp/fanfs-{}", uid.as_raw()).into(),
    }
}

/// Makes the run-time directory, which only its owner may enter.
///
/// # Errors
/// If it cannot be made, or belongs to another user.
pub fn make_runtime_dir() -> io::Result<PathBuf> {
    let dir = runtime_dir();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    let meta = std::fs::symlink_metadata(&dir)?;
    let owner = std::os::unix::fs::MetadataExt::uid(&meta);
    if !meta.is_dir() || owner != geteuid().as_raw() {
        return Err(io::Error::other("not a directory that this user owns"));
    }
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700))?;
    Ok(dir)
}

/// A file name for a mount point: its path with `/` as `-`, and other special bytes escaped as
/// systemd does. Long names end in a hash instead.
fn mount_file_name(mount_point: &Path) -> String {
    let mut name = String::new();
    for byte in mount_point.as_os_str().as_bytes().iter().skip_while(|byte| **byte == b'/') {
        match byte {
            b'/' => name.push('-'),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' => name.push(char::from(*byte)),
            byte => name.push_str(&format!("\\x{byte:02x}")),
        }
    }
    // A socket's whole path must fit into 108 bytes.
    const MAX_NAME_BYTES: usize = 60;
    if name.len() > MAX_NAME_BYTES {
        let hash = blake3::hash(name.as_bytes()).to_hex();
        let end =
            (0..=MAX_NAME_BYTES - 17).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        name = format!("{}-{}", &name[..end], &hash[..16]);
    }
    name
}

/// The path of a mount's control socket.
pub fn socket_path(mount_point: &Path) -> PathBuf {
    runtime_dir().join(mount_file_name(mount_point) + ".sock")
}

/// The path of a mount's journal, from which the next daemon continues if this one is killed.
pub fn journal_path(mount_point: &Path) -> PathBuf {
    runtime_dir().join(mount_file_name(mount_point) + ".journal")
}

/// The path of the configuration of a volume that `fanfs mount` got as a list of servers.
pub fn config_path(mount_point: &Path) -> PathBuf {
    runtime_dir().join(mount_file_name(mount_point) + ".toml")
}

/// The path of a daemon's log, unless its configuration names another one.
pub fn log_path(mount_point: &Path) -> PathBuf {
    runtime_dir().join(mount_file_name(mount_point) + ".log")
}

impl ControlServer {
    /// Listens for a mount; calls `answer` for each request.
    ///
    /// # Errors
    /// If the socket cannot be made.
    pub fn listen(
        runtime: &tokio::runtime::Handle,
        mount_point: &Path,
        answer: impl Fn(ControlRequest) -> ResponseFuture + Send + Sync + 'static,
    ) -> io::Result<Self> {
        make_runtime_dir()?;
        let path = socket_path(mount_point);
        let next = path.with_extension("next");
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let _entered = runtime.enter();
        let listener = UnixListener::bind(&next)?;
        std::fs::set_permissions(&next, PermissionsExt::from_mode(0o600))?;
        let socket = DevIno::at(&next)?;
        // A socket of that name belongs to a dead daemon, to one whose mount is detached, or to this
        // one's predecessor.
        std::fs::rename(&next, &path)?;
        let open = Arc::default();
        let task = runtime.spawn(accept_loop(listener, Arc::new(answer), Arc::clone(&open)));
        Ok(Self { path, socket, task, open_connections: open })
    }

    /// Waits until all peers have their answers, for at most one second. The socket stays: it
    /// belongs to the successor.
    pub fn drain_and_keep_socket(self) {
        let until = std::time::Instant::now() + Duration::from_secs(1);
        while self.open_connections.load(Ordering::Acquire) > 0 && std::time::Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::forget(self);
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.task.abort();
        let _ = self.socket.remove_from(&self.path);
    }
}

/// A response to come.
pub type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<ControlResponse, ControlError>> + Send>>;

/// The response to a peer.
pub enum ControlResponse {
    /// JSON.
    Json(Vec<u8>),
    /// The lines of a trace.
    TraceStream(TraceStream),
}

type RequestHandler = dyn Fn(ControlRequest) -> ResponseFuture + Send + Sync;

async fn accept_loop(listener: UnixListener, answer: Arc<RequestHandler>, open: Arc<AtomicUsize>) {
    let peers = ConnectionLimiter::new();
    let mut spare = ReserveFd::default();
    let mut is_reported = false;
    loop {
        spare.refill();
        let Some(room) = peers.acquire().await else { return };
        let mut accepted = listener.accept().await;
        let out_of_descriptors = accepted.as_ref().is_err_and(is_out_of_descriptors);
        if out_of_descriptors && spare.release() {
            accepted = listener.accept().await;
        }
        match accepted {
            Ok((stream, _)) => {
                let answer = Arc::clone(&answer);
                let peers = peers.clone();
                let connection = ConnectionGuard::new(&open);
                let task = async move {
                    let _room = room;
                    let _connection = connection;
                    if let Err(error) = serve_peer(stream, &*answer, &peers).await {
                        tracing::debug!(%error, "a request on the control socket failed");
                    }
                };
                if out_of_descriptors {
                    // The reserve descriptor serves one peer at a time.
                    task.await;
                } else {
                    is_reported = false;
                    tokio::spawn(task);
                }
            }
            Err(error) => {
                if !is_reported {
                    tracing::warn!(%error, "the control socket cannot accept");
                    is_reported = true;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Counts a connection that has not ended.
struct ConnectionGuard(Arc<AtomicUsize>);

impl ConnectionGuard {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(open))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

async fn serve_peer(
    stream: tokio::net::UnixStream,
    answer: &RequestHandler,
    peers: &ConnectionLimiter,
) -> io::Result<()> {
    let peer = Peer::of(&stream)?;
    if !peer.can_query() {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    let (read, mut write) = stream.into_split();
    let mut line = Vec::new();
    let mut read = tokio::io::BufReader::new(read.take(MAX_REQUEST_BYTES));
    tokio::time::timeout(CONTROL_TIMEOUT, read.read_until(b'\n', &mut line)).await??;
    // Held until the peer has its whole answer: a trace lasts as long as the peer listens.
    let mut _room = None;
    let answered = match ControlRequest::parse(&line) {
        Ok(ask) if !peer.can_request(&ask) => Err(ControlError::NotPermitted),
        Ok(ask) if ask.is_slow() => {
            _room = peers.try_acquire_slow();
            match &_room {
                Some(_) => answer(ask).await,
                None => Err(ControlError::Busy),
            }
        }
        Ok(ask) => answer(ask).await,
        Err(error) => Err(error.into()),
    };
    let mut reply = match answered {
        Ok(ControlResponse::Json(reply)) => reply,
        Ok(ControlResponse::TraceStream(trace)) => {
            return stream_trace(trace, read.into_inner().into_inner(), write).await;
        }
        Err(error) => serde_json::to_vec(&ErrorResponse { error: error.to_string() })?,
    };
    reply.push(b'\n');
    tokio::time::timeout(CONTROL_TIMEOUT, write.write_all(&reply)).await?
}

/// Sends a peer the lines of a trace, until it hangs up or there are no more.
async fn stream_trace(
    mut trace: TraceStream,
    mut read: tokio::net::unix::OwnedReadHalf,
    mut write: tokio::net::unix::OwnedWriteHalf,
) -> io::Result<()> {
    let mut ignored = [0; 64];
    loop {
        let line = tokio::select! {
            line = trace.next() => line,
            // A peer that sends more does not follow the protocol.
            _ = read.read(&mut ignored) => None,
        };
        let Some(line) = line else { return Ok(()) };
        let mut line = serde_json::to_vec(&line)?;
        line.push(b'\n');
        tokio::time::timeout(TRACE_WRITE_TIMEOUT, write.write_all(&line)).await??;
    }
}

/// Asks the daemon that listens at `socket` for its status.
///
/// # Errors
/// If no daemon listens, or the answer is an error or invalid. [`io::ErrorKind::Unsupported`] if
/// the daemon is of a version with another format of the status.
pub fn query_status(socket: &Path) -> io::Result<Status> {
    let line = query_line(socket, &ControlRequest::Status, CONTROL_TIMEOUT)?;
    let StatusFormat { format, version } = serde_json::from_str(&line)?;
    if format != status::FORMAT {
        let other = format!("its daemon is of fanfs {version}, with another format of the status");
        return Err(io::Error::new(io::ErrorKind::Unsupported, other));
    }
    Ok(serde_json::from_str(&line)?)
}

/// Asks the daemon that listens at `socket`, which may be of another version, for its mount.
///
/// # Errors
/// If no daemon listens, or the answer is an error or invalid.
pub fn query_daemon(socket: &Path) -> io::Result<DaemonInfo> {
    query(socket, &ControlRequest::Status, CONTROL_TIMEOUT)
}

/// Asks the daemon that listens at `socket` about a file. Takes as long as the placement
/// provider does.
///
/// # Errors
/// If no daemon listens, the file does not exist, or the answer is an error or invalid.
pub fn query_facts(socket: &Path, path: PathBuf) -> io::Result<ExplainFacts> {
    query(socket, &ControlRequest::Explain { path }, EXPLAIN_TIMEOUT)
}

/// Makes the daemon that listens at `socket` hand its mount over, by
/// [`ControlRequest::Upgrade`] or [`ControlRequest::Reload`].
///
/// # Errors
/// If no daemon listens, or the daemon reports why it did not hand over.
pub fn request_handover(socket: &Path, order: &ControlRequest) -> io::Result<HandoverReport> {
    query(socket, order, HANDOVER_TIMEOUT)
}

/// Asks the daemon that listens at `socket` which files were read most recently, and by which
/// processes.
///
/// # Errors
/// If no daemon listens, or the answer is an error or invalid.
pub fn query_file_activity(socket: &Path) -> io::Result<Vec<FileActivity>> {
    query(socket, &ControlRequest::Busiest, CONTROL_TIMEOUT)
}

/// Makes the daemon that listens at `socket` send an endless trace of all reads, as lines of
/// [`crate::telemetry::trace`].
///
/// # Errors
/// If no daemon listens.
pub fn open_trace(socket: &Path) -> io::Result<UnixStream> {
    send_request(socket, &ControlRequest::Trace)
}

fn send_request(socket: &Path, ask: &ControlRequest) -> io::Result<UnixStream> {
    let mut stream = connect(socket)?;
    stream.set_write_timeout(Some(CONTROL_TIMEOUT))?;
    let mut request = serde_json::to_vec(ask)?;
    request.push(b'\n');
    stream.write_all(&request)?;
    Ok(stream)
}

/// Connects to `socket`. connect(2) waits without limit while the daemon accepts nothing and its
/// queue of connections is full.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let end = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let until = Instant::now() + CONTROL_TIMEOUT;
    loop {
        match rustix::net::connect(&end, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(CONNECT_INTERVAL),
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(end);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The interval between attempts to connect to a daemon whose queue is full.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);

fn query<T: DeserializeOwned>(
    socket: &Path,
    ask: &ControlRequest,
    patience: Duration,
) -> io::Result<T> {
    Ok(serde_json::from_str(&query_line(socket, ask, patience)?)?)
}

/// The daemon's answer, which is not an error.
fn query_line(socket: &Path, ask: &ControlRequest, patience: Duration) -> io::Result<String> {
    let stream = send_request(socket, ask)?;
    stream.set_read_timeout(Some(patience))?;
    let mut line = String::new();
    BufReader::new(io::Read::take(stream, MAX_RESPONSE_BYTES)).read_line(&mut line)?;
    match error_response(&line) {
        Some(error) => Err(io::Error::other(error)),
        None => Ok(line),
    }
}

/// The fields that decide whether this version can read a status.
#[derive(Deserialize)]
struct StatusFormat {
    /// 0: before formats had numbers.
    #[serde(default)]
    format: u32,
    version: String,
}

/// The daemon's error message, if `line` is the answer to a request that failed.
pub fn error_response(line: &str) -> Option<String> {
    serde_json::from_str(line).ok().map(|ErrorResponse { error }| error)
}

/// The control sockets of this user's mounts.
///
/// # Errors
/// If the run-time directory cannot be read.
pub fn list_sockets() -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(runtime_dir()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut sockets: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    sockets.sort();
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_names_are_distinct_and_short_enough() {
        let long = Path::new("/").join("x".repeat(300));
        let longer = Path::new("/").join("x".repeat(301));
        assert_eq!(mount_file_name(Path::new("/mnt/a b")), "mnt-a\\x20b");
        assert_ne!(mount_file_name(Path::new("/mnt/a-b")), mount_file_name(Path::new("/mnt/a/b")));
        assert_ne!(mount_file_name(&long), mount_file_name(&longer));
        assert!(mount_file_name(&long).len() <= 60);
    }

    #[test]
    fn an_empty_variable_means_no_directory() {
        let place = |uid, own: Option<&str>, xdg: Option<&str>| {
            let [own, xdg] = [own, xdg].map(|dir| dir.map(OsString::from));
            resolve_runtime_dir(Uid::from_raw(uid), own, xdg).display().to_string()
        };
        for none in [None, Some("")] {
            assert_eq!(place(0, none, Some("/run/user/0")), "/run/fanfs");
            assert_eq!(place(7, none, Some("/run/user/7")), "/run/user/7/fanfs");
            assert_eq!(place(7, none, none), "/tmp/fanfs-7");
            assert_eq!(place(7, none, Some("run")), "/tmp/fanfs-7");
            assert_eq!(place(0, Some("/here"), none), "/here");
        }
    }

    #[test]
    fn a_request_with_unknown_fields_is_rejected() {
        assert!(ControlRequest::parse(br#"{"ask":"status"}"#).is_ok());
        for nonsense in
            [&br#"{"ask":"reboot"}"#[..], b"[]", b"", b"\xff", b"{\"ask\":\"a\\u0007\"}"]
        {
            let error = ControlRequest::parse(nonsense).unwrap_err().to_string();
            assert!(!error.is_empty() && !error.contains(char::is_control), "{error:?}");
        }
    }

    #[test]
    fn a_full_queue_of_a_stopped_daemon_ends_with_a_timeout() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let daemon = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&daemon, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&daemon, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let error = query_status(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
    }
}
