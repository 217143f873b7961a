//! Makes replies about an inode wait for something that the kernel does first.
//!
//! There are two barriers: for pages that the kernel drops ([`super::stale_pages`]), and for pages
//! that it gets from an open ([`super::open_files`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::ino::Ino;

#[derive(Default)]
pub(super) struct InodeBarrier {
    /// The number of holds, so most requests need no lock.
    count: AtomicUsize,
    /// The number of holds of each inode.
    held: Mutex<BTreeMap<Ino, usize>>,
    /// Notified when a hold ends.
    released: Notify,
}

/// As long as it exists, replies about the inode wait.
pub(super) struct InodeHold {
    barrier: Arc<InodeBarrier>,
    ino: Ino,
}

impl InodeBarrier {
    pub(super) fn hold(self: &Arc<Self>, ino: Ino) -> InodeHold {
        *self.held.lock().entry(ino).or_default() += 1;
        self.count.fetch_add(1, Ordering::SeqCst);
        InodeHold { barrier: Arc::clone(self), ino }
    }

    /// Completes when the next hold ends.
    pub(super) fn next_release(&self) -> Notified<'_> {
        self.released.notified()
    }

    /// Whether any inode is held.
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    pub(super) fn is_held(&self, ino: Ino) -> bool {
        self.has_any() && self.held.lock().contains_key(&ino)
    }
}

impl Drop for InodeHold {
    fn drop(&mut self) {
        let Self { barrier, ino } = self;
        let mut held = barrier.held.lock();
        if let Some(left) = held.get_mut(ino) {
            *left -= 1;
            if *left == 0 {
                held.remove(ino);
            }
        }
        drop(held);
        barrier.count.fetch_sub(1, Ordering::SeqCst);
        barrier.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_held_until_its_last_hold_ends() {
        let barrier = Arc::<InodeBarrier>::default();
        let [first, second] = [(); 2].map(|()| barrier.hold(Ino(2)));
        assert!(barrier.is_held(Ino(2)) && !barrier.is_held(Ino(3)));
        drop(first);
        assert!(barrier.is_held(Ino(2)));
        drop(second);
        assert!(!barrier.is_held(Ino(2)) && !barrier.has_any());
    }
}
