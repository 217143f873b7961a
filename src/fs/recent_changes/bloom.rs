//! Bloom filters over a stretch of time.
//!
//! A filter cannot forget a single mark, so there are several, each for a part of the time for
//! which marks count. Each is dropped as a whole.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::is_recent;
use crate::fs::records::ChangeMark;

/// Bits of each filter: with 400,000 marks in it, 1 % of the unchanged names count as changed.
const FILTER_BITS: usize = 1 << 22;

/// Bits set for each mark.
const HASHES_PER_MARK: u64 = 4;

/// New filters started per lag, at most.
const FILTERS_PER_LAG: u32 = 2;

/// The filters, the newest last.
#[derive(Default)]
pub(super) struct BloomFilters(VecDeque<BloomFilter>);

struct BloomFilter {
    started_at: Instant,
    last_insert: Instant,
    bits: Vec<u64>,
}

/// The word and the bit for each hash.
fn bit_positions(mark: ChangeMark) -> impl Iterator<Item = (usize, u64)> {
    let first = mark & u64::from(u32::MAX);
    let step = mark >> 32 | 1;
    (0..HASHES_PER_MARK).map(move |i| {
        let place = (first + i * step) as usize % FILTER_BITS;
        (place / 64, 1 << (place % 64))
    })
}

impl BloomFilters {
    pub(super) fn insert(&mut self, mark: ChangeMark, lag: Duration, now: Instant) {
        self.0.retain(|sieve| is_recent(sieve.last_insert, lag, now));
        if !self
            .0
            .back()
            .is_some_and(|sieve| is_recent(sieve.started_at, lag / FILTERS_PER_LAG, now))
        {
            self.0.push_back(BloomFilter {
                started_at: now,
                last_insert: now,
                bits: vec![0; FILTER_BITS / 64],
            });
        }
        if let Some(newest) = self.0.back_mut() {
            newest.last_insert = now.max(newest.last_insert);
            bit_positions(mark).for_each(|(word, bit)| newest.bits[word] |= bit);
        }
    }

    pub(super) fn contains(&self, mark: ChangeMark, lag: Duration, now: Instant) -> bool {
        let mut live = self.0.iter().filter(|sieve| is_recent(sieve.last_insert, lag, now));
        live.any(|sieve| bit_positions(mark).all(|(word, bit)| sieve.bits[word] & bit != 0))
    }

    /// Each filter that still counts, with the time of its last mark.
    pub(super) fn snapshot(
        &self,
        lag: Duration,
        now: Instant,
    ) -> impl Iterator<Item = (Instant, Vec<u64>)> {
        let live = self.0.iter().filter(move |sieve| is_recent(sieve.last_insert, lag, now));
        live.map(|sieve| (sieve.last_insert, sieve.bits.clone()))
    }

    /// Restores a filter of the predecessor; ignores one of another size.
    pub(super) fn restore(&mut self, last: Instant, bits: Vec<u64>) {
        if bits.len() == FILTER_BITS / 64 {
            self.0.push_back(BloomFilter { started_at: last, last_insert: last, bits });
        }
    }
}
