//! The known segments of one file: fetched, or being fetched.
//!
//! *Invariant:* they do not overlap.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::volume::ByteRange;

/// A segment, as seen by the map.
pub(super) trait Segment {
    /// Its bytes of the file.
    fn range(&self) -> ByteRange;

    /// Whether it has `part`, or will have it.
    fn can_serve(&self, part: ByteRange) -> bool;
}

/// Segments by their first byte.
pub(super) struct SegmentMap<S>(BTreeMap<u64, Arc<S>>);

impl<S> Default for SegmentMap<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Segment> SegmentMap<S> {
    pub(super) fn insert(&mut self, segment: Arc<S>) {
        self.0.insert(segment.range().start, segment);
    }

    /// All segments, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<S>> {
        self.0.values()
    }

    /// The segments that intersect `range`, in order.
    pub(super) fn known(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Arc<S>)> {
        let first = self
            .0
            .range(..=range.start)
            .next_back()
            .filter(|(_, segment)| segment.range().end > range.start)
            .map_or(range.start, |(start, _)| *start);
        self.0
            .range(first..range.end.max(first))
            .map(|(_, segment)| (segment.range(), Arc::clone(segment)))
    }

    /// Removes segments whose bytes in `range` have been moved away.
    pub(super) fn drop_consumed(&mut self, range: ByteRange) {
        let gone = |(part, segment): (ByteRange, Arc<S>)| {
            let wanted = part.intersect(range);
            (!wanted.is_empty() && !segment.can_serve(wanted)).then_some(part.start)
        };
        let gone: Vec<u64> = self.known(range).filter_map(gone).collect();
        for start in gone {
            self.0.remove(&start);
        }
    }

    /// Removes a segment, if it is the known one at its start.
    pub(super) fn forget(&mut self, segment: &Arc<S>) {
        let start = segment.range().start;
        if self.0.get(&start).is_some_and(|known| Arc::ptr_eq(known, segment)) {
            self.0.remove(&start);
        }
    }

    /// Removes and returns the segments that match `is_gone`.
    pub(super) fn take_where(&mut self, is_gone: impl Fn(&S) -> bool) -> Vec<Arc<S>> {
        let gone = self.0.iter().filter(|(_, segment)| is_gone(segment));
        let starts: Vec<u64> = gone.map(|(start, _)| *start).collect();
        starts.iter().filter_map(|start| self.0.remove(start)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Part {
        range: ByteRange,
        is_consumed: AtomicBool,
    }

    impl Segment for Part {
        fn range(&self) -> ByteRange {
            self.range
        }

        fn can_serve(&self, _: ByteRange) -> bool {
            !self.is_consumed.load(Ordering::Relaxed)
        }
    }

    fn map() -> SegmentMap<Part> {
        let mut map = SegmentMap::default();
        for start in [0, 10, 30] {
            let range = ByteRange::at(start, 10);
            map.insert(Arc::new(Part { range, is_consumed: AtomicBool::new(false) }));
        }
        map
    }

    fn starts(map: &SegmentMap<Part>, range: ByteRange) -> Vec<u64> {
        map.known(range).map(|(range, _)| range.start).collect()
    }

    #[test]
    fn overlapping_segments_are_found_in_order() {
        let map = map();
        assert_eq!(starts(&map, ByteRange::new(5, 31)), [0, 10, 30]);
        assert_eq!(starts(&map, ByteRange::new(10, 30)), [10]);
        assert!(starts(&map, ByteRange::new(20, 30)).is_empty());
        assert_eq!(starts(&map, ByteRange::new(39, 90)), [30]);
    }

    #[test]
    fn a_consumed_segment_is_dropped_when_needed_again() {
        let mut map = map();
        map.iter().nth(1).unwrap().is_consumed.store(true, Ordering::Relaxed);
        map.drop_consumed(ByteRange::new(0, 10));
        assert_eq!(starts(&map, ByteRange::new(0, 90)), [0, 10, 30]);
        map.drop_consumed(ByteRange::new(5, 15));
        assert_eq!(starts(&map, ByteRange::new(0, 90)), [0, 30]);
    }

    #[test]
    fn a_replacing_segment_is_not_forgotten() {
        let mut map = map();
        let old = Arc::clone(map.iter().next().unwrap());
        let range = old.range;
        map.insert(Arc::new(Part { range, is_consumed: AtomicBool::new(false) }));
        map.forget(&old);
        assert_eq!(starts(&map, range), [0]);
        let new = Arc::clone(map.iter().next().unwrap());
        map.forget(&new);
        assert!(starts(&map, range).is_empty());
        assert_eq!(map.take_where(|part| part.range.start == 30).len(), 1);
        assert_eq!(starts(&map, ByteRange::new(0, 90)), [10]);
    }
}
