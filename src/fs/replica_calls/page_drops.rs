//! Makes the kernel drop pages that are older than a write ([`crate::fs::stale_pages`]) once that
//! write is answered. Replies with attributes of the file wait until the pages are gone. Replies to
//! opens wait while another open gives the kernel the file's pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ReplicaCalls;
use crate::fs::entry_name::InodeAttr;
use crate::fs::error::FsResult;
use crate::fs::ino::Ino;
use crate::fs::inode_barrier::{InodeBarrier, InodeHold};
use crate::replicas::metadata_client::WaitingCall;
use crate::replicas::task;
use crate::volume::ByteRange;

/// Limit on the wait of a truncation. Until a truncation is answered, the kernel sends no writeback
/// of the file. To drop a page that was changed in mapped memory, the kernel must write it back. So
/// without a limit each would wait for the other.
const MAX_WAIT_OF_TRUNCATION: Duration = Duration::from_secs(1);

/// An open waits for other opens' pages at least so long.
const MIN_WAIT_FOR_STORES: Duration = Duration::from_secs(1);

/// Starts the drop when it is dropped itself, which is after the reply to the write.
struct DropAfterReply(Option<PendingDrop>);

/// A drop of pages in progress. It has ended when this is dropped.
struct PendingDrop {
    calls: Arc<ReplicaCalls>,
    ino: Ino,
    range: ByteRange,
    _hold: InodeHold,
    /// Makes a handover wait.
    _waiting: WaitingCall,
}

impl Drop for DropAfterReply {
    fn drop(&mut self) {
        let Some(pending) = self.0.take() else { return };
        let runtime = pending.calls.runtime.clone();
        // If the runtime has ended, the volume is being shut down, and the kernel discards the
        // pages.
        runtime.spawn_blocking(move || pending.run());
    }
}

impl PendingDrop {
    fn run(self) {
        if let Some(kernel) = self.calls.tables.kernel_pages.get() {
            kernel.drop_pages(self.ino, self.range);
        }
    }
}

impl ReplicaCalls {
    /// Makes the kernel drop the pages of `range` once the present request is answered, a write
    /// that a read may have overtaken.
    pub(in crate::fs) fn drop_pages_after_reply(self: &Arc<Self>, ino: Ino, range: ByteRange) {
        let hold = self.tables.page_drops.hold(ino);
        let waiting = self.client.register_waiting();
        let calls = Arc::clone(self);
        let pending = PendingDrop { calls, ino, range, _hold: hold, _waiting: waiting };
        task::hold_until_reply(DropAfterReply(Some(pending)));
    }

    /// Returns the attributes of an inode for the kernel, once no pages of it are being dropped.
    pub(in crate::fs) async fn after_page_drops(
        &self,
        answer: FsResult<InodeAttr>,
    ) -> FsResult<InodeAttr> {
        if let Ok(InodeAttr { ino, .. }) = answer {
            self.wait_for_page_drops(ino).await;
        }
        answer
    }

    /// The same for the reply to a truncation, with a shorter wait.
    pub(in crate::fs) async fn after_page_drops_or_soon(
        &self,
        answer: FsResult<InodeAttr>,
    ) -> FsResult<InodeAttr> {
        if let Ok(InodeAttr { ino, .. }) = answer {
            self.wait_for_page_drops_at_most(ino, MAX_WAIT_OF_TRUNCATION).await;
        }
        answer
    }

    /// Waits until no pages of the inode are being dropped, or for as long as a request may take.
    pub(in crate::fs) async fn wait_for_page_drops(&self, ino: Ino) {
        let limit = self.tables.policy.deadlines.while_responsive;
        self.wait_for_page_drops_at_most(ino, limit).await;
    }

    async fn wait_for_page_drops_at_most(&self, ino: Ino, limit: Duration) {
        let until = Instant::now() + limit;
        self.wait_for_release(&self.tables.page_drops, ino, until).await;
    }

    /// Waits until no other open gives the kernel pages of the inode, or for as long as a request
    /// of `since` may take. Returns whether one did.
    pub(in crate::fs) async fn wait_for_page_stores(&self, ino: Ino, since: Instant) -> bool {
        let until = since + self.tables.policy.deadlines.while_responsive;
        // If the open took all that time: the kernel takes pages at once.
        let until = until.max(Instant::now() + MIN_WAIT_FOR_STORES);
        self.wait_for_release(&self.tables.page_stores, ino, until).await
    }

    /// Waits until the barrier does not hold the inode. Returns whether it did.
    async fn wait_for_release(
        &self,
        barrier: &Arc<InodeBarrier>,
        ino: Ino,
        until: Instant,
    ) -> bool {
        if !barrier.is_held(ino) {
            return false;
        }
        task::hold_until_reply(self.client.register_waiting());
        let barrier = Arc::clone(barrier);
        let wait = async move {
            loop {
                // Before the check, so a release after it is not missed.
                let released = barrier.next_release();
                if !barrier.is_held(ino) || Instant::now() >= until {
                    break;
                }
                let _ = tokio::time::timeout_at(until.into(), released).await;
            }
        };
        // If the runtime does not finish it, the volume is being shut down.
        let _ = self.runtime.spawn(wait).await;
        true
    }
}
