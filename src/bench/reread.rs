//! How much of what a pass reads was read before it, in the same run.
//!
//! Pure. What this machine has cached is dropped before each pass; what a server has
//! cached is not, and is there for whoever comes next. Turning the order lets that be
//! each candidate's luck alike; this says how much of it there is.

use super::plan::{Candidate, Load};
use super::results::{CompletedPass, PassOutcome};

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

/// What was read past fanfs, and through it.
pub(super) fn reread_shares(outcomes: &[PassOutcome]) -> (RereadShare, RereadShare) {
    let (mut raw, mut fanfs) = (RereadShare::default(), RereadShare::default());
    let mut known = FileRanges::default();
    for pass in outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()) {
        if pass.spec.load == Load::Random {
            continue;
        }
        let sum = match pass.spec.candidate {
            Candidate::Fanfs(_) => &mut fanfs,
            Candidate::Alone(_) | Candidate::Sum(_) => &mut raw,
        };
        let its = stretches_read(pass);
        sum.bytes += its.iter().map(|(begin, end)| end - begin).sum::<u64>();
        sum.reread_bytes += its.iter().map(|stretch| known.common_bytes(*stretch)).sum::<u64>();
        for stretch in its {
            known.add(stretch);
        }
    }
    (raw, fanfs)
}

/// Where each reader has come to, as if all had been as fast as each other.
fn stretches_read(pass: &CompletedPass) -> Vec<(u64, u64)> {
    let each = pass.bytes / pass.parts.len().max(1) as u64;
    pass.parts.iter().map(|part| (part.offset, part.offset + each.min(part.len))).collect()
}

/// Parts of the file, in order, none of which touches another.
#[derive(Default)]
struct FileRanges(Vec<(u64, u64)>);

impl FileRanges {
    fn common_bytes(&self, (begin, end): (u64, u64)) -> u64 {
        self.0.iter().map(|(b, e)| end.min(*e).saturating_sub(begin.max(*b))).sum()
    }

    fn add(&mut self, (mut begin, mut end): (u64, u64)) {
        self.0.retain(|(b, e)| {
            let is_apart = *e < begin || *b > end;
            if !is_apart {
                (begin, end) = (begin.min(*b), end.max(*e));
            }
            is_apart
        });
        self.0.push((begin, end));
        self.0.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_joined_and_counted_once() {
        let mut known = FileRanges::default();
        for stretch in [(10, 20), (30, 40), (18, 32), (50, 60)] {
            known.add(stretch);
        }
        assert_eq!(known.0, [(10, 40), (50, 60)]);
        assert_eq!(known.common_bytes((0, 100)), 40);
        assert_eq!(known.common_bytes((35, 55)), 10);
        assert_eq!(known.common_bytes((41, 50)), 0);
    }
}
