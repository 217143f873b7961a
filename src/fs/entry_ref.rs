//! How calls on replicas name an entry of a directory: by the name, and by the directory
//! that the kernel means.
//!
//! The path of that directory may lead to another one by now. A replica that finds another
//! one there fails the call ([`crate::backend::BackendError::WrongObject`]) and changes
//! nothing. The kernel then gets ESTALE, and looks the path up again. In `copies` mode a
//! directory is whatever has its path.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use super::inode_ref::{self, InodeRef};
use super::{Fs, FsResult, Ino};
use crate::backend::{EntryRef, ObjectRef};
use crate::volume::{ReplicaId, VolumeMode};

/// A name in a directory that the kernel knows.
pub(super) struct DirEntryRef {
    dir: DirRef,
    name: OsString,
}

/// A directory in which names are used.
pub(super) struct DirRef {
    object: InodeRef,
    mode: VolumeMode,
}

impl DirRef {
    /// The target of a call on `replica`.
    pub(super) fn target_on(&self, replica: ReplicaId) -> ObjectRef {
        match self.mode {
            VolumeMode::Shared => self.object.target_on(replica),
            VolumeMode::Copies => ObjectRef::unchecked(self.object.path()),
        }
    }
}

impl DirEntryRef {
    /// The name for a call on `replica`.
    pub(super) fn name_on(&self, replica: ReplicaId) -> EntryRef {
        EntryRef::new(self.dir.target_on(replica), self.name.clone())
    }

    /// Its path, as far as is known.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.object.path().join(&self.name)
    }
}

impl Fs {
    /// The directory `ino`, last known at `path`.
    pub(super) fn dir_ref(self: &Arc<Self>, ino: Ino, path: PathBuf) -> DirRef {
        DirRef { object: inode_ref::inode_at(self, ino, path), mode: self.policy.mode }
    }

    /// The entry `name` of the directory `parent`.
    pub(super) fn entry_ref(self: &Arc<Self>, parent: Ino, name: &OsStr) -> FsResult<DirEntryRef> {
        let path = self.path(parent)?;
        Ok(DirEntryRef { dir: self.dir_ref(parent, path), name: name.to_owned() })
    }
}
