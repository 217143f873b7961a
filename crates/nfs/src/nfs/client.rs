//! The procedures of NFSv3 that a reader needs.
//!
//! All of them carry the caller's credentials: the server decides what a caller may do. They block
//! until the server replies or the caller's deadline passes, except [`Client::submit_read`].

mod directory;
mod read;

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::{
    ACCESS3args, FSINFO3args, FSSTAT3args, GETATTR3args, LOOKUP3args, NFS_PROGRAM, PATHCONF3args,
    PROGRAM, READLINK3args, VERSION, diropargs3, filename3,
};
use nfs3_types::xdr_codec::Pack;

#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::nfs) use directory::decode_listing;
pub use directory::{DirEntry, Page, Position};
pub use read::{ReadEnd, ReadRange, ReadResult, ReadSink};
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::nfs) use read::{decode_data_head, read_end};

use crate::nfs::attributes::{Attributes, FileHandle};
use crate::nfs::error::{NfsError, Status};
use crate::nfs::rpc::{
    self, CallOptions, ConnectionCounters, Identity, Procedure, RpcError, Target, Transport,
    decode_header,
};
use crate::nfs::xdr::{self, Decoder};

/// The longest reply to a call for attributes, names or limits.
const MAX_SMALL_REPLY: usize = 4 << 10;

/// The longest target of a symbolic link (`PATH_MAX` of Linux).
const MAX_LINK: usize = 4096;

/// The most lookups in flight of one caller.
const MAX_LOOKUPS: usize = 64;

/// The first wait before a call is made again that the server could not execute yet
/// (`NFS3ERR_JUKEBOX`, for example while data comes from a tape), and the longest.
const FIRST_JUKEBOX_WAIT: Duration = Duration::from_millis(50);
const MAX_JUKEBOX_WAIT: Duration = Duration::from_secs(5);

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

/// Rights to an object, as the server grants them (`ACCESS3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights(u32);

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

/// The sizes that a server allows and prefers, bytes (`FSINFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest read.
    pub max_read: u32,
    /// The read that it prefers.
    pub preferred_read: u32,
    /// The listing reply that it prefers.
    pub preferred_listing: u32,
    /// The largest file.
    pub max_file: u64,
}

/// Size and use of a file system (`FSSTAT`).
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

/// A server of NFSv3.
pub struct Client {
    transport: Transport,
    /// Whether the server has refused to list names with attributes.
    lists_names_only: AtomicBool,
}

impl Client {
    /// Prepares connections to the NFS service of a server. They are made when they are needed.
    ///
    /// # Errors
    /// If this process can have no more threads or descriptors.
    pub fn new(target: Target) -> io::Result<Self> {
        Ok(Self { transport: Transport::start(target)?, lists_names_only: AtomicBool::new(false) })
    }

    /// Ends all calls, those in flight and those to come, with [`RpcError::Stopped`].
    pub fn stop(&self) {
        self.transport.stop();
    }

    /// Counts of each connection.
    pub fn counters(&self) -> Vec<ConnectionCounters> {
        self.transport.counters()
    }

    /// Whether the server offers NFSv3 at all.
    ///
    /// # Errors
    /// [`NfsError::Rpc`]; with [`crate::nfs::Refusal::Version`] if it offers other versions.
    pub fn ping(&self, caller: Caller<'_>) -> Result<(), NfsError> {
        let call = Call { number: NFS_PROGRAM::NFSPROC3_NULL, max_reply: MAX_SMALL_REPLY };
        let nothing: [u8; 0] = [];
        self.transport_call(caller, &call, &nothing, |_| Ok(()))
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
        let arguments = GETATTR3args { object: object.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_GETATTR, &arguments, Attributes::decode)
    }

    /// The object with this name in a directory. Its attributes are there unless the server left
    /// them out.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn look_up(
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

    /// The objects with these names in a directory, in the order of the names. The calls do not
    /// wait for each other.
    pub fn look_up_all(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        names: &[&[u8]],
    ) -> Vec<Result<Object, NfsError>> {
        names.chunks(MAX_LOOKUPS).flat_map(|names| self.look_up_some(caller, dir, names)).collect()
    }

    fn look_up_some(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        names: &[&[u8]],
    ) -> Vec<Result<Object, NfsError>> {
        if let Err(error) = rpc::check_may_block() {
            return names.iter().map(|_| Err(error.clone().into())).collect();
        }
        let procedure = procedure(NFS_PROGRAM::NFSPROC3_LOOKUP);
        let options =
            CallOptions { procedure, identity: Some(caller.identity), deadline: caller.deadline };
        let (sender, receiver) = sync_channel(names.len());
        for (index, name) in names.iter().enumerate() {
            let sender = sender.clone();
            let done = move |reply| drop(sender.send((index, reply)));
            let arguments = lookup_arguments(dir, name);
            self.transport.call(&options, &arguments, MAX_SMALL_REPLY, Box::new(done));
        }
        drop(sender);
        let mut found: Vec<_> = names.iter().map(|_| Err(RpcError::Stopped.into())).collect();
        for (index, reply) in receiver {
            found[index] = reply.map_err(NfsError::from).and_then(|reply| {
                decode_results(&reply, |bytes| {
                    Status::check(bytes.u32()?)?;
                    Ok(FoundName::decode(bytes)?)
                })
            });
        }
        let complete = |(name, found): (&&[u8], Result<FoundName, NfsError>)| match found {
            Err(NfsError::Status(Status::JUKEBOX)) => self.look_up(caller, dir, name),
            found => self.complete(caller, found?),
        };
        names.iter().zip(found).map(complete).collect()
    }

    /// Asks for the attributes that the server left out.
    fn complete(&self, caller: Caller<'_>, found: FoundName) -> Result<Object, NfsError> {
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => self.attributes(caller, found.handle)?,
        };
        Ok(Object { handle: found.handle, attributes })
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
        let arguments = ACCESS3args { object: object.to_xdr(), access: wanted.0 };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_ACCESS, &arguments, decode_rights)
    }

    /// A symbolic link's target, verbatim.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn read_link(&self, caller: Caller<'_>, link: FileHandle) -> Result<Vec<u8>, NfsError> {
        let arguments = READLINK3args { symlink: link.to_xdr() };
        let call =
            Call { number: NFS_PROGRAM::NFSPROC3_READLINK, max_reply: MAX_SMALL_REPLY + MAX_LINK };
        self.ask_with(caller, &call, &arguments, decode_link)
    }

    /// The server's limits.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn limits(&self, caller: Caller<'_>, root: FileHandle) -> Result<Limits, NfsError> {
        let arguments = FSINFO3args { fsroot: root.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_FSINFO, &arguments, decode_limits)
    }

    /// Size and use of the file system that the object is on.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn usage(&self, caller: Caller<'_>, object: FileHandle) -> Result<Usage, NfsError> {
        let arguments = FSSTAT3args { fsroot: object.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_FSSTAT, &arguments, decode_usage)
    }

    /// The longest name in bytes, in the file system that the object is on.
    ///
    /// # Errors
    /// As [`Client::attributes`].
    pub fn max_name(&self, caller: Caller<'_>, object: FileHandle) -> Result<u32, NfsError> {
        let arguments = PATHCONF3args { object: object.to_xdr() };
        self.ask(caller, NFS_PROGRAM::NFSPROC3_PATHCONF, &arguments, decode_max_name)
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
        let procedure = procedure(call.number);
        let options =
            CallOptions { procedure, identity: Some(caller.identity), deadline: caller.deadline };
        let reply = wait_for_reply(&self.transport, &options, arguments, call.max_reply)?;
        decode_results(&reply, decode)
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

pub(super) fn decode_link(bytes: &mut Decoder<'_>) -> xdr::Result<Vec<u8>> {
    Attributes::decode_optional(bytes)?;
    let target = bytes.opaque(MAX_LINK)?;
    match target.contains(&0) {
        true => Err(xdr::DecodeError::Invalid("the target of a link has a NUL")),
        false => Ok(target.to_vec()),
    }
}

fn decode_limits(bytes: &mut Decoder<'_>) -> xdr::Result<Limits> {
    Attributes::decode_optional(bytes)?;
    let max_read = bytes.u32()?;
    let preferred_read = bytes.u32()?;
    // The unit of reads, and what concerns writes.
    (0..4).try_for_each(|_| bytes.u32().map(drop))?;
    let preferred_listing = bytes.u32()?;
    let max_file = bytes.u64()?;
    Ok(Limits { max_read, preferred_read, preferred_listing, max_file })
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
pub(super) fn decode_small_results(reply: &[u8]) {
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

fn procedure(number: NFS_PROGRAM) -> Procedure {
    Procedure { program: PROGRAM, version: VERSION, number: number as u32 }
}

/// Makes a call, and blocks until its reply comes or its deadline passes.
pub(crate) fn wait_for_reply(
    transport: &Transport,
    options: &CallOptions<'_>,
    arguments: &impl Pack,
    max: usize,
) -> Result<Vec<u8>, NfsError> {
    rpc::check_may_block()?;
    let (sender, receiver) = sync_channel(1);
    let done = move |reply| drop(sender.send(reply));
    transport.call(options, arguments, max, Box::new(done));
    // The transport completes every call; without its thread none would come.
    Ok(receiver.recv().unwrap_or(Err(RpcError::Stopped))?)
}

/// The results of a reply.
pub(crate) fn decode_results<T>(
    reply: &[u8],
    decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, NfsError>,
) -> Result<T, NfsError> {
    let mut bytes = Decoder::new(reply);
    decode_header(&mut bytes)?.map_err(RpcError::from)?;
    decode(&mut bytes)
}

/// Makes a call again while the server cannot execute it yet.
fn repeat_while_jukebox<T>(
    deadline: Instant,
    mut call: impl FnMut() -> Result<T, NfsError>,
) -> Result<T, NfsError> {
    let mut wait = FIRST_JUKEBOX_WAIT;
    loop {
        match call() {
            Err(NfsError::Status(Status::JUKEBOX)) if Instant::now() + wait < deadline => {
                std::thread::sleep(wait);
                let left = deadline.saturating_duration_since(Instant::now());
                // Half of the rest leaves time for the call.
                wait = (wait * 2).min(MAX_JUKEBOX_WAIT).min(left / 2);
            }
            answer => return answer,
        }
    }
}
