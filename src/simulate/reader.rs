//! A reader's state: what it reads, has read, and is having fetched.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::Random;
use super::policy::Job;
use super::server::Time;
use super::world::{Reader, Reads};
use crate::read::readahead::Readahead;
use crate::volume::ByteRange;

/// One reader.
pub(super) struct ReaderState {
    pub(super) spec: Reader,
    pub(super) readahead: Readahead,
    /// What is fetched or being fetched, by first byte.
    pub(super) known: BTreeMap<u64, Job>,
    /// What is being read, and since when.
    pub(super) reading: Option<(ByteRange, Time)>,
    pub(super) position: u64,
    pub(super) done_reads: u64,
    pub(super) burst: u64,
    pub(super) random: Random,
    pub(super) finished: Option<Time>,
    pub(super) bytes: u64,
    /// Of a raw job: what it has in flight, and what waits.
    pub(super) raw_in_flight: usize,
    pub(super) raw_waiting: VecDeque<Job>,
}

impl ReaderState {
    pub(super) fn new(spec: Reader, segment: u64, random: Random) -> Self {
        Self {
            spec,
            readahead: Readahead::new(segment),
            known: BTreeMap::new(),
            reading: None,
            position: 0,
            done_reads: 0,
            burst: 0,
            random,
            finished: None,
            bytes: 0,
            raw_in_flight: 0,
            raw_waiting: VecDeque::new(),
        }
    }

    /// What it does something else for before it asks for its next block.
    pub(super) fn pause(&mut self) -> Time {
        let next = self.done_reads as usize;
        let pause = match (&self.spec.reads, self.spec.burst) {
            (Reads::Trace(reads), _) => reads.get(next).map_or(Duration::ZERO, |read| read.pause),
            (_, Some((bytes, time))) if self.burst >= bytes => {
                self.burst = 0;
                time
            }
            _ => Duration::ZERO,
        };
        pause.as_nanos() as Time
    }

    /// The next block that it asks for, of a file of `size` bytes; `None` where
    /// it is done.
    pub(super) fn next_block(&mut self, size: u64) -> Option<ByteRange> {
        let whole = ByteRange::new(0, size);
        let block = match &self.spec.reads {
            Reads::Sequential => ByteRange::at(self.position, self.spec.block),
            Reads::Random(count) if self.done_reads < *count => {
                let blocks = (size / self.spec.block).max(1);
                ByteRange::at(self.random.below(blocks) * self.spec.block, self.spec.block)
            }
            Reads::Trace(reads) => reads.get(self.done_reads as usize)?.range,
            Reads::Random(_) => return None,
        };
        Some(block.intersect(whole)).filter(|block| !block.is_empty())
    }
}
