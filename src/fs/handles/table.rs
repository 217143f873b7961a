//! Handles by their numbers, and by the inodes that they are open on.
//!
//! A query about one inode takes time in proportion to that inode's handles, however many other
//! handles are open.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use foldhash::fast::RandomState;

use super::Handle;
use crate::fs::ino::Ino;

#[derive(Default)]
pub(super) struct HandleTable {
    handles: HashMap<u64, Handle, RandomState>,
    /// The numbers of each inode's handles.
    by_inode: BTreeSet<(Ino, u64)>,
    /// The numbers of each inode's handles that may write.
    by_writable_inode: BTreeSet<(Ino, u64)>,
}

const ALL_NUMBERS: RangeInclusive<u64> = 0..=u64::MAX;

impl HandleTable {
    pub(super) fn insert(&mut self, number: u64, handle: Handle) {
        let key = (handle.ino(), number);
        self.by_inode.insert(key);
        if handle.is_writable() {
            self.by_writable_inode.insert(key);
        }
        self.handles.insert(number, handle);
    }

    /// Removes a handle, if it belongs to that inode.
    pub(super) fn remove(&mut self, number: u64, ino: Ino) -> Option<Handle> {
        if !self.by_inode.remove(&(ino, number)) {
            return None;
        }
        self.by_writable_inode.remove(&(ino, number));
        self.handles.remove(&number)
    }

    pub(super) fn get(&self, number: u64) -> Option<&Handle> {
        self.handles.get(&number)
    }

    /// The handles of one inode.
    pub(super) fn of_inode(&self, ino: Ino) -> impl Iterator<Item = &Handle> {
        let own = self.by_inode.range((ino, *ALL_NUMBERS.start())..=(ino, *ALL_NUMBERS.end()));
        own.filter_map(|(_, number)| self.handles.get(number))
    }

    /// The inodes with a handle that may write.
    pub(super) fn writable_inodes(&self) -> impl Iterator<Item = Ino> {
        let mut last = None;
        let inodes = self.by_writable_inode.iter().map(|(ino, _)| *ino);
        inodes.filter(move |ino| last.replace(*ino) != Some(*ino))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Handle)> {
        self.handles.iter().map(|(number, handle)| (*number, handle))
    }

    pub(super) fn len(&self) -> usize {
        self.handles.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::Credentials;
    use crate::fs::handles::DirHandle;

    #[test]
    fn an_inode_lookup_visits_only_its_own_handles() {
        let mut table = HandleTable::default();
        let handle = |ino| {
            let dir = DirHandle { ino, credentials: Credentials::DAEMON, listing: Arc::default() };
            Handle::Directory(Arc::new(dir))
        };
        for number in 0..10_000 {
            table.insert(number, handle(Ino(number)));
        }
        table.insert(10_000, handle(Ino(7)));
        assert_eq!(table.of_inode(Ino(7)).map(Handle::ino).collect::<Vec<_>>(), [Ino(7), Ino(7)]);
        assert!(table.remove(7, Ino(8)).is_none(), "it is not that inode's");
        assert!(table.remove(7, Ino(7)).is_some() && table.get(7).is_none());
        assert_eq!((table.of_inode(Ino(7)).count(), table.len()), (1, 10_000));
        assert_eq!(table.writable_inodes().count(), 0);
    }
}
