//! The two kinds of work of a replica's pool.

/// Which kind of work a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Lookups, attributes, listings, opens.
    Metadata,
    /// Positioned reads of file data.
    Read,
}
