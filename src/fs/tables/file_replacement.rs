//! Files of a `copies` volume that are replaced while they are open.
//!
//! In such a volume an inode is a name: a file has another inode number in each replica. So numbers
//! do not distinguish a file that was rewritten in place from one that was replaced. Handles follow
//! the first to its new version, and stay with the old file in the second case. The replica that
//! shows another version by the name of an open file can tell, if it has that file open itself. The
//! file was rewritten in place if two conditions hold: the descriptor leads to the same inode as
//! the name, and it shows another version than at the open. If the replica does not have the file
//! open, the file counts as replaced. Bytes of two files in one stream of reads are worse than an
//! error.
//!
//! The file that has the name then is another inode to the kernel, with another number, so the two
//! share no pages. The open file continues without a name.

use std::sync::Arc;

use super::Tables;
use crate::backend::Attr;
use crate::fs::entry_name::{EntryName, ReplicaAttr};
use crate::fs::ino::Ino;
use crate::fs::inodes::{Inodes, LinkRemoval};
use crate::read::OpenFile;
use crate::volume::{ReplicaId, VolumeMode};

/// The open file at the time when a replica showed attributes by a name.
#[derive(Clone, Default)]
pub(in crate::fs) struct OpenFileCheck {
    /// The file that was open then.
    open_file: Option<Arc<OpenFile>>,
    /// Whether the attributes are that file's.
    is_same_file: bool,
}

/// The owner of the attributes that a replica shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum AttrOwner {
    /// The open file's, if any is open.
    OpenFile,
    /// Another file's.
    OtherFile,
    /// The check began when another file was open, or none.
    Unknown,
}

impl OpenFileCheck {
    /// The check for attributes that `open` itself showed.
    pub(in crate::fs) fn matching(open: &Arc<OpenFile>) -> Self {
        Self { open_file: Some(Arc::clone(open)), is_same_file: true }
    }
}

impl Tables {
    fn replaceable_open_file(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        match self.policy.mode {
            VolumeMode::Shared => None,
            VolumeMode::Copies => self.handles.find_inode(ino).map(|open| open.current()),
        }
    }

    /// Whether the inode is open at another version than that of `attr`, in `copies` mode.
    pub(in crate::fs) fn is_possibly_replaced(&self, ino: Ino, attr: &Attr) -> bool {
        self.replaceable_open_file(ino).is_some_and(|open| !open.is_version(attr))
    }

    /// The same for the object with this name.
    pub(in crate::fs) fn is_name_possibly_replaced(
        &self,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
    ) -> bool {
        if self.policy.mode == VolumeMode::Shared {
            return false;
        }
        let ino = find_ino(&self.inodes.lock(), at, found);
        ino.is_some_and(|ino| self.is_possibly_replaced(ino, found.attr))
    }

    /// Whether the kernel is dropping pages of the object with this name.
    pub(in crate::fs) fn has_page_drops(&self, at: EntryName<'_>, found: ReplicaAttr<'_>) -> bool {
        self.page_drops.has_any() && {
            let ino = find_ino(&self.inodes.lock(), at, found);
            ino.is_some_and(|ino| self.page_drops.is_held(ino))
        }
    }

    /// Checks whether `attr`, which `replica` shows by the inode's name, belong to the open file.
    /// Blocks; call it on that replica's pool.
    pub(in crate::fs) fn check_open_file(
        &self,
        ino: Ino,
        replica: ReplicaId,
        attr: &Attr,
    ) -> OpenFileCheck {
        let open = self.replaceable_open_file(ino);
        let is_its =
            |open: &Arc<OpenFile>| open.is_version(attr) || open.is_changed_in_place(attr, replica);
        OpenFileCheck { is_same_file: open.as_ref().is_some_and(is_its), open_file: open }
    }

    /// The same for the object with this name.
    pub(in crate::fs) fn check_open_file_by_name(
        &self,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
    ) -> OpenFileCheck {
        if self.policy.mode == VolumeMode::Shared {
            return OpenFileCheck::default();
        }
        let ino = find_ino(&self.inodes.lock(), at, found);
        ino.map_or_else(OpenFileCheck::default, |ino| {
            self.check_open_file(ino, found.replica, found.attr)
        })
    }

    /// The owner of these attributes, by the result of the check.
    pub(in crate::fs) fn attr_owner(
        &self,
        ino: Ino,
        attr: &Attr,
        looked: &OpenFileCheck,
    ) -> AttrOwner {
        let Some(open) = self.replaceable_open_file(ino).filter(|open| !open.is_version(attr))
        else {
            return AttrOwner::OpenFile;
        };
        match &looked.open_file {
            Some(then) if !Arc::ptr_eq(then, &open) => AttrOwner::Unknown,
            Some(_) if looked.is_same_file => AttrOwner::OpenFile,
            Some(_) => AttrOwner::OtherFile,
            None => AttrOwner::Unknown,
        }
    }

    /// Takes the name from an open file that was replaced, before the kernel learns of the object
    /// that has it now. That object was looked up after `asked` changes.
    pub(in crate::fs) fn detach_replaced_file(
        &self,
        inodes: &mut Inodes,
        at: EntryName<'_>,
        found: ReplicaAttr<'_>,
        check: &OpenFileCheck,
        asked: u64,
    ) {
        let Some(ino) = find_ino(inodes, at, found) else { return };
        if self.attr_owner(ino, found.attr, check) != AttrOwner::OpenFile {
            inodes.remove_link(at, Some(ino), LinkRemoval::StillOpen, asked);
        }
    }
}

fn find_ino(inodes: &Inodes, at: EntryName<'_>, found: ReplicaAttr<'_>) -> Option<Ino> {
    inodes.ino_for(at.parent, at.name, found.replica, found.attr)
}
