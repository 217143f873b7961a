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

    /// The directories above it.
    pub(super) fn above(&self) -> impl Iterator<Item = Self> {
        self.above.iter().filter(|own| **own != 0).map(|own| Self { own: *own, ..Self::default() })
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
        assert_eq!(about("a/b/c").above().count(), 2);
    }
}
