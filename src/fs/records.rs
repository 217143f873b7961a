//! The records that one daemon leaves to the next one that serves the same mount.
//!
//! The tables make records and are made from them; a record knows no table. So a handover
//! ([`FsSnapshot`]) and the journal ([`JournalEntry`]) depend only on records.
//!
//! *Invariant:* a daemon of another release reads the same bytes. They are encoded by position
//! (postcard), so the order of fields and of variants is the format. Each change of it increments
//! [`SNAPSHOT_FORMAT`] and the number in the journal's magic. A test pins the bytes.

mod changes;
#[cfg(test)]
mod encoding_tests;
mod handles;
mod inodes;
mod locks;
mod unanswered;

use serde::{Deserialize, Serialize};

pub(super) use changes::{ChangeMark, RecentChangesRecord};
pub(super) use handles::{
    FileRecord, HandleKindRecord, HandleRecord, ListingDigest, ListingRecord, ReplicaFileRecord,
    VersionRecord, WriterRecord,
};
pub(super) use inodes::{InodeEvent, InodeRecord, InodesRecord, KernelCacheRecord, LinkRemoval};
pub(super) use locks::LockOwnerRecord;
pub(super) use unanswered::{UnansweredEntry, UnansweredRecord};

/// The format of [`FsSnapshot`]. A daemon does not take over from one with another format.
pub const SNAPSHOT_FORMAT: u32 = 5;

/// All tables of a daemon, without its open descriptors.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct FsSnapshot {
    pub(super) inodes: InodesRecord,
    pub(super) files: Vec<FileRecord>,
    pub(super) handles: Vec<HandleRecord>,
    pub(super) lock_owners: Vec<LockOwnerRecord>,
    /// The last number that the daemon issued for a handle.
    pub(super) last_handle: u64,
    pub(super) changes: RecentChangesRecord,
    /// The replica that carried out changes.
    pub(super) write_replica: Option<u16>,
    /// The replica that kept locks.
    pub(super) lock_replica: Option<u16>,
    /// Whether the daemon was killed, so it sent no descriptors.
    pub(super) is_daemon_killed: bool,
    /// The entries of requests that the daemon may not have answered; the journal has them in
    /// [`JournalEntry::Unanswered`].
    pub(super) unanswered: UnansweredRecord,
    /// Files that the daemon may still be changing.
    pub(super) unsettled: Vec<u64>,
}

/// One entry of the journal.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum JournalEntry {
    /// All tables.
    Snapshot(Box<FsSnapshot>),
    /// A step of the table of inodes.
    Inode(InodeEvent),
    /// This request opened a file or directory.
    Open(u64, Box<HandleRecord>),
    /// A directory was listed through this handle.
    Listed(u64, ListingDigest),
    /// This handle was closed.
    Close(u64),
    /// Something was changed, or is about to be.
    Changed(ChangeMark),
    /// The entries of requests that may not have been answered.
    Unanswered(UnansweredRecord),
    /// The kernel sent the request again, and the entries of its first try were removed.
    RolledBack(u64),
    /// The new head.
    Head(Vec<u8>),
    /// Whether an older change may still reach the file.
    Unsettled(u64, bool),
}

impl FsSnapshot {
    /// Marks the daemon as killed, and removes all records of descriptors.
    pub(super) fn mark_daemon_killed(&mut self) {
        self.is_daemon_killed = true;
        self.files.clear();
        self.lock_owners.clear();
        self.handles.iter_mut().for_each(HandleRecord::mark_daemon_killed);
    }

    /// The number of open handles.
    pub fn handle_count(&self) -> usize {
        self.handles.len()
    }
}
