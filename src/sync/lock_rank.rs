//! The order in which a thread takes locks.

/// A lock that a thread may hold together with others, in the order in which a thread takes them.
/// Locks that no thread holds while it takes another one have no rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockRank {
    /// `fs`: the inodes that the kernel knows.
    Inodes,
    /// `fs`: held while a handle is entered or removed and the journal records it.
    OpenClose,
    /// `fs`: handles by their numbers.
    Handles,
    /// `fs`: open files by their inodes.
    OpenInodes,
    /// `fs`: the write gates of files.
    WriteGates,
    /// `fs`: the version and the writers of one open file.
    OpenInode,
    /// `fs`: the parts of appends to one file.
    Appends,
    /// `fs`: the directories for which fanfs keeps a window of a listing.
    ListingWindows,
    /// `fs`: the listing of one open directory.
    ListingCache,
    /// `fs`: owners of locks.
    LockOwners,
    /// `fs`: recent changes.
    RecentChanges,
    /// `fs`: files that an older change may still reach.
    UnsettledChanges,
    /// `fs`: entries of requests that the kernel may have no answer to.
    Unanswered,
    /// `fs`: the head of the journal; the daemon makes the next head under it.
    JournalHead,
    /// `fs`: the journal's file, which is written only under this lock.
    JournalFile,
    /// `fs`: the entries that are not in the journal's file yet.
    JournalQueue,
    /// `read`: one thread's small read.
    SmallRead,
    /// `read`: held while a request's parts are collected, and while it ends without an answer.
    PartCollection,
    /// `read`: the segments of one file.
    Segments,
    /// `read`: the scheduler.
    Scheduler,
    /// `replicas`: the health of all replicas.
    Health,
    /// `read`: the state of one fetch.
    Fetch,
}

impl LockRank {
    /// Whether the holder must make no system call: other threads could not answer the kernel
    /// meanwhile, even from memory.
    #[cfg(debug_assertions)]
    pub(crate) fn forbids_io(self) -> bool {
        !matches!(self, Self::JournalHead | Self::JournalFile)
    }
}
