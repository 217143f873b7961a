//! A directory's entries, packed into one buffer that is charged to the budget.
//!
//! A listing that fits is kept whole, in the replica's order: the entry with index `i` has the
//! offset `i + 2`. A listing that does not fit is kept as a *window*. Its entries are in the order
//! of a hash of their names, and that hash is the offset. So a window can be dropped at any time.
//! Another listing of the directory, by any replica, has each name at the same offset, and yields
//! the window after that offset.
//!
//! *Invariants:*
//! - An entry that stays in the directory is in every listing once, however often windows were
//!   dropped.
//! - Memory is claimed before it is used. Only the first [`INITIAL_BUFFER_SIZE`] bytes of a listing
//!   that is being collected may exceed the budget, and these are not kept.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::error::Errno;
use super::ino::Ino;
use super::listing_memory::{INITIAL_BUFFER_SIZE, ListingClaim, ListingMemory};
use crate::backend::{DirEntry, FileKind};
use crate::buffer::{Buffer, Reservation, size_class};

/// All entries of a directory, or a window of them; `.` and `..` have the offsets 0 and 1.
pub struct Listing {
    /// The directory.
    pub ino: Ino,
    /// Its parent directory; itself for the root.
    pub parent: Ino,
    pub(super) packed: PackedEntries,
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedEntry<'a> {
    /// Its name.
    pub name: &'a OsStr,
    /// The inode number that the replica shows.
    pub number: u64,
    /// Its kind.
    pub kind: FileKind,
    /// The offset after it, where the next read continues.
    pub next_offset: u64,
}

pub(super) struct PackedEntries {
    records: Buffer,
    /// The start of each record, in the order of the offsets.
    index: Vec<u32>,
    part: ListingPart,
    /// The claim on the share of whole listings or of windows.
    _share: Reservation,
    /// Whether the memory is within the budget.
    is_within_budget: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingPart {
    Whole,
    /// The entries after one offset, up to another one or to the end.
    Window {
        after: u64,
        until: Option<u64>,
    },
}

/// Offsets 0 and 1 are `.` and `..`.
pub(super) const FIRST_ENTRY_OFFSET: u64 = 2;

/// Offsets from here on are hashes of names.
const FIRST_HASHED_OFFSET: u64 = 1 << 62;

/// Before each name: its offset, its inode number, its length and its kind.
const RECORD_HEADER_SIZE: usize = 8 + 8 + 2 + 1;

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

/// The claim for a listing whose records take `bytes`. It includes the index: a record is at least
/// five times as long as its index entry.
pub(super) fn claim_size(bytes: u64) -> u64 {
    bytes + bytes / 4
}

/// The offset of a name in windows. Names with the same offset are listed together or not at all.
/// So users that choose names must not be able to make their hashes collide.
fn hashed_offset(name: &[u8]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(name).as_bytes()[..8]);
    FIRST_HASHED_OFFSET | u64::from_le_bytes(first) & (FIRST_HASHED_OFFSET - 1)
}

fn read_u64(records: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&records[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Bytes of the record at `at`, with its name.
fn record_len(records: &[u8], at: usize) -> usize {
    RECORD_HEADER_SIZE + usize::from(u16::from_le_bytes([records[at + 16], records[at + 17]]))
}

fn record_name(records: &[u8], at: usize) -> &[u8] {
    &records[at + RECORD_HEADER_SIZE..at + record_len(records, at)]
}

impl Listing {
    /// `.` and `..`, if they are at or after `offset`: inode number, next offset, name.
    pub fn dot_entries(&self, offset: u64) -> impl Iterator<Item = (Ino, u64, &'static str)> {
        [(self.ino, 1, "."), (self.parent, 2, "..")]
            .into_iter()
            .skip(offset.min(FIRST_ENTRY_OFFSET) as usize)
    }

    /// The entries from `offset` on that are in this listing or window.
    pub fn entries_from(&self, offset: u64) -> impl Iterator<Item = ListedEntry<'_>> {
        self.packed.entries_from(offset)
    }
}

impl PackedEntries {
    pub(super) fn entries_from(&self, offset: u64) -> impl Iterator<Item = ListedEntry<'_>> {
        let first = match self.part {
            ListingPart::Whole => {
                usize::try_from(offset.saturating_sub(FIRST_ENTRY_OFFSET)).unwrap_or(usize::MAX)
            }
            ListingPart::Window { .. } => {
                self.index.partition_point(|at| read_u64(&self.records, *at as usize) <= offset)
            }
        };
        (first..self.index.len()).map(|i| self.entry(i))
    }

    fn entry(&self, i: usize) -> ListedEntry<'_> {
        let at = self.index[i] as usize;
        let next = match self.part {
            ListingPart::Whole => i as u64 + FIRST_ENTRY_OFFSET + 1,
            ListingPart::Window { .. } => {
                let own = read_u64(&self.records, at);
                let following =
                    self.index.get(i + 1).map(|at| read_u64(&self.records, *at as usize));
                // If names share an offset, the reader continues with the first of them.
                if following == Some(own) { own - 1 } else { own }
            }
        };
        ListedEntry {
            name: OsStr::from_bytes(record_name(&self.records, at)),
            number: read_u64(&self.records, at + 8),
            kind: KINDS[usize::from(self.records[at + 18])],
            next_offset: next,
        }
    }

    /// Whether it has all the entries that come next for a reader at `offset`.
    pub(super) fn covers(&self, offset: u64) -> bool {
        match self.part {
            ListingPart::Whole => offset < FIRST_HASHED_OFFSET,
            ListingPart::Window { .. }
                if (FIRST_ENTRY_OFFSET + 1..FIRST_HASHED_OFFSET).contains(&offset) =>
            {
                false
            }
            ListingPart::Window { after, until } => {
                offset >= after && until.is_none_or(|until| offset < until)
            }
        }
    }

    /// Whether it has all entries, in the replica's order.
    pub(super) fn is_whole(&self) -> bool {
        self.part == ListingPart::Whole
    }

    /// Whether it may be kept after one reply.
    pub(super) fn is_within_budget(&self) -> bool {
        self.is_within_budget
    }

    /// Restores a whole listing that another daemon kept; `None` if there is no memory for it.
    ///
    /// It may take the whole rest of the share: the other daemon had memory for all of its listings,
    /// and read them in another order.
    pub(super) fn restore(shelf: &ListingMemory, entries: &[DirEntry]) -> Option<Self> {
        let mut collector = ListingBuilder::new(shelf, 0).ok()?;
        entries.iter().for_each(|entry| collector.push(&entry.name, entry.ino, entry.kind));
        collector.finish(FIRST_ENTRY_OFFSET + 1).ok()
    }

    /// The entries, for another daemon.
    pub(super) fn to_dir_entries(&self) -> Vec<DirEntry> {
        let entry = |one: ListedEntry<'_>| DirEntry {
            name: one.name.to_owned(),
            ino: one.number,
            kind: one.kind,
        };
        self.entries_from(0).map(entry).collect()
    }
}

/// Collects a listing, or the window of it that a reader needs.
pub(super) struct ListingBuilder<'a> {
    shelf: &'a ListingMemory,
    records: Buffer,
    share: Reservation,
    is_within_budget: bool,
    filled: usize,
    index: Vec<u32>,
    /// Entries up to this offset are left out.
    after_offset: u64,
    /// Entries from this offset on are left out.
    end_offset: Option<u64>,
    /// Whether the offsets are hashes.
    is_hashed: bool,
    /// Whether an entry was lost for lack of memory.
    has_dropped_entries: bool,
}

impl<'a> ListingBuilder<'a> {
    /// Starts a listing for a reader at `offset`.
    ///
    /// # Errors ENOMEM if the system has no memory.
    pub(super) fn new(shelf: &'a ListingMemory, offset: u64) -> Result<Self, Errno> {
        let (claim, is_paid) = shelf.claim_first(claim_size(INITIAL_BUFFER_SIZE));
        let ListingClaim { share, budget } = claim;
        let records = shelf.buffer(INITIAL_BUFFER_SIZE, budget).ok_or(Errno::NOMEM)?;
        let after = if offset < FIRST_HASHED_OFFSET { 0 } else { offset };
        let index = Vec::new();
        let is_hashed = after > 0;
        Ok(Self {
            shelf,
            records,
            share,
            is_within_budget: is_paid,
            filled: 0,
            index,
            after_offset: after,
            end_offset: None,
            is_hashed,
            has_dropped_entries: false,
        })
    }

    /// Adds an entry of the directory.
    pub(super) fn push(&mut self, name: &OsStr, number: u64, kind: FileKind) {
        let name = name.as_bytes();
        let mut offset = 0;
        let Ok(len) = u16::try_from(name.len()) else { return };
        loop {
            if self.is_hashed {
                offset = hashed_offset(name);
                let is_left_out = offset <= self.after_offset
                    || self.end_offset.is_some_and(|bound| offset >= bound);
                if is_left_out {
                    return;
                }
            }
            if self.filled + RECORD_HEADER_SIZE + name.len() <= self.records.len() {
                break;
            }
            if !self.grow() && !self.halve_window() {
                self.has_dropped_entries = true;
                return;
            }
        }
        let at = self.filled;
        let kind = KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u8;
        let record = &mut self.records[at..at + RECORD_HEADER_SIZE + name.len()];
        record[..8].copy_from_slice(&offset.to_le_bytes());
        record[8..16].copy_from_slice(&number.to_le_bytes());
        record[16..18].copy_from_slice(&len.to_le_bytes());
        record[18] = kind;
        record[RECORD_HEADER_SIZE..].copy_from_slice(name);
        self.filled += RECORD_HEADER_SIZE + name.len();
        self.index.push(at as u32);
    }

    /// Doubles the buffer, if the limits allow it.
    fn grow(&mut self) -> bool {
        let wanted = 2 * self.records.len() as u64;
        wanted <= self.shelf.max_buffer_size() && self.move_to_buffer(wanted)
    }

    /// Moves the records to a buffer of `bytes`; false if there is none.
    fn move_to_buffer(&mut self, bytes: u64) -> bool {
        let Some(ListingClaim { share, budget }) = self.shelf.claim(claim_size(bytes)) else {
            return false;
        };
        let Some(mut records) = self.shelf.buffer(bytes, budget) else { return false };
        records[..self.filled].copy_from_slice(&self.records[..self.filled]);
        (self.records, self.share, self.is_within_budget) = (records, share, true);
        true
    }

    /// Drops the last half of the window's entries. False if that makes no room.
    fn halve_window(&mut self) -> bool {
        self.sort_by_hash();
        let offset = |at: &u32| read_u64(&self.records, *at as usize);
        let Some(bound) = self.index.get(self.index.len() / 2).map(offset) else { return false };
        let kept = self.index.partition_point(|at| offset(at) < bound);
        if kept == 0 {
            return false;
        }
        self.index.truncate(kept);
        self.index.sort_unstable();
        self.filled = 0;
        for at in &mut self.index {
            let from = *at as usize;
            let len = record_len(&self.records, from);
            self.records.copy_within(from..from + len, self.filled);
            *at = self.filled as u32;
            self.filled += len;
        }
        self.end_offset = Some(bound);
        true
    }

    /// Sorts the entries into the order of windows.
    fn sort_by_hash(&mut self) {
        if !self.is_hashed {
            for at in &self.index {
                let at = *at as usize;
                let offset = hashed_offset(record_name(&self.records, at));
                self.records[at..at + 8].copy_from_slice(&offset.to_le_bytes());
            }
            self.is_hashed = true;
        }
        let records = &self.records;
        self.index.sort_unstable_by_key(|at| read_u64(records, *at as usize));
    }

    /// The listing, for a reader at `offset`.
    ///
    /// # Errors ESTALE if the offset belongs to a whole listing, and there is no memory for one;
    /// ENOMEM if entries were lost for lack of memory.
    pub(super) fn finish(mut self, offset: u64) -> Result<PackedEntries, Errno> {
        if self.has_dropped_entries {
            return Err(Errno::NOMEM);
        }
        let needed = size_class(self.filled as u64);
        if needed < self.records.len() as u64 {
            let _ = self.move_to_buffer(needed);
        }
        let all = claim_size(self.records.len() as u64);
        let is_bound = (FIRST_ENTRY_OFFSET + 1..FIRST_HASHED_OFFSET).contains(&offset);
        let may_be_whole = self.is_within_budget && !self.is_hashed;
        let whole = if may_be_whole { self.shelf.claim_whole(all, is_bound) } else { None };
        if is_bound && whole.is_none() {
            return Err(Errno::STALE);
        }
        let (part, share) = match whole {
            Some(share) => (ListingPart::Whole, share),
            None => {
                self.sort_by_hash();
                // A reader past this offset needs another window.
                let last = self.index.last().map(|at| read_u64(&self.records, *at as usize));
                let until = self.end_offset.and(last);
                (ListingPart::Window { after: self.after_offset, until }, self.share)
            }
        };
        let Self { records, mut index, is_within_budget: is_paid, .. } = self;
        index.shrink_to_fit();
        Ok(PackedEntries { records, index, part, _share: share, is_within_budget: is_paid })
    }
}
