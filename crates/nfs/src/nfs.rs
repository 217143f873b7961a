//! A client for servers of NFSv3 (RFC 1813) and NFSv4.1 (RFC 8881) that reads one export, without a
//! kernel mount.
//!
//! [`rpc`] carries calls, [`mount`] finds an export, [`Client`] has the procedures that a reader
//! needs, and [`Tree`] reads files by their paths.
//!
//! Servers are not trusted: a length, a name or a cookie that a server sends is checked before it
//! is used, and a server that is slow, silent or wrong costs its own calls only.

mod address;
mod attributes;
mod blocking;
mod client;
mod data_room;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
mod hostile;
mod mount;
mod procedures;
mod rpc;
mod tree;
mod v3;
mod v4;
mod xdr;

pub use address::{AddressError, NfsAddress, strip_scheme};
pub use attributes::{Attributes, FileHandle, Kind, Time};
pub use client::{Client, ReadRange};
pub use data_room::DataRoom;
pub use error::{NfsError, Status};
#[cfg(feature = "fuzzing")]
pub use hostile::check_server_bytes;
pub use mount::{
    DEFAULT_MOUNT_PORT, DEFAULT_NFS_PORT, Export, MountError, MountRequest, MountedExport,
    OpenedExport, Ports, find_exports,
};
pub use procedures::{
    Caller, DirEntry, Limits, ListedObject, Object, Page, Position, ReadEnd, ReadResult, ReadSink,
    Rights, Usage, Version,
};
pub use rpc::{ConnectionCounters, Identity, IsUnwanted, Refusal, RpcError, Target, may_block};
pub use tree::{FoundDirectory, ListedName, SubmittedRead, Tree, TreeLimits};
