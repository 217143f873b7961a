//! Which parts of files have a small read in flight.
//!
//! The table has no entry for each read, only marks: a read marks the granule that contains it, and
//! finds out whether it is marked already. Two granules may share a mark; the later read then goes
//! the general way.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::read::attempt::MAX_INLINE_BYTES;
use crate::volume::{ByteRange, splitmix64};

/// The length of a granule: a small read lies in one or two.
const GRANULE_BYTES: u64 = MAX_INLINE_BYTES;

/// The number of marks. With eight reads in flight at random places, one in 500 finds a mark of
/// another.
const MARKS: usize = 4096;

/// The marks of all granules.
pub(super) struct GranuleTable(Box<[AtomicBool]>);

/// The mark of a small read in flight; removed when dropped.
pub(super) struct GranuleClaim<'a>(&'a AtomicBool);

impl Default for GranuleTable {
    fn default() -> Self {
        Self((0..MARKS).map(|_| AtomicBool::new(false)).collect())
    }
}

impl GranuleTable {
    /// Marks the granule of `range`. `None` if it is marked, or if the range is in two granules.
    pub(super) fn try_claim(&self, file_number: u64, range: ByteRange) -> Option<GranuleClaim<'_>> {
        let granule = range.start / GRANULE_BYTES;
        if (range.end - 1) / GRANULE_BYTES != granule {
            return None;
        }
        let place = splitmix64(file_number ^ splitmix64(granule)) as usize % MARKS;
        let mark = &self.0[place];
        let is_marked = mark.swap(true, Ordering::Acquire);
        (!is_marked).then_some(GranuleClaim(mark))
    }
}

impl Drop for GranuleClaim<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_granule_has_one_small_read_at_a_time() {
        let table = GranuleTable::default();
        let first = table.try_claim(1, ByteRange::at(4096, 4096)).unwrap();
        assert!(table.try_claim(1, ByteRange::at(8192, 4096)).is_none(), "the same granule");
        assert!(table.try_claim(2, ByteRange::at(4096, 4096)).is_some(), "another file");
        assert!(table.try_claim(1, ByteRange::at(GRANULE_BYTES, 4096)).is_some());
        drop(first);
        assert!(table.try_claim(1, ByteRange::at(8192, 4096)).is_some());
        assert!(table.try_claim(1, ByteRange::at(GRANULE_BYTES - 1, 2)).is_none(), "in two");
    }
}
