//! Segments that a daemon has in memory, and what of them no read has asked for yet.
//!
//! A segment's line comes before those of its reads, except where a read finds the segment
//! in the moment in which it arrives: some reads are remembered for that.

use std::collections::{BTreeMap, VecDeque};

use crate::telemetry::trace::{Part, Segment};

/// Reads that are remembered.
const EARLY: usize = 256;

/// By file and first byte.
#[derive(Default)]
pub(super) struct Unread {
    segments: BTreeMap<(u64, u64), Kept>,
    early: VecDeque<(u64, Part)>,
}

struct Kept {
    replica: String,
    /// Tells it from another segment at this place.
    took_us: u64,
    end: u64,
    /// First bytes and ends, apart.
    unread: Vec<(u64, u64)>,
}

impl Kept {
    /// Whether the part is of this segment.
    fn has(&self, offset: u64, part: &Part) -> bool {
        let is_within = offset <= part.offset && part.offset < self.end;
        is_within && part.took_us == self.took_us && part.replica.as_ref() == Some(&self.replica)
    }

    fn read(&mut self, part: &Part) {
        let (from, to) = (part.offset, part.offset + part.length);
        let left = self.unread.iter().flat_map(|(start, end)| {
            [(*start, (*end).min(from)), ((*start).max(to), *end)].into_iter()
        });
        self.unread = left.filter(|(start, end)| start < end).collect();
    }

    fn bytes(&self) -> u64 {
        self.unread.iter().map(|(start, end)| end - start).sum()
    }
}

impl Unread {
    /// A replica has brought a segment.
    pub(super) fn brought(&mut self, segment: &Segment) {
        let (offset, end) = (segment.offset, segment.offset + segment.length);
        let (replica, took_us) = (segment.replica.clone(), segment.took_us);
        let mut kept = Kept { replica, took_us, end, unread: vec![(offset, end)] };
        self.early.retain(|(file, part)| {
            let is_its = *file == segment.file && kept.has(offset, part);
            if is_its {
                kept.read(part);
            }
            !is_its
        });
        match kept.unread.is_empty() {
            true => self.segments.remove(&(segment.file, offset)),
            false => self.segments.insert((segment.file, offset), kept),
        };
    }

    /// A read has had a part of one.
    pub(super) fn read(&mut self, file: u64, part: &Part) {
        let until = (file, part.offset);
        let found = self.segments.range_mut((file, 0)..=until).next_back();
        match found.filter(|((_, offset), kept)| kept.has(*offset, part)) {
            Some((key, kept)) => {
                kept.read(part);
                if kept.unread.is_empty() {
                    let key = *key;
                    self.segments.remove(&key);
                }
            }
            None => {
                if self.early.len() == EARLY {
                    self.early.pop_front();
                }
                self.early.push_back((file, part.clone()));
            }
        }
    }

    /// The daemon has dropped one.
    pub(super) fn dropped(&mut self, file: u64, offset: u64, took_us: u64) {
        if self.segments.get(&(file, offset)).is_some_and(|kept| kept.took_us == took_us) {
            self.segments.remove(&(file, offset));
        }
    }

    /// Forgets all, and returns what of them was not read, by replica.
    pub(super) fn take(&mut self) -> Vec<(String, u64)> {
        self.early.clear();
        let all = std::mem::take(&mut self.segments).into_values();
        all.map(|kept| (kept.replica.clone(), kept.bytes())).collect()
    }

    /// Bytes that no read has asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.values().map(Kept::bytes).sum()
    }
}
