//! Fetching ahead of a reader, as [`super::readahead`] advises.

use std::sync::Arc;
use std::time::Instant;

use super::open_file::OpenFile;
use super::readahead::Advice;
use super::small_reads::Overdraw;
use super::split::{self, Piece};
use super::{ReadHandle, Reader, reclaim};
use crate::buffer::size_class;
use crate::volume::ByteRange;

impl Reader {
    /// Records a read of the handle, and returns what to fetch ahead.
    pub(super) fn observe_read(
        &self,
        file: &OpenFile,
        handle: &ReadHandle,
        range: ByteRange,
        now: Instant,
    ) -> Advice {
        if self.policy.readahead_max == 0 {
            return Advice::NONE;
        }
        let max = self.readahead_window(range.len());
        let (readahead, seen) = &mut *handle.readahead.lock();
        let advice = readahead.observe(range, file.version().size, max);
        if readahead.is_sequential() || !advice.fetch.is_empty() {
            self.active_readers.count_reader(seen, now);
        }
        advice
    }

    /// Fetches ahead as advised.
    pub(super) fn prefetch(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        handle: &ReadHandle,
        range: ByteRange,
        advice: Advice,
    ) {
        if !advice.abandon.is_empty() {
            self.abandon_readahead(file, advice.abandon);
        }
        if advice.fetch.is_empty() {
            return;
        }
        let mut fresh = Vec::new();
        let mut reached = advice.fetch.start;
        let announced = file.announce_segments();
        if !self.adopt_small_reads(file, advice.fetch, Overdraw::IfLate) {
            return;
        }
        {
            let mut segments = file.lock_segments();
            // The read may have been answered already, and the file closed.
            if file.is_retired() {
                return;
            }
            let known = segments.known(advice.fetch);
            for piece in split::split_range(advice.fetch, known, self.policy.segment) {
                match piece {
                    Piece::Known(_, part) => reached = part.end,
                    Piece::Missing(part) => {
                        let Some(claim) = self.buffers.budget().claim_spare(size_class(part.len()))
                        else {
                            break;
                        };
                        fresh.push(file.add_fetch(&mut segments, part, claim));
                        reached = part.end;
                    }
                }
            }
        }
        drop(announced);
        if reached < advice.fetch.end {
            self.eviction_queues.evict_stale(advice.fetch.end - reached, Instant::now());
        }
        handle.readahead.lock().0.set_fetched(range, reached);
        self.dispatch(self.enqueue_fetches(fresh, Vec::new()));
    }

    /// Drops readahead in `range` that has not been dispatched.
    pub(super) fn abandon_readahead(&self, file: &OpenFile, range: ByteRange) {
        let mut segments = file.lock_segments();
        let known: Vec<_> = segments.known(range).map(|(_, fetch)| fetch).collect();
        let mut scheduler = self.scheduler.lock();
        for fetch in known {
            reclaim::abandon_unsent(&fetch, Some(&mut segments), &mut scheduler);
        }
    }
}
