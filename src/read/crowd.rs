//! How many handles are reading ahead just now: they share the budget.
//!
//! Handles that are open and idle are not counted, so that a thousand open files
//! do not cost the one that is read its window. Who reads is counted once in
//! each [`PERIOD`]; the crowd is as large as in this period or the last one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A handle that has not read for two of these has no part in the budget. Longer
/// than a reader waits for his data on a busy volume: 256 MiB at 300 MiB/s.
const PERIOD: Duration = Duration::from_secs(1);

/// The handles that read ahead.
pub(super) struct Crowd {
    start: Instant,
    counts: Mutex<Counts>,
    /// What is in `counts`, readable without the lock.
    size: AtomicUsize,
}

#[derive(Default)]
struct Counts {
    period: u64,
    now: usize,
    before: usize,
}

/// When a handle was counted last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen(u64);

impl Crowd {
    pub(super) fn new(start: Instant) -> Self {
        Self { start, counts: Mutex::default(), size: AtomicUsize::new(0) }
    }

    /// How many there are; 1 at least.
    pub(super) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed).max(1)
    }

    /// A handle, last counted at `seen`, reads.
    pub(super) fn reads(&self, seen: &mut Seen, now: Instant) {
        let since = now.saturating_duration_since(self.start);
        // From 1, so that no handle was counted in the first one already.
        let period = since.as_secs() / PERIOD.as_secs() + 1;
        if seen.0 >= period {
            return;
        }
        seen.0 = period;
        let mut counts = self.counts.lock();
        if period > counts.period {
            counts.before = if period == counts.period + 1 { counts.now } else { 0 };
            counts.now = 0;
            counts.period = period;
        }
        counts.now += 1;
        self.size.store(counts.now.max(counts.before), Ordering::Relaxed);
    }

    /// A handle, last counted at `seen`, is closed.
    pub(super) fn leaves(&self, seen: Seen) {
        let mut counts = self.counts.lock();
        if seen.0 == counts.period && seen.0 > 0 {
            counts.now -= 1;
            // It may have been counted in the last period too.
            counts.before = counts.before.saturating_sub(1);
        } else if seen.0 + 1 == counts.period {
            counts.before = counts.before.saturating_sub(1);
        }
        self.size.store(counts.now.max(counts.before), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(n: usize) -> (Crowd, Vec<Seen>, Instant) {
        let start = Instant::now();
        let crowd = Crowd::new(start);
        let mut seen = vec![Seen::default(); n];
        seen.iter_mut().for_each(|seen| crowd.reads(seen, start));
        (crowd, seen, start)
    }

    #[test]
    fn each_who_reads_counts_once_a_period() {
        let (crowd, mut seen, start) = crowd(20);
        seen.iter_mut().for_each(|seen| crowd.reads(seen, start + PERIOD / 2));
        assert_eq!(crowd.size(), 20);
        // The first one of a new period does not make the others forgotten.
        crowd.reads(&mut seen[0], start + PERIOD);
        assert_eq!(crowd.size(), 20);
    }

    #[test]
    fn who_is_idle_does_not_count() {
        let (crowd, mut seen, start) = crowd(1000);
        for i in 0..3 {
            crowd.reads(&mut seen[0], start + i * PERIOD);
        }
        assert_eq!(crowd.size(), 1);
        let (crowd, mut seen, start) = self::crowd(1000);
        crowd.reads(&mut seen[0], start + 100 * PERIOD);
        assert_eq!(crowd.size(), 1);
    }

    #[test]
    fn who_has_closed_does_not_count() {
        let (crowd, mut seen, start) = crowd(1000);
        crowd.reads(&mut seen[0], start + PERIOD);
        seen[1..].iter().for_each(|seen| crowd.leaves(*seen));
        assert_eq!(crowd.size(), 1);
        crowd.leaves(seen[0]);
        crowd.leaves(Seen::default());
        assert_eq!(crowd.size(), 1);
    }
}
