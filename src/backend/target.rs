//! An object that is there already, as an operation on it names it.
//!
//! A path alone says where the object was: another client may have renamed it, and given
//! its name to another. So an operation goes by a descriptor that is open on the object,
//! or by its path together with what tells the object from others; a backend resolves the
//! path once, asks whether it has found that object, and acts on what it has found.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::{Attr, BackendFile, Result};

/// Whether these attributes are the object's.
type IsIt = Arc<dyn Fn(&Attr) -> bool + Send + Sync>;

/// An object on one replica.
#[derive(Clone)]
pub struct Target {
    path: PathBuf,
    is_it: Option<IsIt>,
    open: Option<Arc<dyn BackendFile>>,
}

impl Target {
    /// The object at `path`, if its attributes are those of the one that is meant.
    pub fn new(path: PathBuf, is_it: impl Fn(&Attr) -> bool + Send + Sync + 'static) -> Self {
        Self { path, is_it: Some(Arc::new(is_it)), open: None }
    }

    /// Whatever has this name now: for programs that look at names, as verify does.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_it: None, open: None }
    }

    /// The same object, which this replica has open as `open`.
    #[must_use]
    pub fn open_as(self, open: Option<Arc<dyn BackendFile>>) -> Self {
        Self { open, ..self }
    }

    /// Where it was last known to be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the replica has it open, if it has.
    pub fn open(&self) -> Option<&dyn BackendFile> {
        self.open.as_deref()
    }

    /// Whether there is anything that tells it from others.
    pub fn is_told_apart(&self) -> bool {
        self.is_it.is_some()
    }

    /// Whether `attr`, of what was found at its path, are its own.
    ///
    /// # Errors
    /// ESTALE where they are another object's.
    pub fn check(&self, attr: &Attr) -> Result<()> {
        match self.is_it.as_ref().is_none_or(|is_it| is_it(attr)) {
            true => Ok(()),
            false => Err(Errno::STALE.into()),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Target {}
