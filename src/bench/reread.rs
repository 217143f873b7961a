//! How much of what a pass reads was read before it, in the same run.
//!
//! Pure. What this machine has cached is dropped before each pass; what a server has
//! cached is not, and is there for the next pass. The turned order gives each candidate the
//! same luck; this says how much of it there is.

use super::plan::{Candidate, Load};
use super::results::{CompletedPass, PassOutcome};
use crate::volume::ByteRange;

/// Bytes of sequential and parallel passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RereadShare {
    /// All that was read.
    pub(super) bytes: u64,
    /// Of it, what an earlier pass had read.
    pub(super) reread_bytes: u64,
}

impl RereadShare {
    /// From 0 to 1.
    pub(super) fn share(self) -> f64 {
        self.reread_bytes as f64 / self.bytes.max(1) as f64
    }
}

/// Shares by the way in which the file was read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RereadShares {
    /// Past fanfs.
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

/// What each reader has read, as if all had been as fast as each other.
fn ranges_read(pass: &CompletedPass) -> Vec<ByteRange> {
    let each = pass.bytes / pass.parts.len().max(1) as u64;
    pass.parts.iter().map(|part| ByteRange::at(part.offset, each.min(part.len))).collect()
}

/// Parts of the file, in order, none of which touches another.
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
