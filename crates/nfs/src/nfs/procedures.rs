//! The procedures that a reader needs, as each version of NFS has them, and their results.

use std::time::Instant;

use super::attributes::{Attributes, FileHandle, Kind};
use super::data_room::DataRoom;
use super::error::NfsError;
use super::rpc::{Identity, IsUnwanted, Transport};
use super::xdr::{self, DecodeError, Decoder};

/// The longest target of a symbolic link (`PATH_MAX` of Linux).
pub(super) const MAX_LINK: usize = 4096;

/// The longest name that a FUSE file system can have (`FUSE_NAME_MAX`).
pub(super) const MAX_NAME: usize = 1024;

/// The bytes of names, and of all, that one reply to a listing may have.
pub(super) const LISTED_NAME_BYTES: u32 = 32 << 10;
pub(super) const LISTING_BYTES: u32 = 256 << 10;

/// The longest reply to a listing that is taken: servers count differently.
pub(super) const MAX_LISTING_REPLY: usize = 1 << 20;

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

/// What a read has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEnd {
    /// The bytes read, at the beginning of the buffer. They may be fewer than there was room for.
    pub bytes: usize,
    /// Whether the file ends after them.
    pub is_end: bool,
}

/// The result of a read.
pub type ReadResult = Result<ReadEnd, NfsError>;

/// The caller of a read that blocks no thread. The client has it to itself until the read has ended.
pub trait ReadSink: Send {
    /// The room for the data.
    fn room(&mut self) -> &mut dyn DataRoom;

    /// The read has ended. This must not block, because other replies wait for it.
    fn end(self: Box<Self>, result: ReadResult);
}

/// The procedures of a version of NFS, as the methods of [`crate::nfs::Client`] with the same names
/// describe them.
pub(super) trait Procedures: Send + Sync {
    fn version(&self) -> Version;

    fn transport(&self) -> &Transport;

    fn stop(&self);

    fn ping(&self, caller: Caller<'_>) -> Result<(), NfsError>;

    fn attributes(&self, caller: Caller<'_>, object: FileHandle) -> Result<Attributes, NfsError>;

    fn look_up(&self, caller: Caller<'_>, dir: FileHandle, name: &[u8])
    -> Result<Object, NfsError>;

    /// All names at once.
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
