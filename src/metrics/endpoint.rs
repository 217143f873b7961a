//! The addresses and files where metrics are published, and their ownership.

use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::config::{ListenAddress, MetricsConfig};
use crate::owned_path::DevIno;

/// Why metrics cannot be published at the configured place.
#[derive(Debug, thiserror::Error)]
#[error("key `{key}`: {place}: {error}; {advice}")]
pub struct MetricsError {
    key: &'static str,
    place: String,
    error: io::Error,
    advice: &'static str,
}

/// A bound address.
pub enum BoundListener {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener, SocketPath),
}

/// The path of a Unix socket. Dropping it removes the socket, unless another process has replaced
/// it.
pub struct SocketPath {
    path: PathBuf,
    dev_ino: DevIno,
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = self.dev_ino.remove_from(&self.path);
    }
}

pub(super) enum AsyncListener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// The path of the socket that is listened on, if it is a Unix socket.
pub(super) type SharedSocketPath = Mutex<Option<SocketPath>>;

impl BoundListener {
    /// Binds the address that `config` names, if any, and checks that its file can be written. For
    /// a volume that is not mounted yet.
    ///
    /// # Errors
    /// If the address cannot be bound or the file cannot be written.
    pub fn bind(config: &MetricsConfig) -> Result<Option<Self>, MetricsError> {
        if let Some(file) = &config.textfile {
            let refused = |error| MetricsError {
                key: "metrics.textfile",
                place: file.path.display().to_string(),
                error,
                advice: "make its directory writable for the daemon's user",
            };
            let directory = file.path.parent().unwrap_or(Path::new("/"));
            tempfile::tempfile_in(directory).map_err(refused)?;
        }
        let Some(listen) = &config.listen else { return Ok(None) };
        let refused = |error: io::Error| MetricsError {
            key: "metrics.listen",
            place: listen.to_string(),
            advice: match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "stop the program that listens there, or choose another address"
                }
                io::ErrorKind::AddrNotAvailable => "choose an address of this machine",
                io::ErrorKind::PermissionDenied => {
                    "choose an address that needs no privileges, such as a port above 1023"
                }
                _ => "choose another address",
            },
            error,
        };
        bind_address(listen, true).map(Some).map_err(refused)
    }
}

/// Binds an address. The `first` daemon of a mount does not replace a socket on which another
/// process listens.
fn bind_address(listen: &ListenAddress, first: bool) -> io::Result<BoundListener> {
    match listen {
        ListenAddress::Tcp(address) => TcpListener::bind(address).map(BoundListener::Tcp),
        ListenAddress::Unix(path) => {
            if is_socket(path)? && first && is_listening(path)? {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let mut next = path.clone().into_os_string();
            next.push(".next");
            // A daemon that was killed on the way left it.
            let next = Path::new(&next);
            let named = |error| io::Error::other(format!("{}: {error}", next.display()));
            if is_socket(next).map_err(named)? {
                std::fs::remove_file(next)?;
            }
            let listener = UnixListener::bind(next)?;
            // Access is limited by its directory and its group.
            std::fs::set_permissions(next, PermissionsExt::from_mode(0o660))?;
            let own = DevIno::at(next)?;
            std::fs::rename(next, path)?;
            Ok(BoundListener::Unix(listener, SocketPath { path: path.clone(), dev_ino: own }))
        }
    }
}

/// Whether a process listens on the socket. Never waits: if the process accepts nothing, its queue
/// of connections may be full.
fn is_listening(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let end = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let answer = rustix::net::connect(&end, &SocketAddrUnix::new(path)?);
    Ok(matches!(answer, Ok(()) | Err(Errno::AGAIN)))
}

/// Whether a socket exists at the path. Anything else there is not ours to replace.
fn is_socket(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => Ok(true),
        Ok(_) => Err(io::Error::other("it exists and is not a socket")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// How long the previous daemon may keep the address before the log warns.
const WARN_AFTER: Duration = Duration::from_secs(5);

/// The listener of an address: `opened`, or else one that is bound as soon as the address is free.
pub(super) async fn async_listener(
    listen: &ListenAddress,
    opened: Option<BoundListener>,
    socket: &SharedSocketPath,
) -> Option<AsyncListener> {
    let opened = match opened {
        Some(opened) => opened,
        None => bind_with_retry(listen).await,
    };
    let ready = match opened {
        BoundListener::Tcp(listener) => listener
            .set_nonblocking(true)
            .and_then(|()| tokio::net::TcpListener::from_std(listener))
            .map(AsyncListener::Tcp),
        BoundListener::Unix(listener, named) => {
            *socket.lock() = Some(named);
            listener
                .set_nonblocking(true)
                .and_then(|()| tokio::net::UnixListener::from_std(listener))
                .map(AsyncListener::Unix)
        }
    };
    ready.inspect_err(|error| tracing::warn!(%error, "cannot serve metrics")).ok()
}

async fn bind_with_retry(listen: &ListenAddress) -> BoundListener {
    let begun = Instant::now();
    let mut is_reported = false;
    loop {
        match bind_address(listen, false) {
            Ok(opened) => {
                if is_reported {
                    tracing::info!(%listen, "metrics are served now");
                }
                return opened;
            }
            Err(error) if !is_reported && begun.elapsed() > WARN_AFTER => {
                tracing::warn!(
                    key = "metrics.listen", %listen, %error,
                    "cannot serve metrics; retrying every 5 s"
                );
                is_reported = true;
            }
            Err(_) => {}
        }
        let pause = if is_reported { 5_000 } else { 20 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_not_a_socket_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let [path, next] = ["m.sock", "m.sock.next"].map(|name| dir.path().join(name));
        let listen = ListenAddress::Unix(path.clone());
        for taken in [&path, &next] {
            std::fs::write(taken, "mine").unwrap();
            let error = bind_address(&listen, true).map(drop).unwrap_err().to_string();
            assert!(error.ends_with("it exists and is not a socket"), "{error}");
            assert_eq!(std::fs::read(taken).unwrap(), b"mine");
            std::fs::remove_file(taken).unwrap();
        }
        // A socket without a listener is replaced.
        drop(UnixListener::bind(&next).unwrap());
        assert!(bind_address(&listen, true).is_ok() && !next.exists());
    }

    #[test]
    fn a_socket_with_a_full_queue_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.sock");
        let end = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let end = end.unwrap();
        rustix::net::bind(&end, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&end, 0).unwrap();
        // The second connection fills the queue; from then on each try would wait.
        for _ in 0..4 {
            assert!(is_listening(&path).unwrap());
        }
        let error = bind_address(&ListenAddress::Unix(path), true).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
