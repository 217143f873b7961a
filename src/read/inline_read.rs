//! Small reads run on the thread that requests them.
//!
//! If the replica is quick, a read of 4 KiB takes less time than handing it to a replica's thread
//! and waking the caller. So a session thread makes the read itself, under an [`InlinePermit`],
//! while enough other session threads are left to take requests. The decisions are the same either
//! way: the scheduler knows of the read, and hedges it if this replica does not answer.

use std::sync::Arc;

use super::attempt::MAX_INLINE_BYTES;
use super::fetch::SegmentFetch;
use super::{Dispatches, Reader, started_attempt};
use crate::backend::InlinePermit;
use crate::scheduler::Dispatch;

/// An attempt to run inline, and its permit.
type InlineRead<'a> = (Dispatch<Arc<SegmentFetch>>, InlinePermit<'a>);

impl Reader {
    /// Takes from a request's dispatches a small read for the calling thread.
    pub(super) fn take_inline(
        &self,
        mut sent: Dispatches,
        may_inline: bool,
    ) -> (Dispatches, Option<InlineRead<'_>>) {
        let small = |sent: &Dispatch<_>| {
            sent.bytes <= MAX_INLINE_BYTES && !self.replicas[sent.replica].reads_without_threads()
        };
        if !may_inline || !sent.last().is_some_and(small) {
            return (sent, None);
        }
        let Some(leave) = self.replicas.inline_permits().try_acquire() else { return (sent, None) };
        let own = sent.pop().map(|own| (own, leave));
        (sent, own)
    }

    pub(super) fn run_inline_read(self: &Arc<Self>, own: Option<InlineRead<'_>>) {
        let Some((own, _leave)) = own else { return };
        self.wake_ticker();
        started_attempt::run_inline_or_submit(self, own);
    }
}
