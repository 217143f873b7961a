//! Changes after which the kernel must ask for an inode's attributes again.
//!
//! The answer to most changes has the new attributes, or the kernel knows which of them are no
//! longer valid. The kernel does not know that a write, fallocate(2) or copy_file_range(2) has
//! removed set-id bits. Some versions do not know either that an access control list has
//! changed the mode. So fanfs notifies the kernel before it answers such a change.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use fuser::INodeNo;

use super::notifier::KernelNotifier;
use crate::fs::Ino;

/// The attributes of an inode that a change may have changed.
pub(super) struct AttrInvalidation {
    kernel: Option<Arc<KernelNotifier>>,
    number: INodeNo,
}

impl AttrInvalidation {
    /// For a change that may have changed the mode of an inode.
    pub(super) fn new(kernel: &Arc<KernelNotifier>, ino: Ino) -> Self {
        Self::new_if(true, kernel, ino)
    }

    /// The same for a change that may have done so only if `is_possible`.
    pub(super) fn new_if(is_possible: bool, kernel: &Arc<KernelNotifier>, ino: Ino) -> Self {
        let kernel = is_possible.then(|| Arc::clone(kernel));
        Self { kernel, number: INodeNo(ino.0) }
    }

    /// Makes the kernel drop them, also after an error: the change may have been made in part.
    pub(super) fn send(self) {
        if let Some(kernel) = self.kernel {
            kernel.invalidate_attrs(self.number);
        }
    }
}

/// Whether the attribute is an access control list, which the mode is a part of.
pub(super) fn is_acl(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"system.posix_acl_")
}
