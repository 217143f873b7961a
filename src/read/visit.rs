//! Small reads are carried out by the thread that asks for them.
//!
//! To hand a read of 4 KiB to a replica's own thread, and to be woken when it is
//! done, takes longer than the read where the replica is quick. So a session
//! thread goes itself, as a [`Guest`], as long as enough others are left to take
//! requests. What is decided is the same either way: the scheduler knows of the
//! read, and another replica is asked for it where this one does not answer.

use std::sync::Arc;

use super::fetch::Fetch;
use super::{Dispatches, Reader, Thread, attempt};
use crate::backend::Guest;
use crate::scheduler::Dispatch;

/// A segment up to this size is read by the thread at hand, if it may: 128 KiB
/// take a quick replica less than handing them over to another thread.
pub(super) const SMALL: u64 = 128 * 1024;

/// What a guest carries out, and its leave to be one.
type Visit<'a> = (Dispatch<Arc<Fetch>>, Guest<'a>);

impl Reader {
    /// Of what a request asked for, takes out what the thread that asked may
    /// carry out itself: a small read.
    pub(super) fn divide(
        &self,
        mut sent: Dispatches,
        thread: Thread,
    ) -> (Dispatches, Option<Visit<'_>>) {
        let small = |sent: &Dispatch<_>| sent.bytes <= SMALL;
        if thread == Thread::IsBusy || !sent.last().is_some_and(small) {
            return (sent, None);
        }
        let Some(leave) = self.guests.enter() else { return (sent, None) };
        let own = sent.pop().map(|own| (own, leave));
        (sent, own)
    }

    pub(super) fn visit(self: &Arc<Self>, own: Option<Visit<'_>>) {
        let Some((own, _leave)) = own else { return };
        self.wake_clock();
        attempt::send_by_guest(self, own);
    }
}
