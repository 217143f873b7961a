//! Looking at an object by its path: links, extended attributes, sizes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::call::Rights;
use super::moves::Done;
use super::{Answer, Errno, Fs, Ino, ROOT};
use crate::backend::{Backend, Requester, StatFs, Target};

impl Fs {
    /// A symbolic link's target, verbatim.
    pub fn read_link(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        done: impl FnOnce(Answer<OsString>) + Send + 'static,
    ) {
        let read = |backend: &dyn Backend, link: Target| backend.read_link(&link);
        self.on_object(Rights::Enough(who), ino, read, done);
    }

    /// One extended attribute.
    pub fn get_xattr(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        name: &OsStr,
        done: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        let name = name.to_owned();
        // The kernel reads access control lists for its permission checks, and only ENODATA
        // means "none" to it. NFSv4, which has no such lists, answers EOPNOTSUPP.
        let is_list = name.as_bytes().starts_with(b"system.posix_acl_");
        let done = move |answer: Answer<Vec<u8>>| match answer {
            Err(errno) if is_list && errno == Errno::OPNOTSUPP => done(Err(Errno::NODATA)),
            answer => done(answer),
        };
        let get = move |backend: &dyn Backend, object: Target| backend.get_xattr(&object, &name);
        self.on_object(Rights::Enough(who), ino, get, done);
    }

    /// Names of all extended attributes, each ended by a NUL byte.
    pub fn list_xattr(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        done: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        // The daemon sees names of `trusted`; the kernel shows them to root only.
        let is_root = who.uid == 0;
        let shown = move |answer: Answer<Vec<u8>>| {
            done(answer.map(|names| if is_root { names } else { without_trusted(&names) }));
        };
        let list = |backend: &dyn Backend, object: Target| backend.list_xattr(&object);
        self.on_object(Rights::Enough(who), ino, list, shown);
    }

    /// Size and use of the volume: one replica's, never their sum.
    pub fn stat_fs(self: &Arc<Self>, done: impl FnOnce(Answer<StatFs>) + Send + 'static) {
        let look = |backend: &dyn Backend, _| backend.stat_fs();
        self.on_object(Rights::DAEMON, ROOT, look, done);
    }

    /// Asks a replica about an inode, preferably one that has it open.
    pub(super) fn on_object<T: Send + 'static>(
        self: &Arc<Self>,
        rights: Rights,
        ino: Ino,
        op: impl Fn(&dyn Backend, Target) -> crate::backend::Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Answer<T>) + Send + 'static,
    ) {
        let op = Arc::new(op);
        let ask = move |fs: &Arc<Self>, done: Done<T>| {
            let object = match fs.object(ino) {
                Ok(object) => object,
                Err(errno) => return done(Err(errno)),
            };
            let (spot, op) = (object.spot(), Arc::clone(&op));
            let usable = fs.reader.usable().replicas;
            let first = if spot.is_only() { None } else { object.opener(usable) };
            let op = move |replica, backend: &dyn Backend| op(backend, object.on(replica));
            fs.caller.call_first(first, spot, rights.clone(), op, move |answer| {
                done(answer.map_err(Errno::from).map(|(_, value)| value));
            });
        };
        self.by_path((&[ino], false), ask, done);
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
