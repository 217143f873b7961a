//! What tells an object from another that is at its path, or has its inode number by now.

use serde::{Deserialize, Serialize};

use super::{Attr, Timestamp};

/// An object on a replica, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeIdentity {
    /// Its inode number.
    pub ino: u64,
    /// Tells it from other objects with that number.
    pub generation: Generation,
}

impl InodeIdentity {
    /// Whether `attr` may be its attributes.
    pub fn is_match(&self, attr: &Attr) -> bool {
        attr.id.ino == self.ino && !self.generation.is_distinct_from(&attr.generation)
    }
}

/// What tells an object from those that had its inode number before: file systems use the
/// number of a removed object again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// When it was made, where the replica says so.
    pub born: Option<Timestamp>,
    /// Its file handle, where the replica does not say when it was made.
    pub handle: Option<HandleDigest>,
}

/// A digest of an object's file handle, which contains the number's generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleDigest {
    /// The replicas that share this number show equal handles of equal objects. Handles of
    /// different spaces are not compared.
    pub space: u64,
    /// The handle.
    pub digest: u64,
}

impl Generation {
    /// Of an object that was made then.
    pub fn from_birth_time(at: Timestamp) -> Self {
        Self { born: Some(at), handle: None }
    }

    /// Whether the two are certainly of two objects.
    pub fn is_distinct_from(&self, other: &Self) -> bool {
        self.born.zip(other.born).is_some_and(|(one, other)| one != other)
            || self.handle.zip(other.handle).is_some_and(|(one, other)| one.is_distinct_from(other))
    }

    /// Both of one object: this one, and what `older` says where this one is silent.
    #[must_use]
    pub fn or(self, older: Self) -> Self {
        Self { born: self.born.or(older.born), handle: self.handle.or(older.handle) }
    }
}

impl HandleDigest {
    /// Whether the two are certainly of two objects.
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
    fn birth_times_and_handles_tell_objects_apart_where_both_sides_have_them() {
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
