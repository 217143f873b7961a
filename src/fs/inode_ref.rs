//! How calls on replicas name an inode: by an open file, or by a path that must lead to
//! that inode and no other.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::handles::OpenInode;
use super::{Errno, Fs, FsResult, Ino};
use crate::backend::ObjectRef;
use crate::read::OpenFile;
use crate::replicas::metadata_client::CallTarget;
use crate::volume::{ReplicaId, ReplicaSet, VolumeMode};

/// An inode, with its last known path.
pub(super) struct InodeRef {
    fs: Arc<Fs>,
    ino: Ino,
    path: PathBuf,
    open: Option<Arc<OpenInode>>,
}

/// The inode that was last known at `path`.
pub(super) fn inode_at(fs: &Arc<Fs>, ino: Ino, path: PathBuf) -> InodeRef {
    let open = fs.handles.find_inode(ino);
    InodeRef { fs: Arc::clone(fs), ino, path, open }
}

impl InodeRef {
    /// The target of a call on `replica`.
    pub(super) fn target_on(&self, replica: ReplicaId) -> ObjectRef {
        let fs = Arc::clone(&self.fs);
        let ino = self.ino;
        let is_it = move |attr: &_| {
            let is_same = fs.inodes.lock().is_same(ino, replica, attr);
            if let (false, VolumeMode::Shared, Ok(path)) = (is_same, fs.policy.mode, fs.path(ino)) {
                // Its mount has perhaps not asked its server yet.
                fs.record_uncertain_name(replica, &path);
            }
            is_same && !fs.is_possibly_replaced(ino, attr)
        };
        ObjectRef::new(self.path.clone(), is_it).with_open_file(self.open_file_on(replica))
    }

    fn open_file_on(&self, replica: ReplicaId) -> Option<Arc<dyn crate::backend::BackendFile>> {
        let open = self.open.as_ref()?;
        let writes = self.fs.policy.write.is_some_and(|write| write.replica == replica);
        match open.any_writer().filter(|_| writes) {
            Some(writer) => Some(Arc::clone(&writer.file)),
            None => open.current().descriptor_on(replica),
        }
    }

    /// A replica that has it open.
    pub(super) fn replica_with_open(&self, among: ReplicaSet) -> Option<ReplicaId> {
        self.open.as_ref()?;
        among.iter().find(|replica| self.open_file_on(*replica).is_some())
    }

    /// Who else is asked about it, or nobody: others may not know of a change of it.
    pub(super) fn call_target(&self) -> CallTarget {
        let target = self.fs.call_target_of_inode(self.ino, &self.path);
        match &self.open {
            Some(open) if !self.fs.is_recently_changed(self.ino) => {
                target.with_fallback_replicas(open.current().replicas_with_descriptor())
            }
            _ => target,
        }
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }
}

impl Fs {
    /// A call about an open file. What was changed lately at its path may be another file
    /// by now, which the write replica has and the open one not: then those answer that
    /// have the open one. The caller has to see to it that they know of changes of it.
    pub(super) fn call_target_of_open(&self, ino: Ino, open: &OpenFile) -> CallTarget {
        self.call_target_of_inode(ino, open.path())
            .with_fallback_replicas(open.replicas_with_descriptor())
    }

    /// Whether the inode itself was changed through this mount lately, or may be right now.
    pub(super) fn is_recently_changed(&self, ino: Ino) -> bool {
        self.recent_changes.has_inode_changed(ino, Instant::now()) || self.is_open_for_write(ino)
    }

    /// An inode that the kernel knows. If it has no name any more, its last path counts.
    pub(super) fn inode_ref(self: &Arc<Self>, ino: Ino) -> FsResult<InodeRef> {
        let open = || self.handles.find_inode(ino).map(|open| open.current().path().to_owned());
        let path = self.path(ino).ok().or_else(open).ok_or(Errno::STALE)?;
        Ok(inode_at(self, ino, path))
    }
}
