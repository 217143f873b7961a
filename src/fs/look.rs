//! Looking at an object by its path: links, extended attributes, sizes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::call::Rights;
use super::{Answer, Errno, Fs, Ino, ROOT};
use crate::backend::{Backend, Requester, StatFs};

impl Fs {
    /// A symbolic link's target, verbatim.
    pub fn read_link(
        &self,
        who: Requester,
        ino: Ino,
        done: impl FnOnce(Answer<OsString>) + Send + 'static,
    ) {
        self.on_path(who, ino, |backend, path| backend.read_link(path), done);
    }

    /// One extended attribute.
    pub fn get_xattr(
        &self,
        who: Requester,
        ino: Ino,
        name: &OsStr,
        done: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        let name = name.to_owned();
        // The kernel asks for lists whenever it checks rights, and takes this errno alone
        // for "there is none": NFSv4 has no such lists.
        let is_list = name.as_bytes().starts_with(b"system.posix_acl_");
        let done = move |answer: Answer<Vec<u8>>| match answer {
            Err(errno) if is_list && errno == Errno::OPNOTSUPP => done(Err(Errno::NODATA)),
            answer => done(answer),
        };
        self.on_path(who, ino, move |backend, path| backend.get_xattr(path, &name), done);
    }

    /// Names of all extended attributes, each ended by a NUL byte.
    pub fn list_xattr(
        &self,
        who: Requester,
        ino: Ino,
        done: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        // The daemon sees those of `trusted`, which the kernel shows to root only.
        let is_root = who.uid == 0;
        let shown = move |answer: Answer<Vec<u8>>| {
            done(answer.map(|names| if is_root { names } else { without_trusted(&names) }));
        };
        self.on_path(who, ino, |backend, path| backend.list_xattr(path), shown);
    }

    /// Size and use of the volume: one replica's, never their sum.
    pub fn stat_fs(&self, done: impl FnOnce(Answer<StatFs>) + Send + 'static) {
        self.on_path(Requester::DAEMON, ROOT, |backend, _| backend.stat_fs(), done);
    }

    fn on_path<T: Send + 'static>(
        &self,
        who: Requester,
        ino: Ino,
        op: impl Fn(&dyn Backend, &Path) -> crate::backend::Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Answer<T>) + Send + 'static,
    ) {
        match self.path(ino) {
            Ok(path) => self.caller.call(
                self.spot_of(ino, &path),
                Rights::Enough(who),
                move |backend| op(backend, &path),
                move |answer| {
                    done(answer.map_err(Errno::from).map(|(_, value)| value));
                },
            ),
            Err(errno) => done(Err(errno)),
        }
    }
}

/// Names of extended attributes, each ended by a NUL byte, but for those of `trusted`.
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
