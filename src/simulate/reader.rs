//! A reader's state: its position, its current read, and its segments.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Random;
use super::fifo_server::SimTime;
use super::policy::JobId;
use super::world::{ReadPattern, ReaderSpec};
use crate::read::readahead::Readahead;
use crate::volume::ByteRange;

pub(super) struct ReaderState {
    pub(super) spec: ReaderSpec,
    pub(super) readahead: Readahead,
    /// Segments that are fetched or being fetched, by the offset of their first byte.
    pub(super) jobs_by_offset: BTreeMap<u64, JobId>,
    /// The block that it is reading, and the time at which it asked.
    pub(super) current_read: Option<(ByteRange, SimTime)>,
    pub(super) position: u64,
    pub(super) reads_done: u64,
    pub(super) burst_bytes: u64,
    pub(super) random: Random,
    pub(super) finished_at: Option<SimTime>,
    pub(super) bytes_read: u64,
    /// For a raw job: the number of its reads in flight. `raw_waiting` has those that wait.
    pub(super) raw_in_flight: usize,
    pub(super) raw_waiting: VecDeque<JobId>,
}

impl ReaderState {
    pub(super) fn new(spec: ReaderSpec, segment: u64, random: Random) -> Self {
        Self {
            spec,
            readahead: Readahead::new(segment),
            jobs_by_offset: BTreeMap::new(),
            current_read: None,
            position: 0,
            reads_done: 0,
            burst_bytes: 0,
            random,
            finished_at: None,
            bytes_read: 0,
            raw_in_flight: 0,
            raw_waiting: VecDeque::new(),
        }
    }

    /// How long it pauses before it asks for its next block.
    pub(super) fn pause(&mut self) -> SimTime {
        let next = self.reads_done as usize;
        let pause = match (&self.spec.reads, self.spec.burst) {
            (ReadPattern::Trace(reads), _) => {
                reads.get(next).map_or(Duration::ZERO, |read| read.pause)
            }
            (_, Some((bytes, time))) if self.burst_bytes >= bytes => {
                self.burst_bytes = 0;
                time
            }
            _ => Duration::ZERO,
        };
        pause.as_nanos() as SimTime
    }

    /// The next block that it asks for, in a file of `size` bytes; `None` when it is done.
    pub(super) fn next_block(&mut self, size: u64) -> Option<ByteRange> {
        let whole = ByteRange::new(0, size);
        let block = match &self.spec.reads {
            ReadPattern::Sequential => ByteRange::at(self.position, self.spec.block),
            ReadPattern::Random(count) if self.reads_done < *count => {
                let blocks = (size / self.spec.block).max(1);
                ByteRange::at(self.random.below(blocks) * self.spec.block, self.spec.block)
            }
            ReadPattern::Trace(reads) => reads.get(self.reads_done as usize)?.range,
            ReadPattern::Random(_) => return None,
        };
        Some(block.intersect(whole)).filter(|block| !block.is_empty())
    }
}
