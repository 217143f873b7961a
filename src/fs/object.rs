//! How calls on replicas name an inode: by an open file, or by a path that must lead to
//! that inode and no other.

use std::path::PathBuf;
use std::sync::Arc;

use super::handle::OpenInode;
use super::{Answer, Errno, Fs, Ino};
use crate::backend::Target;
use crate::volume::{ReplicaId, ReplicaSet};

/// An inode, with its last known path.
pub(super) struct Object {
    fs: Arc<Fs>,
    ino: Ino,
    path: PathBuf,
    open: Option<Arc<OpenInode>>,
}

/// The inode that was last known at `path`.
pub(super) fn target(fs: &Arc<Fs>, ino: Ino, path: PathBuf) -> Object {
    let open = fs.handles.inode(ino);
    Object { fs: Arc::clone(fs), ino, path, open }
}

impl Object {
    /// The target of a call on `replica`.
    pub(super) fn on(&self, replica: ReplicaId) -> Target {
        let (fs, ino) = (Arc::clone(&self.fs), self.ino);
        let is_it = move |attr: &_| {
            fs.inodes.lock().is_same(ino, replica, attr) && !fs.is_disputed(ino, attr)
        };
        Target::new(self.path.clone(), is_it).open_as(self.open_on(replica))
    }

    fn open_on(&self, replica: ReplicaId) -> Option<Arc<dyn crate::backend::BackendFile>> {
        let open = self.open.as_ref()?;
        let writes = self.fs.policy.write.is_some_and(|write| write.replica == replica);
        match open.any_writer().filter(|_| writes) {
            Some(writer) => Some(Arc::clone(&writer.file)),
            None => open.current().held_by(replica),
        }
    }

    /// A replica that has it open.
    pub(super) fn opener(&self, among: ReplicaSet) -> Option<ReplicaId> {
        self.open.as_ref()?;
        among.iter().find(|replica| self.open_on(*replica).is_some())
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }
}

impl Fs {
    /// An inode that the kernel knows. If it has no name any more, its last path counts.
    pub(super) fn object(self: &Arc<Self>, ino: Ino) -> Answer<Object> {
        let open = || self.handles.inode(ino).map(|open| open.current().path().to_owned());
        let path = self.path(ino).ok().or_else(open).ok_or(Errno::STALE)?;
        Ok(target(self, ino, path))
    }
}
