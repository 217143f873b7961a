//! Looking at an object by its path: links, extended attributes, sizes.

use std::ffi::{OsStr, OsString};
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
        self.on_path(who, ino, move |backend, path| backend.get_xattr(path, &name), done);
    }

    /// Names of all extended attributes, each ended by a NUL byte.
    pub fn list_xattr(
        &self,
        who: Requester,
        ino: Ino,
        done: impl FnOnce(Answer<Vec<u8>>) + Send + 'static,
    ) {
        self.on_path(who, ino, |backend, path| backend.list_xattr(path), done);
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
