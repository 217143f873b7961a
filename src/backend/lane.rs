//! The two kinds of work of a replica's pool.

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Every call except positioned reads: lookups, attributes, listings, opens, changes.
    Metadata,
    /// Positioned reads of file data.
    Read,
}
