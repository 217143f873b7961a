//! How calls on replicas name an entry of a directory: by the name, and by the directory that the
//! kernel means.
//!
//! The path of that directory may lead to another one by now. A replica that finds another
//! directory there fails the call ([`crate::backend::BackendError::WrongObject`]) and changes
//! nothing. The kernel then gets ESTALE, and looks the path up again. In `copies` mode the path
//! alone identifies a directory.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use super::Tables;
use super::inode_ref::InodeRef;
use crate::backend::{EntryRef, ObjectRef};
use crate::fs::error::FsResult;
use crate::fs::ino::Ino;
use crate::volume::{ReplicaId, VolumeMode};

/// A name in a directory that the kernel knows.
pub(in crate::fs) struct DirEntryRef {
    dir: DirRef,
    name: OsString,
}

/// A directory in which names are used.
pub(in crate::fs) struct DirRef {
    object: InodeRef,
    mode: VolumeMode,
}

impl DirRef {
    /// The target of a call on `replica`.
    pub(in crate::fs) fn target_on(&self, replica: ReplicaId) -> ObjectRef {
        match self.mode {
            VolumeMode::Shared => self.object.target_on(replica),
            VolumeMode::Copies => ObjectRef::unchecked(self.object.path()),
        }
    }
}

impl DirEntryRef {
    /// The name for a call on `replica`.
    pub(in crate::fs) fn name_on(&self, replica: ReplicaId) -> EntryRef {
        EntryRef::new(self.dir.target_on(replica), self.name.clone())
    }

    /// Its last known path.
    pub(in crate::fs) fn path(&self) -> PathBuf {
        let dir = self.dir.object.path();
        let mut path = PathBuf::with_capacity(dir.as_os_str().len() + 1 + self.name.len());
        path.push(dir);
        path.push(&self.name);
        path
    }
}

impl Tables {
    /// The directory `ino`, last known at `path`.
    pub(in crate::fs) fn dir_ref(self: &Arc<Self>, ino: Ino, path: PathBuf) -> DirRef {
        DirRef { object: self.inode_at(ino, path), mode: self.policy.mode }
    }

    /// The entry `name` of the directory `parent`.
    pub(in crate::fs) fn entry_ref(
        self: &Arc<Self>,
        parent: Ino,
        name: &OsStr,
    ) -> FsResult<DirEntryRef> {
        let path = self.path(parent)?;
        Ok(DirEntryRef { dir: self.dir_ref(parent, path), name: name.to_owned() })
    }
}
