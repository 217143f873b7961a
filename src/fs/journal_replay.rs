//! Restores the tables of a killed daemon from its journal.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

use super::Ino;
use super::inodes::Inodes;
use super::journal::{self, JournalContents};
use super::records::{FsSnapshot, HandleRecord, JournalEntry, UnansweredEntry, UnansweredRecord};
use super::unanswered::UnansweredEntries;
use crate::volume::VolumeMode;

/// The journal of a killed daemon: its last head, and its tables.
///
/// # Errors If there is no journal, or it is incomplete or has another format.
pub fn recover_journal(path: &Path, mode: VolumeMode) -> io::Result<(Vec<u8>, FsSnapshot)> {
    let JournalContents { head, snapshot, unanswered, steps } = journal::read(path)?;
    let mut replayed = ReplayedTables::new(snapshot, unanswered, mode);
    steps.into_iter().for_each(|step| replayed.replay(step));
    Ok((head, replayed.into_snapshot()))
}

/// The tables while the journal's steps are replayed.
struct ReplayedTables {
    snapshot: FsSnapshot,
    inodes: Inodes,
    unsettled: HashSet<u64>,
    handles: HashMap<u64, HandleRecord>,
    unanswered: UnansweredEntries,
}

impl ReplayedTables {
    fn new(mut snapshot: FsSnapshot, unanswered: UnansweredRecord, mode: VolumeMode) -> Self {
        let handles = snapshot.handles.drain(..).map(|handle| (handle.number, handle));
        Self {
            handles: handles.collect(),
            unsettled: snapshot.unsettled.drain(..).collect(),
            inodes: Inodes::restore(mode, std::mem::take(&mut snapshot.inodes)),
            unanswered: UnansweredEntries::restore(unanswered),
            snapshot,
        }
    }

    fn replay(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Snapshot(_) | JournalEntry::Unanswered(_) | JournalEntry::Head(_) => {}
            JournalEntry::Inode(step) => {
                if let Some((request, ino)) = self.inodes.replay(step) {
                    self.unanswered.insert(request, ino.into());
                }
            }
            JournalEntry::Open(request, handle) => {
                self.unanswered.insert(request, handle.id().into());
                self.handles.insert(handle.number, *handle);
            }
            JournalEntry::RolledBack(request) => {
                for entered in self.unanswered.take_entries_of(request) {
                    match entered {
                        UnansweredEntry::Handle { number, .. } => {
                            drop(self.handles.remove(&number));
                        }
                        UnansweredEntry::Lookup(ino) => self.inodes.forget(Ino(ino), 1),
                    }
                }
            }
            JournalEntry::Listed(handle, digest) => {
                if let Some(handle) = self.handles.get_mut(&handle) {
                    handle.set_listed(digest);
                }
            }
            JournalEntry::Close(handle) => drop(self.handles.remove(&handle)),
            // The age of the change is unknown.
            JournalEntry::Changed(mark) => self.snapshot.changes.marks.push((mark, 0)),
            JournalEntry::Unsettled(ino, true) => drop(self.unsettled.insert(ino)),
            JournalEntry::Unsettled(ino, false) => drop(self.unsettled.remove(&ino)),
        }
    }

    fn into_snapshot(mut self) -> FsSnapshot {
        self.inodes.mark_cache_unknown();
        self.inodes.mark_unlinked_removed();
        self.snapshot.inodes = self.inodes.snapshot();
        self.snapshot.handles = self.handles.into_values().collect();
        self.snapshot.unanswered = self.unanswered.snapshot();
        self.snapshot.unsettled = self.unsettled.into_iter().collect();
        self.snapshot.mark_daemon_killed();
        self.snapshot
    }
}
