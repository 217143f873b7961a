//! How an operation names an existing object.
//!
//! A path alone is not enough: another client may have renamed the object and given its
//! name to a different one. So a target is an open descriptor of the object, or its path
//! with a check of its attributes. The backend resolves the path once, checks the object
//! that it found, and operates on that descriptor.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Attr, BackendError, BackendFile, Result};

/// Whether these attributes belong to the object.
type IsIt = Arc<dyn Fn(&Attr) -> bool + Send + Sync>;

/// An object on one replica.
#[derive(Clone)]
pub struct Target {
    path: PathBuf,
    is_it: Option<IsIt>,
    open: Option<Arc<dyn BackendFile>>,
}

impl Target {
    /// The object at `path`, if `is_it` accepts its attributes.
    pub fn new(path: PathBuf, is_it: impl Fn(&Attr) -> bool + Send + Sync + 'static) -> Self {
        Self { path, is_it: Some(Arc::new(is_it)), open: None }
    }

    /// Any object that has this name now: for programs that compare names, such as
    /// `fanfs verify`.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_it: None, open: None }
    }

    /// The same object, which this replica has open as `open`.
    #[must_use]
    pub fn open_as(self, open: Option<Arc<dyn BackendFile>>) -> Self {
        Self { open, ..self }
    }

    /// The object's last known path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file by which the replica has it open, if any.
    pub fn open(&self) -> Option<&dyn BackendFile> {
        self.open.as_deref()
    }

    /// Whether [`Target::check`] can reject another object.
    pub fn is_told_apart(&self) -> bool {
        self.is_it.is_some()
    }

    /// Checks that `attr`, found at its path, belong to it.
    ///
    /// # Errors
    /// [`BackendError::Another`] where they belong to another object.
    pub fn check(&self, attr: &Attr) -> Result<()> {
        match self.is_it.as_ref().is_none_or(|is_it| is_it(attr)) {
            true => Ok(()),
            false => Err(BackendError::Another),
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
