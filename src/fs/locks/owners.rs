//! Owners of locks, by file and owner number, and by the handles that they used.
//!
//! The close of a handle takes time in proportion to its own owners, however many others there are.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{LockOwner, OwnerDescriptor};
use crate::fs::ino::Ino;

/// An owner, on one file.
pub(super) type OwnerKey = (Ino, LockOwner);

#[derive(Default)]
pub(super) struct OwnerTable {
    owners: HashMap<OwnerKey, OwnerEntry>,
    /// The owners that used each handle.
    by_handle: BTreeSet<(u64, OwnerKey)>,
}

#[derive(Default)]
struct OwnerEntry {
    owner: Arc<OwnerDescriptor>,
    /// Handles that it took locks through.
    handles: BTreeSet<u64>,
}

impl OwnerTable {
    /// The owner of a lock that is taken through `handle`.
    pub(super) fn add_handle(&mut self, key: OwnerKey, handle: u64) -> Arc<OwnerDescriptor> {
        let entry = self.owners.entry(key).or_default();
        if entry.handles.insert(handle) {
            self.by_handle.insert((handle, key));
        }
        Arc::clone(&entry.owner)
    }

    /// Adds an owner that has taken no lock yet.
    pub(super) fn insert(&mut self, key: OwnerKey, owner: OwnerDescriptor) {
        self.owners.insert(key, OwnerEntry { owner: Arc::new(owner), handles: BTreeSet::new() });
    }

    /// Restores an owner that another daemon knew.
    pub(super) fn restore(
        &mut self,
        key: OwnerKey,
        owner: OwnerDescriptor,
        handles: BTreeSet<u64>,
    ) {
        self.by_handle.extend(handles.iter().map(|handle| (*handle, key)));
        self.owners.insert(key, OwnerEntry { owner: Arc::new(owner), handles });
    }

    pub(super) fn contains(&self, key: OwnerKey) -> bool {
        self.owners.contains_key(&key)
    }

    pub(super) fn remove(&mut self, key: OwnerKey) -> Option<Arc<OwnerDescriptor>> {
        let OwnerEntry { owner, handles } = self.owners.remove(&key)?;
        for handle in handles {
            self.by_handle.remove(&(handle, key));
        }
        Some(owner)
    }

    /// A handle was closed. Removes and returns the owners that used no other handle.
    pub(super) fn remove_handle(&mut self, handle: u64) -> Vec<(Ino, Arc<OwnerDescriptor>)> {
        let mut over = Vec::new();
        for key in self.keys_of(handle) {
            self.by_handle.remove(&(handle, key));
            let Some(entry) = self.owners.get_mut(&key) else { continue };
            entry.handles.remove(&handle);
            if entry.handles.is_empty() {
                over.extend(self.remove(key).map(|owner| (key.0, owner)));
            }
        }
        over
    }

    fn keys_of(&self, handle: u64) -> Vec<OwnerKey> {
        let lowest = (Ino(0), LockOwner(0));
        let highest = (Ino(u64::MAX), LockOwner(u64::MAX));
        let own = self.by_handle.range((handle, lowest)..=(handle, highest));
        own.map(|(_, key)| *key).collect()
    }

    pub(super) fn iter(
        &self,
    ) -> impl Iterator<Item = (OwnerKey, &OwnerDescriptor, &BTreeSet<u64>)> {
        self.owners.iter().map(|(key, entry)| (*key, &*entry.owner, &entry.handles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_lookup_visits_only_its_own_owners() {
        let mut owners = OwnerTable::default();
        let key = |owner| (Ino(1), LockOwner(owner));
        for number in 0..10_000 {
            owners.add_handle(key(number), number);
        }
        owners.add_handle(key(3), 4);
        assert_eq!(owners.keys_of(4), [key(3), key(4)]);
        assert_eq!(owners.remove_handle(4).len(), 1, "owner 3 has another handle");
        assert!(
            owners.contains(key(3)) && !owners.contains(key(4)) && owners.keys_of(4).is_empty()
        );
        assert!(owners.remove(key(3)).is_some() && owners.keys_of(3).is_empty());
        assert!(owners.remove_handle(3).is_empty());
        assert_eq!((owners.owners.len(), owners.by_handle.len()), (9_998, 9_998));
    }
}
