//! How calls on replicas name an entry of a directory: by the name, and by the directory
//! that the kernel means.
//!
//! The path of that directory may lead to another one by now. A replica that finds another
//! one there fails the call ([`crate::backend::BackendError::Another`]) and changes
//! nothing. The kernel then gets ESTALE, and looks the path up again. In `copies` mode a
//! directory is whatever has its path.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use super::object::{self, Object};
use super::{Answer, Fs, Ino};
use crate::backend::{Name, Target};
use crate::volume::{Mode, ReplicaId};

/// A name in a directory that the kernel knows.
pub(super) struct Named {
    dir: Dir,
    name: OsString,
}

/// A directory in which names are used.
pub(super) struct Dir {
    object: Object,
    mode: Mode,
}

impl Dir {
    /// The target of a call on `replica`.
    pub(super) fn on(&self, replica: ReplicaId) -> Target {
        match self.mode {
            Mode::Shared => self.object.on(replica),
            Mode::Copies => Target::named(self.object.path()),
        }
    }
}

impl Named {
    /// The name for a call on `replica`.
    pub(super) fn on(&self, replica: ReplicaId) -> Name {
        Name::new(self.dir.on(replica), self.name.clone())
    }

    /// Its path, as far as is known.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.object.path().join(&self.name)
    }
}

impl Fs {
    /// The directory `ino`, last known at `path`.
    pub(super) fn dir_at(self: &Arc<Self>, ino: Ino, path: PathBuf) -> Dir {
        Dir { object: object::target(self, ino, path), mode: self.policy.mode }
    }

    /// The entry `name` of the directory `parent`.
    pub(super) fn name(self: &Arc<Self>, parent: Ino, name: &OsStr) -> Answer<Named> {
        let path = self.path(parent)?;
        Ok(Named { dir: self.dir_at(parent, path), name: name.to_owned() })
    }
}
