//! Makes the kernel drop pages that are older than a write ([`crate::fs::stale_pages`]) once that
//! write is answered. Replies with attributes of the file wait until the pages are gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ReplicaCalls;
use crate::fs::entry_name::InodeAttr;
use crate::fs::error::FsResult;
use crate::fs::ino::Ino;
use crate::replicas::metadata_client::WaitingCall;
use crate::replicas::task;
use crate::volume::ByteRange;

/// Limit on the wait of a truncation. Until a truncation is answered, the kernel sends no writeback
/// of the file. To drop a page that was changed in mapped memory, the kernel must write it back. So
/// without a limit each would wait for the other.
const MAX_WAIT_OF_TRUNCATION: Duration = Duration::from_secs(1);

/// Starts the drop when it is dropped itself, which is after the reply to the write.
struct DropAfterReply(Option<PendingDrop>);

/// A drop of pages in progress. It has ended when this is dropped.
struct PendingDrop {
    calls: Arc<ReplicaCalls>,
    ino: Ino,
    range: ByteRange,
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
        let kernel = self.calls.tables.page_drops.kernel();
        if let Some(kernel) = kernel {
            kernel.drop_pages(self.ino, self.range);
        }
    }
}

impl Drop for PendingDrop {
    fn drop(&mut self) {
        self.calls.tables.page_drops.end(self.ino);
    }
}

impl ReplicaCalls {
    /// Makes the kernel drop the pages of `range` once the present request is answered, a write
    /// that a read may have overtaken.
    pub(in crate::fs) fn drop_pages_after_reply(self: &Arc<Self>, ino: Ino, range: ByteRange) {
        self.tables.page_drops.start(ino);
        let waiting = self.client.register_waiting();
        let pending = PendingDrop { calls: Arc::clone(self), ino, range, _waiting: waiting };
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
        if !self.tables.page_drops.is_pending(ino) {
            return;
        }
        task::hold_until_reply(self.client.register_waiting());
        let tables = Arc::clone(&self.tables);
        let until = Instant::now() + limit;
        let wait = async move {
            loop {
                // Before the check, so an end after it is not missed.
                let ended = tables.page_drops.next_end();
                if !tables.page_drops.is_pending(ino) || Instant::now() >= until {
                    break;
                }
                let _ = tokio::time::timeout_at(until.into(), ended).await;
            }
        };
        // If the runtime does not finish it, the volume is being shut down.
        let _ = self.runtime.spawn(wait).await;
    }
}
