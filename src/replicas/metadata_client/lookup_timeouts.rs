//! Lookups that have just timed out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{CallTarget, MetadataClient};

/// How long a repeated lookup fails at once. When a revalidation fails, the kernel looks the name
/// up again. That second lookup comes right after the first one's deadline. If it had its own
/// deadline, the application would wait twice as long.
const RECENT: Duration = Duration::from_millis(100);

/// The most recent timeouts, the oldest first.
#[derive(Default)]
pub(super) struct LookupTimeouts(Mutex<VecDeque<(u64, Instant)>>);

impl LookupTimeouts {
    fn add(&self, target: CallTarget, now: Instant) {
        self.0.lock().push_back((target.path_hash, now));
    }

    /// Whether a lookup at `target` has just timed out.
    fn contains(&self, target: CallTarget, now: Instant) -> bool {
        let mut names = self.0.lock();
        while let Some((_, at)) = names.front()
            && now.saturating_duration_since(*at) >= RECENT
        {
            names.pop_front();
        }
        names.iter().any(|(name, _)| *name == target.path_hash)
    }
}

impl MetadataClient {
    /// Records that a lookup at `target` has timed out.
    pub fn record_lookup_timeout(&self, target: CallTarget) {
        self.lookup_timeouts.add(target, Instant::now());
    }

    /// Whether a lookup at `target` has just timed out.
    pub fn has_recent_lookup_timeout(&self, target: CallTarget) -> bool {
        self.lookup_timeouts.contains(target, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_lookup_timeout_is_remembered_for_a_moment() {
        let (overdue, now) = (LookupTimeouts::default(), Instant::now());
        let target = |name: &str| CallTarget::new(Path::new(name), None);
        overdue.add(target("a"), now);
        assert!(overdue.contains(target("a"), now) && !overdue.contains(target("b"), now));
        assert!(!overdue.contains(target("a"), now + RECENT));
        assert!(overdue.0.lock().is_empty());
    }
}
