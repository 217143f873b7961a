//! The peers of the control socket: the requests that each may send, and the limit on their
//! number.

use std::io;
use std::sync::Arc;

use rustix::process::{Uid, geteuid};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::ControlRequest;

/// A peer, as the kernel knew it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    uid: u32,
}

impl Peer {
    /// The peer of a connection.
    ///
    /// # Errors
    /// If the kernel does not report the peer.
    pub fn of(stream: &tokio::net::UnixStream) -> io::Result<Self> {
        Ok(Self { uid: stream.peer_cred()?.uid() })
    }

    /// Whether it may send requests that change nothing: root may, and the user that mounted.
    pub fn can_query(self) -> bool {
        self.uid == Uid::ROOT.as_raw() || self.uid == geteuid().as_raw()
    }

    /// Whether it may send requests that change the running mount. The socket's mode and its
    /// directory keep other users out as well; this check does not rely on them.
    pub fn can_change(self) -> bool {
        self.can_query()
    }

    /// Whether it may send this request.
    pub fn can_request(self, ask: &ControlRequest) -> bool {
        if ask.is_mutating() { self.can_change() } else { self.can_query() }
    }
}

/// Peers that are served at once. More wait until they are accepted.
const MAX_PEERS: usize = 64;

/// The most of these peers that may wait long: for a placement provider or a handover, or as
/// listeners to a trace.
const MAX_SLOW_PEERS: usize = 8;

/// Limits the number of peers.
#[derive(Clone, Debug)]
pub(super) struct ConnectionLimiter {
    all_peers: Arc<Semaphore>,
    slow_peers: Arc<Semaphore>,
}

impl ConnectionLimiter {
    pub(super) fn new() -> Self {
        let room = |most| Arc::new(Semaphore::new(most));
        Self { all_peers: room(MAX_PEERS), slow_peers: room(MAX_SLOW_PEERS) }
    }

    /// Waits for room for one more peer.
    pub(super) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.all_peers).acquire_owned().await.ok()
    }

    /// Room for one more peer that waits long; `None` if there are enough.
    pub(super) fn try_acquire_slow(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slow_peers).try_acquire_owned().ok()
    }
}

/// A descriptor in reserve, so that a daemon that has run out of descriptors still answers a
/// peer.
#[derive(Debug, Default)]
pub(super) struct ReserveFd(Option<std::fs::File>);

impl ReserveFd {
    /// Opens the reserve descriptor again, if a descriptor is free.
    pub(super) fn refill(&mut self) {
        if self.0.is_none() {
            self.0 = std::fs::File::open("/dev/null").ok();
        }
    }

    /// Closes it. Returns whether there was one.
    pub(super) fn release(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_owner_may_connect() {
        let owner = geteuid().as_raw();
        for (uid, may) in [(0, true), (owner, true), (owner + 4321, false), (u32::MAX, false)] {
            let peer = Peer { uid };
            assert_eq!((peer.can_query(), peer.can_change()), (may, may), "{uid}");
            assert_eq!(peer.can_request(&ControlRequest::Status), may);
        }
    }

    #[test]
    fn slow_peers_leave_room_for_others() {
        let peers = ConnectionLimiter::new();
        let patient: Vec<_> = std::iter::from_fn(|| peers.try_acquire_slow()).collect();
        assert_eq!(patient.len(), MAX_SLOW_PEERS);
        const { assert!(MAX_SLOW_PEERS < MAX_PEERS) };
        drop(patient);
        assert!(peers.try_acquire_slow().is_some());
    }
}
