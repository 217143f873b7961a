//! Makes an NFS mount validate its cached names if they lead to another object.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::DirBackend;
use crate::backend::{BackendError, ObjectRef, Result};

impl DirBackend {
    /// Opens the object at the target's path and checks that it is the target. If it is another
    /// object or there is none, the mount may have outdated names of the parent directories in its
    /// cache. The mount then asks its server for their attributes, and the path is resolved once
    /// more.
    pub(super) fn resolve_target(&self, target: &ObjectRef, flags: OFlags) -> Result<OwnedFd> {
        if !target.is_identity_checked() {
            return self.resolve(target.path(), flags);
        }
        let find = || {
            let found = self.resolve(target.path(), flags)?;
            target.check_identity(&self.device()?.identity_attr(found.as_fd())?)?;
            Ok(found)
        };
        find().or_else(|error| match error {
            BackendError::WrongObject | BackendError::Os(Errno::NOENT | Errno::STALE) => {
                self.revalidate_above(target.path());
                find()
            }
            error => Err(error),
        })
    }

    /// Asks the server for the attributes of all directories above `path`, from the root down.
    fn revalidate_above(&self, path: &Path) {
        let mut above: Vec<_> = path.ancestors().skip(1).collect();
        above.reverse();
        let refresh = |dir: &Path| self.revalidate_opened(self.resolve(dir, OFlags::PATH)?);
        // Stop at the first failure: below a missing directory there is nothing to ask for.
        let _ = above.into_iter().try_for_each(refresh);
    }

    pub(super) fn revalidate_opened(&self, dir: OwnedFd) -> Result<()> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        statx(dir.as_fd(), c"", flags, StatxFlags::BASIC_STATS)?;
        Ok(())
    }
}
