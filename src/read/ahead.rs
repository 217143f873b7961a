//! Fetching ahead of a reader, as [`super::readahead`] advises.

use std::sync::Arc;
use std::time::Instant;

use super::fetch::Fetch;
use super::file::OpenFile;
use super::plan::{self, Piece};
use super::readahead::Advice;
use super::{ReadHandle, Reader, memory};
use crate::buffer::size_class;
use crate::volume::ByteRange;

impl Reader {
    /// What the handle's reading so far suggests to fetch ahead.
    pub(super) fn observe(
        &self,
        file: &OpenFile,
        handle: &ReadHandle,
        range: ByteRange,
        now: Instant,
    ) -> Advice {
        if self.policy.readahead_max == 0 {
            return Advice::NONE;
        }
        let max = self.window(range.len());
        let (readahead, seen) = &mut *handle.readahead.lock();
        let advice = readahead.observe(range, file.version().size, max);
        if readahead.is_sequential() || !advice.fetch.is_empty() {
            self.crowd.reads(seen, now);
        }
        advice
    }

    /// Fetches ahead as advised.
    pub(super) fn read_ahead(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        handle: &ReadHandle,
        range: ByteRange,
        advice: Advice,
    ) {
        if !advice.abandon.is_empty() {
            self.abandon(file, advice.abandon);
        }
        if advice.fetch.is_empty() {
            return;
        }
        let mut fresh = Vec::new();
        let mut reached = advice.fetch.start;
        {
            let mut segments = file.segments.lock();
            // The answer may be there before we are here, and the file closed.
            if file.is_retired() {
                return;
            }
            let known = OpenFile::known(&segments, advice.fetch);
            for piece in plan::cover(advice.fetch, known, self.policy.segment) {
                match piece {
                    Piece::Known(_, part) => reached = part.end,
                    Piece::Missing(part) => {
                        let Some(claim) = self.buffers.budget().claim_spare(size_class(part.len()))
                        else {
                            break;
                        };
                        let fetch = Arc::new(Fetch::new(Arc::clone(file), part, claim));
                        segments.insert(part.start, Arc::clone(&fetch));
                        fresh.push(fetch);
                        reached = part.end;
                    }
                }
            }
        }
        if reached < advice.fetch.end {
            self.cache.evict_stale(advice.fetch.end - reached, Instant::now());
        }
        handle.readahead.lock().0.fetched(range, reached);
        self.dispatch(self.request(fresh, Vec::new()));
    }

    /// Drops what was to be fetched ahead in `range` and has not been sent.
    pub(super) fn abandon(&self, file: &OpenFile, range: ByteRange) {
        let mut segments = file.segments.lock();
        let known: Vec<_> = OpenFile::known(&segments, range).map(|(_, fetch)| fetch).collect();
        let mut scheduler = self.scheduler.lock();
        for fetch in known {
            memory::abandon(&fetch, &mut segments, &mut scheduler);
        }
    }
}
