//! Opens an export: finds it on its server, and prepares the connections that read it.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use thiserror::Error;

use super::NfsExport;
use crate::nfs::{
    Caller, Client, DEFAULT_NFS_PORT, Export, Identity, Limits, MountError, MountRequest,
    NfsAddress, NfsError, Object, OpenedExport, Ports, Target, Version, find_exports,
};

/// The root of an export, and a client for its server.
pub struct ExportRoot {
    /// The client. Its connections are made when they are needed.
    pub client: Client,
    /// The root directory.
    pub root: Object,
    /// The server's limits.
    pub limits: Limits,
    /// All addresses of the server's name. The client uses one, with NFSv4.1 also the others of the
    /// same server.
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
    let end = Instant::now() + limit;
    let ports = Ports { nfs: server.port, mount: None };
    let list = |request: &MountRequest<'_>| request.exports();
    match ask_in_turn(&addresses, ports, end, list) {
        Ok(Answer { found, .. }) => return Ok(found),
        Err(MountError::OnlyVersion4) => {}
        Err(error) => return Err(error.into()),
    }
    let root = NfsExport {
        address: NfsAddress { export: b"/".to_vec(), ..server.clone() },
        version: Some(Version::V4_1),
        connections: 1,
        mount_port: None,
    };
    let root = open_version_4(&root, &addresses, end)?;
    let identity = Identity::of_process();
    Ok(find_exports(&root.client, Caller { identity: &identity, deadline: end })?)
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
    let addresses = export.address.resolve().map_err(ExportError::Name)?;
    let end = Instant::now() + limit;
    match export.version {
        Some(Version::V3) => open_version_3(export, &addresses, end),
        Some(Version::V4_1) => open_version_4(export, &addresses, end),
        // Of a server with both, always the same one: their handles may differ.
        None => match open_version_3(export, &addresses, end) {
            Err(ExportError::Mount(MountError::OnlyVersion4)) => {
                open_version_4(export, &addresses, end)
            }
            answer => answer,
        },
    }
}

fn open_version_3(
    export: &NfsExport,
    addresses: &[SocketAddr],
    end: Instant,
) -> Result<ExportRoot, ExportError> {
    let identity = Identity::of_process();
    let ports = Ports { nfs: export.address.port, mount: export.mount_port };
    let mount = |request: &MountRequest<'_>| request.mount(&export.address.export);
    let Answer { found, address } = ask_in_turn(addresses, ports, end, mount)?;
    let addresses = with_first(addresses, address, found.nfs_port);
    // Another address may lead to a server with other handles, or refuse this host.
    let client = Client::version_3(target(export, addresses[..1].to_vec()));
    let client = client.map_err(ExportError::Client)?;
    let caller = Caller { identity: &identity, deadline: end };
    let attributes = client.attributes(caller, found.root)?;
    let root = Object { handle: found.root, attributes };
    let limits = client.limits(caller, root.handle)?;
    Ok(ExportRoot { client, root, limits, addresses })
}

/// Those of `others` that are addresses of the NFSv4.1 server at `first`, as the server itself
/// proves. With NFSv3 nothing proves it.
///
/// # Errors
/// If the server does not answer.
pub fn addresses_of_same_server(
    first: SocketAddr,
    others: &[SocketAddr],
    limit: Duration,
) -> Result<Vec<SocketAddr>, NfsError> {
    let addresses = [first].into_iter().chain(others.iter().copied()).collect();
    let identity = Identity::of_process();
    let caller = Caller { identity: &identity, deadline: Instant::now() + limit };
    let client = Client::version_4_1(default_target(addresses), caller)?;
    Ok(client.addresses().iter().copied().filter(|address| *address != first).collect())
}

fn open_version_4(
    export: &NfsExport,
    addresses: &[SocketAddr],
    end: Instant,
) -> Result<ExportRoot, ExportError> {
    let port = export.address.port.unwrap_or(DEFAULT_NFS_PORT);
    let ports = Ports { nfs: Some(port), mount: None };
    let open = |request: &MountRequest<'_>| {
        let first = addresses.iter().position(|address| *address == request.server).unwrap_or(0);
        let target = target(export, with_first(addresses, first, port));
        request.open_version_4_1(target, &export.address.export)
    };
    let Answer { found, address } = ask_in_turn(addresses, ports, end, open)?;
    let OpenedExport { client, root } = found;
    let identity = Identity::of_process();
    let limits = client.limits(Caller { identity: &identity, deadline: end }, root.handle)?;
    Ok(ExportRoot { client, root, limits, addresses: with_first(addresses, address, port) })
}

/// The addresses with this port, beginning with one of them.
fn with_first(addresses: &[SocketAddr], first: usize, port: u16) -> Vec<SocketAddr> {
    let mut addresses = addresses.to_vec();
    addresses.swap(0, first);
    addresses.iter_mut().for_each(|address| address.set_port(port));
    addresses
}

fn target(export: &NfsExport, addresses: Vec<SocketAddr>) -> Target {
    Target { connections: export.connections, ..default_target(addresses) }
}

fn default_target(addresses: Vec<SocketAddr>) -> Target {
    Target {
        addresses,
        connections: 1,
        reserved_port: true,
        is_patient: true,
        silence: Target::SILENCE,
        max_backoff: Target::MAX_BACKOFF,
    }
}
