//! Looking at an object by its path: links, extended attributes, sizes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::renames::RetriedCall;
use super::{Errno, Fs, FsResult, Ino, ROOT};
use crate::backend::{Backend, ObjectRef, RequestContext, StatFs};
use crate::replicas::metadata_client::RunAs;

impl Fs {
    /// A symbolic link's target, verbatim.
    pub async fn readlink(
        self: &Arc<Self>,
        caller: RequestContext,
        ino: Ino,
    ) -> FsResult<OsString> {
        let read = |backend: &dyn Backend, link: ObjectRef| backend.read_link(&link);
        self.call_on_inode(RunAs::DaemonThenCaller(caller), ino, read).await
    }

    /// One extended attribute.
    pub async fn getxattr(
        self: &Arc<Self>,
        caller: RequestContext,
        ino: Ino,
        name: &OsStr,
    ) -> FsResult<Vec<u8>> {
        let attribute = name.to_owned();
        let get =
            move |backend: &dyn Backend, object: ObjectRef| backend.get_xattr(&object, &attribute);
        let answer = self.call_on_inode(RunAs::DaemonThenCaller(caller), ino, get).await;
        // The kernel reads access control lists for its permission checks, and only ENODATA
        // means "none" to it. NFSv4, which has no such lists, answers EOPNOTSUPP.
        let is_list = name.as_bytes().starts_with(b"system.posix_acl_");
        match answer {
            Err(errno) if is_list && errno == Errno::OPNOTSUPP => Err(Errno::NODATA),
            answer => answer,
        }
    }

    /// Names of all extended attributes, each ended by a NUL byte.
    pub async fn listxattr(
        self: &Arc<Self>,
        caller: RequestContext,
        ino: Ino,
    ) -> FsResult<Vec<u8>> {
        let list = |backend: &dyn Backend, object: ObjectRef| backend.list_xattr(&object);
        let names = self.call_on_inode(RunAs::DaemonThenCaller(caller), ino, list).await?;
        // The daemon sees names of `trusted`; the kernel shows them to root only.
        Ok(if caller.uid == 0 { names } else { without_trusted(&names) })
    }

    /// Size and use of the volume: one replica's, never their sum.
    pub async fn statfs(self: &Arc<Self>) -> FsResult<StatFs> {
        let stat = |backend: &dyn Backend, _| backend.stat_fs();
        self.call_on_inode(RunAs::DAEMON, ROOT, stat).await
    }

    /// Asks a replica about an inode, preferably one that has it open.
    pub(super) async fn call_on_inode<T: Send + 'static>(
        self: &Arc<Self>,
        run_as: RunAs,
        ino: Ino,
        op: impl Fn(&dyn Backend, ObjectRef) -> crate::backend::Result<T> + Send + Sync + 'static,
    ) -> FsResult<T> {
        let op = Arc::new(op);
        let ask = || async {
            let inode = self.inode_ref(ino)?;
            let mut target = inode.call_target();
            let usable = self.replicas.availability().usable;
            if let Some(first) = inode.replica_with_open(usable)
                && !target.has_sole_replica()
            {
                target = target.preferring(first);
            }
            let op = Arc::clone(&op);
            let op = move |replica, backend: &dyn Backend| op(backend, inode.target_on(replica));
            let (_, value) = self.client.call(target, run_as.clone(), op).await?;
            Ok(value)
        };
        self.with_rename_retry(&[ino], RetriedCall::Lookup, ask).await
    }
}

/// Removes the names of `trusted` from a list of names that each end in a NUL byte.
fn without_trusted(names: &[u8]) -> Vec<u8> {
    let all = names.split_inclusive(|byte| *byte == 0);
    all.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_trusted_are_left_out() {
        let names = b"user.a\0trusted.b\0system.posix_acl_access\0trusted.\0";
        assert_eq!(without_trusted(names), b"user.a\0system.posix_acl_access\0");
        assert_eq!(without_trusted(b""), b"");
    }
}
