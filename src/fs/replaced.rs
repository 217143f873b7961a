//! Files of a `copies` volume that are replaced while they are open.
//!
//! In such a volume an inode is a name: a file has another inode number in each replica, so
//! numbers do not tell a file that was rewritten in place, which its handles follow, from
//! one that was replaced, with which they stay. The replica that shows another version by
//! the name of an open file tells them apart, where it has that file open itself: the
//! descriptor leads to the inode that the name leads to, and shows another version than it
//! was opened at, or it does not. Where the replica does not have it open, the file counts
//! as replaced: bytes of two files in one stream of reads are worse than an error.
//!
//! The file that has the name then is another inode to the kernel, with another number, so
//! that the two share no pages. The open one goes on without a name.

use std::ffi::OsStr;
use std::sync::Arc;

use super::inode::Removed;
use super::{Fs, Ino, Inodes};
use crate::backend::Attr;
use crate::read::OpenFile;
use crate::volume::{Mode, ReplicaId};

/// The file that a replica had open when it showed attributes by a name.
#[derive(Clone, Default)]
pub(super) struct Looked {
    /// The file that was open by then.
    open: Option<Arc<OpenFile>>,
    /// Whether the attributes are that file's.
    is_it: bool,
}

/// Whose attributes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The open file's, if any is open.
    Its,
    /// Another file's.
    Another,
    /// The look began when another file was open, or none.
    Unclear,
}

impl Looked {
    /// What `open` itself showed.
    pub(super) fn at(open: &Arc<OpenFile>) -> Self {
        Self { open: Some(Arc::clone(open)), is_it: true }
    }
}

impl Fs {
    fn may_be_replaced(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        match self.policy.mode {
            Mode::Shared => None,
            Mode::Copies => self.handles.inode(ino).map(|open| open.current()),
        }
    }

    /// Whether `attr` are of another version than the inode is open at, in `copies` mode.
    pub(super) fn is_disputed(&self, ino: Ino, attr: &Attr) -> bool {
        self.may_be_replaced(ino).is_some_and(|open| !open.is_version(attr))
    }

    /// The same for what has this name.
    pub(super) fn is_name_disputed(
        &self,
        (parent, name): (Ino, &OsStr),
        replica: ReplicaId,
        attr: &Attr,
    ) -> bool {
        let number = || self.inodes.lock().number(parent, name, replica, attr);
        self.policy.mode == Mode::Copies && number().is_some_and(|ino| self.is_disputed(ino, attr))
    }

    /// Whether `attr`, which `replica` shows by the inode's name, are those of what is
    /// open. Blocks; call it on that replica's pool.
    pub(super) fn look_at_open(&self, ino: Ino, replica: ReplicaId, attr: &Attr) -> Looked {
        let open = self.may_be_replaced(ino);
        let is_its = |open: &Arc<OpenFile>| open.is_version(attr) || open.has_become(attr, replica);
        Looked { is_it: open.as_ref().is_some_and(is_its), open }
    }

    /// The same for what has this name.
    pub(super) fn look_at_named(
        &self,
        (parent, name): (Ino, &OsStr),
        replica: ReplicaId,
        attr: &Attr,
    ) -> Looked {
        if self.policy.mode == Mode::Shared {
            return Looked::default();
        }
        let ino = self.inodes.lock().number(parent, name, replica, attr);
        ino.map_or_else(Looked::default, |ino| self.look_at_open(ino, replica, attr))
    }

    /// Whose attributes these are, as far as that was looked at.
    pub(super) fn whose(&self, ino: Ino, attr: &Attr, looked: &Looked) -> Whose {
        let Some(open) = self.may_be_replaced(ino).filter(|open| !open.is_version(attr)) else {
            return Whose::Its;
        };
        match &looked.open {
            Some(then) if !Arc::ptr_eq(then, &open) => Whose::Unclear,
            Some(_) if looked.is_it => Whose::Its,
            Some(_) => Whose::Another,
            None => Whose::Unclear,
        }
    }

    /// Takes the name from an open file that was replaced, before the kernel is told what
    /// has it now; it was looked at when there had been `asked` changes.
    pub(super) fn part_from_replaced(
        &self,
        inodes: &mut Inodes,
        (parent, name): (Ino, &OsStr),
        (replica, attr): (ReplicaId, &Attr),
        looked: &Looked,
        asked: u64,
    ) {
        let Some(ino) = inodes.number(parent, name, replica, attr) else { return };
        if self.whose(ino, attr, looked) != Whose::Its {
            inodes.removed((parent, name), Some(ino), Removed::Name, asked);
        }
    }
}
