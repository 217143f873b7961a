//! Has an NFS mount check its cached names where they lead to another object.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::DirBackend;
use crate::backend::{BackendError, ObjectRef, Result};

impl DirBackend {
    /// Opens the object at the target's path and checks that it is the target. Where it is
    /// not, the mount may have outdated names of the directories above in its cache, so it
    /// asks its server for these and the path is resolved once more.
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

    /// Asks the server for the attributes of all directories on the way to `path`.
    fn revalidate_above(&self, path: &Path) {
        let mut above: Vec<_> = path.ancestors().skip(1).collect();
        above.reverse();
        let refresh = |dir: &Path| self.revalidate_opened(self.resolve(dir, OFlags::PATH)?);
        // Below a directory that is missing there is nothing to ask for.
        let _ = above.into_iter().try_for_each(refresh);
    }

    /// Asks the server for the attributes of this directory.
    pub(super) fn revalidate_opened(&self, dir: OwnedFd) -> Result<()> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        statx(dir.as_fd(), c"", flags, StatxFlags::BASIC_STATS)?;
        Ok(())
    }
}
