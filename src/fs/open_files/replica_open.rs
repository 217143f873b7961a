//! What a replica does to open a file, and to read it too.

use std::path::PathBuf;
use std::sync::Arc;

use super::OpenFiles;
use crate::backend::{Attr, Backend, BackendError, BackendFile};
use crate::fs::ino::Ino;
use crate::fs::passthrough::PassthroughFile;
use crate::fs::tables::{OpenFileCheck, ReplicaPath};
use crate::read::FileContent;
use crate::replicas::metadata_client::EarlyAnswer;
use crate::volume::{FileVersion, ReplicaId};

/// A replica's open of a file.
pub(super) struct ReplicaOpen {
    pub(super) replica: ReplicaId,
    pub(super) file: Arc<dyn BackendFile>,
    pub(super) attr: Attr,
    /// Whether it is the file that the kernel reads by itself; `None` if this was not checked.
    pub(super) is_backing_file: Option<bool>,
    /// How its attributes compare with the open file.
    pub(super) file_check: OpenFileCheck,
    /// Its bytes, if the replica has read it too.
    pub(super) content: Option<FileContent>,
    /// Whether the replica was still reading it when the open was answered.
    pub(super) is_read_late: bool,
}

impl ReplicaOpen {
    /// This open, while the file is being read.
    fn with_late_read(&self) -> Self {
        let Self { replica, attr, is_backing_file, .. } = *self;
        let file = Arc::clone(&self.file);
        let file_check = self.file_check.clone();
        Self { replica, file, attr, is_backing_file, file_check, content: None, is_read_late: true }
    }
}

/// An operation that opens a file on a replica.
pub(super) trait OpenOp:
    Fn(ReplicaId, &dyn Backend) -> Result<ReplicaOpen, BackendError> + Send + Sync + 'static
{
}

impl<F> OpenOp for F where
    F: Fn(ReplicaId, &dyn Backend) -> Result<ReplicaOpen, BackendError> + Send + Sync + 'static
{
}

impl OpenFiles {
    /// The operation of a replica to open the inode at the path.
    pub(super) fn open_op(
        &self,
        ino: Ino,
        path: PathBuf,
        backing: Option<Arc<PassthroughFile>>,
    ) -> impl OpenOp {
        let tables = Arc::clone(&self.tables);
        move |replica: ReplicaId, backend: &dyn Backend| {
            let at = ReplicaPath { replica, backend, path: &path };
            let (file, attr) = tables.open_revalidated(ino, at)?;
            let file_check = tables.check_open_file(ino, replica, &attr);
            let backing = backing.as_ref().filter(|backing| backing.replica == replica);
            let is_same = |backing: &Arc<PassthroughFile>| {
                backing.attr().is_ok_and(|lent| lent.id == attr.id)
            };
            let is_backing_file = backing.map(is_same);
            let content = None;
            let is_read_late = false;
            Ok(ReplicaOpen {
                replica,
                file,
                attr,
                is_backing_file,
                file_check,
                content,
                is_read_late,
            })
        }
    }

    /// The operation `open`, which then reads the file if it has that version. If the read is late,
    /// `early` has the open file.
    pub(super) fn read_op(
        &self,
        open: impl OpenOp,
        version: FileVersion,
        early: EarlyAnswer<ReplicaOpen>,
    ) -> impl OpenOp {
        let tables = Arc::clone(&self.tables);
        move |replica: ReplicaId, backend: &dyn Backend| {
            let mut opened = open(replica, backend)?;
            if opened.attr.version() == version && tables.can_read_at_open(replica) {
                early.set(replica, opened.with_late_read());
                opened.content = tables.reader.read_at_open(replica, &*opened.file, version);
                early.clear();
            }
            Ok(opened)
        }
    }
}
