//! The session with a server, and its replacement when the server has ended it or its slots are
//! worn out. A server that restarts knows no session.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::attributes::{self, Values};
use super::compound::{Compound, Operation, Operations, begin_result};
use super::session::{
    ClientId, ClientOwner, CreatedSession, MAX_SMALL_REPLY, SequenceError, Session, SessionTerms,
    SlotUse, StateCall,
};
use crate::nfs::blocking::{FIRST_JUKEBOX_WAIT, take_wait, wait_for_reply};
use crate::nfs::error::NfsError;
use crate::nfs::procedures::Caller;
use crate::nfs::rpc::{Identity, RpcError, Target, Transport};
use crate::nfs::xdr::Decoder;

/// How often one call may need another slot or session, before it fails.
const MAX_TRIES: usize = 8;

/// How long a session is used on after the server did not create another one, and how long the
/// server may take for that while the session can carry calls.
const CREATION_INTERVAL: Duration = Duration::from_secs(1);
const CREATION_LIMIT: Duration = Duration::from_secs(2);

/// The lease of a server that does not tell it.
const DEFAULT_LEASE: Duration = Duration::from_secs(90);

/// The least interval between two calls that only renew the lease.
const MIN_RENEWAL: Duration = Duration::from_secs(5);

/// What one of the other addresses of a server may take to answer.
const BIND_LIMIT: Duration = Duration::from_secs(1);

/// The session with a server.
pub(super) struct Sessions {
    target: Target,
    pub(super) transport: Arc<Transport>,
    identity: Arc<Identity>,
    current: Mutex<Arc<Session>>,
    /// Held while a session is created.
    creation: Mutex<Creation>,
    is_stopped: AtomicBool,
}

/// The creation of sessions.
struct Creation {
    owner: ClientOwner,
    /// The client that has created the current session; `None` if it can create no others.
    client: Option<ClientId>,
    /// When one failed while the session before it could still be used.
    failed_at: Option<Instant>,
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
        let Some(first) = target.addresses.first() else {
            return Err(NfsError::Object(rustix::io::Errno::ADDRNOTAVAIL));
        };
        let identity = Arc::new(Identity::of_process());
        let owner = ClientOwner::new();
        let transport = try_out(&target, *first)?;
        let call =
            StateCall { transport: &transport, identity: &identity, deadline: caller.deadline };
        let CreatedSession { terms, client } = SessionTerms::negotiate(&call, &owner)?;
        let others = &target.addresses[1..];
        let same = bound_addresses(&target, &terms, &identity, caller.deadline);
        let same = others.iter().zip(same).filter(|(_, binding)| *binding == Binding::Same);
        let addresses: Vec<SocketAddr> =
            [*first].into_iter().chain(same.map(|(address, _)| *address)).collect();
        let connections = target.connections.max(addresses.len());
        let target = Target { addresses, connections, ..target };
        let transport = Transport::start(target.clone()).map_err(resources)?;
        let transport = Arc::new(transport);
        let session = Session::new(terms, Arc::clone(&transport), Arc::clone(&identity));
        let sessions = Arc::new(Self {
            target,
            transport,
            identity,
            current: Mutex::new(Arc::clone(&session)),
            creation: Mutex::new(Creation { owner, client: Some(client), failed_at: None }),
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

    /// A slot of the session, if one is free.
    pub(super) fn try_use_slot(&self) -> Option<Arc<SlotUse>> {
        let session = Arc::clone(&self.current.lock());
        session.try_use_slot()
    }

    /// Whether the session can carry no call any more. Only a thread that may block creates another.
    pub(super) fn has_ended(&self) -> bool {
        let session = Arc::clone(&self.current.lock());
        session.is_to_be_replaced() && !session.has_free_slot()
    }

    /// Waits until a session can be used and has a free slot.
    pub(super) fn wait_for_slot(self: &Arc<Self>, deadline: Instant) -> Result<(), NfsError> {
        let slot = self.use_slot(deadline)?;
        slot.give_back();
        Ok(())
    }

    /// Makes a call in the session. `decode` gets what follows the result of the SEQUENCE.
    pub(super) fn call<T>(
        self: &Arc<Self>,
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
        let options = slot.call_options(caller);
        let sequence = slot.sequence();
        let compound = Compound { sequence: Some(&sequence), operations };
        let mut wait = FIRST_JUKEBOX_WAIT;
        loop {
            let reply = wait_for_reply(&self.transport, &options, &compound, max)?;
            let mut bytes = Decoder::new(&reply);
            match slot.take_head(&mut bytes) {
                Err(SequenceError::Wait) if Instant::now() + wait < caller.deadline => {
                    std::thread::sleep(take_wait(&mut wait));
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(decode(&mut bytes)?),
            }
        }
    }

    /// A slot of a session that can be used, once one is free.
    ///
    /// # Errors
    /// If none is in time, or no session can be created.
    pub(super) fn use_slot(self: &Arc<Self>, deadline: Instant) -> Result<Arc<SlotUse>, NfsError> {
        loop {
            let session = self.usable_session(deadline)?;
            if let Some(slot) = session.use_slot(deadline) {
                return Ok(slot);
            }
        }
    }

    /// A session that can be used, or one with slots left if the server creates no other.
    fn usable_session(self: &Arc<Self>, deadline: Instant) -> Result<Arc<Session>, NfsError> {
        let current = || Arc::clone(&self.current.lock());
        let session = current();
        if self.is_stopped.load(Ordering::Acquire) {
            return Err(RpcError::Stopped.into());
        }
        if deadline <= Instant::now() {
            return Err(RpcError::Late.into());
        }
        if !session.is_to_be_replaced() {
            return Ok(session);
        }
        // Nothing waits for another session while this one can carry calls.
        let (creation, deadline) = match session.has_free_slot() {
            true => (self.creation.try_lock(), deadline.min(Instant::now() + CREATION_LIMIT)),
            false => (self.creation.try_lock_until(deadline), deadline),
        };
        let Some(mut creation) = creation else {
            return if session.has_free_slot() { Ok(session) } else { Err(RpcError::Late.into()) };
        };
        let session = current();
        let is_soon = creation.failed_at.is_some_and(|at| at.elapsed() < CREATION_INTERVAL);
        if !session.is_to_be_replaced() || is_soon && session.has_free_slot() {
            return Ok(session);
        }
        match self.replace(&session, &mut creation, deadline) {
            Ok(another) => {
                creation.failed_at = None;
                *self.current.lock() = Arc::clone(&another);
                Ok(another)
            }
            Err(error) => {
                creation.failed_at = Some(Instant::now());
                if session.has_free_slot() { Ok(session) } else { Err(error) }
            }
        }
    }

    /// Creates a session in place of `before`, and begins it. A server that restarts once more in
    /// between is asked again.
    fn replace(
        self: &Arc<Self>,
        before: &Session,
        creation: &mut Creation,
        deadline: Instant,
    ) -> Result<Arc<Session>, NfsError> {
        let mut wait = FIRST_JUKEBOX_WAIT;
        loop {
            let created = self.create(before, creation, deadline);
            let begun =
                created.and_then(|session| self.begin(&session, deadline).map(|()| session));
            if begun.is_err() {
                // The server may count one more session than this client knows.
                creation.client = None;
            }
            match begun {
                _ if self.is_stopped.load(Ordering::Acquire) => {
                    return Err(RpcError::Stopped.into());
                }
                Err(NfsError::NoSession | NfsError::Status(_))
                    if Instant::now() + wait < deadline =>
                {
                    std::thread::sleep(take_wait(&mut wait));
                }
                begun => return begun,
            }
        }
    }

    /// Creates a session: of the same client, beside `before`, whose calls in flight go on; or of a
    /// new client, if the server has ended `before` or creates no other.
    fn create(
        &self,
        before: &Session,
        creation: &mut Creation,
        deadline: Instant,
    ) -> Result<Arc<Session>, NfsError> {
        // Calls on several connections could reach several servers, if they are not one any more.
        let alone = match &self.target.addresses[..] {
            [_] => None,
            addresses => Some(try_out(&self.target, addresses[0])?),
        };
        let transport = alone.as_ref().unwrap_or(&self.transport);
        let call = StateCall { transport, identity: &self.identity, deadline };
        let another = match &mut creation.client {
            Some(client) if !before.is_dead() => before.terms.create_another(&call, client).ok(),
            _ => None,
        };
        let terms = match another {
            Some(terms) => terms,
            None => {
                creation.owner.verifier = random().to_be_bytes();
                let created = SessionTerms::negotiate(&call, &creation.owner)?;
                creation.client = Some(created.client);
                created.terms
            }
        };
        if bound_addresses(&self.target, &terms, &self.identity, deadline).contains(&Binding::Other)
        {
            tracing::debug!("the addresses of an NFSv4.1 server lead to several servers now");
            return Err(NfsError::NoSession);
        }
        tracing::debug!("a new session with an NFSv4.1 server");
        Ok(Session::new(terms, Arc::clone(&self.transport), Arc::clone(&self.identity)))
    }

    /// Begins to use a session, and to renew its lease.
    fn begin(self: &Arc<Self>, session: &Arc<Session>, deadline: Instant) -> Result<(), NfsError> {
        let lease = self.begin_in(session, deadline)?;
        let sessions = Arc::downgrade(self);
        let renew = move || sessions.upgrade().into_iter().for_each(|own| own.renew_lease());
        let every = (lease / 3).max(MIN_RENEWAL);
        self.transport.set_lease_renewal(every, Arc::new(renew));
        Ok(())
    }

    /// Says that this client has no state to reclaim, so that the server need not wait for it. Asks
    /// for the lease.
    fn begin_in(&self, session: &Arc<Session>, deadline: Instant) -> Result<Duration, NfsError> {
        let operations = Operations::default()
            .operation(Operation::ReclaimComplete)
            .u32(0)
            .operation(Operation::PutRootHandle)
            .attributes(attributes::LEASE);
        let caller = Caller { identity: &self.identity, deadline };
        let slot = session.use_slot(deadline).ok_or(NfsError::NoSession)?;
        let begun = self.call_in(&slot, caller, &operations, MAX_SMALL_REPLY, &|bytes| {
            begin_result(bytes, Operation::ReclaimComplete)?;
            begin_result(bytes, Operation::PutRootHandle)?;
            begin_result(bytes, Operation::GetAttributes)?;
            Ok(Values::decode(bytes)?.lease())
        });
        match begun {
            Ok(lease) => Ok(lease.map_or(DEFAULT_LEASE, |secs| Duration::from_secs(secs.into()))),
            // The root of the server may be closed to this user, but not its exports. A further
            // session of a client is begun already.
            Err(SequenceError::Failed(error @ NfsError::Status(_))) if !error.is_jukebox() => {
                Ok(DEFAULT_LEASE)
            }
            Err(SequenceError::Failed(error)) => Err(error),
            Err(_) => Err(NfsError::NoSession),
        }
    }

    /// Makes a call that only renews the lease, and does not wait for its reply. A call in flight
    /// renews it, too.
    fn renew_lease(self: &Arc<Self>) {
        let Some(slot) = self.try_use_slot() else { return };
        let deadline = Instant::now() + MIN_RENEWAL;
        let options = slot.call_options(Caller { identity: &self.identity, deadline });
        let sequence = slot.sequence();
        let compound = Compound { sequence: Some(&sequence), operations: &Operations::default() };
        let done = move |reply: Result<Vec<u8>, RpcError>| {
            if let Ok(reply) = reply {
                let _ = slot.take_head(&mut Decoder::new(&reply));
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

/// A connection to one address of a server, which gives up if the address refuses it.
fn try_out(target: &Target, address: SocketAddr) -> Result<Transport, NfsError> {
    let target =
        Target { addresses: vec![address], connections: 1, is_patient: false, ..target.clone() };
    Transport::start(target).map_err(resources)
}

/// The server that an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    /// That of the session.
    Same,
    Other,
    /// It does not answer.
    Unknown,
}

/// For each address of `target` but the first, whether it leads to the server of the session.
fn bound_addresses(
    target: &Target,
    terms: &SessionTerms,
    identity: &Identity,
    deadline: Instant,
) -> Vec<Binding> {
    let now = Instant::now();
    // Most of the time is left for what the caller needs.
    let limit = BIND_LIMIT.min(deadline.saturating_duration_since(now) / 4);
    let bind = |address: SocketAddr| {
        let transport = try_out(target, address)?;
        terms.bind(&StateCall { transport: &transport, identity, deadline: now + limit })
    };
    std::thread::scope(|scope| {
        let others = target.addresses.get(1..).unwrap_or_default();
        let threads: Vec<_> = others.iter().map(|address| scope.spawn(|| bind(*address))).collect();
        let is_bound = |(address, thread): (_, std::thread::ScopedJoinHandle<'_, _>)| {
            let bound = thread.join();
            tracing::debug!(?address, ?bound, "another address of a server");
            match bound {
                Ok(Ok(true)) => Binding::Same,
                Ok(Ok(false)) => Binding::Other,
                Ok(Err(_)) | Err(_) => Binding::Unknown,
            }
        };
        others.iter().zip(threads).map(is_bound).collect()
    })
}

fn resources(error: std::io::Error) -> NfsError {
    NfsError::Resources(Arc::new(error))
}
