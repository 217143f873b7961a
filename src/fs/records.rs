//! What one daemon leaves to the next that serves the same mount, as plain records.
//!
//! The tables make records and are made from them; a record knows no table. So a handover
//! ([`FsSnapshot`]) and the journal ([`JournalEntry`]) need to know records alone.
//!
//! *Invariant:* a daemon of another release reads the same bytes. They are encoded by
//! position (postcard), so the order of fields and of variants is the format, and each
//! change of it counts [`SNAPSHOT_FORMAT`] and the journal's magic on. A test pins it.

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

/// The form of [`FsSnapshot`]. A daemon that knows another one is not followed.
pub const SNAPSHOT_FORMAT: u32 = 5;

/// Everything that a daemon leaves, but what it has open.
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
    /// Whether the daemon was killed: nothing was sent along.
    pub(super) is_daemon_killed: bool,
    /// The requests that the daemon may not have answered; a journal has them apart.
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
    /// A file or directory was opened, by this request.
    Open(u64, Box<HandleRecord>),
    /// A directory was listed, through this handle.
    Listed(u64, ListingDigest),
    /// This handle was closed.
    Close(u64),
    /// Something is about to be changed, or was.
    Changed(ChangeMark),
    /// The requests that may not have been answered.
    Unanswered(UnansweredRecord),
    /// The request came again, and what its first try had entered was taken back.
    RolledBack(u64),
    /// The head has changed.
    Head(Vec<u8>),
    /// An older change may still reach the file, or it cannot any more.
    Unsettled(u64, bool),
}

impl FsSnapshot {
    /// The daemon was killed: nothing of what it had open is left.
    pub(super) fn mark_daemon_killed(&mut self) {
        self.is_daemon_killed = true;
        self.files.clear();
        self.lock_owners.clear();
        self.handles.iter_mut().for_each(HandleRecord::mark_daemon_killed);
    }

    /// How many handles there are.
    pub fn handle_count(&self) -> usize {
        self.handles.len()
    }
}
