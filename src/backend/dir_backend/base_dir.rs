//! The directory in which a call uses a name.
//!
//! The backend opens it by its path and compares it with the directory that the caller means, using
//! one statx(2) that asks no server. The call on the name then uses that descriptor. The root is
//! already open and needs no comparison.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::root::Root;
use super::{DirBackend, open_beneath};
use crate::backend::{BackendError, EntryRef, ObjectRef, Result};

/// An open directory.
pub(super) enum BaseDir {
    Root(Arc<Root>),
    /// Opened with `O_PATH`.
    Opened(OwnedFd),
}

impl AsFd for BaseDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Root(root) => root.fd.as_fd(),
            Self::Opened(found) => found.as_fd(),
        }
    }
}

impl DirBackend {
    /// Opens a directory for calls on its names.
    pub(super) fn open_base_dir(&self, dir: &ObjectRef) -> Result<BaseDir> {
        if dir.path().as_os_str().is_empty() {
            return Ok(BaseDir::Root(self.root_slot.root()?));
        }
        match self.resolve_target(dir, OFlags::PATH | OFlags::DIRECTORY) {
            // The path of the directory leads nowhere. That says nothing about a name in it.
            Err(BackendError::Os(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
                if dir.is_identity_checked() =>
            {
                Err(BackendError::WrongObject)
            }
            found => found.map(BaseDir::Opened),
        }
    }

    /// The directory that contains `name`, and the bare name.
    pub(super) fn resolve_entry<'n>(&self, name: &'n EntryRef) -> Result<(BaseDir, &'n OsStr)> {
        let plain = name.name();
        if matches!(plain.as_bytes(), b"" | b"." | b"..") || plain.as_bytes().contains(&b'/') {
            return Err(Errno::INVAL.into());
        }
        Ok((self.open_base_dir(name.dir())?, plain))
    }

    /// Opens or creates the entry `name`.
    pub(super) fn open_entry(
        base: &BaseDir,
        name: &OsStr,
        flags: OFlags,
        mode: rustix::fs::Mode,
    ) -> Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open_beneath(base.as_fd(), name.as_bytes(), flags, mode)
    }
}
