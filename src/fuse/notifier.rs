//! Notifications to the kernel.

use std::sync::OnceLock;

use fuser::{INodeNo, Notifier};

/// Sends notifications; does nothing before the session has begun.
#[derive(Default)]
pub(super) struct KernelNotifier(OnceLock<Notifier>);

impl KernelNotifier {
    /// Must be called when the session has begun.
    pub(super) fn set_notifier(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Makes the kernel ask for an inode's attributes before it uses them, or pages of the
    /// inode, again.
    pub(super) fn invalidate_attrs(&self, number: INodeNo) {
        // With a negative offset the kernel keeps the pages unless the new attributes differ.
        if let Some(notifier) = self.0.get()
            && let Err(error) = notifier.inval_inode(number, -1, 0)
        {
            tracing::debug!(%error, "the kernel rejected an invalidation");
        }
    }
}
