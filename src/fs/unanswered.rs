//! Entries that requests have made in the tables, and that the kernel may not know.
//!
//! A daemon that is killed between a journal entry and the reply leaves a handle or a lookup. The
//! kernel does not know it and never releases it. The kernel sends such a request again, with the
//! same number. So each entry in the journal has the number of its request, and the next daemon
//! removes the entries of the first try.
//!
//! *Invariant:* no entry that the kernel knows is removed. The kernel sends a request again only if
//! it got no reply, and it uses no number twice.
//!
//! One case remains. If a caller is killed just after the kernel was asked to send again, its
//! request is withdrawn. The entry then stays until the mount ends.

use std::collections::VecDeque;

use super::records::{UnansweredEntry, UnansweredRecord};

/// The last entries, oldest first, by the number of their request.
#[derive(Debug, Default)]
pub(super) struct UnansweredEntries(VecDeque<(u64, UnansweredEntry)>);

/// Entries remembered. The thread that made the entries of a request answers it right after them.
/// So this is enough for 128 threads with 32 entries each, as a listing with attributes has. If an
/// entry is forgotten too early, a handle may stay open; there is no other harm.
const MAX_UNANSWERED: usize = 4096;

impl UnansweredEntries {
    /// Adds an entry of a request, once. 0 is the number of no request of the kernel.
    pub(super) fn insert(&mut self, request: u64, entered: UnansweredEntry) {
        if request == 0 || self.0.back() == Some(&(request, entered)) {
            return;
        }
        if self.0.len() >= MAX_UNANSWERED {
            self.0.pop_front();
        }
        self.0.push_back((request, entered));
    }

    /// Removes and returns the entries of the request.
    pub(super) fn take_entries_of(&mut self, request: u64) -> Vec<UnansweredEntry> {
        let own = |(number, _): &&(u64, UnansweredEntry)| *number == request;
        let taken: Vec<_> = self.0.iter().filter(own).map(|(_, entered)| *entered).collect();
        if !taken.is_empty() {
            self.0.retain(|(number, _)| *number != request);
        }
        taken
    }

    /// The record for the next daemon.
    pub(super) fn snapshot(&self) -> UnansweredRecord {
        UnansweredRecord(self.0.iter().copied().collect())
    }

    /// Restores the entries of the predecessor.
    pub(super) fn restore(UnansweredRecord(entries): UnansweredRecord) -> Self {
        Self(entries.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::ino::Ino;

    #[test]
    fn entries_of_a_request_are_removed_once_oldest_first() {
        let mut unanswered = UnansweredEntries::default();
        unanswered.insert(0, Ino(9).into());
        unanswered.insert(2, Ino(5).into());
        unanswered.insert(4, Ino(6).into());
        unanswered.insert(2, UnansweredEntry::Handle { number: 7, ino: 5 });
        let own = [UnansweredEntry::Lookup(5), UnansweredEntry::Handle { number: 7, ino: 5 }];
        assert_eq!(unanswered.take_entries_of(2), own);
        assert!(
            unanswered.take_entries_of(2).is_empty() && unanswered.take_entries_of(0).is_empty()
        );
        (0..MAX_UNANSWERED as u64).for_each(|i| unanswered.insert(10 + i, Ino(i).into()));
        assert!(unanswered.take_entries_of(4).is_empty() && unanswered.0.len() == MAX_UNANSWERED);
    }
}
