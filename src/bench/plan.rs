//! Decides which passes there are, their order, and the part of the file that each reads.
//!
//! Pure: it does no I/O and reads no clock.
//!
//! *Invariants:* within a round, each candidate of a load reads another region, and each
//! candidate's region changes from round to round. The parts of one pass do not overlap, are whole
//! blocks, and lie within the file.

use std::time::Duration;

use serde::Serialize;

use crate::volume::{ReplicaId, ReplicaSet};

/// How readers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// One reader from front to back.
    Sequential,
    /// Several readers, each of which reads blocks of its part in random order.
    Random,
    /// Several readers, each from front to back of its part.
    Parallel,
}

impl Load {
    /// All loads, in the order in which they run and are shown.
    pub const ALL: [Self; 3] = [Self::Sequential, Self::Random, Self::Parallel];

    /// The name in tables and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::Parallel => "parallel",
        }
    }
}

/// What a pass reads through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Candidate {
    /// One replica, read directly.
    Alone(ReplicaId),
    /// Several replicas side by side, read directly. Each has at least one reader.
    Sum(ReplicaSet),
    /// fanfs over these replicas.
    Fanfs(ReplicaSet),
}

impl Candidate {
    /// The replicas that it reads from.
    pub fn replicas(self) -> ReplicaSet {
        match self {
            Self::Alone(replica) => ReplicaSet::EMPTY.with(replica),
            Self::Sum(set) | Self::Fanfs(set) => set,
        }
    }

    /// The number of readers, where loads with several readers have `readers`.
    pub fn readers(self, load: Load, readers: usize) -> usize {
        match (load, self) {
            (Load::Sequential, Self::Sum(set)) => set.len(),
            (Load::Sequential, _) => 1,
            (_, Self::Sum(set)) => readers.max(set.len()),
            (_, Self::Alone(_) | Self::Fanfs(_)) => readers,
        }
    }
}

/// One pass to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSpec {
    /// The round, counted from 0.
    pub round: usize,
    /// How its readers read.
    pub load: Load,
    /// The paths that they read through.
    pub candidate: Candidate,
    /// Its index among the load's regions, below `region_count`.
    pub region_index: usize,
    /// The number of the load's regions.
    pub region_count: usize,
}

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FilePart {
    /// The first byte's offset, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// The numbers of replicas that fanfs is measured over: each up to four, then doubling, then all.
pub fn replica_counts(replicas: usize) -> Vec<usize> {
    let doubling = (3..).map(|power| 1 << power).take_while(|n| *n < replicas);
    let mut counts: Vec<usize> = (1..=replicas.min(4)).chain(doubling).collect();
    if counts.last().is_some_and(|last| *last < replicas) {
        counts.push(replicas);
    }
    counts
}

/// The candidates of a load, in the order in which they are shown. A single replica has no sum: it
/// would equal the replica alone.
pub fn candidates(load: Load, replicas: ReplicaSet) -> Vec<Candidate> {
    let first = |n: usize| replicas.iter().take(n).fold(ReplicaSet::EMPTY, ReplicaSet::with);
    let counts = match load {
        // For the plot of rates over the number of replicas.
        Load::Sequential => replica_counts(replicas.len()),
        Load::Random | Load::Parallel => vec![replicas.len()],
    };
    let alone = replicas.iter().map(Candidate::Alone);
    let sums = counts.iter().filter(|n| **n > 1).map(|n| Candidate::Sum(first(*n)));
    let fanfs = counts.iter().map(|n| Candidate::Fanfs(first(*n)));
    alone.chain(sums).chain(fanfs).collect()
}

/// Plans all passes. The order rotates from round to round: A B C, then C A B, then B C A. So no
/// candidate always has the best position.
pub fn plan_passes(replicas: ReplicaSet, rounds: usize) -> Vec<PassSpec> {
    let mut steps = Vec::new();
    for round in 0..rounds {
        for load in Load::ALL {
            let mut candidates: Vec<(usize, Candidate)> =
                candidates(load, replicas).into_iter().enumerate().collect();
            let slots = candidates.len();
            candidates.rotate_right(round % slots);
            let step = |(index, candidate)| {
                let slot = (index + round) % slots;
                PassSpec { round, load, candidate, region_index: slot, region_count: slots }
            };
            steps.extend(candidates.into_iter().map(step));
        }
    }
    steps
}

/// The most that each reader of a pass reads.
///
/// Sequential regions begin in the first half of the file and are half the file long. So they
/// overlap only where the file is small compared with what a pass reads. Random readers share the
/// whole file.
pub fn reader_parts(step: &PassSpec, size: u64, block: u64, readers: usize) -> Vec<FilePart> {
    let down = |bytes: u64| bytes / block * block;
    let (start, len) = match step.load {
        Load::Random => (0, down(size / readers as u64)),
        Load::Sequential | Load::Parallel => (
            down(size / 2 / step.region_count as u64 * step.region_index as u64),
            down(size / 2 / readers as u64),
        ),
    };
    (0..readers as u64).map(|i| FilePart { offset: start + i * len, len }).collect()
}

/// The replica that reader number `reader` of a sum reads from.
pub fn replica_for_reader(set: ReplicaSet, reader: usize) -> Option<ReplicaId> {
    set.iter().nth(reader % set.len().max(1))
}

/// The smallest file that bench accepts. It gives at least sixteen blocks to each of `readers`, the
/// largest number of readers of any pass.
pub fn min_file_size(block: u64, random_block: u64, readers: usize) -> u64 {
    (32 * block).max(16 * random_block) * readers as u64
}

/// The duration of all passes, including the work between them.
pub fn total_duration(steps: usize, pass: Duration) -> Duration {
    // Dropping pages, opening files, waiting until the daemon is quiet.
    const BETWEEN: Duration = Duration::from_millis(60);
    (pass + BETWEEN) * steps as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(n: usize) -> ReplicaSet {
        ReplicaSet::first(n)
    }

    #[test]
    fn replica_counts_double_after_four_and_end_at_the_total() {
        assert_eq!(replica_counts(1), [1]);
        assert_eq!(replica_counts(3), [1, 2, 3]);
        assert_eq!(replica_counts(4), [1, 2, 3, 4]);
        assert_eq!(replica_counts(5), [1, 2, 3, 4, 5]);
        assert_eq!(replica_counts(8), [1, 2, 3, 4, 8]);
        assert_eq!(replica_counts(20), [1, 2, 3, 4, 8, 16, 20]);
    }

    #[test]
    fn a_single_replica_has_no_sum_candidate() {
        let id = ReplicaId::new(0);
        for load in Load::ALL {
            let expected = [Candidate::Alone(id), Candidate::Fanfs(set(1))];
            assert_eq!(candidates(load, set(1)), expected);
        }
    }

    #[test]
    fn three_replicas_fit_into_three_minutes() {
        let steps = plan_passes(set(3), 3);
        assert_eq!(steps.len(), 3 * (8 + 5 + 5));
        assert!(total_duration(steps.len(), Duration::from_secs(3)) < Duration::from_secs(180));
    }

    #[test]
    fn rounds_rotate_candidates_and_change_regions() {
        let steps = plan_passes(set(3), 3);
        let of = |round: usize| -> Vec<PassSpec> {
            let its = |s: &&PassSpec| s.round == round && s.load == Load::Random;
            steps.iter().filter(its).copied().collect()
        };
        let first = of(0);
        let second = of(1);
        assert_eq!(first.last().unwrap().candidate, second[0].candidate);
        assert_eq!(first[0].candidate, second[1].candidate);
        assert_ne!(first[0].region_index, second[1].region_index);
        for round in 0..3 {
            let mut slots: Vec<usize> = of(round).iter().map(|s| s.region_index).collect();
            slots.sort_unstable();
            assert_eq!(slots, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn parts_are_whole_blocks_and_do_not_overlap() {
        let size = (100 << 20) + 12345;
        for step in plan_passes(set(5), 2) {
            for (block, readers) in [(1 << 20, 1), (1 << 20, 7), (65536, 4), (12288, 5)] {
                let parts = reader_parts(&step, size, block, readers);
                assert_eq!(parts.len(), readers);
                let mut end = 0;
                for part in parts {
                    assert!(part.len >= block && part.offset >= end, "{step:?} {part:?}");
                    assert_eq!((part.offset % block, part.len % block), (0, 0));
                    end = part.offset + part.len;
                }
                assert!(end <= size);
            }
        }
    }

    #[test]
    fn a_large_enough_file_has_blocks_for_all() {
        // (replicas, --readers, the most readers of any pass)
        for (replicas, readers, most) in [(3, 4, 4), (17, 1, 17)] {
            let size = min_file_size(1 << 20, 65536, most);
            assert_eq!(size, (most as u64) << 25);
            for step in plan_passes(set(replicas), 1) {
                let readers = step.candidate.readers(step.load, readers);
                for part in reader_parts(&step, size, 1 << 20, readers) {
                    assert!(part.len >= 16 << 20);
                }
            }
        }
    }

    #[test]
    fn a_sum_has_one_reader_for_each_replica() {
        let sum = Candidate::Sum(set(6));
        assert_eq!(sum.readers(Load::Sequential, 4), 6);
        assert_eq!(sum.readers(Load::Random, 4), 6);
        assert_eq!(Candidate::Sum(set(3)).readers(Load::Random, 4), 4);
        assert_eq!(Candidate::Fanfs(set(6)).readers(Load::Parallel, 4), 4);
        assert_eq!(Candidate::Fanfs(set(6)).readers(Load::Sequential, 4), 1);
        let dealt: Vec<usize> =
            (0..4).filter_map(|i| replica_for_reader(set(3), i)).map(|r| r.index()).collect();
        assert_eq!(dealt, [0, 1, 2, 0]);
    }
}
