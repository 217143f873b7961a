//! Bloom filters over a stretch of time.
//!
//! A filter cannot forget one mark, so there are several, each for a part of the time
//! that marks count, and each is dropped as a whole.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Mark, is_recent};

/// Bits of each filter: with 400,000 marks in it one name in a hundred is taken for one
/// that was changed.
const BITS: usize = 1 << 22;

/// Bits that stand for a mark.
const HASHES: u64 = 4;

/// A new filter is begun so often within the time that marks count.
const TURNS: u32 = 2;

/// The filters, the newest last.
#[derive(Default)]
pub(super) struct Sieves(VecDeque<Sieve>);

struct Sieve {
    begun: Instant,
    last: Instant,
    bits: Vec<u64>,
}

/// The word and the bit in it of each hash.
fn places(mark: Mark) -> impl Iterator<Item = (usize, u64)> {
    let (first, step) = (mark & u64::from(u32::MAX), mark >> 32 | 1);
    (0..HASHES).map(move |i| {
        let place = (first + i * step) as usize % BITS;
        (place / 64, 1 << (place % 64))
    })
}

impl Sieves {
    pub(super) fn note(&mut self, mark: Mark, lag: Duration, now: Instant) {
        self.0.retain(|sieve| is_recent(sieve.last, lag, now));
        if !self.0.back().is_some_and(|sieve| is_recent(sieve.begun, lag / TURNS, now)) {
            self.0.push_back(Sieve { begun: now, last: now, bits: vec![0; BITS / 64] });
        }
        if let Some(newest) = self.0.back_mut() {
            newest.last = now.max(newest.last);
            places(mark).for_each(|(word, bit)| newest.bits[word] |= bit);
        }
    }

    pub(super) fn has(&self, mark: Mark, lag: Duration, now: Instant) -> bool {
        let mut live = self.0.iter().filter(|sieve| is_recent(sieve.last, lag, now));
        live.any(|sieve| places(mark).all(|(word, bit)| sieve.bits[word] & bit != 0))
    }

    /// Each that still counts, with the time of its last mark.
    pub(super) fn carry(
        &self,
        lag: Duration,
        now: Instant,
    ) -> impl Iterator<Item = (Instant, Vec<u64>)> {
        let live = self.0.iter().filter(move |sieve| is_recent(sieve.last, lag, now));
        live.map(|sieve| (sieve.last, sieve.bits.clone()))
    }

    /// One that the daemon before had; one of another size says nothing here.
    pub(super) fn restore(&mut self, last: Instant, bits: Vec<u64>) {
        if bits.len() == BITS / 64 {
            self.0.push_back(Sieve { begun: last, last, bits });
        }
    }
}
