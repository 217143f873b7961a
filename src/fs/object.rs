//! How calls on replicas name an inode: by an open file, or by a path that must lead to
//! that inode and no other.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::call::Spot;
use super::handle::OpenInode;
use super::{Answer, Errno, Fs, Ino};
use crate::backend::Target;
use crate::read::OpenFile;
use crate::volume::{Mode, ReplicaId, ReplicaSet};

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
            let is_same = fs.inodes.lock().is_same(ino, replica, attr);
            if let (false, Mode::Shared, Ok(path)) = (is_same, fs.policy.mode, fs.path(ino)) {
                fs.is_shown(replica, &path, Some(ino), attr);
            }
            is_same && !fs.is_disputed(ino, attr)
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

    /// Who else is asked about it, or nobody: others may not know of a change of it.
    pub(super) fn spot(&self) -> Spot {
        let spot = self.fs.spot_of(self.ino, &self.path);
        match &self.open {
            Some(open) if !self.fs.is_changed(self.ino) => spot.otherwise(open.current().held_on()),
            _ => spot,
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
    pub(super) fn spot_of_open(&self, ino: Ino, open: &OpenFile) -> Spot {
        self.spot_of(ino, open.path()).otherwise(open.held_on())
    }

    /// Whether the inode itself was changed through this mount lately, or may be right now.
    pub(super) fn is_changed(&self, ino: Ino) -> bool {
        self.recent.covers_inode(ino, Instant::now()) || self.is_written(ino)
    }

    /// An inode that the kernel knows. If it has no name any more, its last path counts.
    pub(super) fn object(self: &Arc<Self>, ino: Ino) -> Answer<Object> {
        let open = || self.handles.inode(ino).map(|open| open.current().path().to_owned());
        let path = self.path(ino).ok().or_else(open).ok_or(Errno::STALE)?;
        Ok(target(self, ino, path))
    }
}
