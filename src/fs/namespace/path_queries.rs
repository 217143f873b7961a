//! Queries of an object by its path: links, extended attributes, sizes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::Namespace;
use crate::backend::{Backend, ObjectRef, RequestContext};
use crate::fs::error::{Errno, FsResult};
use crate::fs::ino::Ino;
use crate::replicas::metadata_client::RunAs;

impl Namespace {
    /// A symbolic link's target, verbatim.
    pub async fn readlink(&self, caller: RequestContext, ino: Ino) -> FsResult<OsString> {
        let read = |backend: &dyn Backend, link: ObjectRef| backend.read_link(&link);
        self.calls.call_on_inode(RunAs::DaemonThenCaller(caller), ino, read).await
    }

    /// One extended attribute.
    pub async fn getxattr(
        &self,
        caller: RequestContext,
        ino: Ino,
        name: &OsStr,
    ) -> FsResult<Vec<u8>> {
        let attribute = name.to_owned();
        let get =
            move |backend: &dyn Backend, object: ObjectRef| backend.get_xattr(&object, &attribute);
        let answer = self.calls.call_on_inode(RunAs::DaemonThenCaller(caller), ino, get).await;
        // The kernel reads access control lists for its permission checks, and only ENODATA
        // means "none" to it. NFSv4, which has no such lists, answers EOPNOTSUPP.
        let is_list = name.as_bytes().starts_with(b"system.posix_acl_");
        match answer {
            Err(errno) if is_list && errno == Errno::OPNOTSUPP => Err(Errno::NODATA),
            answer => answer,
        }
    }

    /// Names of all extended attributes, each ended by a NUL byte.
    pub async fn listxattr(&self, caller: RequestContext, ino: Ino) -> FsResult<Vec<u8>> {
        let list = |backend: &dyn Backend, object: ObjectRef| backend.list_xattr(&object);
        let names = self.calls.call_on_inode(RunAs::DaemonThenCaller(caller), ino, list).await?;
        // The daemon sees names of `trusted`; the kernel shows them to root only.
        Ok(if caller.uid == 0 { names } else { without_trusted(&names) })
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
    fn trusted_attributes_are_not_listed() {
        let names = b"user.a\0trusted.b\0system.posix_acl_access\0trusted.\0";
        assert_eq!(without_trusted(names), b"user.a\0system.posix_acl_access\0");
        assert_eq!(without_trusted(b""), b"");
    }
}
