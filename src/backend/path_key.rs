//! The object that a job is about, as far as one object's trouble goes.
//!
//! Paths are kept as numbers: a job has its own and those of the directories above it,
//! the outermost first. Two paths with the same number wait for each other for nothing,
//! which happens once in 2^64.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Directories above an object that are told apart. Mounts inside a replica are not far
/// below its root.
const MAX_ANCESTORS: usize = 8;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathKey {
    /// 0 where it is about no object.
    hash: u64,
    ancestors: [u64; MAX_ANCESTORS],
}

impl PathKey {
    /// A job about `path`, relative to the replica's root; the root where it is empty.
    pub fn from_path(path: &Path) -> Self {
        let mut about = Self::default();
        let mut hasher = DefaultHasher::new();
        for (depth, part) in path.iter().enumerate() {
            if depth > 0
                && let Some(above) = about.ancestors.get_mut(depth - 1)
            {
                *above = hasher.finish().max(1);
            }
            part.hash(&mut hasher);
        }
        about.hash = hasher.finish().max(1);
        about
    }

    /// Whether it is about the same object as `other`, or about one beneath that.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        other.hash != 0 && (self.hash == other.hash || self.ancestors.contains(&other.hash))
    }

    /// The directory that it is in; `None` of the root, and of objects directly in it.
    pub(super) fn parent(&self) -> Option<Self> {
        let above = self.ancestors.iter().rfind(|own| **own != 0)?;
        Some(Self { hash: *above, ..Self::default() })
    }

    /// Whether both are in the same top-level directory, or both directly in the root.
    pub(super) fn is_near(&self, other: &Self) -> bool {
        let top = |of: &Self| if of.ancestors[0] == 0 { of.hash } else { of.ancestors[0] };
        let root = Self::from_path(Path::new("")).hash;
        let is_in_root = |of: &Self| of.ancestors[0] == 0 && of.hash != root && of.hash != 0;
        (self.hash != 0 && top(self) == top(other)) || (is_in_root(self) && is_in_root(other))
    }

    /// The same object, without the directories above it.
    pub(super) fn without_ancestors(&self) -> Self {
        Self { hash: self.hash, ..Self::default() }
    }

    /// Where to find it in a table of `places`.
    pub(super) fn bucket(&self, places: usize) -> usize {
        (self.hash % places as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beneath_is_within() {
        let about = |path: &str| PathKey::from_path(Path::new(path));
        assert!(about("a/b/c").is_within(&about("a")) && about("a/b/c").is_within(&about("a/b")));
        assert!(about("a/b").is_within(&about("a/b")));
        assert!(!about("a").is_within(&about("a/b")) && !about("ab").is_within(&about("a")));
        assert!(!PathKey::default().is_within(&PathKey::default()), "about nothing");
        assert!(!about("a").is_within(&about("")), "the root's trouble is the replica's");
        assert_eq!(about("a/b/c").parent(), Some(about("a/b").without_ancestors()));
        assert_eq!((about("a").parent(), about("").parent()), (None, None));
    }

    #[test]
    fn what_has_a_top_level_directory_in_common_is_near() {
        let about = |path: &str| PathKey::from_path(Path::new(path));
        assert!(about("a/b/c").is_near(&about("a/d")) && about("a/b").is_near(&about("a")));
        assert!(about("a").is_near(&about("b")), "both are directly in the root");
        assert!(!about("a/b").is_near(&about("b")) && !about("a/b").is_near(&about("c/b")));
        assert!(!about("").is_near(&about("a")) && !about("a").is_near(&about("")));
        assert!(!PathKey::default().is_near(&PathKey::default()), "about nothing");
    }
}
