//! How an operation names an entry of a directory.
//!
//! The path of a directory is not enough: another client may have renamed the directory and given
//! its name to a different one. So a name comes with the [`ObjectRef`] of its directory. The
//! backend opens the directory, checks its identity, and uses the name relative to that descriptor.
//!
//! *Invariant:* every call that looks up, makes, changes or removes a name takes an [`EntryRef`].
//! So no such call reaches another directory that has the path now.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::ObjectRef;

/// A name in a directory of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRef {
    dir: ObjectRef,
    name: OsString,
}

impl EntryRef {
    /// The entry `name` of `dir`.
    pub fn new(dir: ObjectRef, name: impl Into<OsString>) -> Self {
        Self { dir, name: name.into() }
    }

    /// The entry at `path`, in whichever directory has the parent's path now: for programs that
    /// compare names, such as `fanfs verify`.
    pub fn unchecked(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let dir = path.parent().unwrap_or(Path::new(""));
        Self::new(ObjectRef::unchecked(dir), path.file_name().unwrap_or_default())
    }

    /// The directory.
    pub fn dir(&self) -> &ObjectRef {
        &self.dir
    }

    /// The name in the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The last known path of the entry.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }
}
