//! Open files that one process passes to another.
//!
//! A descriptor can be sent to another process. The open file keeps its locks, and it stays open
//! even if it has no name any more. These types hold a file's descriptors and never call the
//! replica.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::file_closer::drop_on_dedicated_thread;

/// A file's descriptors, to be sent to another process.
#[derive(Clone, Copy, Debug, Default)]
pub struct BorrowedFds<'a> {
    /// Open for reads past the page cache.
    pub direct: Option<BorrowedFd<'a>>,
    /// Open for reads through the page cache.
    pub cached: Option<BorrowedFd<'a>>,
}

/// Received descriptors. A dedicated thread closes those that no file takes, as their replica may
/// hang.
#[derive(Debug, Default)]
pub struct OwnedFds {
    /// Open for reads past the page cache.
    pub direct: Option<OwnedFd>,
    /// Open for reads through the page cache.
    pub cached: Option<OwnedFd>,
}

impl BorrowedFds<'_> {
    /// Whether it has no descriptor.
    pub fn is_empty(&self) -> bool {
        self.direct.is_none() && self.cached.is_none()
    }
}

impl OwnedFds {
    /// Whether it has no descriptor.
    pub fn is_empty(&self) -> bool {
        self.direct.is_none() && self.cached.is_none()
    }
}

impl Drop for OwnedFds {
    fn drop(&mut self) {
        self.direct.take().into_iter().chain(self.cached.take()).for_each(drop_on_dedicated_thread);
    }
}
