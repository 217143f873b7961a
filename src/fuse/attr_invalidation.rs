//! Changes after which the kernel asks for an inode's attributes again.
//!
//! The answer to most changes has the new attributes, or the kernel knows which of them it
//! cannot believe any more. It does not know that a write, fallocate(2) or
//! copy_file_range(2) has removed set-id bits, nor, in some versions, that an access control
//! list has changed the mode. So it is told before it has the answer to the change.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use fuser::INodeNo;

use super::adapter::Adapter;
use crate::fs::FsResult;

impl Adapter {
    /// Answers with `reply` a change that may have changed the mode of `number`.
    pub(super) fn invalidating_attrs<T>(
        &self,
        number: INodeNo,
        reply: impl FnOnce(FsResult<T>) + Send + 'static,
    ) -> impl FnOnce(FsResult<T>) + Send + 'static {
        self.invalidating_attrs_if(true, number, reply)
    }

    /// The same for a change that may have done so where it is `such`.
    pub(super) fn invalidating_attrs_if<T>(
        &self,
        such: bool,
        number: INodeNo,
        reply: impl FnOnce(FsResult<T>) + Send + 'static,
    ) -> impl FnOnce(FsResult<T>) + Send + 'static {
        let kernel = such.then(|| Arc::clone(&self.notifier));
        move |answer| {
            // Also after an error: the change may have been made in part.
            if let Some(kernel) = kernel {
                kernel.invalidate_attrs(number);
            }
            reply(answer);
        }
    }
}

/// Whether the attribute is an access control list, which the mode is a part of.
pub(super) fn is_acl(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"system.posix_acl_")
}
