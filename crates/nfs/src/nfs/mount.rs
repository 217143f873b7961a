//! Finds an export. For NFSv3: the portmapper (RFC 1833), and the MOUNT protocol (RFC 1813, appendix
//! I). An NFSv4 server has one tree with all its exports.
//!
//! The portmapper is asked by its version 2 over IPv4, and by version 3 over IPv6, which version 2
//! does not know.

use std::net::SocketAddr;
use std::time::Instant;

use nfs3_types::mount::{self, MOUNT_PROGRAM, dirpath, mountstat3};
use nfs3_types::portmap::{self, PMAP_PORT, PMAP_PROG, mapping};
use nfs3_types::xdr_codec::{Opaque, Pack};
use rustix::io::Errno;
use thiserror::Error;

use crate::nfs::attributes::{FileHandle, Kind};
use crate::nfs::blocking::{decode_results, wait_for_reply};
use crate::nfs::client::Client;
use crate::nfs::error::{NfsError, Status};
use crate::nfs::procedures::{Caller, Object, Position};
use crate::nfs::rpc::{CallOptions, Identity, Procedure, Refusal, RpcError, Target, Transport};
use crate::nfs::xdr::{self, DecodeError, Decoder};

/// The port that mount services have where no portmapper tells another (IANA).
pub const DEFAULT_MOUNT_PORT: u16 = 20048;

/// The port of NFS servers.
pub const DEFAULT_NFS_PORT: u16 = 2049;

/// The longest path of an export (`MNTPATHLEN`), and the longest name in a list of clients.
const MAX_PATH: usize = mount::MNTPATHLEN;
const MAX_NAME: usize = mount::MNTNAMLEN;

/// The longest list of exports that is taken, bytes.
const MAX_EXPORTS: usize = 1 << 20;

const MAX_SMALL_REPLY: usize = 4 << 10;

/// The number of AUTH_SYS in a list of flavors, and of AUTH_NULL.
const AUTH_SYS: u32 = 1;
const AUTH_NULL: u32 = 0;

/// A server's ports, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Of NFS; otherwise the portmapper's answer, or 2049.
    pub nfs: Option<u16>,
    /// Of MOUNT; otherwise the portmapper's answer, or 20048.
    pub mount: Option<u16>,
}

/// How to ask a server for its exports.
#[derive(Clone, Copy, Debug)]
pub struct MountRequest<'a> {
    /// An address of the server; its port does not matter.
    pub server: SocketAddr,
    /// Its ports.
    pub ports: Ports,
    /// The user that asks.
    pub identity: &'a Identity,
    /// Whether to ask from a source port below 1024, where this process may.
    pub reserved_port: bool,
    /// When to give up.
    pub deadline: Instant,
}

/// A directory that a server exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its path on the server.
    pub path: Vec<u8>,
    /// The clients that may mount it, in the server's notation; empty if all may. `None` if the
    /// server does not say, as with NFSv4.
    pub clients: Option<Vec<Vec<u8>>>,
}

/// An export of an NFSv4.1 server, and a session with the server.
pub struct OpenedExport {
    /// The session.
    pub client: Client,
    /// The root of the export.
    pub root: Object,
}

/// An export that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountedExport {
    /// The handle of its root.
    pub root: FileHandle,
    /// The port of the NFS service.
    pub nfs_port: u16,
}

/// Why an export was not found.
#[derive(Clone, Debug, Error)]
pub enum MountError {
    /// The portmapper knows no such service.
    #[error("the server offers no {service} over TCP: its portmapper knows none")]
    NoService {
        /// `NFSv3` or `MOUNT`.
        service: &'static str,
    },
    /// The MOUNT service did not answer.
    #[error("the MOUNT service at {address}: {error}{}", port_advice(error))]
    Service {
        /// Where it was asked.
        address: SocketAddr,
        /// The error.
        error: NfsError,
    },
    /// The server refuses the export to this client.
    #[error(
        "the server has no such export, or refuses it to this host; if it wants source ports \
         below 1024, the export needs the option `insecure`, or this process CAP_NET_BIND_SERVICE"
    )]
    Denied,
    /// The server offers NFSv4 alone.
    #[error(
        "the server does not offer NFSv3, only NFSv4; set `version` to \"4.1\", or leave it out"
    )]
    OnlyVersion4,
    /// The server offers no session.
    #[error("NFSv4.1 at {address}: {error}{}", version_4_advice(error))]
    Version4 {
        /// Where it was asked.
        address: SocketAddr,
        /// The error.
        error: NfsError,
    },
    /// The server has no such export.
    #[error("the server exports no such directory")]
    NoExport,
    /// The server gives another error.
    #[error("the server cannot mount the export (MOUNT status {0})")]
    Status(u32),
    /// The export wants other security than AUTH_SYS.
    #[error("the export wants Kerberos (flavors {0:?}); use a kernel mount")]
    Security(Vec<u32>),
}

impl MountError {
    /// The errno that a program gets.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoService { .. } | Self::OnlyVersion4 => Errno::PROTONOSUPPORT,
            Self::Service { error, .. } | Self::Version4 { error, .. } => error.errno(),
            Self::Denied | Self::Security(_) => Errno::ACCESS,
            Self::NoExport => Errno::NOENT,
            Self::Status(_) => Errno::IO,
        }
    }
}

impl MountRequest<'_> {
    /// Mounts an export: gets the handle of its root.
    ///
    /// # Errors
    /// Why there is none.
    pub fn mount(&self, export: &[u8]) -> Result<MountedExport, MountError> {
        let service = self.mount_service()?;
        let path = dirpath(Opaque::borrowed(export));
        let number = MOUNT_PROGRAM::MOUNTPROC3_MNT;
        let MountReply { root, flavors } =
            service.ask(self, number, &path, MAX_SMALL_REPLY, decode_mount_reply)??;
        // An empty list means that the server does not say.
        let is_usable = |flavor: &u32| matches!(*flavor, AUTH_SYS | AUTH_NULL);
        if !flavors.is_empty() && !flavors.iter().any(is_usable) {
            return Err(MountError::Security(flavors));
        }
        Ok(MountedExport { root, nfs_port: self.nfs_port(&service)? })
    }

    /// The directories that the server exports.
    ///
    /// # Errors
    /// As [`MountRequest::mount`].
    pub fn exports(&self) -> Result<Vec<Export>, MountError> {
        let nothing: [u8; 0] = [];
        let number = MOUNT_PROGRAM::MOUNTPROC3_EXPORT;
        self.mount_service()?.ask(self, number, &nothing, MAX_EXPORTS, decode_exports)
    }

    /// Opens a session with the NFSv4.1 server of `target`, and finds an export in its tree.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open_version_4_1(
        &self,
        target: Target,
        export: &[u8],
    ) -> Result<OpenedExport, MountError> {
        let caller = Caller { identity: self.identity, deadline: self.deadline };
        let address = self.at(self.ports.nfs.unwrap_or(DEFAULT_NFS_PORT));
        let explain = |error: NfsError| match error {
            NfsError::Rpc(RpcError::Refused(Refusal::WeakCredentials)) => MountError::Denied,
            NfsError::Status(status) if is_path_error(status.errno()) => MountError::NoExport,
            error => MountError::Version4 { address, error },
        };
        let client = Client::version_4_1(target, caller).map_err(explain)?;
        let root = client.find_export(caller, export).map_err(explain)?;
        match root.attributes.kind {
            Kind::Directory => Ok(OpenedExport { client, root }),
            _ => Err(MountError::NoExport),
        }
    }

    fn mount_service(&self) -> Result<MountService, MountError> {
        let port = match self.ports.mount {
            Some(port) => Some(port),
            None if self.offers_only_version_4() => return Err(MountError::OnlyVersion4),
            None => self.port_of(mount::PROGRAM, "MOUNT")?,
        };
        let address = self.at(port.unwrap_or(DEFAULT_MOUNT_PORT));
        match Transport::start(target(address, self.reserved_port)) {
            Ok(transport) => Ok(MountService { transport, address, is_guess: port.is_none() }),
            Err(error) => Err(service_error(address, unreachable(address, error))),
        }
    }

    /// The port of the NFS service, after an answer of the MOUNT service.
    fn nfs_port(&self, mount: &MountService) -> Result<u16, MountError> {
        match self.ports.nfs {
            Some(port) => Ok(port),
            // No portmapper answers.
            None if mount.is_guess => Ok(DEFAULT_NFS_PORT),
            None => {
                let port = self.port_of(nfs3_types::nfs3::PROGRAM, "NFSv3")?;
                Ok(port.unwrap_or(DEFAULT_NFS_PORT))
            }
        }
    }

    /// The portmapper's answer for version 3 of a service; `None` if no portmapper answers.
    fn port_of(&self, program: u32, service: &'static str) -> Result<Option<u16>, MountError> {
        let reply = match self.server.is_ipv4() {
            true => {
                let number = PMAP_PROG::PMAPPROC_GETPORT as u32;
                let wanted =
                    mapping { prog: program, vers: 3, prot: portmap::IPPROTO_TCP, port: 0 };
                self.ask_portmapper(portmap::VERSION, number, &wanted)
                    .and_then(|reply| decode_results(&reply, |bytes| Ok(bytes.u32()?)))
            }
            false => self
                .ask_portmapper(RPCBIND_VERSION, RPCBIND_GETADDR, &RpcbindArguments { program })
                .and_then(|reply| decode_results(&reply, |bytes| Ok(decode_port(bytes)?))),
        };
        match reply {
            Ok(0) => Err(MountError::NoService { service }),
            Ok(port) => Ok(u16::try_from(port).ok()),
            Err(_) => Ok(None),
        }
    }

    fn ask_portmapper(
        &self,
        version: u32,
        number: u32,
        arguments: &impl Pack,
    ) -> Result<Vec<u8>, NfsError> {
        let address = self.at(PMAP_PORT);
        let transport = Transport::start(target(address, false))
            .map_err(|error| unreachable(address, error))?;
        let procedure = Procedure { program: portmap::PROGRAM, version, number };
        // Half of the time: a server behind a firewall may have a known port.
        let now = Instant::now();
        let deadline = now + self.deadline.saturating_duration_since(now) / 2;
        let options = CallOptions { procedure, identity: None, deadline, receipt: None };
        wait_for_reply(&transport, &options, arguments, MAX_SMALL_REPLY)
    }

    /// The server, at this port.
    fn at(&self, port: u16) -> SocketAddr {
        let mut address = self.server;
        address.set_port(port);
        address
    }

    /// Whether the server offers later versions of NFS only.
    fn offers_only_version_4(&self) -> bool {
        let address = self.at(self.ports.nfs.unwrap_or(DEFAULT_NFS_PORT));
        // A source port below 1024 matters only for an export.
        let Ok(client) = Client::version_3(target(address, false)) else {
            return false;
        };
        // A part of the time: a server behind a firewall may have its services elsewhere.
        let now = Instant::now();
        let deadline = now + self.deadline.saturating_duration_since(now) / 4;
        let answer = client.ping(Caller { identity: self.identity, deadline });
        matches!(
            answer,
            Err(NfsError::Rpc(RpcError::Refused(Refusal::Version { lowest: 4.., .. })))
        )
    }
}

/// The version of the portmapper's protocol that knows IPv6, and its question for an address.
const RPCBIND_VERSION: u32 = 3;
const RPCBIND_GETADDR: u32 = 3;

/// The longest address that a portmapper gives: `::` and more, with the port's two bytes.
const MAX_UNIVERSAL_ADDRESS: usize = 128;

/// `rpcb`: the service that is wanted over TCP and IPv6.
struct RpcbindArguments {
    program: u32,
}

impl Pack for RpcbindArguments {
    fn packed_size(&self) -> usize {
        2 * self.program.packed_size()
            + [&b"tcp6"[..], b"", b""]
                .iter()
                .map(|text| Opaque::borrowed(text).packed_size())
                .sum::<usize>()
    }

    fn pack(&self, out: &mut impl std::io::Write) -> nfs3_types::xdr_codec::Result<usize> {
        let mut len = self.program.pack(out)? + 3u32.pack(out)?;
        for text in [&b"tcp6"[..], b"", b""] {
            len += Opaque::borrowed(text).pack(out)?;
        }
        Ok(len)
    }
}

/// The port at the end of a universal address, `::1.8.1`; 0 if there is no address.
fn decode_port(bytes: &mut Decoder<'_>) -> xdr::Result<u32> {
    let address = bytes.opaque(MAX_UNIVERSAL_ADDRESS)?;
    if address.is_empty() {
        return Ok(0);
    }
    let address = std::str::from_utf8(address).unwrap_or_default();
    let mut parts = address.rsplit('.').map(str::parse::<u8>);
    match (parts.next(), parts.next()) {
        (Some(Ok(low)), Some(Ok(high))) => Ok(u32::from(high) << 8 | u32::from(low)),
        _ => Err(DecodeError::Invalid("an address without a port")),
    }
}

/// The deepest directory of an NFSv4 server's tree that is looked for exports, and the most of them.
const MAX_DEPTH: usize = 16;
const MAX_DIRECTORIES: usize = 1000;

/// The exports of an NFSv4 server: the directories of its own file system that lead to others. A
/// server without such a file system exports its root.
///
/// # Errors
/// As [`Client::attributes`].
pub fn find_exports(client: &Client, caller: Caller<'_>) -> Result<Vec<Export>, NfsError> {
    let root = client.find_export(caller, b"/")?;
    let export = |path: Vec<u8>| Export { path, clients: None };
    let mut exports = Vec::new();
    let mut open = vec![TreeDirectory { object: root, path: Vec::new(), depth: 0 }];
    let mut looked_at = 0;
    while let Some(dir) = open.pop() {
        let mut position = Some(Position::START);
        while let Some(at) = position {
            let page = client.list(caller, dir.object.handle, at)?;
            position = page.next;
            for entry in page.entries {
                if entry.object.is_some_and(|object| object.kind != Kind::Directory) {
                    continue;
                }
                looked_at += 1;
                if looked_at > MAX_DIRECTORIES {
                    return Ok(vec![export(b"/".to_vec())]);
                }
                // One that this user may not see is none of its exports.
                let Ok(object) = client.look_up(caller, dir.object.handle, &entry.name) else {
                    continue;
                };
                let path = [&dir.path[..], b"/", &entry.name].concat();
                if object.attributes.file_system != root.attributes.file_system {
                    exports.push(export(path));
                } else if dir.depth < MAX_DEPTH && object.attributes.kind == Kind::Directory {
                    open.push(TreeDirectory { object, path, depth: dir.depth + 1 });
                }
            }
        }
    }
    if exports.is_empty() {
        exports.push(export(b"/".to_vec()));
    }
    exports.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(exports)
}

/// A directory of an NFSv4 server's own file system.
struct TreeDirectory {
    object: Object,
    path: Vec<u8>,
    depth: usize,
}

/// The MOUNT service of a server.
struct MountService {
    transport: Transport,
    address: SocketAddr,
    /// Whether its port is the usual one, because no portmapper answers.
    is_guess: bool,
}

struct MountReply {
    root: FileHandle,
    flavors: Vec<u32>,
}

impl MountService {
    fn ask<T>(
        &self,
        request: &MountRequest<'_>,
        number: MOUNT_PROGRAM,
        arguments: &impl Pack,
        max: usize,
        decode: impl FnOnce(&mut Decoder<'_>) -> xdr::Result<T>,
    ) -> Result<T, MountError> {
        let number = number as u32;
        let procedure = Procedure { program: mount::PROGRAM, version: mount::VERSION, number };
        let options = CallOptions {
            procedure,
            identity: Some(request.identity),
            deadline: request.deadline,
            receipt: None,
        };
        wait_for_reply(&self.transport, &options, arguments, max)
            .and_then(|reply| decode_results(&reply, |bytes| Ok(decode(bytes)?)))
            .map_err(|error| service_error(self.address, error))
    }
}

fn target(address: SocketAddr, reserved_port: bool) -> Target {
    Target {
        addresses: vec![address],
        connections: 1,
        reserved_port,
        is_patient: false,
        silence: Target::SILENCE,
        max_backoff: Target::MAX_BACKOFF,
    }
}

/// Advice for an error that another service at the port, or none, would cause.
fn port_advice(error: &NfsError) -> &'static str {
    let is_elsewhere = match error {
        NfsError::Rpc(RpcError::Unreachable { error, .. }) => {
            error.kind() == std::io::ErrorKind::ConnectionRefused
        }
        NfsError::Rpc(RpcError::Lost | RpcError::Malformed(_)) => true,
        NfsError::Rpc(RpcError::Refused(refusal)) => *refusal == Refusal::Program,
        _ => false,
    };
    if is_elsewhere { "; it may have another port" } else { "" }
}

fn service_error(address: SocketAddr, error: NfsError) -> MountError {
    MountError::Service { address, error }
}

fn unreachable(address: SocketAddr, error: std::io::Error) -> NfsError {
    RpcError::Unreachable { server: address.to_string(), error: error.into() }.into()
}

/// Whether a path leads to no directory.
fn is_path_error(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

/// What helps against an error of an NFSv4 server.
fn version_4_advice(error: &NfsError) -> &'static str {
    match error {
        NfsError::Status(Status::WRONG_SECURITY) => {
            "; the export wants Kerberos or TLS: use a kernel mount"
        }
        NfsError::Status(Status::MINOR_VERSION) => {
            "; the server offers NFSv4.0 only: use a kernel mount"
        }
        NfsError::Status(status) if status.errno() == Errno::PERM => {
            "; if the server wants source ports below 1024, the export needs the option `insecure`, \
             or this process CAP_NET_BIND_SERVICE"
        }
        _ => "",
    }
}

/// The error of a MOUNT status.
fn refusal(status: u32) -> MountError {
    let is = |one: mountstat3| status == one as u32;
    if is(mountstat3::MNT3ERR_PERM) || is(mountstat3::MNT3ERR_ACCES) {
        MountError::Denied
    } else if is(mountstat3::MNT3ERR_NOENT) || is(mountstat3::MNT3ERR_NOTDIR) {
        MountError::NoExport
    } else {
        MountError::Status(status)
    }
}

fn decode_mount_reply(bytes: &mut Decoder<'_>) -> xdr::Result<Result<MountReply, MountError>> {
    let status = bytes.u32()?;
    if status != mountstat3::MNT3_OK as u32 {
        return Ok(Err(refusal(status)));
    }
    let root = FileHandle::decode(bytes)?;
    decode_flavors(bytes).map(|flavors| Ok(MountReply { root, flavors }))
}

/// Decodes a short reply as the answer of each service that is asked before NFS.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn decode_any_reply(reply: &[u8]) {
    let _ = decode_results(reply, |bytes| Ok(decode_mount_reply(bytes)?));
    let _ = decode_results(reply, |bytes| Ok(decode_port(bytes)?));
}

/// The security flavors that the export takes.
fn decode_flavors(bytes: &mut Decoder<'_>) -> xdr::Result<Vec<u32>> {
    let count = bytes.u32()?;
    // Each is four bytes of a short reply, so this ends early if the count is a lie.
    (0..count).map(|_| bytes.u32()).collect()
}

pub(super) fn decode_exports(bytes: &mut Decoder<'_>) -> xdr::Result<Vec<Export>> {
    let mut exports = Vec::new();
    while bytes.bool()? {
        let path = bytes.opaque(MAX_PATH)?.to_vec();
        let mut clients = Vec::new();
        while bytes.bool()? {
            clients.push(bytes.opaque(MAX_NAME)?.to_vec());
        }
        exports.push(Export { path, clients: Some(clients) });
    }
    Ok(exports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_the_last_two_bytes_of_an_address() {
        let decode = |text: &[u8]| {
            let mut bytes = Vec::new();
            Opaque::borrowed(text).pack(&mut bytes).unwrap();
            decode_port(&mut Decoder::new(&bytes))
        };
        assert_eq!(decode(b"::.8.1"), Ok(2049));
        assert_eq!(decode(b"fe80::1%eth0.78.80"), Ok(20048));
        assert_eq!(decode(b""), Ok(0));
        for wrong in [&b"::1"[..], b"8.256", b"x.1", b".1", b"\xff.8.1.x"] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_silent_service_is_not_sought_elsewhere() {
        let address = SocketAddr::from(([192, 0, 2, 1], 20048));
        let shown = |error: RpcError| service_error(address, error.into()).to_string();
        let unreachable = |kind: std::io::ErrorKind| RpcError::Unreachable {
            server: address.to_string(),
            error: std::io::Error::from(kind).into(),
        };
        let refused = unreachable(std::io::ErrorKind::ConnectionRefused);
        assert!(shown(refused).ends_with("; it may have another port"));
        for silent in [RpcError::Late, unreachable(std::io::ErrorKind::TimedOut)] {
            assert!(!shown(silent).contains("port"));
        }
    }

    #[test]
    fn a_count_that_lies_allocates_nothing() {
        let bytes = [0xff; 12];
        let flavors = decode_flavors(&mut Decoder::new(&bytes));
        assert!(flavors.is_err(), "{flavors:?}");
    }

    #[test]
    fn exports_are_decoded() {
        let words = [1u32, 5, 0x2f646174, 0x61000000, 1, 1, 0x2a000000, 0, 1, 1, 0x2f000000, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let exports = decode_exports(&mut Decoder::new(&bytes)).unwrap();
        let data = Export { path: b"/data".to_vec(), clients: Some(vec![b"*".to_vec()]) };
        assert_eq!(exports, [data, Export { path: b"/".to_vec(), clients: Some(Vec::new()) }]);
    }
}
