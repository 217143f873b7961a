//! A session with a server (RFC 8881, section 2.10): what EXCHANGE_ID and CREATE_SESSION have
//! agreed on, and its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::compound::{
    COMPOUND, Compound, Operation, Operations, SEQUENCE_LEN, begin_result, begin_results,
    call_options,
};
use super::slots::{SlotEnd, SlotTable, TakenSlot};
use crate::nfs::blocking::{decode_results, wait_for_reply};
use crate::nfs::error::{NfsError, Status};
use crate::nfs::rpc::{Identity, Receipt, RpcError, Transport, decode_header};
use crate::nfs::xdr::{DecodeError, Decoder};

/// The longest call and the longest reply that are asked for: a read of 1 MiB, with its head.
const MAX_REQUEST: u32 = 64 << 10;
const MAX_RESPONSE: u32 = (1 << 20) + (4 << 10);

/// A reply's bytes beside the data of a read.
const READ_OVERHEAD: u32 = 512;

/// Operations in one call, at most, and calls at a time. A server grants what it likes.
const MAX_OPERATIONS: u32 = 16;
const MAX_SLOTS: u32 = 64;

/// The least that a session must grant.
const MIN_RESPONSE: u32 = 4 << 10;
const MIN_OPERATIONS: u32 = 5;

/// The longest names of a server and of its scope.
const MAX_NAME: usize = 1024;

/// The longest reply to a call without data or names.
pub(super) const MAX_SMALL_REPLY: usize = 8 << 10;

/// This client uses no layouts (`EXCHGID4_FLAG_USE_NON_PNFS`).
const NO_LAYOUTS: u32 = 0x1_0000;

/// No protection of state (`SP4_NONE`): any connection may carry calls of the session.
const NO_PROTECTION: u32 = 0;

/// Calls come from this side only (`CDFC4_FORE`).
const FORE_CHANNEL: u32 = 1;

/// A program for calls of the server, which never come.
const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// What a server calls this client.
#[derive(Clone, Debug)]
pub(super) struct ClientOwner {
    /// Another one tells the server that the client has restarted.
    pub(super) verifier: [u8; 8],
    pub(super) name: Vec<u8>,
}

/// What client and server have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionTerms {
    pub(super) id: [u8; 16],
    pub(super) max_response: u32,
    pub(super) slots: u32,
}

/// A session.
pub(super) struct Session {
    pub(super) terms: SessionTerms,
    transport: Arc<Transport>,
    /// The user that has created it, and ends it.
    identity: Arc<Identity>,
    slots: SlotTable,
    /// Whether the server has ended it.
    is_dead: AtomicBool,
}

/// A call of a session, from the choice of its slot to the end.
pub(super) struct SlotUse {
    session: Arc<Session>,
    taken: TakenSlot,
    is_ended: AtomicBool,
}

/// Why a call of a session has no results, although the server has replied.
#[derive(Debug)]
pub(super) enum SequenceError {
    /// The server wants the same call again, later.
    Wait,
    /// The call must be made again in another slot.
    OtherSlot,
    /// The server has ended the session.
    NoSession,
    /// The call has failed.
    Failed(NfsError),
}

impl From<NfsError> for SequenceError {
    fn from(error: NfsError) -> Self {
        Self::Failed(error)
    }
}

impl From<DecodeError> for SequenceError {
    fn from(error: DecodeError) -> Self {
        Self::Failed(error.into())
    }
}

impl SessionTerms {
    /// Makes itself known to a server and creates a session.
    ///
    /// # Errors
    /// The server's status, or why there was no reply in time.
    pub(super) fn negotiate(
        transport: &Transport,
        identity: &Identity,
        owner: &ClientOwner,
        deadline: Instant,
    ) -> Result<Self, NfsError> {
        let exchange = Operations::default()
            .operation(Operation::ExchangeId)
            .fixed(&owner.verifier)
            .opaque(&owner.name)
            .u32(NO_LAYOUTS)
            .u32(NO_PROTECTION)
            .u32(0);
        let call = StateCall { transport, identity, deadline };
        let client = call.ask(&exchange, |bytes| {
            begin_result(bytes, Operation::ExchangeId)?;
            Ok(ClientId::decode(bytes)?)
        })?;
        let create = Operations::default()
            .operation(Operation::CreateSession)
            .u64(client.id)
            .u32(client.sequence)
            // Neither persistent nor with calls of the server.
            .u32(0);
        let create = channel(create, MAX_REQUEST, MAX_RESPONSE, MAX_SLOTS);
        // The server must have limits for its own calls, which never come.
        let create = channel(create, MIN_RESPONSE, MIN_RESPONSE, 1);
        // These calls would carry no credentials (AUTH_NONE).
        let create = create.u32(CALLBACK_PROGRAM).u32(1).u32(0);
        call.ask(&create, |bytes| {
            begin_result(bytes, Operation::CreateSession)?;
            Self::decode(bytes)
        })
    }

    /// Decodes replies to the calls of [`SessionTerms::negotiate`], for the checks of hostile bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn decode_replies(bytes: &mut Decoder<'_>) -> Result<(), NfsError> {
        let number = bytes.u32()?;
        Status::check(bytes.u32()?)?;
        match number == Operation::ExchangeId as u32 {
            true => drop(ClientId::decode(bytes)?),
            false => drop(Self::decode(bytes)?),
        }
        Ok(())
    }

    /// Whether `transport` leads to the server of the session: that it then carries its calls
    /// proves it.
    ///
    /// # Errors
    /// If there was no reply in time.
    pub(super) fn bind(
        &self,
        transport: &Transport,
        identity: &Identity,
        deadline: Instant,
    ) -> Result<bool, NfsError> {
        let bind = Operations::default()
            .operation(Operation::BindConnection)
            .fixed(&self.id)
            .u32(FORE_CHANNEL)
            .u32(0);
        let bound = StateCall { transport, identity, deadline }.ask(&bind, |bytes| {
            begin_result(bytes, Operation::BindConnection)?;
            Ok(bytes.fixed(self.id.len())? == self.id)
        });
        match bound {
            Err(NfsError::Status(_)) => Ok(false),
            answer => answer,
        }
    }

    /// The longest read that fits into a reply.
    pub(super) fn max_read(&self) -> u32 {
        self.max_response - READ_OVERHEAD
    }

    fn decode(bytes: &mut Decoder<'_>) -> Result<Self, NfsError> {
        let mut id = [0; 16];
        id.copy_from_slice(bytes.fixed(16)?);
        let _sequence = bytes.u32()?;
        let _flags = bytes.u32()?;
        let _padding = bytes.u32()?;
        let _max_request = bytes.u32()?;
        let max_response = bytes.u32()?.min(MAX_RESPONSE);
        let _max_kept_response = bytes.u32()?;
        let max_operations = bytes.u32()?;
        let slots = bytes.u32()?.min(MAX_SLOTS);
        if max_response < MIN_RESPONSE || max_operations < MIN_OPERATIONS || slots == 0 {
            return Err(RpcError::Malformed("a session that grants too little").into());
        }
        Ok(Self { id, max_response, slots })
    }
}

/// Encodes the limits of one direction.
fn channel(operations: Operations, request: u32, response: u32, calls: u32) -> Operations {
    // No padding and no kept replies; the last is for RDMA.
    operations.u32(0).u32(request).u32(response).u32(0).u32(MAX_OPERATIONS).u32(calls).u32(0)
}

struct ClientId {
    id: u64,
    /// The number of its next CREATE_SESSION.
    sequence: u32,
}

impl ClientId {
    fn decode(bytes: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let client = Self { id: bytes.u64()?, sequence: bytes.u32()? };
        let _flags = bytes.u32()?;
        if bytes.u32()? != NO_PROTECTION {
            return Err(DecodeError::Invalid("a protection of state that was not asked for"));
        }
        // The server's owner and scope.
        bytes.u64()?;
        bytes.opaque(MAX_NAME)?;
        bytes.opaque(MAX_NAME)?;
        Ok(client)
    }
}

/// How to make calls that no session has.
struct StateCall<'a> {
    transport: &'a Transport,
    identity: &'a Identity,
    deadline: Instant,
}

impl StateCall<'_> {
    fn ask<T>(
        &self,
        operations: &Operations,
        decode: impl Fn(&mut Decoder<'_>) -> Result<T, NfsError>,
    ) -> Result<T, NfsError> {
        let options = call_options(COMPOUND, self.identity, self.deadline);
        let compound = Compound { sequence: None, operations };
        crate::nfs::blocking::repeat_while_jukebox(self.deadline, || {
            let reply = wait_for_reply(self.transport, &options, &compound, MAX_SMALL_REPLY)?;
            decode_results(&reply, |bytes| {
                begin_results(bytes)?;
                decode(bytes)
            })
        })
    }
}

impl Session {
    pub(super) fn new(
        terms: SessionTerms,
        transport: Arc<Transport>,
        identity: Arc<Identity>,
    ) -> Arc<Self> {
        let slots = SlotTable::new(terms.slots as usize);
        Arc::new(Self { terms, transport, identity, slots, is_dead: AtomicBool::new(false) })
    }

    /// A slot for a call, if one is free.
    pub(super) fn try_use_slot(self: &Arc<Self>) -> Option<Arc<SlotUse>> {
        if self.is_dead() { None } else { Some(self.slot_use(self.slots.try_take()?)) }
    }

    /// A slot for a call, once one is free. `None` if none will be, or at `deadline`.
    pub(super) fn use_slot(self: &Arc<Self>, deadline: Instant) -> Option<Arc<SlotUse>> {
        Some(self.slot_use(self.slots.take(deadline)?))
    }

    fn slot_use(self: &Arc<Self>, taken: TakenSlot) -> Arc<SlotUse> {
        let is_ended = AtomicBool::new(false);
        Arc::new(SlotUse { session: Arc::clone(self), taken, is_ended })
    }

    /// Whether calls should be made in a new session.
    pub(super) fn is_to_be_replaced(&self) -> bool {
        self.is_dead() || self.slots.is_worn()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// Tells the server that the session is not used any more, and does not wait for its answer.
    pub(super) fn destroy(&self) {
        if self.is_dead.swap(true, Ordering::AcqRel) {
            return;
        }
        let destroy =
            Operations::default().operation(Operation::DestroySession).fixed(&self.terms.id);
        let compound = Compound { sequence: None, operations: &destroy };
        let deadline = Instant::now() + DESTROY_LIMIT;
        let options = call_options(COMPOUND, &self.identity, deadline);
        self.transport.call(&options, &compound, MAX_SMALL_REPLY, Box::new(drop));
    }
}

/// How long a server may take to end a session that is not used any more.
const DESTROY_LIMIT: Duration = Duration::from_secs(5);

impl Drop for Session {
    /// No call of it is in flight.
    fn drop(&mut self) {
        self.destroy();
    }
}

impl SlotUse {
    /// The operation before those of the call.
    pub(super) fn sequence(&self) -> [u8; SEQUENCE_LEN] {
        let TakenSlot { slot, sequence, highest } = self.taken;
        let mut bytes = [0; SEQUENCE_LEN];
        bytes[..4].copy_from_slice(&(Operation::Sequence as u32).to_be_bytes());
        bytes[4..20].copy_from_slice(&self.session.terms.id);
        // The last word says that the server need not keep the reply.
        for (index, word) in [sequence, slot, highest, 0].into_iter().enumerate() {
            let at = 20 + 4 * index;
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Takes the result of the SEQUENCE from a reply. The results of the other operations follow.
    ///
    /// # Errors
    /// Why they do not.
    pub(super) fn take_result(&self, bytes: &mut Decoder<'_>) -> Result<(), SequenceError> {
        let begun = begin_results(bytes).and_then(|()| begin_result(bytes, Operation::Sequence));
        match begun {
            Ok(()) => {}
            Err(NfsError::Status(status)) => return Err(self.failure(status)),
            Err(error) => return Err(SequenceError::Failed(error)),
        }
        let id = bytes.fixed(self.session.terms.id.len())?;
        let sequence = bytes.u32()?;
        let slot = bytes.u32()?;
        let _highest = bytes.u32()?;
        let wanted_highest = bytes.u32()?;
        let _flags = bytes.u32()?;
        if id != self.session.terms.id || (sequence, slot) != (self.taken.sequence, self.taken.slot)
        {
            let error = RpcError::Malformed("the reply to another call");
            return Err(SequenceError::Failed(error.into()));
        }
        self.end(SlotEnd::Executed);
        self.session.slots.set_highest(wanted_highest);
        Ok(())
    }

    /// What the status of a SEQUENCE means.
    fn failure(&self, status: Status) -> SequenceError {
        match status {
            Status::JUKEBOX => SequenceError::Wait,
            Status::RETRY_UNCACHED_REPLY => {
                self.end(SlotEnd::Executed);
                SequenceError::OtherSlot
            }
            Status::BAD_SLOT | Status::SEQUENCE_MISORDERED | Status::SEQUENCE_FALSE_RETRY => {
                SequenceError::OtherSlot
            }
            Status::BAD_SESSION
            | Status::DEAD_SESSION
            | Status::STALE_CLIENT
            | Status::EXPIRED
            | Status::CONNECTION_NOT_BOUND => {
                self.session.is_dead.store(true, Ordering::Release);
                SequenceError::NoSession
            }
            status => SequenceError::Failed(NfsError::Status(status)),
        }
    }

    /// Frees the slot if the server has executed the call with this reply.
    pub(super) fn note_reply(&self, reply: &[u8]) {
        let mut bytes = Decoder::new(reply);
        if matches!(decode_header(&mut bytes), Ok(Ok(()))) {
            let _ = self.take_result(&mut bytes);
        }
    }

    /// Frees the slot, which was not used.
    pub(super) fn give_back(&self) {
        self.end(SlotEnd::NotExecuted);
    }

    fn end(&self, end: SlotEnd) {
        if !self.is_ended.swap(true, Ordering::AcqRel) {
            self.session.slots.end(self.taken, end);
        }
    }
}

impl Receipt for SlotUse {
    fn record_late_reply(&self) {
        self.end(SlotEnd::Executed);
    }

    fn record_unsent(&self) {
        self.end(SlotEnd::NotExecuted);
    }
}

impl Drop for SlotUse {
    fn drop(&mut self) {
        self.end(SlotEnd::Unknown);
    }
}
