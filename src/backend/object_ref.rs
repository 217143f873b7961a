//! How an operation names an existing object.
//!
//! A path alone is not enough: another client may have renamed the object and given its name to a
//! different one. So an [`ObjectRef`] has an open descriptor of the object, or its path with a
//! check of its attributes. The backend resolves the path once, checks the object that it found,
//! and operates on that descriptor.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Attr, BackendError, BackendFile, Result};

/// Whether attributes belong to the object.
type IdentityCheck = Arc<dyn Fn(&Attr) -> bool + Send + Sync>;

/// An object on one replica.
#[derive(Clone)]
pub struct ObjectRef {
    path: PathBuf,
    identity_check: Option<IdentityCheck>,
    open_file: Option<Arc<dyn BackendFile>>,
}

impl ObjectRef {
    /// The object at `path`, if `is_it` accepts its attributes.
    pub fn new(path: PathBuf, is_it: impl Fn(&Attr) -> bool + Send + Sync + 'static) -> Self {
        Self { path, identity_check: Some(Arc::new(is_it)), open_file: None }
    }

    /// Any object that has this path now: for programs that compare names, such as `fanfs verify`.
    pub fn unchecked(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), identity_check: None, open_file: None }
    }

    /// The same object, with the file that this replica has open for it.
    #[must_use]
    pub fn with_open_file(self, open: Option<Arc<dyn BackendFile>>) -> Self {
        Self { open_file: open, ..self }
    }

    /// The object's last known path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The object's open file on the replica, if any.
    pub fn open_file(&self) -> Option<&dyn BackendFile> {
        self.open_file.as_deref()
    }

    /// Whether [`ObjectRef::check_identity`] can reject another object.
    pub fn is_identity_checked(&self) -> bool {
        self.identity_check.is_some()
    }

    /// Checks that `attr`, found at the object's path, belong to the object.
    ///
    /// # Errors
    /// [`BackendError::WrongObject`] if they belong to another object.
    pub fn check_identity(&self, attr: &Attr) -> Result<()> {
        match self.identity_check.as_ref().is_none_or(|is_it| is_it(attr)) {
            true => Ok(()),
            false => Err(BackendError::WrongObject),
        }
    }
}

impl fmt::Debug for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}

impl PartialEq for ObjectRef {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for ObjectRef {}
