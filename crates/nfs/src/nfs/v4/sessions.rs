//! The session with a server, and its replacement when the server has ended it or its slots are
//! worn out. A server that restarts knows no session.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::attributes::{self, Values};
use super::compound::{COMPOUND, Compound, Operation, Operations, begin_result, call_options};
use super::session::{ClientOwner, MAX_SMALL_REPLY, SequenceError, Session, SessionTerms, SlotUse};
use crate::nfs::blocking::{FIRST_JUKEBOX_WAIT, take_wait, wait_for_reply};
use crate::nfs::client::Caller;
use crate::nfs::error::{NfsError, Status};
use crate::nfs::rpc::{Identity, RpcError, Target, Transport, decode_header};
use crate::nfs::xdr::Decoder;

/// How often one call may need another slot or session, before it fails.
const MAX_TRIES: usize = 8;

/// How often a session is tried to be created.
const MAX_CREATIONS: usize = 3;

/// The lease of a server that does not tell it.
const DEFAULT_LEASE: Duration = Duration::from_secs(90);

/// An unused session asks the server for nothing more often.
const MIN_RENEWAL: Duration = Duration::from_secs(5);

/// What one of the other addresses of a server may take to answer.
const BIND_LIMIT: Duration = Duration::from_secs(1);

/// The session with a server.
pub(super) struct Sessions {
    pub(super) transport: Arc<Transport>,
    identity: Arc<Identity>,
    owner: Mutex<ClientOwner>,
    current: Mutex<Arc<Session>>,
    /// Held while a session is created.
    creating: Mutex<()>,
    is_stopped: AtomicBool,
}

impl ClientOwner {
    /// One that no other client of any server has.
    fn new() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = format!("fanfs {} {:016x}", host.trim(), random());
        Self { verifier: random().to_be_bytes(), name: name.into_bytes() }
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

impl Sessions {
    /// Creates a session with the server at the first address of `target`, and uses those of its
    /// other addresses that lead to the same server.
    pub(super) fn open(target: Target, caller: Caller<'_>) -> Result<Arc<Self>, NfsError> {
        let start = |addresses: &[SocketAddr], connections: usize| {
            let addresses = addresses.to_vec();
            Transport::start(Target { addresses, connections, ..target.clone() })
                .map(Arc::new)
                .map_err(|error| NfsError::Resources(Arc::new(error)))
        };
        let Some((first, others)) = target.addresses.split_first() else {
            return Err(NfsError::Object(rustix::io::Errno::ADDRNOTAVAIL));
        };
        let identity = Arc::new(Identity::of_process());
        let mut owner = ClientOwner::new();
        let mut transport = start(&[*first], target.connections)?;
        let terms = negotiate(&transport, &identity, &mut owner, caller.deadline)?;
        let mut addresses = vec![*first];
        for other in others {
            let now = Instant::now();
            let limit = BIND_LIMIT.min(caller.deadline.saturating_duration_since(now) / 2);
            let bound = terms.bind(&*start(&[*other], 1)?, &identity, now + limit);
            tracing::debug!(address = %other, ?bound, "another address of a server");
            if bound.is_ok_and(|is_same| is_same) {
                addresses.push(*other);
            }
        }
        if addresses.len() > 1 {
            transport = start(&addresses, target.connections.max(addresses.len()))?;
        }
        let session = Session::new(terms, Arc::clone(&transport), Arc::clone(&identity));
        let sessions = Arc::new(Self {
            transport,
            identity,
            owner: Mutex::new(owner),
            current: Mutex::new(Arc::clone(&session)),
            creating: Mutex::new(()),
            is_stopped: AtomicBool::new(false),
        });
        sessions.begin(&session, caller.deadline)?;
        Ok(sessions)
    }

    /// Ends the session and the transport.
    pub(super) fn stop(&self) {
        if !self.is_stopped.swap(true, Ordering::AcqRel) {
            let session = Arc::clone(&self.current.lock());
            session.destroy();
            self.transport.stop();
        }
    }

    /// The longest read that fits into a reply.
    pub(super) fn max_read(&self) -> u32 {
        self.current.lock().terms.max_read()
    }

    /// A slot, if one is free in a session that can be used.
    pub(super) fn try_use_slot(&self) -> Option<Arc<SlotUse>> {
        let session = Arc::clone(&self.current.lock());
        if session.is_to_be_replaced() { None } else { session.try_use_slot() }
    }

    /// Waits until a session can be used and has a free slot.
    pub(super) fn wait_for_slot(&self, deadline: Instant) -> Result<(), NfsError> {
        let slot = self.use_slot(deadline)?;
        slot.give_back();
        Ok(())
    }

    /// Makes a call in the session. `decode` gets what follows the result of the SEQUENCE.
    pub(super) fn call<T>(
        &self,
        caller: Caller<'_>,
        operations: &Operations,
        max: usize,
        decode: impl Fn(&mut Decoder<'_>) -> Result<T, NfsError>,
    ) -> Result<T, NfsError> {
        for _ in 0..MAX_TRIES {
            let slot = self.use_slot(caller.deadline)?;
            match self.call_in(&slot, caller, operations, max, &decode) {
                Err(SequenceError::Failed(error)) => return Err(error),
                // It is unknown for how long.
                Err(SequenceError::Wait) => return Err(RpcError::Late.into()),
                Err(SequenceError::OtherSlot | SequenceError::NoSession) => {}
                Ok(value) => return Ok(value),
            }
        }
        Err(NfsError::NoSession)
    }

    fn call_in<T>(
        &self,
        slot: &Arc<SlotUse>,
        caller: Caller<'_>,
        operations: &Operations,
        max: usize,
        decode: &impl Fn(&mut Decoder<'_>) -> Result<T, NfsError>,
    ) -> Result<T, SequenceError> {
        let mut options = call_options(COMPOUND, caller.identity, caller.deadline);
        options.receipt = Some(Arc::clone(slot) as _);
        let sequence = slot.sequence();
        let compound = Compound { sequence: Some(&sequence), operations };
        let mut wait = FIRST_JUKEBOX_WAIT;
        loop {
            let reply = wait_for_reply(&self.transport, &options, &compound, max)
                .map_err(SequenceError::Failed)?;
            let mut bytes = Decoder::new(&reply);
            if let Err(refusal) = decode_header(&mut bytes)? {
                return Err(SequenceError::Failed(RpcError::from(refusal).into()));
            }
            match slot.take_result(&mut bytes) {
                Err(SequenceError::Wait) if Instant::now() + wait < caller.deadline => {
                    std::thread::sleep(take_wait(&mut wait));
                }
                Err(error) => return Err(error),
                Ok(()) => return decode(&mut bytes).map_err(SequenceError::Failed),
            }
        }
    }

    /// A slot of a session that can be used, once one is free.
    ///
    /// # Errors
    /// If none is in time, or no session can be created.
    pub(super) fn use_slot(&self, deadline: Instant) -> Result<Arc<SlotUse>, NfsError> {
        for _ in 0..MAX_TRIES {
            let session = self.usable_session(deadline)?;
            if let Some(slot) = session.use_slot(deadline) {
                return Ok(slot);
            }
            if deadline <= Instant::now() {
                return Err(RpcError::Late.into());
            }
        }
        Err(NfsError::NoSession)
    }

    fn usable_session(&self, deadline: Instant) -> Result<Arc<Session>, NfsError> {
        let current = || Arc::clone(&self.current.lock());
        let session = current();
        if !session.is_to_be_replaced() {
            return Ok(session);
        }
        if self.is_stopped.load(Ordering::Acquire) {
            return Err(RpcError::Stopped.into());
        }
        let _creating = self.creating.try_lock_until(deadline).ok_or(RpcError::Late)?;
        let session = current();
        if !session.is_to_be_replaced() {
            // Another thread has created it.
            return Ok(session);
        }
        let mut owner = self.owner.lock().clone();
        let terms = match negotiate(&self.transport, &self.identity, &mut owner, deadline) {
            // It has free slots left.
            Err(_) if !session.is_dead() => return Ok(session),
            terms => terms?,
        };
        *self.owner.lock() = owner;
        let (transport, identity) = (Arc::clone(&self.transport), Arc::clone(&self.identity));
        let session = Session::new(terms, transport, identity);
        self.begin_in(&session, deadline)?;
        tracing::debug!("a new session with an NFSv4.1 server");
        let before = std::mem::replace(&mut *self.current.lock(), Arc::clone(&session));
        drop(before);
        Ok(session)
    }

    /// Begins to use the first session, and to renew its lease.
    fn begin(self: &Arc<Self>, session: &Arc<Session>, deadline: Instant) -> Result<(), NfsError> {
        let lease = self.begin_in(session, deadline)?;
        let sessions = Arc::downgrade(self);
        let renew = move || sessions.upgrade().into_iter().for_each(|own| own.renew_lease());
        let every = (lease / 3).max(MIN_RENEWAL);
        self.transport.set_lease_renewal(every, Arc::new(renew));
        Ok(())
    }

    /// Asks for the lease. Tells the server that this client had no state before: it could wait for
    /// that.
    fn begin_in(&self, session: &Arc<Session>, deadline: Instant) -> Result<Duration, NfsError> {
        let operations = Operations::on_root()
            .attributes(attributes::LEASE)
            .operation(Operation::ReclaimComplete)
            .u32(0);
        let caller = Caller { identity: &self.identity, deadline };
        let slot = session.use_slot(deadline).ok_or(RpcError::Late)?;
        let begun = self.call_in(&slot, caller, &operations, MAX_SMALL_REPLY, &|bytes| {
            begin_result(bytes, Operation::PutRootHandle)?;
            begin_result(bytes, Operation::GetAttributes)?;
            Ok(Values::decode(bytes)?.lease())
        });
        match begun {
            Ok(lease) => Ok(lease.map_or(DEFAULT_LEASE, |secs| Duration::from_secs(secs.into()))),
            // The root of the server may be closed to this user, but not its exports.
            Err(SequenceError::Failed(NfsError::Status(_))) => Ok(DEFAULT_LEASE),
            Err(SequenceError::Failed(error)) => Err(error),
            Err(_) => Err(NfsError::NoSession),
        }
    }

    /// Makes a call that only renews the lease, and does not wait for its reply. A call in flight
    /// renews it, too.
    fn renew_lease(self: &Arc<Self>) {
        let Some(slot) = self.try_use_slot() else { return };
        let deadline = Instant::now() + MIN_RENEWAL;
        let mut options = call_options(COMPOUND, &self.identity, deadline);
        options.receipt = Some(Arc::clone(&slot) as _);
        let sequence = slot.sequence();
        let compound = Compound { sequence: Some(&sequence), operations: &Operations::default() };
        let done = move |reply: Result<Vec<u8>, RpcError>| {
            if let Ok(reply) = reply {
                slot.note_reply(&reply);
            }
        };
        self.transport.call(&options, &compound, MAX_SMALL_REPLY, Box::new(done));
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Creates a session. The owner gets another verifier if the server mixes it up with an earlier one.
fn negotiate(
    transport: &Transport,
    identity: &Identity,
    owner: &mut ClientOwner,
    deadline: Instant,
) -> Result<SessionTerms, NfsError> {
    for _ in 1..MAX_CREATIONS {
        match SessionTerms::negotiate(transport, identity, owner, deadline) {
            Err(NfsError::Status(Status::STALE_CLIENT | Status::SEQUENCE_MISORDERED)) => {
                owner.verifier = random().to_be_bytes();
            }
            answer => return answer,
        }
    }
    SessionTerms::negotiate(transport, identity, owner, deadline)
}
