//! The procedures that a reader needs, over whichever version of NFS the server offers.
//!
//! All of them carry the caller's credentials: the server decides what a caller may do. They block
//! until the server replies or the caller's deadline passes, except [`Client::submit_read`].

mod read;

use std::io;
use std::net::SocketAddr;

pub use read::ReadRange;

use super::attributes::{Attributes, FileHandle};
use super::error::NfsError;
use super::procedures::{
    Caller, Limits, Object, Page, Position, Procedures, Rights, Usage, Version,
};
use super::rpc::{ConnectionCounters, Target, Transport};
use super::v3::Version3;
use super::v4::Version4;

/// The most lookups in flight of one caller.
const MAX_LOOKUPS: usize = 64;

/// A server.
pub struct Client(Box<dyn Procedures>);

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
