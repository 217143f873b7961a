//! Old names and attributes: the mount of another client shows them until its caches expire.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use fanfs::backend::{Attr, Backend, BackendError, DirEntry, FileKind, ObjectRef, Result};
use rustix::io::Errno;

/// A whole tree, as a replica once showed it.
#[derive(Default)]
pub(crate) struct View {
    attrs: HashMap<PathBuf, Attr>,
    listings: HashMap<PathBuf, Vec<DirEntry>>,
}

impl View {
    /// The current state of `backend`.
    pub(crate) fn of(backend: &dyn Backend) -> Self {
        let mut view = Self::default();
        let mut left = vec![PathBuf::new()];
        while let Some(path) = left.pop() {
            let attr = backend.stat(&path).unwrap();
            if attr.kind == FileKind::Directory {
                let entries = backend.entries(&ObjectRef::unchecked(&path)).unwrap();
                left.extend(entries.iter().map(|entry| path.join(&entry.name)));
                view.listings.insert(path.clone(), entries);
            }
            view.attrs.insert(path, attr);
        }
        view
    }

    pub(crate) fn attr(&self, path: &Path) -> Result<Attr> {
        self.attrs.get(path).copied().ok_or(BackendError::Os(Errno::NOENT))
    }

    pub(crate) fn entries(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.listings.get(path).cloned().ok_or(BackendError::Os(Errno::NOENT))
    }
}
