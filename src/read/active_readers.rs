//! Counts the handles that are reading ahead; they share the budget.
//!
//! Idle open handles do not count, so a thousand open files do not shrink the window of the one
//! file that is being read. A reading handle is counted once in each [`COUNT_PERIOD`]. The result
//! is the larger count of the present period and the last one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A handle that has not read for two periods has no share of the budget. A period is longer than a
/// reader waits for its data on a busy volume: 256 MiB at 300 MiB/s take 0.85 s.
const COUNT_PERIOD: Duration = Duration::from_secs(1);

/// The handles that read ahead.
pub(super) struct ActiveReaders {
    start: Instant,
    counts: Mutex<PeriodCounts>,
    /// The number of readers in `counts`, readable without the lock.
    count: AtomicUsize,
}

#[derive(Default)]
struct PeriodCounts {
    period: u64,
    current: usize,
    previous: usize,
}

/// The last period in which a handle was counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastCounted(u64);

impl ActiveReaders {
    pub(super) fn new(start: Instant) -> Self {
        Self { start, counts: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// The number of readers, at least 1.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed).max(1)
    }

    /// Counts a handle that reads; it was last counted in `seen`.
    pub(super) fn count_reader(&self, seen: &mut LastCounted, now: Instant) {
        let since = now.saturating_duration_since(self.start);
        // Periods start at 1, so that a new handle (0) is not yet counted in the first one.
        let period = since.as_secs() / COUNT_PERIOD.as_secs() + 1;
        if seen.0 >= period {
            return;
        }
        seen.0 = period;
        let mut counts = self.counts.lock();
        if period > counts.period {
            counts.previous = if period == counts.period + 1 { counts.current } else { 0 };
            counts.current = 0;
            counts.period = period;
        }
        counts.current += 1;
        self.count.store(counts.current.max(counts.previous), Ordering::Relaxed);
    }

    /// Removes a closed handle, last counted in `seen`.
    pub(super) fn remove_reader(&self, seen: LastCounted) {
        let mut counts = self.counts.lock();
        if seen.0 == counts.period && seen.0 > 0 {
            counts.current -= 1;
            // It may have been counted in the previous period too.
            counts.previous = counts.previous.saturating_sub(1);
        } else if seen.0 + 1 == counts.period {
            counts.previous = counts.previous.saturating_sub(1);
        }
        self.count.store(counts.current.max(counts.previous), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(n: usize) -> (ActiveReaders, Vec<LastCounted>, Instant) {
        let start = Instant::now();
        let crowd = ActiveReaders::new(start);
        let mut seen = vec![LastCounted::default(); n];
        seen.iter_mut().for_each(|seen| crowd.count_reader(seen, start));
        (crowd, seen, start)
    }

    #[test]
    fn each_reader_counts_once_per_period() {
        let (crowd, mut seen, start) = crowd(20);
        seen.iter_mut().for_each(|seen| crowd.count_reader(seen, start + COUNT_PERIOD / 2));
        assert_eq!(crowd.count(), 20);
        // The first reader of a new period does not erase the others.
        crowd.count_reader(&mut seen[0], start + COUNT_PERIOD);
        assert_eq!(crowd.count(), 20);
    }

    #[test]
    fn idle_readers_do_not_count() {
        let (crowd, mut seen, start) = crowd(1000);
        for i in 0..3 {
            crowd.count_reader(&mut seen[0], start + i * COUNT_PERIOD);
        }
        assert_eq!(crowd.count(), 1);
        let (crowd, mut seen, start) = self::crowd(1000);
        crowd.count_reader(&mut seen[0], start + 100 * COUNT_PERIOD);
        assert_eq!(crowd.count(), 1);
    }

    #[test]
    fn closed_readers_do_not_count() {
        let (crowd, mut seen, start) = crowd(1000);
        crowd.count_reader(&mut seen[0], start + COUNT_PERIOD);
        seen[1..].iter().for_each(|seen| crowd.remove_reader(*seen));
        assert_eq!(crowd.count(), 1);
        crowd.remove_reader(seen[0]);
        crowd.remove_reader(LastCounted::default());
        assert_eq!(crowd.count(), 1);
    }
}
