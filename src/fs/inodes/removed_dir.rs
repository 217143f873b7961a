//! The remains of a directory that was removed here. The kernel may still hold it: as an open
//! directory, as a working directory, or by an `O_PATH` descriptor.
//!
//! Such a directory is empty, and nothing can be made in it. So its last attributes, with a link
//! count of 0, answer every request, and no replica needs to have it open.

use super::{Ino, Inodes};
use crate::backend::{Attr, FileKind};

impl Inodes {
    /// The directory `ino` was removed; `attr` were its attributes before.
    pub(in crate::fs) fn set_removed_dir_attr(&mut self, ino: Ino, attr: Attr) {
        if let Some(node) = self.nodes.get_mut(&ino)
            && node.removed_seq.is_some()
            && node.kind == FileKind::Directory
        {
            node.removed_dir_attr = Some(Box::new(Attr { nlink: 0, ..attr }));
        }
    }

    /// The attributes of a directory that was removed here.
    pub(in crate::fs) fn removed_dir_attr(&self, ino: Ino) -> Option<Attr> {
        self.nodes.get(&ino)?.removed_dir_attr.as_deref().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, attr};
    use super::super::{LinkRemoval, ROOT};
    use super::*;
    use crate::volume::{ReplicaId, VolumeMode};

    #[test]
    fn a_removed_directory_has_no_links_until_forgotten() {
        let mut t = Inodes::new(VolumeMode::Shared);
        let found = attr(10, FileKind::Directory, 2);
        let d = t.remember(ROOT, "d".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
        t.set_removed_dir_attr(d, found);
        assert!(t.removed_dir_attr(d).is_none(), "it was not removed");
        t.remove_link(at("d"), Some(d), LinkRemoval::ObjectRemoved, 1);
        t.set_removed_dir_attr(d, found);
        assert_eq!(t.removed_dir_attr(d).map(|attr| attr.nlink), Some(0));
        t.forget(d, 1);
        assert!(t.removed_dir_attr(d).is_none());
    }
}
