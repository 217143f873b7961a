//! The segments in a daemon's memory, and the bytes of them that no read has requested yet.
//!
//! A segment's line comes before the lines of its reads. The exception is a read that finds the
//! segment at the moment of its arrival. So recent reads without a segment are kept for a while.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::telemetry::trace::{ReadPart, SegmentRecord};

/// The most parts of reads that are kept.
const MAX_EARLY_PARTS: usize = 256;

/// The segments by file and first byte.
#[derive(Default)]
pub(super) struct UnreadSegments {
    segments: BTreeMap<(u64, u64), BufferedSegment>,
    early_parts: VecDeque<(u64, ReadPart)>,
}

struct BufferedSegment {
    replica: String,
    /// Distinguishes it from another segment at this offset.
    took_us: u64,
    end: u64,
    /// They do not overlap.
    unread_ranges: Vec<Range<u64>>,
}

impl BufferedSegment {
    /// Whether the part comes from this segment, which starts at `offset`.
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
    /// Adds a segment that a replica delivered.
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

    /// Records that a read received a part of a segment.
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

    /// Removes a segment that the daemon dropped.
    pub(super) fn remove_dropped(&mut self, file: u64, offset: u64, took_us: u64) {
        if self.segments.get(&(file, offset)).is_some_and(|kept| kept.took_us == took_us) {
            self.segments.remove(&(file, offset));
        }
    }

    /// Removes all segments; returns the unread bytes of each replica.
    pub(super) fn take_unread(&mut self) -> BTreeMap<String, u64> {
        self.early_parts.clear();
        let mut unread = BTreeMap::new();
        for kept in std::mem::take(&mut self.segments).into_values() {
            let bytes = kept.unread_bytes();
            *unread.entry(kept.replica).or_default() += bytes;
        }
        unread
    }

    /// Bytes that no read has requested.
    pub(super) fn unread_bytes(&self) -> u64 {
        self.segments.values().map(BufferedSegment::unread_bytes).sum()
    }
}
