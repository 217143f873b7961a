//! The procedures that a reader needs, over whichever version of NFS the server offers.
//!
//! All of them carry the caller's credentials: the server decides what a caller may do. They block
//! until the server replies or the caller's deadline passes, except [`Client::submit_read`].

mod read;

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

pub use read::{ReadEnd, ReadRange, ReadResult, ReadSink};

use crate::nfs::attributes::{Attributes, FileHandle, Kind};
use crate::nfs::error::NfsError;
use crate::nfs::rpc::{ConnectionCounters, Identity, IsUnwanted, Target, Transport};
use crate::nfs::v3::Version3;
use crate::nfs::v4::Version4;
use crate::nfs::xdr::{self, DecodeError, Decoder};

/// The longest target of a symbolic link (`PATH_MAX` of Linux).
pub(super) const MAX_LINK: usize = 4096;

/// The longest name that a FUSE file system can have (`FUSE_NAME_MAX`).
pub(super) const MAX_NAME: usize = 1024;

/// The most lookups in flight of one caller.
const MAX_LOOKUPS: usize = 64;

/// On whose behalf, and until when, a call is made.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The user.
    pub identity: &'a Identity,
    /// When the call ends without a reply.
    pub deadline: Instant,
}

/// An object, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Rights to an object, as the server grants them (ACCESS). Both versions number them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights(pub(super) u32);

impl Rights {
    /// To read a file's data or a directory's names.
    pub const READ: Self = Self(nfs3_types::nfs3::ACCESS3_READ);
    /// To execute a file.
    pub const EXECUTE: Self = Self(nfs3_types::nfs3::ACCESS3_EXECUTE);
    /// To look names up in a directory.
    pub const LOOK_UP: Self = Self(nfs3_types::nfs3::ACCESS3_LOOKUP);

    /// Whether all of `others` are among them.
    pub fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// The sizes that a server allows, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest read.
    pub max_read: u32,
    /// The largest file.
    pub max_file: u64,
}

/// Size and use of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Free bytes that the caller may use.
    pub available_bytes: u64,
    /// Objects that it can have.
    pub files: u64,
    /// Objects that can still be created.
    pub free_files: u64,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but `/` and NUL, neither `.` nor `..`.
    pub name: Vec<u8>,
    /// The number of its object, as the listing shows it.
    pub number: u64,
    /// Kind and size of its object, if the server sent them.
    pub object: Option<ListedObject>,
}

/// What a listing shows of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Kind.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
}

/// A place in a directory, after some of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub(super) cookie: u64,
    pub(super) verifier: [u8; 8],
}

impl Position {
    /// Before the first name.
    pub const START: Self = Self { cookie: 0, verifier: [0; 8] };

    /// The same place for a server that has forgotten when it sent it.
    pub(super) fn without_verifier(self) -> Self {
        Self { verifier: [0; 8], ..self }
    }
}

/// Some names of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The names.
    pub entries: Vec<DirEntry>,
    /// Where the others begin; `None` if there are no others.
    pub next: Option<Position>,
}

/// A version of NFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 3 (RFC 1813).
    V3,
    /// 4.1 (RFC 8881).
    V4_1,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V3 => "NFSv3",
            Self::V4_1 => "NFSv4.1",
        })
    }
}

/// A server.
pub struct Client(Box<dyn Procedures>);

/// What a version of NFS does for [`Client`], whose methods say it.
pub(super) trait Procedures: Send + Sync {
    fn version(&self) -> Version;

    fn transport(&self) -> &Transport;

    fn stop(&self);

    fn ping(&self, caller: Caller<'_>) -> Result<(), NfsError>;

    fn attributes(&self, caller: Caller<'_>, object: FileHandle) -> Result<Attributes, NfsError>;

    fn look_up(&self, caller: Caller<'_>, dir: FileHandle, name: &[u8])
    -> Result<Object, NfsError>;

    /// At most [`MAX_LOOKUPS`] names.
    fn look_up_some(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        names: &[&[u8]],
    ) -> Vec<Result<Object, NfsError>>;

    fn access(
        &self,
        caller: Caller<'_>,
        object: FileHandle,
        wanted: Rights,
    ) -> Result<Rights, NfsError>;

    fn read_link(&self, caller: Caller<'_>, link: FileHandle) -> Result<Vec<u8>, NfsError>;

    fn limits(&self, caller: Caller<'_>, root: FileHandle) -> Result<Limits, NfsError>;

    fn usage(&self, caller: Caller<'_>, object: FileHandle) -> Result<Usage, NfsError>;

    fn max_name(&self, caller: Caller<'_>, object: FileHandle) -> Result<u32, NfsError>;

    fn list(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> Result<Page, NfsError>;

    fn find_export(&self, caller: Caller<'_>, path: &[u8]) -> Result<Object, NfsError>;

    /// Waits until a read can be submitted, after one ended with [`NfsError::NoSession`].
    fn wait_for_read(&self, _caller: Caller<'_>) -> Result<(), NfsError> {
        Ok(())
    }

    /// Reads as much as the sink has room for, by one call.
    fn submit_read(&self, caller: Caller<'_>, read: PieceToRead, is_unwanted: Option<IsUnwanted>);
}

impl Client {
    /// Prepares connections to the NFSv3 service of a server. They are made when they are needed.
    ///
    /// # Errors
    /// If this process can have no more threads or descriptors.
    pub fn version_3(target: Target) -> io::Result<Self> {
        Ok(Self(Box::new(Version3::new(Transport::start(target)?))))
    }

    /// Opens a session with an NFSv4.1 server. Of the target's addresses the first one is used, and
    /// those that lead to the same server.
    ///
    /// # Errors
    /// [`NfsError::Resources`] if this process can have no more threads or descriptors; otherwise
    /// the server's status, or why there was no reply in time.
    pub fn version_4_1(target: Target, caller: Caller<'_>) -> Result<Self, NfsError> {
        Ok(Self(Box::new(Version4::open(target, caller)?)))
    }

    /// The version of NFS that it uses.
    pub fn version(&self) -> Version {
        self.0.version()
    }

    /// The addresses that its connections use in turn.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.0.transport().addresses()
    }

    /// Ends all calls, those in flight and those to come, with
    /// [`RpcError::Stopped`](crate::nfs::RpcError::Stopped).
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Counts of each connection.
    pub fn counters(&self) -> Vec<ConnectionCounters> {
        self.0.transport().counters()
    }

    /// Whether the server offers this version of NFS at all.
    ///
    /// # Errors
    /// [`NfsError::Rpc`]; with [`crate::nfs::Refusal::Version`] if it offers other versions.
    pub fn ping(&self, caller: Caller<'_>) -> Result<(), NfsError> {
        self.0.ping(caller)
    }

    /// Attributes of an object.
    ///
    /// # Errors
    /// As of every procedure here: the server's status, or why there was no reply in time.
    pub fn attributes(
        &self,
        caller: Caller<'_>,
        object: FileHandle,
    ) -> Result<Attributes, NfsError> {
        self.0.attributes(caller, object)
    }

    /// The object with this name in a directory.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn look_up(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        name: &[u8],
    ) -> Result<Object, NfsError> {
        self.0.look_up(caller, dir, name)
    }

    /// The objects with these names in a directory, in the order of the names. The calls do not
    /// wait for each other.
    pub fn look_up_all(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        names: &[&[u8]],
    ) -> Vec<Result<Object, NfsError>> {
        let look_up = |names| self.0.look_up_some(caller, dir, names);
        names.chunks(MAX_LOOKUPS).flat_map(look_up).collect()
    }

    /// The rights among `wanted` that the caller has.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn access(
        &self,
        caller: Caller<'_>,
        object: FileHandle,
        wanted: Rights,
    ) -> Result<Rights, NfsError> {
        self.0.access(caller, object, wanted)
    }

    /// A symbolic link's target, verbatim.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn read_link(&self, caller: Caller<'_>, link: FileHandle) -> Result<Vec<u8>, NfsError> {
        self.0.read_link(caller, link)
    }

    /// The server's limits.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn limits(&self, caller: Caller<'_>, root: FileHandle) -> Result<Limits, NfsError> {
        self.0.limits(caller, root)
    }

    /// Size and use of the file system that the object is on.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn usage(&self, caller: Caller<'_>, object: FileHandle) -> Result<Usage, NfsError> {
        self.0.usage(caller, object)
    }

    /// The longest name in bytes, in the file system that the object is on.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn max_name(&self, caller: Caller<'_>, object: FileHandle) -> Result<u32, NfsError> {
        self.0.max_name(caller, object)
    }

    /// Names of a directory, from `position`.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn list(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> Result<Page, NfsError> {
        self.0.list(caller, dir, position)
    }

    /// The export with this path on an NFSv4 server, which has one tree with all exports.
    ///
    /// # Errors
    /// As [`Client::attributes`]; of a version that finds exports by MOUNT, ENOTSUP.
    pub fn find_export(&self, caller: Caller<'_>, path: &[u8]) -> Result<Object, NfsError> {
        self.0.find_export(caller, path)
    }
}

/// A read that one call makes.
pub(super) struct PieceToRead {
    pub(super) file: FileHandle,
    pub(super) offset: u64,
    pub(super) sink: Box<dyn ReadSink>,
}

/// A symbolic link's target.
pub(super) fn decode_link_target(bytes: &mut Decoder<'_>) -> xdr::Result<Vec<u8>> {
    let target = bytes.opaque(MAX_LINK)?;
    match target.contains(&0) {
        true => Err(DecodeError::Invalid("the target of a link has a NUL")),
        false => Ok(target.to_vec()),
    }
}

/// Whether a name in a listing is that of an object, and not of the directory itself or its parent.
///
/// # Errors
/// If no file can have it.
pub(super) fn is_listable(name: &[u8]) -> xdr::Result<bool> {
    if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(DecodeError::Invalid("a name that no file can have"));
    }
    Ok(name != b"." && name != b"..")
}

/// Where a listing continues after a part that began at `from` and ended at `last`.
///
/// # Errors
/// If the listing would never end.
pub(super) fn next_position(
    from: Position,
    last: Option<Position>,
    is_end: bool,
) -> xdr::Result<Option<Position>> {
    match last {
        _ if is_end => Ok(None),
        Some(last) if last.cookie != from.cookie => Ok(Some(last)),
        _ => Err(DecodeError::Invalid("a part of a listing that leads to itself")),
    }
}
