//! Replica ids, and the map and set with these ids as index.

use std::fmt;
use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most replicas of one volume. A [`ReplicaSet`] is one machine word, so copying a segment's
/// candidates needs no allocation; the design expects 2 to 64 replicas.
pub const MAX_REPLICAS: usize = 64;

/// A replica's place in the volume's configuration, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(u8);

impl ReplicaId {
    /// The id of the replica at `index` in the configuration.
    ///
    /// # Panics
    /// If `index` is not below [`MAX_REPLICAS`]; the configuration refuses longer lists.
    // Every read calls it from another crate.
    #[inline]
    pub fn new(index: usize) -> Self {
        assert!(index < MAX_REPLICAS, "replica index {index} out of range");
        Self(index as u8)
    }

    /// The replica's place in the configuration, from 0.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica#{}", self.0)
    }
}

/// One `T` for each replica of a volume.
#[derive(Debug, PartialEq, Eq)]
pub struct ReplicaMap<T>(Vec<T>);

impl<T> Default for ReplicaMap<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone> Clone for ReplicaMap<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }

    fn clone_from(&mut self, source: &Self) {
        self.0.clone_from(&source.0);
    }
}

impl<T> ReplicaMap<T> {
    /// A map of `n` replicas; `make` makes each value.
    pub fn from_fn(n: usize, mut make: impl FnMut(ReplicaId) -> T) -> Self {
        Self((0..n).map(|i| make(ReplicaId::new(i))).collect())
    }

    /// Number of replicas.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the map has no replica.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All replicas, in configuration order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (ReplicaId, &T)> {
        self.0.iter().enumerate().map(|(i, value)| (ReplicaId::new(i), value))
    }

    /// All replicas, in configuration order.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (ReplicaId, &mut T)> {
        self.0.iter_mut().enumerate().map(|(i, value)| (ReplicaId::new(i), value))
    }

    /// All ids, in configuration order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ReplicaId> + use<T> {
        (0..self.0.len()).map(ReplicaId::new)
    }

    /// The set of all replicas.
    pub fn all(&self) -> ReplicaSet {
        ReplicaSet::first(self.0.len())
    }

    /// Replaces the content with values for the replicas of `other`, and reuses the memory.
    pub fn refill<U>(&mut self, other: &ReplicaMap<U>, mut f: impl FnMut(&U) -> T) {
        self.0.clear();
        self.0.extend(other.0.iter().map(&mut f));
    }

    /// A map of the same replicas with other values.
    pub fn map<U>(&self, mut f: impl FnMut(ReplicaId, &T) -> U) -> ReplicaMap<U> {
        ReplicaMap(self.iter().map(|(id, value)| f(id, value)).collect())
    }
}

impl<T> FromIterator<T> for ReplicaMap<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T> Index<ReplicaId> for ReplicaMap<T> {
    type Output = T;
    fn index(&self, id: ReplicaId) -> &T {
        &self.0[id.index()]
    }
}

impl<T> IndexMut<ReplicaId> for ReplicaMap<T> {
    fn index_mut(&mut self, id: ReplicaId) -> &mut T {
        &mut self.0[id.index()]
    }
}

/// A set of replicas of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct ReplicaSet(u64);

impl ReplicaSet {
    /// Every possible replica.
    pub const ALL: Self = Self(u64::MAX);

    /// No replica.
    pub const EMPTY: Self = Self(0);

    /// The first `n` replicas of the configuration.
    pub fn first(n: usize) -> Self {
        debug_assert!(n <= MAX_REPLICAS);
        if n >= 64 { Self(u64::MAX) } else { Self((1 << n) - 1) }
    }

    /// Whether `id` is in the set.
    pub fn contains(self, id: ReplicaId) -> bool {
        self.0 & (1 << id.0) != 0
    }

    /// The set with `id` added.
    #[must_use]
    pub fn with(self, id: ReplicaId) -> Self {
        Self(self.0 | 1 << id.0)
    }

    /// The set without `other`'s members.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The union of both sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set, or `other` if this one is empty.
    #[must_use]
    pub fn non_empty_or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }

    /// Number of members.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members, in configuration order.
    pub fn iter(self) -> impl Iterator<Item = ReplicaId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let id = (left != 0).then(|| ReplicaId(left.trailing_zeros() as u8))?;
            left &= left - 1;
            Some(id)
        })
    }
}

impl fmt::Debug for ReplicaSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(ReplicaId::index)).finish()
    }
}

/// A [`ReplicaSet`] that threads change without a lock. It does not order earlier writes: it is
/// only a hint, and the state that it describes has its own lock.
#[derive(Debug, Default)]
pub struct AtomicReplicaSet(AtomicU64);

impl AtomicReplicaSet {
    /// The current members.
    pub fn get(&self) -> ReplicaSet {
        ReplicaSet(self.0.load(Ordering::Relaxed))
    }

    /// Adds or removes a replica.
    pub fn set_member(&self, id: ReplicaId, member: bool) {
        let bit = 1 << id.index();
        if member {
            self.0.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_of_all_holds_every_replica_up_to_the_limit() {
        for n in [0, 1, 3, 63, 64] {
            let set = ReplicaSet::first(n);
            assert_eq!(set.len(), n);
            assert_eq!(set.iter().count(), n);
        }
    }

    #[test]
    fn replica_set_operations_are_correct() {
        let a = ReplicaSet::first(3);
        let one = ReplicaSet::EMPTY.with(ReplicaId::new(1));
        assert_eq!(a.minus(one).iter().map(ReplicaId::index).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(a.and(one), one);
        assert!(one.minus(a).is_empty());
    }
}
