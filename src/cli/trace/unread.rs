//! Segments that a daemon has in memory, and what of them no read has asked for yet.
//!
//! A segment's line comes before those of its reads, except where a read finds the segment
//! in the moment in which it arrives: some reads are remembered for that.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::telemetry::trace::{ReadPart, SegmentRecord};

/// Reads that are remembered.
const MAX_EARLY_PARTS: usize = 256;

/// By file and first byte.
#[derive(Default)]
pub(super) struct UnreadSegments {
    segments: BTreeMap<(u64, u64), BufferedSegment>,
    early_parts: VecDeque<(u64, ReadPart)>,
}

struct BufferedSegment {
    replica: String,
    /// Tells it from another segment at this place.
    took_us: u64,
    end: u64,
    /// Apart from each other.
    unread_ranges: Vec<Range<u64>>,
}

impl BufferedSegment {
    /// Whether the part is of this segment.
    fn contains_part(&self, offset: u64, part: &ReadPart) -> bool {
        let is_within = offset <= part.offset && part.offset < self.end;
        is_within && part.took_us == self.took_us && part.replica.as_ref() == Some(&self.replica)
    }

    fn mark_read(&mut self, part: &ReadPart) {
        let read_end = part.offset + part.length;
        let left = self.unread_ranges.iter().flat_map(|range| {
            [range.start..range.end.min(part.offset), range.start.max(read_end)..range.end]
        });
        self.unread_ranges = left.filter(|range| !range.is_empty()).collect();
    }

    fn unread_bytes(&self) -> u64 {
        self.unread_ranges.iter().map(|range| range.end - range.start).sum()
    }
}

impl UnreadSegments {
    /// A replica has brought a segment.
    pub(super) fn add_segment(&mut self, segment: &SegmentRecord) {
        let offset = segment.offset;
        let end = offset + segment.length;
        let whole = offset..end;
        let mut kept = BufferedSegment {
            replica: segment.replica.clone(),
            took_us: segment.took_us,
            end,
            unread_ranges: vec![whole],
        };
        self.early_parts.retain(|(file, part)| {
            let is_its = *file == segment.file && kept.contains_part(offset, part);
            if is_its {
                kept.mark_read(part);
            }
            !is_its
        });
        match kept.unread_ranges.is_empty() {
            true => self.segments.remove(&(segment.file, offset)),
            false => self.segments.insert((segment.file, offset), kept),
        };
    }

    /// A read has had a part of one.
    pub(super) fn mark_read(&mut self, file: u64, part: &ReadPart) {
        let until = (file, part.offset);
        let found = self.segments.range_mut((file, 0)..=until).next_back();
        match found.filter(|((_, offset), kept)| kept.contains_part(*offset, part)) {
            Some((key, kept)) => {
                kept.mark_read(part);
                if kept.unread_ranges.is_empty() {
                    let key = *key;
                    self.segments.remove(&key);
                }
            }
            None => {
                if self.early_parts.len() == MAX_EARLY_PARTS {
                    self.early_parts.pop_front();
                }
                self.early_parts.push_back((file, part.clone()));
            }
        }
    }

    /// The daemon has dropped one.
    pub(super) fn remove_dropped(&mut self, file: u64, offset: u64, took_us: u64) {
        if self.segments.get(&(file, offset)).is_some_and(|kept| kept.took_us == took_us) {
            self.segments.remove(&(file, offset));
        }
    }

    /// Forgets all; returns the bytes of each replica that no read has asked for.
    pub(super) fn take_unread(&mut self) -> BTreeMap<String, u64> {
        self.early_parts.clear();
        let mut unread = BTreeMap::new();
        for kept in std::mem::take(&mut self.segments).into_values() {
            let bytes = kept.unread_bytes();
            *unread.entry(kept.replica).or_default() += bytes;
        }
        unread
    }

    /// Bytes that no read has asked for.
    pub(super) fn unread_bytes(&self) -> u64 {
        self.segments.values().map(BufferedSegment::unread_bytes).sum()
    }
}
