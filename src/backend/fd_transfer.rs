//! Files that one process has open and another one goes on with.
//!
//! A descriptor can be sent to another process; what is open then stays open, with
//! its locks, whether or not it still has a name. These are a file's descriptors,
//! without anything that asks the replica.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::file_closer::drop_on_dedicated_thread;

/// A file's descriptors, on their way to another process.
#[derive(Clone, Copy, Debug, Default)]
pub struct BorrowedFds<'a> {
    /// Open past the page cache.
    pub direct: Option<BorrowedFd<'a>>,
    /// Open through it.
    pub cached: Option<BorrowedFd<'a>>,
}

/// The same where they have arrived. A dedicated thread closes those that no file
/// takes, as their replica may hang.
#[derive(Debug, Default)]
pub struct OwnedFds {
    /// Open past the page cache.
    pub direct: Option<OwnedFd>,
    /// Open through it.
    pub cached: Option<OwnedFd>,
}

impl BorrowedFds<'_> {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.direct.is_none() && self.cached.is_none()
    }
}

impl OwnedFds {
    /// Whether there is nothing open.
    pub fn is_empty(&self) -> bool {
        self.direct.is_none() && self.cached.is_none()
    }
}

impl Drop for OwnedFds {
    fn drop(&mut self) {
        self.direct.take().into_iter().chain(self.cached.take()).for_each(drop_on_dedicated_thread);
    }
}
