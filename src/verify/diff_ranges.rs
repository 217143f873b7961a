//! Finds which bytes of a block differ, and which replicas agree about them. Pure.

use std::ops::Range;

use crate::volume::{ByteRange, ReplicaId, ReplicaSet};

/// Equal bytes between differing ones join them into one range if there are fewer than this. In
/// unrelated data, one byte in 256 is equal by chance, but practically never sixteen in a row.
const MERGE_DISTANCE: usize = 16;

/// The number of bytes that [`differing_runs`] compares at once, before it compares single bytes.
const COMPARE_STRIDE: usize = 4096;

/// A range of bytes, and the groups of replicas that agree there, in the order of
/// [`group_by_value`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DifferingRegion {
    pub(super) range: ByteRange,
    pub(super) groups: Vec<ReplicaSet>,
}

/// Replicas with the same value.
pub(super) struct ValueGroup<T> {
    pub(super) replicas: ReplicaSet,
    pub(super) value: T,
}

/// Groups the replicas by value. The largest group comes first; of equal ones, the group whose
/// first replica comes first in the configuration.
pub(super) fn group_by_value<T>(
    values: impl IntoIterator<Item = (ReplicaId, T)>,
    alike: impl Fn(&T, &T) -> bool,
) -> Vec<ValueGroup<T>> {
    let mut groups: Vec<ValueGroup<T>> = Vec::new();
    for (id, value) in values {
        match groups.iter_mut().find(|group| alike(&group.value, &value)) {
            Some(group) => group.replicas = group.replicas.with(id),
            None => groups.push(ValueGroup { replicas: ReplicaSet::EMPTY.with(id), value }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.replicas.len()));
    groups
}

/// The ranges in which the copies of a block at offset `start` differ, in order. All copies have
/// the same length.
pub(super) fn differing_regions(
    start: u64,
    copies: &[(ReplicaId, Vec<u8>)],
) -> Vec<DifferingRegion> {
    let Some(((_, first), others)) = copies.split_first() else { return Vec::new() };
    let runs: Vec<_> = others.iter().map(|(_, other)| differing_runs(first, other)).collect();
    let mut cuts: Vec<usize> = runs.iter().flatten().flat_map(|run| [run.start, run.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut regions: Vec<DifferingRegion> = Vec::new();
    for cut in cuts.windows(2) {
        let run = cut[0]..cut[1];
        let slices = copies.iter().map(|(id, bytes)| (*id, &bytes[run.clone()]));
        let groups: Vec<_> =
            group_by_value(slices, |x, y| x == y).into_iter().map(|group| group.replicas).collect();
        if groups.len() > 1 {
            let range = ByteRange::new(start + run.start as u64, start + run.end as u64);
            push_or_extend(&mut regions, DifferingRegion { range, groups });
        }
    }
    regions
}

/// Appends a region; extends the last one if that continues with the same groups.
pub(super) fn push_or_extend(regions: &mut Vec<DifferingRegion>, next: DifferingRegion) {
    match regions.last_mut() {
        Some(last) if last.range.end == next.range.start && last.groups == next.groups => {
            last.range.end = next.range.end;
        }
        _ => regions.push(next),
    }
}

/// The ranges in which two slices of the same length differ. Ranges are at least [`MERGE_DISTANCE`]
/// apart.
fn differing_runs(one: &[u8], other: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in (0..one.len()).step_by(COMPARE_STRIDE) {
        let end = (at + COMPARE_STRIDE).min(one.len());
        if one[at..end] == other[at..end] {
            continue;
        }
        for i in (at..end).filter(|i| one[*i] != other[*i]) {
            match runs.last_mut() {
                Some(run) if i < run.end + MERGE_DISTANCE => run.end = i + 1,
                _ => runs.push(i..i + 1),
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(i: usize) -> ReplicaId {
        ReplicaId::new(i)
    }

    fn set(ids: &[usize]) -> ReplicaSet {
        ids.iter().fold(ReplicaSet::EMPTY, |set, i| set.with(id(*i)))
    }

    #[test]
    fn one_differing_byte_is_a_range_of_one_byte() {
        let good = vec![7; 10_000];
        let mut bad = good.clone();
        bad[4999] = 8;
        let copies = [(id(0), good.clone()), (id(1), bad), (id(2), good)];
        let range = ByteRange::new(1_004_999, 1_005_000);
        let groups = vec![set(&[0, 2]), set(&[1])];
        assert_eq!(differing_regions(1_000_000, &copies), [DifferingRegion { range, groups }]);
    }

    #[test]
    fn the_first_copy_may_be_the_differing_one() {
        let copies = [(id(0), vec![1; 100]), (id(1), vec![2; 100]), (id(2), vec![2; 100])];
        let groups = vec![set(&[1, 2]), set(&[0])];
        assert_eq!(
            differing_regions(0, &copies),
            [DifferingRegion { range: ByteRange::new(0, 100), groups }]
        );
    }

    #[test]
    fn agreeing_replicas_are_listed_for_each_range() {
        let one = vec![0; 300];
        let mut two = vec![0; 300];
        let mut three = vec![0; 300];
        two[100..200].fill(1);
        three[150..250].fill(1);
        let copies = [(id(0), one), (id(1), two), (id(2), three)];
        let expected = [
            (100, 150, vec![set(&[0, 2]), set(&[1])]),
            (150, 200, vec![set(&[1, 2]), set(&[0])]),
            (200, 250, vec![set(&[0, 1]), set(&[2])]),
        ];
        let regions: Vec<_> = differing_regions(0, &copies)
            .into_iter()
            .map(|r| (r.range.start, r.range.end, r.groups))
            .collect();
        assert_eq!(regions, expected);
    }

    #[test]
    fn near_differences_are_joined_into_one_range() {
        let good = vec![0; 9000];
        let mut bad = good.clone();
        for i in [10, 10 + MERGE_DISTANCE, 4096 - 3, 4096 + 4, 8000] {
            bad[i] = 1;
        }
        let ranges: Vec<_> = differing_regions(0, &[(id(0), good), (id(1), bad)])
            .into_iter()
            .map(|region| (region.range.start, region.range.end))
            .collect();
        assert_eq!(ranges, [(10, 27), (4093, 4101), (8000, 8001)]);
    }

    proptest! {
        #[test]
        fn every_differing_byte_is_in_a_range(
            flips in proptest::collection::vec((0usize..3, 0usize..20_000), 0..40),
        ) {
            let mut copies: Vec<_> = (0..3).map(|i| (id(i), vec![0u8; 20_000])).collect();
            for (who, at) in flips {
                copies[who].1[at] ^= 1;
            }
            let regions = differing_regions(0, &copies);
            let differ = |i: usize| copies.iter().any(|(_, bytes)| bytes[i] != copies[0].1[i]);
            for i in 0..20_000u64 {
                let inside = regions.iter().any(|r| (r.range.start..r.range.end).contains(&i));
                prop_assert!(inside || !differ(i as usize), "{i} is in no range");
            }
            for region in &regions {
                prop_assert!(region.groups.len() > 1);
                prop_assert_eq!(region.groups.iter().map(|g| g.len()).sum::<usize>(), 3);
            }
        }
    }
}
