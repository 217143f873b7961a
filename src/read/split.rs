//! Splits a range into known and missing pieces.

use crate::volume::ByteRange;

/// A part of a requested range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<K> {
    /// Fetched already, or being fetched.
    Known(K, ByteRange),
    /// Not known; never crosses a segment boundary.
    Missing(ByteRange),
}

/// Splits `wanted` into pieces, in order, without gap or overlap.
///
/// `known` has the fetched and pending ranges that intersect `wanted`, in order and disjoint. The
/// gaps between them are cut at multiples of `segment`. So each missing piece is one positioned
/// read of one replica, and nothing is fetched that was not requested.
pub fn split_range<K>(
    wanted: ByteRange,
    known: impl Iterator<Item = (ByteRange, K)>,
    segment: u64,
) -> Vec<Piece<K>> {
    let mut pieces = Vec::new();
    let mut at = wanted.start;
    for (range, key) in known {
        let part = range.intersect(wanted);
        if part.is_empty() {
            continue;
        }
        push_missing(ByteRange::new(at, part.start), segment, &mut pieces);
        pieces.push(Piece::Known(key, part));
        at = part.end;
    }
    push_missing(ByteRange::new(at, wanted.end), segment, &mut pieces);
    pieces
}

fn push_missing<K>(gap: ByteRange, segment: u64, pieces: &mut Vec<Piece<K>>) {
    let mut start = gap.start;
    while start < gap.end {
        let boundary = (start / segment + 1).saturating_mul(segment);
        let end = boundary.min(gap.end);
        pieces.push(Piece::Missing(ByteRange::new(start, end)));
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    #[test]
    fn an_unknown_range_is_split_at_segment_boundaries() {
        let pieces = split_range(r(5, 25), std::iter::empty::<(ByteRange, ())>(), 10);
        assert_eq!(pieces, [r(5, 10), r(10, 20), r(20, 25)].map(Piece::Missing));
    }

    #[test]
    fn only_the_parts_not_known_are_missing() {
        let known = [(r(0, 10), 'a'), (r(12, 15), 'b')].into_iter();
        assert_eq!(
            split_range(r(5, 20), known, 10),
            [
                Piece::Known('a', r(5, 10)),
                Piece::Missing(r(10, 12)),
                Piece::Known('b', r(12, 15)),
                Piece::Missing(r(15, 20)),
            ]
        );
    }

    #[test]
    fn the_end_of_the_offset_space_is_handled() {
        let pieces =
            split_range(r(u64::MAX - 3, u64::MAX), std::iter::empty::<(ByteRange, ())>(), 1 << 20);
        assert_eq!(pieces, [Piece::Missing(r(u64::MAX - 3, u64::MAX))]);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_range_exactly(
            start in 0u64..5000, len in 0u64..5000, cuts in proptest::collection::btree_set(0u64..10_000, 0..20),
            segment in 1u64..2000,
        ) {
            let wanted = ByteRange::at(start, len);
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let known: Vec<_> = cuts.chunks_exact(2).map(|c| (r(c[0], c[1]), c[0])).collect();
            let pieces = split_range(wanted, known.iter().copied(), segment);
            let mut at = wanted.start;
            for piece in pieces {
                let range = match piece {
                    Piece::Known(key, part) => {
                        let whole = known.iter().find(|(_, k)| *k == key).unwrap().0;
                        prop_assert_eq!(whole.intersect(part), part);
                        part
                    }
                    Piece::Missing(part) => {
                        prop_assert_eq!(part.start / segment, (part.end - 1) / segment);
                        prop_assert!(known.iter().all(|(k, _)| k.intersect(part).is_empty()));
                        part
                    }
                };
                prop_assert_eq!(range.start, at);
                prop_assert!(!range.is_empty());
                at = range.end;
            }
            prop_assert_eq!(at, wanted.end.max(wanted.start));
        }
    }
}
