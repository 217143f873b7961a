//! Names whose lookup has just passed its deadline.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Caller, Spot};

/// The kernel looks a name up once more where it could not be told whether what it
/// knows of it is still true. That second lookup, right after the first one's
/// deadline, is not given another one, or the application would wait twice as long.
const JUST_NOW: Duration = Duration::from_millis(100);

/// The latest of them, the oldest first.
#[derive(Default)]
pub(super) struct Overdue(Mutex<VecDeque<(u64, Instant)>>);

impl Overdue {
    /// A lookup at `spot` passed its deadline.
    fn note(&self, spot: Spot, now: Instant) {
        self.0.lock().push_back((spot.affinity, now));
    }

    /// Whether that has just happened.
    fn has(&self, spot: Spot, now: Instant) -> bool {
        let mut names = self.0.lock();
        while let Some((_, at)) = names.front()
            && now.saturating_duration_since(*at) >= JUST_NOW
        {
            names.pop_front();
        }
        names.iter().any(|(name, _)| *name == spot.affinity)
    }
}

impl Caller {
    /// A lookup at `spot` passed its deadline.
    pub(in crate::fs) fn passed_its_deadline(&self, spot: Spot) {
        self.overdue.note(spot, Instant::now());
    }

    /// Whether one there has just done so.
    pub(in crate::fs) fn has_just_passed_its_deadline(&self, spot: Spot) -> bool {
        self.overdue.has(spot, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_name_is_overdue_for_a_moment() {
        let (overdue, now) = (Overdue::default(), Instant::now());
        let spot = |name: &str| Spot::new(Path::new(name), None);
        overdue.note(spot("a"), now);
        assert!(overdue.has(spot("a"), now) && !overdue.has(spot("b"), now));
        assert!(!overdue.has(spot("a"), now + JUST_NOW));
        assert!(overdue.0.lock().is_empty());
    }
}
