//! What the callers of a server and the thread that serves its connections share.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::connection::{Connection, Submitted};
use super::pending::{PendingCall, RpcError};

/// A server, and how to connect to it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its addresses, which are used in turn.
    pub addresses: Vec<SocketAddr>,
    /// The number of connections; at least one.
    pub connections: usize,
    /// Whether to connect from a source port below 1024, where this process may.
    pub reserved_port: bool,
    /// Whether calls wait until their deadline for a server that refuses connections, as one does
    /// that restarts. Otherwise they fail when each address was tried. If the server ends the
    /// connections instead of replying, a call fails after a few of them, but that of a patient
    /// caller not before a server could have restarted.
    pub is_patient: bool,
    /// A connection on which calls wait and nothing useful has come for this long is replaced: the
    /// server may have forgotten it. [`Target::SILENCE`] suits servers on any network.
    pub silence: Duration,
    /// The longest wait between two attempts to connect. [`Target::MAX_BACKOFF`] is for servers
    /// that others use, too.
    pub max_backoff: Duration,
}

impl Target {
    /// Above the time in which a busy server replies, and below the deadlines of readers.
    pub const SILENCE: Duration = Duration::from_secs(15);

    /// All clients of a server that has restarted are back within this time.
    pub const MAX_BACKOFF: Duration = Duration::from_secs(5);
}

/// What callers and the thread share.
pub(super) struct Shared {
    pub(super) target: Target,
    pub(super) connections: Vec<Connection>,
    next_xid: AtomicU32,
    /// Wakes the thread.
    pub(super) wake: OwnedFd,
    /// Whether the thread waits without a time limit: no call waits for a reply.
    pub(super) is_idle: AtomicBool,
    pub(super) is_stopping: AtomicBool,
    /// Why the last attempt to connect failed.
    pub(super) last_failure: Mutex<Option<ConnectFailure>>,
    renewal: Mutex<Option<LeaseRenewal>>,
}

/// Runs at fixed intervals, so that the server does not forget the client.
pub(crate) type Renew = Arc<dyn Fn() + Send + Sync>;

struct LeaseRenewal {
    every: Duration,
    due: Instant,
    renew: Renew,
}

#[derive(Clone)]
pub(super) struct ConnectFailure {
    pub(super) address: SocketAddr,
    pub(super) error: Arc<io::Error>,
}

impl Shared {
    /// # Errors
    /// If this process can have no more descriptors.
    pub(super) fn new(target: Target) -> io::Result<Self> {
        let connections = (0..target.connections.max(1)).map(|_| Connection::default()).collect();
        Ok(Self {
            target,
            connections,
            next_xid: AtomicU32::new(RandomState::new().hash_one(0) as u32),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_idle: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            last_failure: Mutex::default(),
            renewal: Mutex::default(),
        })
    }

    /// The number of the next call.
    pub(super) fn next_xid(&self) -> u32 {
        self.next_xid.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls `renew` on the thread from now on, at these intervals. It must not block.
    pub(super) fn set_lease_renewal(&self, every: Duration, renew: Renew) {
        *self.renewal.lock() = Some(LeaseRenewal { every, due: Instant::now() + every, renew });
        self.wake();
    }

    /// The time until the lease is to be renewed.
    pub(super) fn lease_renewal_in(&self, now: Instant) -> Option<Duration> {
        let due = self.renewal.lock().as_ref().map(|renewal| renewal.due)?;
        Some(due.saturating_duration_since(now))
    }

    pub(super) fn take_due_renewal(&self, now: Instant) -> Option<Renew> {
        let mut renewal = self.renewal.lock();
        let renewal = renewal.as_mut().filter(|renewal| renewal.due <= now)?;
        renewal.due = now + renewal.every;
        Some(Arc::clone(&renewal.renew))
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Gives a call to the connection with the least to carry, if possible one that is connected.
    pub(super) fn submit(&self, call: PendingCall) {
        let load = |connection: &&Connection| (!connection.is_connected(), connection.load());
        let Some(chosen) = self.connections.iter().min_by_key(load) else {
            return call.fail(RpcError::Stopped);
        };
        let waits = chosen.submit(call) == Submitted::Waits;
        // Entered before this flag is read: either the thread sees the call, or it is woken.
        if waits || self.is_idle.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    fn wake(&self) {
        // It fails only if the counter is full, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Whether any call has not completed.
    pub(super) fn is_busy(&self) -> bool {
        self.connections.iter().any(|connection| connection.is_busy() || connection.has_delayed())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connections.iter().any(Connection::is_connected)
    }

    /// The error of a call whose deadline has passed, or that waits no longer for a connection.
    pub(super) fn late(&self) -> RpcError {
        let failure = self.last_failure.lock().clone();
        match failure.filter(|_| !self.is_connected()) {
            Some(ConnectFailure { address, error }) => {
                RpcError::Unreachable { server: address.to_string(), error }
            }
            None => RpcError::Late,
        }
    }
}
