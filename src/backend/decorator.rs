//! Methods that decorators forward unchanged.
//!
//! [`Backend`] and [`BackendFile`] have no default methods, so a decorator that leaves one out does
//! not compile. A decorator of a [`Backend`] lists its forwarded methods in `forward_calls!` and
//! writes out the others. A [`BackendFile`] has few methods, and each decorator changes most of
//! them.
//!
//! [`Backend`]: super::Backend
//! [`BackendFile`]: super::BackendFile

use std::borrow::Cow;
use std::path::Path;

use super::{EntryRef, ObjectRef};

/// The object of a forwarded call.
#[derive(Clone, Copy)]
pub(super) enum CallTarget<'a> {
    Path(&'a Path),
    Entry(&'a EntryRef),
}

impl<'a> CallTarget<'a> {
    /// The replica's root.
    pub(super) fn root() -> Self {
        Self::Path(Path::new(""))
    }

    /// Its last known path.
    pub(super) fn path(self) -> Cow<'a, Path> {
        match self {
            Self::Path(path) => Cow::Borrowed(path),
            Self::Entry(entry) => Cow::Owned(entry.path()),
        }
    }
}

impl<'a> From<&'a Path> for CallTarget<'a> {
    fn from(path: &'a Path) -> Self {
        Self::Path(path)
    }
}

impl<'a> From<&'a ObjectRef> for CallTarget<'a> {
    fn from(object: &'a ObjectRef) -> Self {
        Self::Path(object.path())
    }
}

impl<'a> From<&'a EntryRef> for CallTarget<'a> {
    fn from(entry: &'a EntryRef) -> Self {
        Self::Entry(entry)
    }
}

/// Implements the named methods of [`Backend`](super::Backend) as calls of the same method of
/// `self.inner`. Methods that call the replica first call `self.before_call(CallTarget)`, and fail
/// if it fails.
macro_rules! forward_calls {
    ($($method:ident)*) => { $($crate::backend::decorator::forward_call!($method);)* };
}

/// One method of `forward_calls!`.
macro_rules! forward_call {
    (stat) => {
        fn stat(&self, path: &std::path::Path) -> Result<Attr> {
            self.before_call(path.into())?;
            self.inner.stat(path)
        }
    };
    (stat_entry) => {
        fn stat_entry(&self, name: &EntryRef) -> Result<Attr> {
            self.before_call(name.into())?;
            self.inner.stat_entry(name)
        }
    };
    (stat_entries) => {
        fn stat_entries(
            &self,
            dir: &ObjectRef,
            names: &[std::ffi::OsString],
        ) -> Result<Vec<Result<Attr>>> {
            self.before_call(dir.into())?;
            self.inner.stat_entries(dir, names)
        }
    };
    (list) => {
        fn list(&self, dir: &ObjectRef, each: &mut EntryVisitor<'_>) -> Result<()> {
            self.before_call(dir.into())?;
            self.inner.list(dir, each)
        }
    };
    (check_open_dir) => {
        fn check_open_dir(&self, dir: &ObjectRef) -> Result<()> {
            self.before_call(dir.into())?;
            self.inner.check_open_dir(dir)
        }
    };
    (revalidate_dir) => {
        fn revalidate_dir(&self, dir: &ObjectRef) -> Result<()> {
            self.before_call(dir.into())?;
            self.inner.revalidate_dir(dir)
        }
    };
    (read_link) => {
        fn read_link(&self, link: &ObjectRef) -> Result<std::ffi::OsString> {
            self.before_call(link.into())?;
            self.inner.read_link(link)
        }
    };
    (get_xattr) => {
        fn get_xattr(&self, object: &ObjectRef, name: &std::ffi::OsStr) -> Result<Vec<u8>> {
            self.before_call(object.into())?;
            self.inner.get_xattr(object, name)
        }
    };
    (list_xattr) => {
        fn list_xattr(&self, object: &ObjectRef) -> Result<Vec<u8>> {
            self.before_call(object.into())?;
            self.inner.list_xattr(object)
        }
    };
    (stat_fs) => {
        fn stat_fs(&self) -> Result<StatFs> {
            self.before_call(CallTarget::root())?;
            self.inner.stat_fs()
        }
    };
    (check_mount) => {
        fn check_mount(&self) -> Result<bool> {
            self.before_call(CallTarget::root())?;
            self.inner.check_mount()
        }
    };
    (is_in_service) => {
        fn is_in_service(&self) -> bool {
            self.inner.is_in_service()
        }
    };
    (reads_without_threads) => {
        fn reads_without_threads(&self) -> bool {
            self.inner.reads_without_threads()
        }
    };
    (connections) => {
        fn connections(&self) -> Vec<crate::backend::ConnectionCounters> {
            self.inner.connections()
        }
    };
    (handle_unmount) => {
        fn handle_unmount(&self, mount: u64) {
            self.inner.handle_unmount(mount);
        }
    };
    (mount_id) => {
        fn mount_id(&self) -> Option<u64> {
            self.inner.mount_id()
        }
    };
    (flush_closes) => {
        fn flush_closes(&self) {
            self.inner.flush_closes();
        }
    };
}

pub(super) use {forward_call, forward_calls};
