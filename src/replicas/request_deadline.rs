//! How long a request may go without progress.
//!
//! The deadline counts from when the request came, and again from each progress. While
//! none of the replicas that could serve the request answers anything, it stands still, up
//! to a longer deadline: servers that restart are waited for, as a hard mount does. When
//! one of them answers again, the request has its deadline once more.
//!
//! Whether they answer is settled by their roots, which are asked from half of the deadline
//! on ([`super::health_board::HealthBoard::responsiveness`]). So a request for an object that
//! hangs while its replicas are well ends at its deadline.

use std::time::{Duration, Instant};

use super::health_board::Responsiveness;

/// How often it is looked whether a request has waited too long.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// After a silence what was sent before it has so long to come back, or a quarter of the
/// deadline. An NFS client sends it again by itself.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// After this time, and as often, it is looked whether the thread that waits was killed.
pub const KILL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// By when requests end.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// While some replica answers.
    pub while_responsive: Duration,
    /// While none does.
    pub while_unresponsive: Duration,
}

impl Deadlines {
    /// `all` where that is longer than `some`.
    pub fn new(some: Duration, all: Duration) -> Self {
        Self { while_responsive: some, while_unresponsive: all.max(some) }
    }
}

/// One request's wait.
#[derive(Clone, Copy, Debug)]
pub struct RequestDeadline {
    /// When it was made, or last had progress.
    last_progress: Instant,
    /// When all replicas were last seen to be silent.
    unresponsive_at: Option<Instant>,
    /// Whether none has answered since.
    is_unresponsive: bool,
    /// When it is asked again, if it has no answer by then.
    retry_at: Option<Instant>,
    deadlines: Deadlines,
    next_check: Instant,
    next_kill_check: Instant,
}

/// The outcome of judging a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineVerdict {
    /// It waits.
    Wait,
    /// It waits. A replica answered again a while ago, so it is to be asked for this again:
    /// what hangs in a mount that has gone does not return.
    Retry,
    /// It has waited long enough.
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

    /// It had progress at `at`.
    pub fn record_progress(&mut self, at: Option<Instant>) {
        self.last_progress = at.map_or(self.last_progress, |at| at.max(self.last_progress));
    }

    /// Whether it may have waited too long: then [`RequestDeadline::check`] is to be asked.
    pub fn is_due(&self, now: Instant) -> bool {
        let counts = self.counted_time(now) >= self.deadlines.while_responsive / 2;
        now >= self.next_check && (counts || self.is_unresponsive || self.retry_at.is_some())
    }

    /// Judges it, with what is known of its replicas now.
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

    /// Whether all replicas have been silent during it.
    pub fn has_been_unresponsive(&self) -> bool {
        self.unresponsive_at.is_some()
    }

    /// Whether it is to be looked now whether the thread that waits has been killed.
    pub fn take_due_kill_check(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next_kill_check;
        if is_due {
            self.next_kill_check = now + KILL_CHECK_INTERVAL;
        }
        is_due
    }

    /// For how long its deadline has counted.
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

    /// Judges a request each second; returns when it was over.
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
    fn the_deadline_counts_while_a_replica_answers_and_stands_still_while_none_does() {
        let start = Instant::now();
        assert_eq!(ends(term(start), start, |_| Responsiveness::Responsive), 10);
        let restart = |second| {
            if second < 60 { Responsiveness::Unresponsive } else { Responsiveness::Responsive }
        };
        assert_eq!(ends(term(start), start, restart), 69);
        // Nothing is known yet.
        let slow_root =
            |second| if second < 13 { Responsiveness::Unknown } else { Responsiveness::Responsive };
        assert_eq!(ends(term(start), start, slow_root), 13);
    }

    #[test]
    fn silence_is_borne_until_the_longer_deadline_after_the_last_progress() {
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
    fn what_was_sent_before_a_silence_is_sent_again_once_after_it() {
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
    fn replicas_are_asked_late_in_the_deadline_only() {
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
