//! Distinguishes an object from another one that now has its path or its inode number.

use serde::{Deserialize, Serialize};

use super::{Attr, Timestamp};

/// The known identity of an object on a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeIdentity {
    /// Its inode number.
    pub ino: u64,
    /// Distinguishes it from other objects with that number.
    pub generation: Generation,
}

impl InodeIdentity {
    /// Whether `attr` may be its attributes.
    pub fn is_match(&self, attr: &Attr) -> bool {
        attr.id.ino == self.ino && !self.generation.is_distinct_from(&attr.generation)
    }
}

/// Distinguishes an object from earlier ones with its inode number: file systems reuse the numbers
/// of removed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its birth time, if the replica reports one.
    pub born: Option<Timestamp>,
    /// Its file handle, if the replica reports no birth time.
    pub handle: Option<HandleDigest>,
}

/// A digest of an object's file handle, which contains the generation of the inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleDigest {
    /// Identifies the replicas that have equal handles for equal objects. Handles of different
    /// spaces are not compared.
    pub space: u64,
    /// The digest.
    pub digest: u64,
}

impl Generation {
    /// The generation of an object with this birth time.
    pub fn from_birth_time(at: Timestamp) -> Self {
        Self { born: Some(at), handle: None }
    }

    /// Whether the two certainly belong to different objects.
    pub fn is_distinct_from(&self, other: &Self) -> bool {
        self.born.zip(other.born).is_some_and(|(one, other)| one != other)
            || self.handle.zip(other.handle).is_some_and(|(one, other)| one.is_distinct_from(other))
    }

    /// Merges two generations of the same object: the fields of this one, else those of `older`.
    #[must_use]
    pub fn or(self, older: Self) -> Self {
        Self { born: self.born.or(older.born), handle: self.handle.or(older.handle) }
    }
}

impl HandleDigest {
    /// Whether the two certainly belong to different objects.
    pub fn is_distinct_from(self, other: Self) -> bool {
        self.space == other.space && self.digest != other.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(space: u64, digest: u64) -> Generation {
        Generation { born: None, handle: Some(HandleDigest { space, digest }) }
    }

    #[test]
    fn birth_times_and_file_handles_distinguish_objects() {
        let born = Generation::from_birth_time;
        assert!(born((1, 0)).is_distinct_from(&born((2, 0))));
        assert!(!born((1, 0)).is_distinct_from(&born((1, 0))));
        assert!(handle(1, 5).is_distinct_from(&handle(1, 6)));
        assert!(!handle(1, 5).is_distinct_from(&handle(1, 5)));
        assert!(!handle(1, 5).is_distinct_from(&handle(2, 6)), "handles of two servers");
        assert!(!handle(1, 5).is_distinct_from(&born((1, 0))));
        assert!(!Generation::default().is_distinct_from(&born((1, 0))));
        assert_eq!(
            handle(1, 5).or(born((1, 0))),
            Generation { born: Some((1, 0)), ..handle(1, 5) }
        );
    }
}
