//! Who is at the other end of the control socket, and how many of them at once.

use std::io;
use std::sync::Arc;

use rustix::process::{Uid, geteuid};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Ask;

/// A peer, as the kernel knew it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    uid: u32,
}

impl Peer {
    /// Who is connected.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn of(stream: &tokio::net::UnixStream) -> io::Result<Self> {
        Ok(Self { uid: stream.peer_cred()?.uid() })
    }

    /// Whether it may ask for what changes nothing: root, and who mounted.
    pub fn may_ask(self) -> bool {
        self.uid == Uid::ROOT.as_raw() || self.uid == geteuid().as_raw()
    }

    /// Whether it may ask for what changes the running mount. The socket's mode and
    /// its directory's keep others out as well; this does not rely on them.
    pub fn may_change(self) -> bool {
        self.may_ask()
    }

    /// Whether it may ask for this.
    pub fn may(self, ask: &Ask) -> bool {
        if ask.changes() { self.may_change() } else { self.may_ask() }
    }
}

/// Peers that are talked to at once. More wait until they are accepted.
const MOST_PEERS: usize = 64;

/// Of these, who wait for a placement provider, which may take as long as it likes, or
/// listen to a trace.
const MOST_PATIENT: usize = 8;

/// How many peers there are.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    all: Arc<Semaphore>,
    patient: Arc<Semaphore>,
}

impl Peers {
    pub(super) fn new() -> Self {
        let room = |most| Arc::new(Semaphore::new(most));
        Self { all: room(MOST_PEERS), patient: room(MOST_PATIENT) }
    }

    /// Waits for room for one more.
    pub(super) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.all).acquire_owned().await.ok()
    }

    /// Room for one more that waits long; `None` where there are enough.
    pub(super) fn wait_long(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.patient).try_acquire_owned().ok()
    }
}

/// A descriptor that is kept to be given up: whoever asks how a daemon is that has
/// run out of descriptors is answered.
#[derive(Debug, Default)]
pub(super) struct Spare(Option<std::fs::File>);

impl Spare {
    /// Has one again, if there is one to be had.
    pub(super) fn keep(&mut self) {
        if self.0.is_none() {
            self.0 = std::fs::File::open("/dev/null").ok();
        }
    }

    /// Gives it up; says whether there was one.
    pub(super) fn give_up(&mut self) -> bool {
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
            assert_eq!((peer.may_ask(), peer.may_change()), (may, may), "{uid}");
            assert_eq!(peer.may(&Ask::Status), may);
        }
    }

    #[test]
    fn who_waits_long_leaves_room_for_the_others() {
        let peers = Peers::new();
        let patient: Vec<_> = std::iter::from_fn(|| peers.wait_long()).collect();
        assert_eq!(patient.len(), MOST_PATIENT);
        const { assert!(MOST_PATIENT < MOST_PEERS) };
        drop(patient);
        assert!(peers.wait_long().is_some());
    }
}
