//! The procedures of NFSv3 (RFC 1813).

mod directory;
mod read;

use std::sync::atomic::AtomicBool;

use nfs3_types::nfs3::{
    ACCESS3args, FSINFO3args, FSSTAT3args, GETATTR3args, LOOKUP3args, NFS_PROGRAM, PATHCONF3args,
    PROGRAM, READLINK3args, VERSION, diropargs3, filename3,
};
use nfs3_types::xdr_codec::Pack;
use rustix::io::Errno;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use directory::decode_listing;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use read::{decode_data_head, read_end};

use super::attributes::{Attributes, FileHandle};
use super::blocking::{Done, decode_results, repeat_while_jukebox, wait_for_all, wait_for_reply};
use super::error::{NfsError, Status};
use super::procedures::{
    Caller, Limits, MAX_LINK, Object, Page, PieceToRead, Position, Procedures, Rights, Usage,
    Version, decode_link_target,
};
use super::rpc::{CallOptions, IsUnwanted, Procedure, RpcError, Transport};
use super::xdr::{self, Decoder};

/// The longest reply to a call for attributes, names or limits.
const MAX_SMALL_REPLY: usize = 4 << 10;

/// A server of NFSv3.
pub(super) struct Version3 {
    transport: Transport,
    /// Whether the server has refused to list names with attributes.
    lists_names_only: AtomicBool,
}

impl Version3 {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, lists_names_only: AtomicBool::new(false) }
    }

    /// Asks for the attributes that the server left out.
    fn complete(&self, caller: Caller<'_>, found: FoundName) -> Result<Object, NfsError> {
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => self.attributes(caller, found.handle)?,
        };
        Ok(Object { handle: found.handle, attributes })
    }

    fn ask<T>(
        &self,
        caller: Caller<'_>,
        number: NFS_PROGRAM,
        arguments: &impl Pack,
        decode: impl Fn(&mut Decoder<'_>) -> xdr::Result<T>,
    ) -> Result<T, NfsError> {
        let call = Call { number, max_reply: MAX_SMALL_REPLY };
        self.ask_with(caller, &call, arguments, decode)
    }

    /// Makes a call whose reply begins with a status. `decode` gets what follows it.
    fn ask_with<T>(
        &self,
        caller: Caller<'_>,
        call: &Call,
        arguments: &impl Pack,
        decode: impl Fn(&mut Decoder<'_>) -> xdr::Result<T>,
    ) -> Result<T, NfsError> {
        repeat_while_jukebox(caller.deadline, || {
            self.transport_call(caller, call, arguments, |bytes| {
                Status::check(bytes.u32()?)?;
                Ok(decode(bytes)?)
            })
        })
    }

    /// Makes a call. `decode` gets the results.
    fn transport_call<T>(
        &self,
        caller: Caller<'_>,
        call: &Call,
        arguments: &impl Pack,
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, NfsError>,
    ) -> Result<T, NfsError> {
        let options = call_options(caller, call.number);
        let reply = wait_for_reply(&self.transport, &options, arguments, call.max_reply)?;
        decode_results(&reply, decode)
    }
}

impl Procedures for Version3 {
    fn version(&self) -> Version {
        Version::V3
    }

    fn transport(&self) -> &Transport {
        &self.transport
    }

    fn stop(&self) {
        self.transport.stop();
    }

    fn ping(&self, caller: Caller<'_>) -> Result<(), NfsError> {
        let call = Call { number: NFS_PROGRAM::NFSPROC3_NULL, max_reply: MAX_SMALL_REPLY };
        let nothing: [u8; 0] = [];
        self.transport_call(caller, &call, &nothing, |_| Ok(()))
    }

    fn attributes(&self, caller: Caller<'_>, object: FileHandle) -> Result<Attributes, NfsError> {
        let arguments = GETATTR3args { object: object.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_GETATTR, &arguments, Attributes::decode)
    }

    fn look_up(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        name: &[u8],
    ) -> Result<Object, NfsError> {
        let arguments = lookup_arguments(dir, name);
        let found =
            self.ask(caller, NFS_PROGRAM::NFSPROC3_LOOKUP, &arguments, FoundName::decode)?;
        self.complete(caller, found)
    }

    fn look_up_some(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        names: &[&[u8]],
    ) -> Vec<Result<Object, NfsError>> {
        let options = call_options(caller, NFS_PROGRAM::NFSPROC3_LOOKUP);
        let start = |index: usize, done: Done<Result<Vec<u8>, RpcError>>| {
            let arguments = lookup_arguments(dir, names[index]);
            self.transport.call(&options, &arguments, MAX_SMALL_REPLY, done);
        };
        let replies = wait_for_all(names.len(), start, || Err(RpcError::Stopped));
        let found = replies.into_iter().map(|reply| {
            decode_results(&reply?, |bytes| {
                Status::check(bytes.u32()?)?;
                Ok(FoundName::decode(bytes)?)
            })
        });
        let complete = |(name, found): (&&[u8], Result<FoundName, NfsError>)| match found {
            Err(error) if error.is_jukebox() => self.look_up(caller, dir, name),
            found => self.complete(caller, found?),
        };
        names.iter().zip(found).map(complete).collect()
    }

    fn access(
        &self,
        caller: Caller<'_>,
        object: FileHandle,
        wanted: Rights,
    ) -> Result<Rights, NfsError> {
        let arguments = ACCESS3args { object: object.to_xdr(), access: wanted.0 };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_ACCESS, &arguments, decode_rights)
    }

    fn read_link(&self, caller: Caller<'_>, link: FileHandle) -> Result<Vec<u8>, NfsError> {
        let arguments = READLINK3args { symlink: link.to_xdr() };
        let call =
            Call { number: NFS_PROGRAM::NFSPROC3_READLINK, max_reply: MAX_SMALL_REPLY + MAX_LINK };
        self.ask_with(caller, &call, &arguments, decode_link)
    }

    fn limits(&self, caller: Caller<'_>, root: FileHandle) -> Result<Limits, NfsError> {
        let arguments = FSINFO3args { fsroot: root.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_FSINFO, &arguments, decode_limits)
    }

    fn usage(&self, caller: Caller<'_>, object: FileHandle) -> Result<Usage, NfsError> {
        let arguments = FSSTAT3args { fsroot: object.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_FSSTAT, &arguments, decode_usage)
    }

    fn max_name(&self, caller: Caller<'_>, object: FileHandle) -> Result<u32, NfsError> {
        let arguments = PATHCONF3args { object: object.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_PATHCONF, &arguments, decode_max_name)
    }

    fn list(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> Result<Page, NfsError> {
        self.list_page(caller, dir, position)
    }

    /// MOUNT finds them.
    fn find_export(&self, _: Caller<'_>, _: &[u8]) -> Result<Object, NfsError> {
        Err(NfsError::Object(Errno::OPNOTSUPP))
    }

    fn submit_read(&self, caller: Caller<'_>, read: PieceToRead, is_unwanted: Option<IsUnwanted>) {
        read::submit(&self.transport, caller, read, is_unwanted);
    }
}

/// A name's object, as the server describes it.
struct FoundName {
    handle: FileHandle,
    attributes: Option<Attributes>,
}

impl FoundName {
    fn decode(bytes: &mut Decoder<'_>) -> xdr::Result<Self> {
        let handle = FileHandle::decode(bytes)?;
        Ok(Self { handle, attributes: Attributes::decode_optional(bytes)? })
    }
}

fn decode_rights(bytes: &mut Decoder<'_>) -> xdr::Result<Rights> {
    Attributes::decode_optional(bytes)?;
    bytes.u32().map(Rights)
}

pub(in crate::nfs) fn decode_link(bytes: &mut Decoder<'_>) -> xdr::Result<Vec<u8>> {
    Attributes::decode_optional(bytes)?;
    decode_link_target(bytes)
}

fn decode_limits(bytes: &mut Decoder<'_>) -> xdr::Result<Limits> {
    Attributes::decode_optional(bytes)?;
    let max_read = bytes.u32()?;
    // The preferred size and the unit of reads, the sizes of writes, and that of listings.
    (0..6).try_for_each(|_| bytes.u32().map(drop))?;
    let max_file = bytes.u64()?;
    Ok(Limits { max_read, max_file })
}

fn decode_usage(bytes: &mut Decoder<'_>) -> xdr::Result<Usage> {
    Attributes::decode_optional(bytes)?;
    Ok(Usage {
        bytes: bytes.u64()?,
        free_bytes: bytes.u64()?,
        available_bytes: bytes.u64()?,
        files: bytes.u64()?,
        free_files: bytes.u64()?,
    })
}

fn decode_max_name(bytes: &mut Decoder<'_>) -> xdr::Result<u32> {
    Attributes::decode_optional(bytes)?;
    let _links = bytes.u32()?;
    bytes.u32()
}

/// Decodes the results of a short reply as each procedure that can have it does.
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::nfs) fn decode_small_results(reply: &[u8]) {
    fn try_decode<T>(reply: &[u8], decode: impl Fn(&mut Decoder<'_>) -> xdr::Result<T>) {
        let _ = decode_results(reply, |bytes| {
            Status::check(bytes.u32()?)?;
            Ok(decode(bytes)?)
        });
    }
    try_decode(reply, Attributes::decode);
    try_decode(reply, FoundName::decode);
    try_decode(reply, decode_rights);
    try_decode(reply, decode_limits);
    try_decode(reply, decode_usage);
    try_decode(reply, decode_max_name);
}

fn lookup_arguments(dir: FileHandle, name: &[u8]) -> LOOKUP3args<'_> {
    LOOKUP3args { what: diropargs3 { dir: dir.to_xdr(), name: filename3::from(name) } }
}

/// A procedure, and the longest reply that it may have.
struct Call {
    number: NFS_PROGRAM,
    max_reply: usize,
}

fn call_options(caller: Caller<'_>, number: NFS_PROGRAM) -> CallOptions<'_> {
    let procedure = Procedure { program: PROGRAM, version: VERSION, number: number as u32 };
    CallOptions {
        procedure,
        identity: Some(caller.identity),
        deadline: caller.deadline,
        receipt: None,
    }
}
