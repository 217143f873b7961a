//! Segments on which a request has just timed out.
//!
//! When the kernel's readahead fails, the kernel asks again for the same data, page by page. That
//! second request comes right after the first one's deadline. It fails at once, or the application
//! would wait twice as long. Reads of all other segments proceed as usual.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::volume::ByteRange;

/// How long a read of such a segment fails at once.
const RECENT: Duration = Duration::from_millis(100);

/// Segments of one file, with the times of their timeouts.
#[derive(Default)]
pub(super) struct SegmentTimeouts {
    expired: Mutex<Vec<(ByteRange, Instant)>>,
    /// Whether there are any, readable without the lock.
    has_any: AtomicBool,
}

impl SegmentTimeouts {
    /// Records that a request has timed out on these segments.
    pub(super) fn add(&self, segments: impl Iterator<Item = ByteRange>, now: Instant) {
        let mut expired = self.expired.lock();
        expired.retain(|(_, at)| is_recent(*at, now));
        expired.extend(segments.map(|segment| (segment, now)));
        self.has_any.store(!expired.is_empty(), Ordering::Release);
    }

    /// The parts of `range` that lie in such segments.
    pub(super) fn within(&self, range: ByteRange, now: Instant) -> Vec<ByteRange> {
        if !self.has_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut expired = self.expired.lock();
        expired.retain(|(_, at)| is_recent(*at, now));
        self.has_any.store(!expired.is_empty(), Ordering::Release);
        let parts = expired.iter().map(|(segment, _)| segment.intersect(range));
        parts.filter(|part| !part.is_empty()).collect()
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_segment_timeouts_are_known_for_a_while() {
        let (expired, start) = (SegmentTimeouts::default(), Instant::now());
        let segments = [ByteRange::new(10, 20), ByteRange::new(30, 40)];
        expired.add(segments.into_iter(), start);
        let soon = start + RECENT / 2;
        assert_eq!(expired.within(ByteRange::new(20, 30), soon), []);
        assert_eq!(expired.within(ByteRange::new(40, 1000), soon), []);
        let met = [ByteRange::new(15, 20), ByteRange::new(30, 31)];
        assert_eq!(expired.within(ByteRange::new(15, 31), soon), met);
        assert_eq!(expired.within(ByteRange::new(0, 1000), start + RECENT), []);
        assert!(expired.expired.lock().is_empty(), "it is kept for ever");
    }
}
