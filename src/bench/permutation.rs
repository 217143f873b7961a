//! The numbers of all blocks in random order, each once: a permutation that is computed, not
//! stored.
//!
//! It is a Feistel network over the next even power of two, iterated until the result is below the
//! count: at most four steps on average. No block repeats, because a second read of a block would
//! come from some cache.

use crate::volume::splitmix64;

/// A permutation of the numbers below `count`.
#[derive(Clone, Debug)]
pub(super) struct BlockPermutation {
    count: u64,
    /// Bits of one half.
    half_bits: u32,
    round_keys: [u64; 4],
}

impl BlockPermutation {
    pub(super) fn new(count: u64, seed: u64) -> Self {
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).max(2);
        let keys = [1, 2, 3, 4].map(|round| splitmix64(seed ^ splitmix64(round)));
        Self { count, half_bits: bits.div_ceil(2), round_keys: keys }
    }

    /// The number at position `index`; `None` past the end.
    pub(super) fn at(&self, index: u64) -> Option<u64> {
        if index >= self.count {
            return None;
        }
        let mut number = self.feistel(index);
        while number >= self.count {
            number = self.feistel(number);
        }
        Some(number)
    }

    fn feistel(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let mut left = number >> self.half_bits;
        let mut right = number & mask;
        for key in self.round_keys {
            (left, right) = (right, left ^ (splitmix64(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_comes_once() {
        for count in [1, 2, 3, 5, 64, 1000, 1025] {
            let shuffle = BlockPermutation::new(count, 7);
            let mut all: Vec<u64> = (0..count).map(|i| shuffle.at(i).unwrap()).collect();
            assert_eq!(shuffle.at(count), None);
            all.sort_unstable();
            assert_eq!(all, (0..count).collect::<Vec<_>>(), "{count}");
        }
        assert_eq!(BlockPermutation::new(0, 7).at(0), None);
    }

    #[test]
    fn the_seed_sets_a_non_sequential_order() {
        let order = |seed| {
            let shuffle = BlockPermutation::new(4096, seed);
            (0..4096).map(|i| shuffle.at(i).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let neighbours = order(1).windows(2).filter(|w| w[1] == w[0] + 1).count();
        assert!(neighbours < 20, "{neighbours} of 4095 are sequential");
    }
}
