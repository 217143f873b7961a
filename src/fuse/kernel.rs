//! What the kernel is told without having asked.

use std::sync::OnceLock;

use fuser::{INodeNo, Notifier};

/// The way to tell it; there is none before the session has begun.
#[derive(Default)]
pub(super) struct Kernel(OnceLock<Notifier>);

impl Kernel {
    /// The session has begun.
    pub(super) fn is_there(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Has the kernel ask for an inode's attributes before it believes in them, or
    /// in pages of it, again.
    pub(super) fn forget_attributes(&self, number: INodeNo) {
        // A negative offset leaves the pages to what the attributes say.
        if let Some(notifier) = self.0.get()
            && let Err(error) = notifier.inval_inode(number, -1, 0)
        {
            tracing::debug!(%error, "the kernel did not take a notice");
        }
    }
}
