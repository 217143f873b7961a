//! A half-open range of a file's bytes.

use std::fmt;

/// The bytes `start..end` of a file. It replaces a separate offset and length, which a caller could
/// swap.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte; never below `start`.
    pub end: u64,
}

impl ByteRange {
    /// The range `start..end`; empty if `end` is not above `start`.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, end: end.max(start) }
    }

    /// `len` bytes from `start`, cut off at the end of the offset space.
    pub fn at(start: u64, len: u64) -> Self {
        Self { start, end: start.saturating_add(len) }
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// The intersection of both ranges; empty if they do not overlap.
    pub fn intersect(&self, other: ByteRange) -> ByteRange {
        ByteRange::new(self.start.max(other.start), self.end.min(other.end))
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
