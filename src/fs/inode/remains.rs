//! The remains of a directory that was removed here, and that the kernel still holds: as an
//! open directory, a working directory, or by an `O_PATH` descriptor.
//!
//! Such a directory is empty, and nothing can be made in it. So its last attributes, without
//! links, are all that there is to know, and no replica needs to have it open.

use super::{Ino, Inodes};
use crate::backend::{Attr, FileKind};

impl Inodes {
    /// The directory `ino` was removed; `attr` were its attributes before.
    pub(in crate::fs) fn remains_of(&mut self, ino: Ino, attr: Attr) {
        if let Some(node) = self.nodes.get_mut(&ino)
            && node.gone.is_some()
            && node.kind == FileKind::Directory
        {
            node.remains = Some(Box::new(Attr { nlink: 0, ..attr }));
        }
    }

    /// The attributes of a directory that was removed here.
    pub(in crate::fs) fn remains(&self, ino: Ino) -> Option<Attr> {
        self.nodes.get(&ino)?.remains.as_deref().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::attr;
    use super::super::{ROOT, Removed};
    use super::*;
    use crate::volume::{Mode, ReplicaId};

    #[test]
    fn a_removed_directory_remains_without_links_until_it_is_forgotten() {
        let mut t = Inodes::new(Mode::Shared);
        let found = attr(10, FileKind::Directory, 2);
        let d = t.remember(ROOT, "d".as_ref(), ReplicaId::new(0), &found, 0).unwrap();
        t.remains_of(d, found);
        assert!(t.remains(d).is_none(), "it was not removed");
        t.removed((ROOT, "d".as_ref()), Some(d), Removed::All, 1);
        t.remains_of(d, found);
        assert_eq!(t.remains(d).map(|attr| attr.nlink), Some(0));
        t.forget(d, 1);
        assert!(t.remains(d).is_none());
    }
}
