//! Opens an export: finds it on its server, and prepares the connections that read it.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use thiserror::Error;

use super::NfsExport;
use crate::nfs::{
    Caller, Client, Export, Identity, Limits, MountError, MountRequest, NfsAddress, NfsError,
    Object, Ports, Target,
};

/// The root of an export, and a client for its server.
pub struct ExportRoot {
    /// The client. Its connections are made when they are needed.
    pub client: Client,
    /// The root directory.
    pub root: Object,
    /// The server's limits.
    pub limits: Limits,
    /// All addresses of the server's name. The client uses one.
    pub addresses: Vec<SocketAddr>,
}

/// Why an export cannot be opened.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The server's name is unknown.
    #[error("the server's name cannot be resolved: {0}")]
    Name(io::Error),
    /// The server does not offer the export.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The export was found, but not its root.
    #[error(transparent)]
    Root(#[from] NfsError),
    /// This process has no resources for connections.
    #[error("cannot start a client: {0}")]
    Client(io::Error),
}

impl ExportError {
    /// The errno that a program gets.
    pub fn errno(&self) -> Errno {
        match self {
            // A name server that is down is as good as a server that is down.
            Self::Name(_) => Errno::HOSTUNREACH,
            Self::Mount(error) => error.errno(),
            Self::Root(error) => error.errno(),
            Self::Client(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
        }
    }
}

/// The exports of a server.
///
/// # Errors
/// As of [`open_export`].
pub fn list_exports(server: &NfsAddress, limit: Duration) -> Result<Vec<Export>, ExportError> {
    let addresses = server.resolve().map_err(ExportError::Name)?;
    let ports = Ports { nfs: server.port, mount: None };
    let answer =
        ask_in_turn(&addresses, ports, Instant::now() + limit, |request| request.exports())?;
    Ok(answer.found)
}

/// What one of a server's addresses has answered.
struct Answer<T> {
    found: T,
    /// The index of that address.
    address: usize,
}

/// Asks a server at its addresses in turn, until one answers.
fn ask_in_turn<T>(
    addresses: &[SocketAddr],
    ports: Ports,
    end: Instant,
    ask: impl Fn(&MountRequest<'_>) -> Result<T, MountError>,
) -> Result<Answer<T>, MountError> {
    let identity = Identity::of_process();
    let mut address = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - address) as u32;
        let request = MountRequest {
            server: addresses[address],
            ports,
            identity: &identity,
            reserved_port: true,
            deadline: Instant::now() + share,
        };
        match ask(&request) {
            Ok(found) => return Ok(Answer { found, address }),
            Err(error) if address + 1 == addresses.len() => return Err(error),
            Err(_) => address += 1,
        }
    }
}

/// Opens an export. It may take longer than `limit` only to resolve the server's name.
///
/// # Errors
/// Why it cannot be opened; of a server with several addresses, why not at the last one.
pub(super) fn open_export(export: &NfsExport, limit: Duration) -> Result<ExportRoot, ExportError> {
    let identity = Identity::of_process();
    let mut addresses = export.address.resolve().map_err(ExportError::Name)?;
    let end = Instant::now() + limit;
    let ports = Ports { nfs: export.address.port, mount: export.mount_port };
    let mount = |request: &MountRequest<'_>| request.mount(&export.address.export);
    let Answer { found, address } = ask_in_turn(&addresses, ports, end, mount)?;
    addresses.iter_mut().for_each(|address| address.set_port(found.nfs_port));
    let target = Target {
        // Another address may lead to a server with other handles, or refuse this host.
        addresses: vec![addresses[address]],
        connections: export.connections,
        reserved_port: true,
        is_patient: true,
        silence: Target::SILENCE,
        max_backoff: Target::MAX_BACKOFF,
    };
    let client = Client::new(target).map_err(ExportError::Client)?;
    let caller = Caller { identity: &identity, deadline: end };
    let attributes = client.attributes(caller, found.root)?;
    let limits = client.limits(caller, found.root)?;
    let root = Object { handle: found.root, attributes };
    Ok(ExportRoot { client, root, limits, addresses })
}
