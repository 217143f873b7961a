//! How long a request may go without progress.
//!
//! The deadline counts from the arrival of the request, and again from each progress. It stops
//! while none of the replicas that could serve the request answers anything, up to a longer
//! deadline. So fanfs waits for a restarting server, as a hard mount does. When one of them answers
//! again, the full deadline starts again.
//!
//! The replicas' roots show whether they answer: they are checked once half of the deadline has
//! passed ([`super::health_board::HealthBoard::responsiveness`]). So a request for a hung object on
//! healthy replicas ends at its deadline.

use std::time::{Duration, Instant};

use super::health_board::Responsiveness;

/// The least time between two checks of a request.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// After a silence, requests sent before it get this long to complete, or a quarter of the deadline
/// if that is shorter. An NFS client resends them by itself.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The interval of checks whether the waiting thread was killed, and the time before the first one.
pub const KILL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The time limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// While any replica answers.
    pub while_responsive: Duration,
    /// While none answers.
    pub while_unresponsive: Duration,
}

impl Deadlines {
    /// Uses `all` only if it is longer than `some`.
    pub fn new(some: Duration, all: Duration) -> Self {
        Self { while_responsive: some, while_unresponsive: all.max(some) }
    }
}

/// The wait of one request.
#[derive(Clone, Copy, Debug)]
pub struct RequestDeadline {
    /// When it was made, or last made progress.
    last_progress: Instant,
    /// When all replicas were last found silent.
    unresponsive_at: Option<Instant>,
    /// Whether none has answered since.
    is_unresponsive: bool,
    /// When its replicas are asked again if it has no answer by then.
    retry_at: Option<Instant>,
    deadlines: Deadlines,
    next_check: Instant,
    next_kill_check: Instant,
}

/// The result of checking a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineVerdict {
    /// It may wait.
    Wait,
    /// It may wait, but its replicas must be asked again. One of them answered again a while ago,
    /// and calls that hang in a mount that is gone never return.
    Retry,
    /// It has passed its deadline.
    Expired,
}

impl RequestDeadline {
    /// The wait of a request that was made at `since`.
    pub fn new(since: Instant, deadlines: Deadlines) -> Self {
        let look_at_asker = since + KILL_CHECK_INTERVAL;
        Self {
            last_progress: since,
            unresponsive_at: None,
            is_unresponsive: false,
            retry_at: None,
            deadlines,
            next_check: since,
            next_kill_check: look_at_asker,
        }
    }

    /// When it was made, or last made progress.
    pub fn last_progress(&self) -> Instant {
        self.last_progress
    }

    /// Records progress at `at`, if any.
    pub fn record_progress(&mut self, at: Option<Instant>) {
        self.last_progress = at.map_or(self.last_progress, |at| at.max(self.last_progress));
    }

    /// Whether a [`RequestDeadline::check`] is due.
    pub fn is_due(&self, now: Instant) -> bool {
        let counts = self.counted_time(now) >= self.deadlines.while_responsive / 2;
        now >= self.next_check && (counts || self.is_unresponsive || self.retry_at.is_some())
    }

    /// Checks it; `silence` returns whether its replicas answer now.
    pub fn check(
        &mut self,
        now: Instant,
        silence: impl FnOnce() -> Responsiveness,
    ) -> DeadlineVerdict {
        if !self.is_due(now) {
            return DeadlineVerdict::Wait;
        }
        self.next_check = now + CHECK_INTERVAL;
        let is_past = self.counted_time(now) >= self.deadlines.while_responsive;
        let in_all = now.saturating_duration_since(self.last_progress);
        match silence() {
            Responsiveness::Responsive if is_past => return DeadlineVerdict::Expired,
            Responsiveness::Responsive if self.is_unresponsive => {
                let patience = MAX_RETRY_DELAY.min(self.deadlines.while_responsive / 4);
                self.is_unresponsive = false;
                self.retry_at = Some(now + patience);
            }
            Responsiveness::Responsive => {}
            _ if in_all >= self.deadlines.while_unresponsive => return DeadlineVerdict::Expired,
            Responsiveness::Unresponsive => {
                self.unresponsive_at = Some(now);
                self.is_unresponsive = true;
            }
            Responsiveness::Unknown => {}
        }
        match self.retry_at.take_if(|again| now >= *again) {
            Some(_) => DeadlineVerdict::Retry,
            None => DeadlineVerdict::Wait,
        }
    }

    /// Whether all replicas have been silent at some time during it.
    pub fn has_been_unresponsive(&self) -> bool {
        self.unresponsive_at.is_some()
    }

    /// Whether a check for a killed thread is due; schedules the next one if so.
    pub fn take_due_kill_check(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_kill_check;
        if is_due {
            self.next_kill_check = now + KILL_CHECK_INTERVAL;
        }
        is_due
    }

    /// The time that counts toward the deadline.
    fn counted_time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(
            self.unresponsive_at.unwrap_or(self.last_progress).max(self.last_progress),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines {
        while_responsive: Duration::from_secs(10),
        while_unresponsive: Duration::from_secs(100),
    };

    /// Checks a request each second; returns the second in which it expired.
    fn ends(
        mut term: RequestDeadline,
        start: Instant,
        silence: impl Fn(u64) -> Responsiveness,
    ) -> u64 {
        let at = |second| start + Duration::from_secs(second);
        let mut judge = |second: &u64| term.check(at(*second), || silence(*second));
        (0..1000).find(|second| judge(second) == DeadlineVerdict::Expired).unwrap()
    }

    fn term(start: Instant) -> RequestDeadline {
        RequestDeadline::new(start, DEADLINES)
    }

    #[test]
    fn the_deadline_runs_only_while_a_replica_answers() {
        let start = Instant::now();
        assert_eq!(ends(term(start), start, |_| Responsiveness::Responsive), 10);
        let restart = |second| {
            if second < 60 { Responsiveness::Unresponsive } else { Responsiveness::Responsive }
        };
        assert_eq!(ends(term(start), start, restart), 69);
        // The state of the root is still unknown.
        let slow_root =
            |second| if second < 13 { Responsiveness::Unknown } else { Responsiveness::Responsive };
        assert_eq!(ends(term(start), start, slow_root), 13);
    }

    #[test]
    fn silence_ends_calls_at_the_longer_deadline() {
        let start = Instant::now();
        assert_eq!(ends(term(start), start, |_| Responsiveness::Unresponsive), 100);
        assert_eq!(ends(term(start), start, |_| Responsiveness::Unknown), 100);
        let mut moved = term(start);
        moved.record_progress(Some(start + Duration::from_secs(7)));
        assert_eq!(ends(moved, start, |_| Responsiveness::Unresponsive), 107);
        let deadlines = Deadlines { while_unresponsive: DEADLINES.while_responsive, ..DEADLINES };
        assert_eq!(
            ends(RequestDeadline::new(start, deadlines), start, |_| Responsiveness::Unresponsive),
            10
        );
    }

    #[test]
    fn calls_from_before_a_silence_are_resent_once() {
        let (start, mut verdicts) = (Instant::now(), Vec::new());
        let mut term = term(start);
        for second in 0..30 {
            let silence =
                if second < 20 { Responsiveness::Unresponsive } else { Responsiveness::Responsive };
            verdicts.push(term.check(start + Duration::from_secs(second), || silence));
        }
        let again: Vec<_> = (0..30).filter(|at| verdicts[*at] == DeadlineVerdict::Retry).collect();
        assert_eq!(again, [23], "a quarter of the deadline after it");
        assert!(term.has_been_unresponsive());
    }

    #[test]
    fn responsiveness_is_checked_only_near_the_deadline() {
        let (start, asked) = (Instant::now(), std::cell::Cell::new(0));
        let mut term = term(start);
        for tenth in 0..50 {
            term.check(start + Duration::from_millis(100 * tenth), || {
                asked.set(asked.get() + 1);
                Responsiveness::Responsive
            });
        }
        assert_eq!(asked.get(), 0);
    }
}
