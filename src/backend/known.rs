//! What tells an object from another that is at its path, or has its inode number by now.

use super::{Attr, Timestamp};

/// An object on a replica, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its inode number.
    pub ino: u64,
    /// When it was made, where replicas say it.
    pub born: Option<Timestamp>,
}

impl Known {
    /// Whether `attr` may be its attributes.
    pub fn is(&self, attr: &Attr) -> bool {
        attr.id.ino == self.ino && !is_other(self.born, attr.born)
    }
}

/// Whether these are birth times of two objects.
pub fn is_other(one: Option<Timestamp>, other: Option<Timestamp>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one != other)
}
