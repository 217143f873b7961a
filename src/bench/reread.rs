//! Computes how much of the data of each pass an earlier pass of the same run has read.
//!
//! Pure. Bench drops this machine's page cache before each pass. It cannot drop a server's cache,
//! so the next pass may profit from it. The rotated order treats all candidates alike; this module
//! says how large the effect is.

use super::plan::{Candidate, Load};
use super::results::{CompletedPass, PassOutcome};
use crate::volume::ByteRange;

/// Bytes of sequential and parallel passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RereadShare {
    /// All bytes read.
    pub(super) bytes: u64,
    /// The part of them that an earlier pass had read.
    pub(super) reread_bytes: u64,
}

impl RereadShare {
    /// The share, 0 to 1.
    pub(super) fn share(self) -> f64 {
        self.reread_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// The shares, by how the file was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RereadShares {
    /// Read directly, without fanfs.
    pub(super) raw: RereadShare,
    pub(super) fanfs: RereadShare,
}

pub(super) fn reread_shares(outcomes: &[PassOutcome]) -> RereadShares {
    let mut shares = RereadShares::default();
    let mut known = FileRanges::default();
    for pass in outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok()) {
        if pass.spec.load == Load::Random {
            continue;
        }
        let sum = match pass.spec.candidate {
            Candidate::Fanfs(_) => &mut shares.fanfs,
            Candidate::Alone(_) | Candidate::Sum(_) => &mut shares.raw,
        };
        let ranges = ranges_read(pass);
        sum.bytes += ranges.iter().map(ByteRange::len).sum::<u64>();
        sum.reread_bytes += ranges.iter().map(|range| known.common_bytes(*range)).sum::<u64>();
        for range in ranges {
            known.add(range);
        }
    }
    shares
}

/// The ranges that the readers read, assuming that all were equally fast.
fn ranges_read(pass: &CompletedPass) -> Vec<ByteRange> {
    let each = pass.bytes / pass.parts.len().max(1) as u64;
    pass.parts.iter().map(|part| ByteRange::at(part.offset, each.min(part.len))).collect()
}

/// Disjoint ranges of the file, in order; adjacent ranges are merged.
#[derive(Default)]
struct FileRanges(Vec<ByteRange>);

impl FileRanges {
    fn common_bytes(&self, range: ByteRange) -> u64 {
        self.0.iter().map(|known| known.intersect(range).len()).sum()
    }

    fn add(&mut self, mut range: ByteRange) {
        self.0.retain(|known| {
            let is_apart = known.end < range.start || known.start > range.end;
            if !is_apart {
                range = ByteRange::new(range.start.min(known.start), range.end.max(known.end));
            }
            is_apart
        });
        self.0.push(range);
        self.0.sort_unstable_by_key(|known| known.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_counted_once() {
        let range = ByteRange::new;
        let mut known = FileRanges::default();
        for added in [range(10, 20), range(30, 40), range(18, 32), range(50, 60)] {
            known.add(added);
        }
        assert_eq!(known.0, [range(10, 40), range(50, 60)]);
        assert_eq!(known.common_bytes(range(0, 100)), 40);
        assert_eq!(known.common_bytes(range(35, 55)), 10);
        assert_eq!(known.common_bytes(range(41, 50)), 0);
    }
}
