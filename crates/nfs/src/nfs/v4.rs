//! The procedures of NFSv4.1 (RFC 8881) that a reader needs.
//!
//! A server knows a client by its session ([`sessions`]). Files are read without an open, by the
//! anonymous stateid: so a server that restarts has nothing to restore but the session.

mod attributes;
mod compound;
mod directory;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod hostile;
mod owners;
mod read;
mod session;
mod sessions;
mod slots;

use std::sync::Arc;

use attributes::{LIMITS, MAX_NAME, OBJECT, USAGE, Values};
use compound::{Compound, NULL, Operation, Operations, begin_result, call_options};
use session::{MAX_SMALL_REPLY, SequenceError};
use sessions::Sessions;

use super::attributes::{Attributes, FileHandle};
use super::blocking::{Done, decode_results, repeat_while_jukebox, wait_for_all, wait_for_reply};
use super::error::NfsError;
use super::procedures::{
    Caller, Limits, Object, Page, PieceToRead, Position, Procedures, Rights, Usage, Version,
    decode_link_target,
};
use super::rpc::{IsUnwanted, RpcError, Target, Transport};
use super::xdr::{DecodeError, Decoder};

/// The longest handle (`NFS4_FHSIZE`).
const MAX_HANDLE: usize = 128;

/// A server of NFSv4.1.
pub(super) struct Version4 {
    sessions: Arc<Sessions>,
}

impl Version4 {
    pub(super) fn open(target: Target, caller: Caller<'_>) -> Result<Self, NfsError> {
        Ok(Self { sessions: Sessions::open(target, caller)? })
    }

    /// The longest read that fits into a reply of the session.
    fn max_read(&self) -> u32 {
        self.sessions.max_read()
    }

    fn ask<T>(
        &self,
        caller: Caller<'_>,
        operations: &Operations,
        decode: impl Fn(&mut Decoder<'_>) -> Result<T, NfsError>,
    ) -> Result<T, NfsError> {
        self.ask_with(caller, operations, MAX_SMALL_REPLY, decode)
    }

    fn ask_with<T>(
        &self,
        caller: Caller<'_>,
        operations: &Operations,
        max: usize,
        decode: impl Fn(&mut Decoder<'_>) -> Result<T, NfsError>,
    ) -> Result<T, NfsError> {
        repeat_while_jukebox(caller.deadline, || {
            self.sessions.call(caller, operations, max, &decode)
        })
    }

    /// What `take` finds in the attributes of an object.
    fn ask_attributes<T>(
        &self,
        caller: Caller<'_>,
        object: FileHandle,
        wanted: [u32; 2],
        take: impl Fn(&Values<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, NfsError> {
        let operations = Operations::on(object).attributes(wanted);
        self.ask(caller, &operations, |bytes| {
            begin_result(bytes, Operation::PutHandle)?;
            begin_result(bytes, Operation::GetAttributes)?;
            Ok(take(&Values::decode(bytes)?)?)
        })
    }

    /// The root of the tree with all exports.
    fn root(&self, caller: Caller<'_>) -> Result<Object, NfsError> {
        let operations = Operations::on_root().handle().attributes(OBJECT);
        self.ask(caller, &operations, |bytes| {
            begin_result(bytes, Operation::PutRootHandle)?;
            decode_object(bytes)
        })
    }
}

impl Procedures for Version4 {
    fn version(&self) -> Version {
        Version::V4_1
    }

    fn transport(&self) -> &Transport {
        &self.sessions.transport
    }

    fn stop(&self) {
        self.sessions.stop();
    }

    fn ping(&self, caller: Caller<'_>) -> Result<(), NfsError> {
        let options = call_options(NULL, caller.identity, caller.deadline);
        let nothing: [u8; 0] = [];
        let reply = wait_for_reply(self.transport(), &options, &nothing, MAX_SMALL_REPLY)?;
        decode_results(&reply, |_| Ok(()))
    }

    fn attributes(&self, caller: Caller<'_>, object: FileHandle) -> Result<Attributes, NfsError> {
        self.ask_attributes(caller, object, OBJECT, |values| values.object())
    }

    fn look_up(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        name: &[u8],
    ) -> Result<Object, NfsError> {
        self.ask(caller, &look_up_operations(dir, name), decode_found)
    }

    fn look_up_some(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        names: &[&[u8]],
    ) -> Vec<Result<Object, NfsError>> {
        type Found = Result<Vec<u8>, SequenceError>;
        let start = |index: usize, done: Done<Found>| {
            let slot = match self.sessions.use_slot(caller.deadline) {
                Ok(slot) => slot,
                Err(error) => return done(Err(error.into())),
            };
            let options = slot.call_options(caller);
            let sequence = slot.sequence();
            let operations = look_up_operations(dir, names[index]);
            let compound = Compound { sequence: Some(&sequence), operations: &operations };
            let done = move |reply: Result<Vec<u8>, RpcError>| {
                // Here, as the next names may wait for the slot.
                done(reply.map_err(|error| NfsError::from(error).into()).and_then(|reply| {
                    let mut bytes = Decoder::new(&reply);
                    slot.take_head(&mut bytes).map(|()| bytes.rest().to_vec())
                }));
            };
            self.transport().call(&options, &compound, MAX_SMALL_REPLY, Box::new(done));
        };
        let stopped = || Err(NfsError::from(RpcError::Stopped).into());
        let found = wait_for_all(names.len(), start, stopped).into_iter().map(|found: Found| {
            Ok::<Object, SequenceError>(decode_found(&mut Decoder::new(&found?))?)
        });
        let complete = |(name, found): (&&[u8], Result<Object, SequenceError>)| match found {
            Ok(found) => Ok(found),
            Err(SequenceError::Failed(error)) if !error.is_jukebox() => Err(error),
            Err(_) => self.look_up(caller, dir, name),
        };
        names.iter().zip(found).map(complete).collect()
    }

    fn access(
        &self,
        caller: Caller<'_>,
        object: FileHandle,
        wanted: Rights,
    ) -> Result<Rights, NfsError> {
        let operations = Operations::on(object).operation(Operation::Access).u32(wanted.0);
        self.ask(caller, &operations, |bytes| {
            begin_result(bytes, Operation::PutHandle)?;
            begin_result(bytes, Operation::Access)?;
            let _known = bytes.u32()?;
            Ok(Rights(bytes.u32()?))
        })
    }

    fn read_link(&self, caller: Caller<'_>, link: FileHandle) -> Result<Vec<u8>, NfsError> {
        let operations = Operations::on(link).operation(Operation::ReadLink);
        self.ask(caller, &operations, |bytes| {
            begin_result(bytes, Operation::PutHandle)?;
            begin_result(bytes, Operation::ReadLink)?;
            Ok(decode_link_target(bytes)?)
        })
    }

    fn limits(&self, caller: Caller<'_>, root: FileHandle) -> Result<Limits, NfsError> {
        let limits = self.ask_attributes(caller, root, LIMITS, |values| Ok(values.limits()))?;
        Ok(Limits { max_read: limits.max_read.min(self.max_read()), ..limits })
    }

    fn usage(&self, caller: Caller<'_>, object: FileHandle) -> Result<Usage, NfsError> {
        self.ask_attributes(caller, object, USAGE, |values| Ok(values.usage()))
    }

    fn max_name(&self, caller: Caller<'_>, object: FileHandle) -> Result<u32, NfsError> {
        self.ask_attributes(caller, object, MAX_NAME, |values| Ok(values.max_name()))
    }

    fn list(
        &self,
        caller: Caller<'_>,
        dir: FileHandle,
        position: Position,
    ) -> Result<Page, NfsError> {
        self.list_page(caller, dir, position)
    }

    fn find_export(&self, caller: Caller<'_>, path: &[u8]) -> Result<Object, NfsError> {
        let mut found = self.root(caller)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            found = self.look_up(caller, found.handle, name)?;
        }
        Ok(found)
    }

    fn wait_for_read(&self, caller: Caller<'_>) -> Result<(), NfsError> {
        self.sessions.wait_for_slot(caller.deadline)
    }

    fn submit_read(&self, caller: Caller<'_>, read: PieceToRead, is_unwanted: Option<IsUnwanted>) {
        read::submit(&self.sessions, caller, read, is_unwanted);
    }
}

fn look_up_operations(dir: FileHandle, name: &[u8]) -> Operations {
    Operations::on(dir).look_up(name).handle().attributes(OBJECT)
}

/// The object of a LOOKUP.
fn decode_found(bytes: &mut Decoder<'_>) -> Result<Object, NfsError> {
    begin_result(bytes, Operation::PutHandle)?;
    begin_result(bytes, Operation::LookUp)?;
    decode_object(bytes)
}

/// A handle, and the attributes of its object.
fn decode_object(bytes: &mut Decoder<'_>) -> Result<Object, NfsError> {
    begin_result(bytes, Operation::GetHandle)?;
    let handle = FileHandle::decode_up_to(bytes, MAX_HANDLE)?;
    begin_result(bytes, Operation::GetAttributes)?;
    Ok(Object { handle, attributes: Values::decode(bytes)?.object()? })
}
