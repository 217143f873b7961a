//! Whether the journal is due for a rewrite. One thread claims each rewrite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

#[repr(u8)]
enum RewriteState {
    NotDue,
    Due,
    /// A [`RewriteClaim`] exists.
    Claimed,
    /// A claim was dropped: its holder panicked, or the journal has ended.
    Failed,
}

/// The state of the next rewrite.
pub(super) struct NextRewrite(AtomicU8);

impl Default for NextRewrite {
    fn default() -> Self {
        Self(AtomicU8::new(RewriteState::NotDue as u8))
    }
}

impl NextRewrite {
    /// Does nothing if a rewrite is claimed.
    pub(super) fn becomes_due(&self) {
        self.change(RewriteState::NotDue, RewriteState::Due);
    }

    /// The claim, for one caller, if a rewrite is due.
    pub(super) fn claim(this: &Arc<Self>) -> Option<RewriteClaim> {
        // Most calls end here, without writing to the cache line that all threads read.
        let is_due = this.0.load(Ordering::Acquire) == RewriteState::Due as u8;
        let is_ours = is_due && this.change(RewriteState::Due, RewriteState::Claimed);
        is_ours.then(|| RewriteClaim(Some(Arc::clone(this))))
    }

    /// Whether a claim was dropped. After that a rewrite can become due again.
    pub(super) fn take_failure(&self) -> bool {
        self.change(RewriteState::Failed, RewriteState::NotDue)
    }

    fn change(&self, from: RewriteState, to: RewriteState) -> bool {
        let changed =
            self.0.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
        changed.is_ok()
    }
}

/// The right to carry out the rewrite that is due. Its holder queues it with the snapshot.
pub(in crate::fs) struct RewriteClaim(Option<Arc<NextRewrite>>);

impl RewriteClaim {
    /// The rewrite was carried out.
    pub(super) fn fulfil(mut self) {
        self.end(RewriteState::NotDue);
    }

    fn end(&mut self, state: RewriteState) {
        if let Some(next) = self.0.take() {
            next.change(RewriteState::Claimed, state);
        }
    }
}

impl Drop for RewriteClaim {
    fn drop(&mut self) {
        self.end(RewriteState::Failed);
    }
}
