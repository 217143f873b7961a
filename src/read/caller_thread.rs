//! The use that the read path may make of the calling thread.

use super::small_reads::SmallReads;

/// How the read path may use the calling thread, which wants its answer by a `C`.
pub enum CallerThread<'a, C> {
    /// A thread of this session. It may make an inline call on a replica.
    Session(&'a SmallReads<C>),
    /// The thread has other work.
    MustQueue,
}
