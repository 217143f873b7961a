//! The object that a job is about, as far as one object's trouble goes.
//!
//! Paths are kept as numbers: a job has its own and those of the directories above it,
//! the outermost first. Two paths with the same number wait for each other for nothing,
//! which happens once in 2^64.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Directories above an object that are told apart. Mounts inside a replica are not far
/// below its root.
const DEEPEST: usize = 8;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// 0 where it is about no object.
    own: u64,
    above: [u64; DEEPEST],
}

impl About {
    /// A job about `path`, relative to the replica's root; the root where it is empty.
    pub fn path(path: &Path) -> Self {
        let mut about = Self::default();
        let mut hasher = DefaultHasher::new();
        for (depth, part) in path.iter().enumerate() {
            if depth > 0
                && let Some(above) = about.above.get_mut(depth - 1)
            {
                *above = hasher.finish().max(1);
            }
            part.hash(&mut hasher);
        }
        about.own = hasher.finish().max(1);
        about
    }

    /// Whether it is about the same object as `other`, or about one beneath that.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        other.own != 0 && (self.own == other.own || self.above.contains(&other.own))
    }

    /// The directory that it is in; `None` of the root, and of objects directly in it.
    pub(super) fn parent(&self) -> Option<Self> {
        let above = self.above.iter().rfind(|own| **own != 0)?;
        Some(Self { own: *above, ..Self::default() })
    }

    /// Whether both are in the same top-level directory, or both directly in the root.
    pub(super) fn is_near(&self, other: &Self) -> bool {
        let top = |of: &Self| if of.above[0] == 0 { of.own } else { of.above[0] };
        let root = Self::path(Path::new("")).own;
        let is_in_root = |of: &Self| of.above[0] == 0 && of.own != root && of.own != 0;
        (self.own != 0 && top(self) == top(other)) || (is_in_root(self) && is_in_root(other))
    }

    /// The same object, without the directories above it.
    pub(super) fn alone(&self) -> Self {
        Self { own: self.own, ..Self::default() }
    }

    /// Where to find it in a table of `places`.
    pub(super) fn place(&self, places: usize) -> usize {
        (self.own % places as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beneath_is_within() {
        let about = |path: &str| About::path(Path::new(path));
        assert!(about("a/b/c").is_within(&about("a")) && about("a/b/c").is_within(&about("a/b")));
        assert!(about("a/b").is_within(&about("a/b")));
        assert!(!about("a").is_within(&about("a/b")) && !about("ab").is_within(&about("a")));
        assert!(!About::default().is_within(&About::default()), "about nothing");
        assert!(!about("a").is_within(&about("")), "the root's trouble is the replica's");
        assert_eq!(about("a/b/c").parent(), Some(about("a/b").alone()));
        assert_eq!((about("a").parent(), about("").parent()), (None, None));
    }

    #[test]
    fn what_has_a_top_level_directory_in_common_is_near() {
        let about = |path: &str| About::path(Path::new(path));
        assert!(about("a/b/c").is_near(&about("a/d")) && about("a/b").is_near(&about("a")));
        assert!(about("a").is_near(&about("b")), "both are directly in the root");
        assert!(!about("a/b").is_near(&about("b")) && !about("a/b").is_near(&about("c/b")));
        assert!(!about("").is_near(&about("a")) && !about("a").is_near(&about("")));
        assert!(!About::default().is_near(&About::default()), "about nothing");
    }
}
