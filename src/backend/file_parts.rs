//! Open files that one process passes to another.
//!
//! A descriptor can be sent to another process. The open file keeps its locks, and it stays open
//! even if it has no name any more. A file of an export is a handle, which another process can use
//! as well. These types hold such parts, and never call the replica.

use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::file_closer::drop_on_dedicated_thread;

/// The parts of an open file, to be sent to another process.
#[derive(Clone, Debug, Default)]
pub struct FileParts<'a> {
    /// Open for reads past the page cache.
    pub direct: Option<BorrowedFd<'a>>,
    /// Open for reads through the page cache.
    pub cached: Option<BorrowedFd<'a>>,
    /// For a file of an export, instead of descriptors.
    pub export: Option<ExportFileRecord>,
}

/// Received parts. A dedicated thread closes descriptors that no file takes, as their replica may
/// hang.
#[derive(Debug, Default)]
pub struct OwnedFileParts {
    /// Open for reads past the page cache.
    pub direct: Option<OwnedFd>,
    /// Open for reads through the page cache.
    pub cached: Option<OwnedFd>,
    /// For a file of an export, instead of descriptors.
    pub export: Option<ExportFileRecord>,
}

/// An open file of an NFS server's export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportFileRecord {
    /// The handle of the export's root. Under another root the file's handle means nothing.
    pub(super) root: Vec<u8>,
    /// The handle of the file.
    pub(super) handle: Vec<u8>,
    /// The user that has opened the file.
    pub(super) user: (u32, u32, Vec<u32>),
}

impl FileParts<'_> {
    /// Whether it has no part.
    pub fn is_empty(&self) -> bool {
        self.direct.is_none() && self.cached.is_none() && self.export.is_none()
    }
}

impl OwnedFileParts {
    /// Whether it has no part.
    pub fn is_empty(&self) -> bool {
        self.direct.is_none() && self.cached.is_none() && self.export.is_none()
    }
}

impl Drop for OwnedFileParts {
    fn drop(&mut self) {
        self.direct.take().into_iter().chain(self.cached.take()).for_each(drop_on_dedicated_thread);
    }
}
