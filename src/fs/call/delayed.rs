//! Changes that wait before they are asked for, or told of.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Caller;

/// Counts as a change that is under way until it is dropped: a daemon that hands over
/// waits for it.
pub(in crate::fs) struct DelayedChange(Arc<Caller>);

impl Caller {
    /// A change is about to wait.
    pub(in crate::fs) fn delayed_change(self: &Arc<Self>) -> DelayedChange {
        self.changing.fetch_add(1, Ordering::AcqRel);
        DelayedChange(Arc::clone(self))
    }
}

impl Drop for DelayedChange {
    fn drop(&mut self) {
        self.0.changing.fetch_sub(1, Ordering::AcqRel);
    }
}
