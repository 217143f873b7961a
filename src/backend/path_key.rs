//! The object of a job, in a form that can be compared cheaply.
//!
//! Paths are kept as hashes: a job has the hash of its path and those of the directories above it,
//! the outermost first. Two paths with the same hash may wait for each other needlessly. The chance
//! is 2^-64 for each pair.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// The number of directories above an object that are kept, from the root down. Mounts inside a
/// replica are not far below its root.
const MAX_ANCESTORS: usize = 8;

/// A job's object: the hash of its path, and those of its directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathKey {
    /// 0 for a job without an object.
    hash: u64,
    ancestors: [u64; MAX_ANCESTORS],
}

impl PathKey {
    /// The key of `path`, relative to the replica's root; an empty path is the root.
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

    /// The hash of the path.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether its object is that of `other` or is beneath it.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        other.hash != 0 && (self.hash == other.hash || self.ancestors.contains(&other.hash))
    }

    /// The deepest known directory above it; `None` for the root, and for objects directly in the
    /// root.
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

    /// Its index in a table of `places` entries.
    pub(super) fn bucket(&self, places: usize) -> usize {
        (self.hash % places as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_another_is_within_it() {
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
    fn paths_under_one_top_level_directory_are_near() {
        let about = |path: &str| PathKey::from_path(Path::new(path));
        assert!(about("a/b/c").is_near(&about("a/d")) && about("a/b").is_near(&about("a")));
        assert!(about("a").is_near(&about("b")), "both are directly in the root");
        assert!(!about("a/b").is_near(&about("b")) && !about("a/b").is_near(&about("c/b")));
        assert!(!about("").is_near(&about("a")) && !about("a").is_near(&about("")));
        assert!(!PathKey::default().is_near(&PathKey::default()), "about nothing");
    }
}
