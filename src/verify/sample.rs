//! Chooses the blocks of a file that are compared. Pure.
//!
//! A hash of the seed, the path and the block's number decides. So the same seed chooses the same
//! blocks, whatever the order of the files, and after an interruption too. Another seed chooses
//! other blocks.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::config::units::Share;
use crate::volume::{ByteRange, splitmix64};

/// The unit of comparison, bytes: one segment, one READ on the wire.
pub const COMPARE_BLOCK_SIZE: u64 = 1 << 20;

/// How much of a file is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Coverage {
    /// The whole file.
    Full,
    /// This share of its blocks, and always the first and the last block.
    Sample(Share),
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::Sample(share) => write!(f, "sample {share}"),
        }
    }
}

/// The blocks of one file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileBlocks {
    size: u64,
    /// A block is chosen if its hash is below this; `None` chooses all.
    hash_threshold: Option<u64>,
    key: u64,
}

impl FileBlocks {
    pub(super) fn new(path: &Path, size: u64, coverage: Coverage, seed: u64) -> Self {
        let below = match coverage {
            Coverage::Full => None,
            Coverage::Sample(share) if share.0 >= 1.0 => None,
            Coverage::Sample(share) => Some((share.0 * 2f64.powi(64)) as u64),
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(path.as_os_str().as_bytes());
        let hash = *hasher.finalize().as_bytes();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        Self { size, hash_threshold: below, key: u64::from_le_bytes([a, b, c, d, e, f, g, h]) }
    }

    /// The number of blocks.
    pub(super) fn count(&self) -> u64 {
        self.size.div_ceil(COMPARE_BLOCK_SIZE)
    }

    /// The chosen blocks, from number `first` on.
    pub(super) fn chosen_blocks(self, first: u64) -> impl Iterator<Item = u64> {
        (first..self.count()).filter(move |block| self.is_chosen(*block))
    }

    fn is_chosen(&self, block: u64) -> bool {
        let Some(below) = self.hash_threshold else { return true };
        block == 0 || block + 1 == self.count() || splitmix64(self.key ^ splitmix64(block)) < below
    }

    /// The range of block `block`.
    pub(super) fn block_range(&self, block: u64) -> ByteRange {
        let start = block * COMPARE_BLOCK_SIZE;
        ByteRange::new(start, (start + COMPARE_BLOCK_SIZE).min(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(path: &str, blocks: u64, share: f64, seed: u64) -> Vec<u64> {
        let coverage = Coverage::Sample(Share(share));
        FileBlocks::new(Path::new(path), blocks * COMPARE_BLOCK_SIZE, coverage, seed)
            .chosen_blocks(0)
            .collect()
    }

    #[test]
    fn a_sample_includes_the_first_and_last_block() {
        for seed in 0..20 {
            let some = chosen("a", 10_000, 0.01, seed);
            assert!((60..=150).contains(&some.len()), "{}", some.len());
            assert_eq!((some[0], *some.last().unwrap()), (0, 9_999));
        }
        assert_eq!(chosen("a", 10_000, 0.0, 1), [0, 9_999]);
        assert_eq!(chosen("a", 100, 1.0, 1).len(), 100);
        assert_eq!(chosen("a", 1, 0.0, 1), [0]);
        assert!(chosen("a", 0, 0.5, 1).is_empty());
    }

    #[test]
    fn the_seed_and_the_path_choose_the_sample() {
        assert_eq!(chosen("a", 10_000, 0.01, 1), chosen("a", 10_000, 0.01, 1));
        assert_ne!(chosen("a", 10_000, 0.01, 1), chosen("a", 10_000, 0.01, 2));
        assert_ne!(chosen("a", 10_000, 0.01, 1), chosen("b", 10_000, 0.01, 1));
    }

    #[test]
    fn the_last_block_ends_with_the_file() {
        let blocks = FileBlocks::new(Path::new("a"), COMPARE_BLOCK_SIZE + 5, Coverage::Full, 0);
        assert_eq!(blocks.count(), 2);
        assert_eq!(
            blocks.block_range(1),
            ByteRange::new(COMPARE_BLOCK_SIZE, COMPARE_BLOCK_SIZE + 5)
        );
    }
}
