//! The peers of the control socket: what each may ask for, and how many there are at once.

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
    /// Where the kernel does not say.
    pub fn of(stream: &tokio::net::UnixStream) -> io::Result<Self> {
        Ok(Self { uid: stream.peer_cred()?.uid() })
    }

    /// Whether it may ask for what changes nothing: root may, and the user that mounted.
    pub fn can_query(self) -> bool {
        self.uid == Uid::ROOT.as_raw() || self.uid == geteuid().as_raw()
    }

    /// Whether it may ask for what changes the running mount. The socket's mode and
    /// its directory's keep others out as well; this does not rely on them.
    pub fn can_change(self) -> bool {
        self.can_query()
    }

    /// Whether it may ask for this.
    pub fn can_request(self, ask: &ControlRequest) -> bool {
        if ask.is_mutating() { self.can_change() } else { self.can_query() }
    }
}

/// Peers that are talked to at once. More wait until they are accepted.
const MAX_PEERS: usize = 64;

/// Of these, the peers that wait for a placement provider, which may take as long as it
/// likes, or that listen to a trace.
const MAX_SLOW_PEERS: usize = 8;

/// How many peers there are.
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

    /// Waits for room for one more.
    pub(super) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.all_peers).acquire_owned().await.ok()
    }

    /// Room for one more that waits long; `None` where there are enough.
    pub(super) fn try_acquire_slow(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slow_peers).try_acquire_owned().ok()
    }
}

/// A descriptor in reserve, so that a daemon that has run out of descriptors still answers a
/// peer.
#[derive(Debug, Default)]
pub(super) struct ReserveFd(Option<std::fs::File>);

impl ReserveFd {
    /// Has one again, if there is one to be had.
    pub(super) fn refill(&mut self) {
        if self.0.is_none() {
            self.0 = std::fs::File::open("/dev/null").ok();
        }
    }

    /// Gives it up; says whether there was one.
    pub(super) fn release(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_owner_may_and_nobody_else() {
        let owner = geteuid().as_raw();
        for (uid, may) in [(0, true), (owner, true), (owner + 4321, false), (u32::MAX, false)] {
            let peer = Peer { uid };
            assert_eq!((peer.can_query(), peer.can_change()), (may, may), "{uid}");
            assert_eq!(peer.can_request(&ControlRequest::Status), may);
        }
    }

    #[test]
    fn who_waits_long_leaves_room_for_the_others() {
        let peers = ConnectionLimiter::new();
        let patient: Vec<_> = std::iter::from_fn(|| peers.try_acquire_slow()).collect();
        assert_eq!(patient.len(), MAX_SLOW_PEERS);
        const { assert!(MAX_SLOW_PEERS < MAX_PEERS) };
        drop(patient);
        assert!(peers.try_acquire_slow().is_some());
    }
}
