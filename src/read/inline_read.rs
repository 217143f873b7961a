//! Small reads are carried out by the thread that asks for them.
//!
//! To hand a read of 4 KiB to a replica's own thread, and to be woken when it is
//! done, takes longer than the read where the replica is quick. So a session
//! thread goes itself, as a [`InlinePermit`], as long as enough others are left to take
//! requests. What is decided is the same either way: the scheduler knows of the
//! read, and another replica is asked for it where this one does not answer.

use std::sync::Arc;

use super::attempt::MAX_INLINE_BYTES;
use super::fetch::SegmentFetch;
use super::{CallerThread, Dispatches, Reader, attempt};
use crate::backend::InlinePermit;
use crate::scheduler::Dispatch;

/// What a guest carries out, and its leave to be one.
type InlineRead<'a> = (Dispatch<Arc<SegmentFetch>>, InlinePermit<'a>);

impl Reader {
    /// Of what a request asked for, takes out what the thread that asked may
    /// carry out itself: a small read.
    pub(super) fn take_inline(
        &self,
        mut sent: Dispatches,
        thread: CallerThread,
    ) -> (Dispatches, Option<InlineRead<'_>>) {
        let small = |sent: &Dispatch<_>| sent.bytes <= MAX_INLINE_BYTES;
        if thread == CallerThread::MustQueue || !sent.last().is_some_and(small) {
            return (sent, None);
        }
        let Some(leave) = self.replicas.inline_permits().try_acquire() else { return (sent, None) };
        let own = sent.pop().map(|own| (own, leave));
        (sent, own)
    }

    pub(super) fn run_inline_read(self: &Arc<Self>, own: Option<InlineRead<'_>>) {
        let Some((own, _leave)) = own else { return };
        self.wake_ticker();
        attempt::run_inline_or_submit(self, own);
    }
}
