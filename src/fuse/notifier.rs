//! What the kernel is told without having asked.

use std::sync::OnceLock;

use fuser::{INodeNo, Notifier};

/// The way to tell it; there is none before the session has begun.
#[derive(Default)]
pub(super) struct KernelNotifier(OnceLock<Notifier>);

impl KernelNotifier {
    /// The session has begun.
    pub(super) fn set_notifier(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Has the kernel ask for an inode's attributes before it believes in them, or
    /// in pages of it, again.
    pub(super) fn invalidate_attrs(&self, number: INodeNo) {
        // A negative offset leaves the pages to what the attributes say.
        if let Some(notifier) = self.0.get()
            && let Err(error) = notifier.inval_inode(number, -1, 0)
        {
            tracing::debug!(%error, "the kernel did not take a notice");
        }
    }
}
