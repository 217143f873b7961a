//! How calls on replicas name an inode: by an open file, or by a path that must lead to
//! that inode and no other.

use std::path::PathBuf;
use std::sync::Arc;

use super::Tables;
use crate::backend::ObjectRef;
use crate::fs::error::{Errno, FsResult};
use crate::fs::handles::OpenInode;
use crate::fs::ino::Ino;
use crate::volume::{ReplicaId, ReplicaSet, VolumeMode};

/// An inode, with its last known path.
pub(in crate::fs) struct InodeRef {
    tables: Arc<Tables>,
    ino: Ino,
    path: PathBuf,
    open: Option<Arc<OpenInode>>,
}

impl InodeRef {
    /// The target of a call on `replica`.
    pub(in crate::fs) fn target_on(&self, replica: ReplicaId) -> ObjectRef {
        let tables = Arc::clone(&self.tables);
        let ino = self.ino;
        let is_it = move |attr: &_| {
            let is_same = tables.inodes.lock().is_same(ino, replica, attr);
            if let (false, VolumeMode::Shared, Ok(path)) =
                (is_same, tables.policy.mode, tables.path(ino))
            {
                // The replica's mount may not have asked its server yet.
                tables.record_uncertain_name(replica, &path);
            }
            is_same && !tables.is_possibly_replaced(ino, attr)
        };
        ObjectRef::new(self.path.clone(), is_it).with_open_file(self.open_file_on(replica))
    }

    fn open_file_on(&self, replica: ReplicaId) -> Option<Arc<dyn crate::backend::BackendFile>> {
        let open = self.open.as_ref()?;
        let writes = self.tables.policy.write.is_some_and(|write| write.replica == replica);
        match open.any_writer().filter(|_| writes) {
            Some(writer) => Some(Arc::clone(&writer.file)),
            None => open.current().descriptor_on(replica),
        }
    }

    /// A replica that has it open.
    pub(in crate::fs) fn replica_with_open(&self, among: ReplicaSet) -> Option<ReplicaId> {
        self.open.as_ref()?;
        among.iter().find(|replica| self.open_file_on(*replica).is_some())
    }

    /// The open file of the inode.
    pub(in crate::fs) fn open(&self) -> Option<&Arc<OpenInode>> {
        self.open.as_ref()
    }

    pub(in crate::fs) fn ino(&self) -> Ino {
        self.ino
    }

    pub(in crate::fs) fn path(&self) -> &PathBuf {
        &self.path
    }
}

impl Tables {
    /// The inode that was last known at `path`.
    pub(in crate::fs) fn inode_at(self: &Arc<Self>, ino: Ino, path: PathBuf) -> InodeRef {
        let open = self.handles.find_inode(ino);
        InodeRef { tables: Arc::clone(self), ino, path, open }
    }

    /// An inode that the kernel knows. If it has no name any more, its last path counts.
    pub(in crate::fs) fn inode_ref(self: &Arc<Self>, ino: Ino) -> FsResult<InodeRef> {
        let open = || self.handles.find_inode(ino).map(|open| open.current().path().to_owned());
        let path = self.path(ino).ok().or_else(open).ok_or(Errno::STALE)?;
        Ok(self.inode_at(ino, path))
    }
}
