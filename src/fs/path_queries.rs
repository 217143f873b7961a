//! Looking at an object by its path: links, extended attributes, sizes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::metadata_client::RunAs;
use super::renames::ReplyFn;
use super::{Errno, Fs, FsResult, Ino, ROOT};
use crate::backend::{Backend, ObjectRef, RequestContext, StatFs};

impl Fs {
    /// A symbolic link's target, verbatim.
    pub fn readlink(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        done: impl FnOnce(FsResult<OsString>) + Send + 'static,
    ) {
        let read = |backend: &dyn Backend, link: ObjectRef| backend.read_link(&link);
        self.call_on_inode(RunAs::DaemonThenCaller(who), ino, read, done);
    }

    /// One extended attribute.
    pub fn getxattr(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        name: &OsStr,
        done: impl FnOnce(FsResult<Vec<u8>>) + Send + 'static,
    ) {
        let name = name.to_owned();
        // The kernel reads access control lists for its permission checks, and only ENODATA
        // means "none" to it. NFSv4, which has no such lists, answers EOPNOTSUPP.
        let is_list = name.as_bytes().starts_with(b"system.posix_acl_");
        let done = move |answer: FsResult<Vec<u8>>| match answer {
            Err(errno) if is_list && errno == Errno::OPNOTSUPP => done(Err(Errno::NODATA)),
            answer => done(answer),
        };
        let get = move |backend: &dyn Backend, object: ObjectRef| backend.get_xattr(&object, &name);
        self.call_on_inode(RunAs::DaemonThenCaller(who), ino, get, done);
    }

    /// Names of all extended attributes, each ended by a NUL byte.
    pub fn listxattr(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        done: impl FnOnce(FsResult<Vec<u8>>) + Send + 'static,
    ) {
        // The daemon sees names of `trusted`; the kernel shows them to root only.
        let is_root = who.uid == 0;
        let shown = move |answer: FsResult<Vec<u8>>| {
            done(answer.map(|names| if is_root { names } else { without_trusted(&names) }));
        };
        let list = |backend: &dyn Backend, object: ObjectRef| backend.list_xattr(&object);
        self.call_on_inode(RunAs::DaemonThenCaller(who), ino, list, shown);
    }

    /// Size and use of the volume: one replica's, never their sum.
    pub fn statfs(self: &Arc<Self>, done: impl FnOnce(FsResult<StatFs>) + Send + 'static) {
        let look = |backend: &dyn Backend, _| backend.stat_fs();
        self.call_on_inode(RunAs::DAEMON, ROOT, look, done);
    }

    /// Asks a replica about an inode, preferably one that has it open.
    pub(super) fn call_on_inode<T: Send + 'static>(
        self: &Arc<Self>,
        rights: RunAs,
        ino: Ino,
        op: impl Fn(&dyn Backend, ObjectRef) -> crate::backend::Result<T> + Send + Sync + 'static,
        done: impl FnOnce(FsResult<T>) + Send + 'static,
    ) {
        let op = Arc::new(op);
        let ask = move |fs: &Arc<Self>, done: ReplyFn<T>| {
            let object = match fs.inode_ref(ino) {
                Ok(object) => object,
                Err(errno) => return done(Err(errno)),
            };
            let (spot, op) = (object.call_target(), Arc::clone(&op));
            let usable = fs.reader.availability().usable;
            let first =
                if spot.has_sole_replica() { None } else { object.replica_with_open(usable) };
            let op = move |replica, backend: &dyn Backend| op(backend, object.target_on(replica));
            fs.client.call_preferring(first, spot, rights.clone(), op, move |answer| {
                done(answer.map_err(Errno::from).map(|(_, value)| value));
            });
        };
        self.call_with_rename_retry((&[ino], false), ask, done);
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
