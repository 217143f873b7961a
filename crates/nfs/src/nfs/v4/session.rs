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
use crate::nfs::blocking::{decode_results, repeat_while_jukebox, wait_for_reply};
use crate::nfs::error::{NfsError, Status};
use crate::nfs::procedures::Caller;
use crate::nfs::rpc::{CallOptions, Identity, Receipt, RpcError, Transport, decode_header};
use crate::nfs::xdr::{DecodeError, Decoder};

/// The longest call and the longest reply that are asked for: a read of 1 MiB, with its head.
const MAX_REQUEST: u32 = 64 << 10;
const MAX_RESPONSE: u32 = (1 << 20) + (4 << 10);

/// A reply's bytes beside the data of a read.
const READ_OVERHEAD: u32 = 512;

/// Operations in one call, at most, and calls at a time. A server may grant fewer.
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

/// A session that was created, and the client that may create others.
pub(super) struct CreatedSession {
    pub(super) terms: SessionTerms,
    pub(super) client: ClientId,
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
    /// Whether the server may execute the call, or have executed it, although it said that it wants
    /// the call again.
    may_be_executed: AtomicBool,
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
        match error {
            // Some servers say it of the operation after the SEQUENCE.
            NfsError::Status(Status::RETRY_UNCACHED_REPLY) => Self::OtherSlot,
            error => Self::Failed(error),
        }
    }
}

impl From<DecodeError> for SequenceError {
    fn from(error: DecodeError) -> Self {
        Self::Failed(error.into())
    }
}

impl SessionTerms {
    /// Makes itself known to a server, as a client that has just started, and creates a session.
    ///
    /// # Errors
    /// The server's status, or why there was no reply in time.
    pub(super) fn negotiate(
        call: &StateCall<'_>,
        owner: &ClientOwner,
    ) -> Result<CreatedSession, NfsError> {
        let exchange = Operations::default()
            .operation(Operation::ExchangeId)
            .fixed(&owner.verifier)
            .opaque(&owner.name)
            .u32(NO_LAYOUTS)
            .u32(NO_PROTECTION)
            .u32(0);
        let mut client = call.ask(&exchange, |bytes| {
            begin_result(bytes, Operation::ExchangeId)?;
            Ok(ClientId::decode(bytes)?)
        })?;
        let terms = Self::create(call, &mut client)?;
        Ok(CreatedSession { terms, client })
    }

    /// Creates another session for the same client, beside this one. After an error, that client is
    /// of no more use: it is unknown how many sessions it has created.
    ///
    /// # Errors
    /// As [`SessionTerms::negotiate`].
    pub(super) fn create_another(
        &self,
        call: &StateCall<'_>,
        client: &mut ClientId,
    ) -> Result<Self, NfsError> {
        let another = Self::create(call, client)?;
        match another.id == self.id {
            // Its slots have other numbers than those of a new one.
            true => Err(RpcError::Malformed("a new session that is the old one").into()),
            false => Ok(another),
        }
    }

    fn create(call: &StateCall<'_>, client: &mut ClientId) -> Result<Self, NfsError> {
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
        let terms = call.ask(&create, |bytes| {
            begin_result(bytes, Operation::CreateSession)?;
            Self::decode(bytes)
        })?;
        client.sequence = client.sequence.wrapping_add(1);
        Ok(terms)
    }

    /// Whether the server that gets `call` knows this session. Only the server that has created it
    /// can.
    ///
    /// # Errors
    /// If there was no reply in time.
    pub(super) fn bind(&self, call: &StateCall<'_>) -> Result<bool, NfsError> {
        let bind = Operations::default()
            .operation(Operation::BindConnection)
            .fixed(&self.id)
            .u32(FORE_CHANNEL)
            .u32(0);
        let bound = call.ask(&bind, |bytes| {
            begin_result(bytes, Operation::BindConnection)?;
            Ok(bytes.fixed(self.id.len())? == self.id)
        });
        match bound {
            Err(NfsError::Status(_)) => Ok(false),
            answer => answer,
        }
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

/// A client, as the server knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientId {
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
pub(super) struct StateCall<'a> {
    pub(super) transport: &'a Transport,
    pub(super) identity: &'a Identity,
    pub(super) deadline: Instant,
}

impl StateCall<'_> {
    fn ask<T>(
        &self,
        operations: &Operations,
        decode: impl Fn(&mut Decoder<'_>) -> Result<T, NfsError>,
    ) -> Result<T, NfsError> {
        let options = call_options(COMPOUND, self.identity, self.deadline);
        let compound = Compound { sequence: None, operations };
        repeat_while_jukebox(self.deadline, || {
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
        Some(self.slot_use(self.slots.try_take()?))
    }

    /// A slot for a call, once one is free. `None` if none will be, or at `deadline`.
    pub(super) fn use_slot(self: &Arc<Self>, deadline: Instant) -> Option<Arc<SlotUse>> {
        Some(self.slot_use(self.slots.take(deadline)?))
    }

    fn slot_use(self: &Arc<Self>, taken: TakenSlot) -> Arc<SlotUse> {
        Arc::new(SlotUse {
            session: Arc::clone(self),
            taken,
            is_ended: AtomicBool::new(false),
            may_be_executed: AtomicBool::new(false),
        })
    }

    pub(super) fn has_free_slot(&self) -> bool {
        self.slots.has_free()
    }

    /// Whether calls should be made in a new session.
    pub(super) fn is_to_be_replaced(&self) -> bool {
        self.is_dead() || self.slots.is_worn()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// The server has ended it, or it cannot be trusted any more. Returns whether it was alive.
    fn die(&self) -> bool {
        let was_alive = !self.is_dead.swap(true, Ordering::AcqRel);
        self.slots.close();
        was_alive
    }

    /// Tells the server that the session is not used any more, and does not wait for its answer.
    pub(super) fn destroy(&self) {
        if !self.die() {
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

    /// The options of the call. The slot learns of a late reply.
    pub(super) fn call_options<'a>(self: &Arc<Self>, caller: Caller<'a>) -> CallOptions<'a> {
        let options = call_options(COMPOUND, caller.identity, caller.deadline);
        CallOptions { receipt: Some(Arc::clone(self) as _), ..options }
    }

    /// Takes the result of the SEQUENCE from a reply. The results of the other operations follow.
    ///
    /// # Errors
    /// Why they do not.
    fn take_result(&self, bytes: &mut Decoder<'_>) -> Result<(), SequenceError> {
        let begun = begin_results(bytes).and_then(|()| begin_result(bytes, Operation::Sequence));
        match begun {
            Ok(()) => {}
            Err(NfsError::Status(status)) => return Err(self.failure(status)),
            Err(error) => return Err(error.into()),
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
            Status::JUKEBOX => {
                self.may_be_executed.store(true, Ordering::Release);
                SequenceError::Wait
            }
            Status::RETRY_UNCACHED_REPLY => {
                self.end(SlotEnd::Executed);
                SequenceError::OtherSlot
            }
            // The last ones mean that client and server number the calls differently.
            Status::BAD_SESSION
            | Status::DEAD_SESSION
            | Status::STALE_CLIENT
            | Status::EXPIRED
            | Status::CONNECTION_NOT_BOUND
            | Status::BAD_SLOT
            | Status::BAD_HIGH_SLOT
            | Status::SEQUENCE_MISORDERED
            | Status::SEQUENCE_FALSE_RETRY => {
                self.session.die();
                SequenceError::NoSession
            }
            status => SequenceError::Failed(NfsError::Status(status)),
        }
    }

    /// Takes what precedes the results of the operations from a reply.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn take_head(&self, bytes: &mut Decoder<'_>) -> Result<(), SequenceError> {
        if let Err(refusal) = decode_header(bytes)? {
            // If the call was sent twice, the server may have executed it before.
            return Err(SequenceError::Failed(RpcError::from(refusal).into()));
        }
        self.take_result(bytes)
    }

    /// The longest read that fits into its reply.
    pub(super) fn max_read(&self) -> u32 {
        self.session.terms.max_read()
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
        if !self.may_be_executed.load(Ordering::Acquire) {
            self.end(SlotEnd::NotExecuted);
        }
    }
}

impl Drop for SlotUse {
    fn drop(&mut self) {
        self.end(SlotEnd::Unknown);
    }
}
