//! How long a request may go without progress.
//!
//! The deadline counts from when the request came, and again from each progress. While
//! none of the replicas that could serve the request answers anything, it stands still, up
//! to a longer deadline: servers that restart are waited for, as a hard mount does. When
//! one of them answers again, the request has its deadline once more.
//!
//! Whether they answer is settled by their roots, which are asked from half of the deadline
//! on ([`crate::scheduler::board::HealthBoard::silence`]). So a request for an object that
//! hangs while its replicas are well ends at its deadline.

use std::time::{Duration, Instant};

use crate::scheduler::board::Silence;

/// How often it is looked whether a request has waited too long.
const LOOK: Duration = Duration::from_millis(100);

/// After a silence what was sent before it has so long to come back, or a quarter of the
/// deadline. An NFS client sends it again by itself.
const LONGEST_PATIENCE: Duration = Duration::from_secs(5);

/// After this time, and as often, it is looked whether the thread that waits was killed.
pub(super) const LOOK_AT_ASKER: Duration = Duration::from_secs(1);

/// By when requests end.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// While some replica answers.
    pub some: Duration,
    /// While none does.
    pub all: Duration,
}

impl Deadlines {
    /// `all` where that is longer than `some`.
    pub fn new(some: Duration, all: Duration) -> Self {
        Self { some, all: all.max(some) }
    }
}

/// One request's wait.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// When it was made, or last had progress.
    moved: Instant,
    /// When all replicas were last seen to be silent.
    silent: Option<Instant>,
    /// Whether none has answered since.
    is_silent: bool,
    /// When it is asked again, if it has no answer by then.
    again: Option<Instant>,
    deadlines: Deadlines,
    look: Instant,
    look_at_asker: Instant,
}

/// The outcome of judging a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It waits.
    Waits,
    /// It waits. A replica answered again a while ago, so it is to be asked for this again:
    /// what hangs in a mount that has gone does not return.
    Again,
    /// It has waited long enough.
    IsOver,
}

impl Term {
    /// The wait of a request that was made at `since`.
    pub fn new(since: Instant, deadlines: Deadlines) -> Self {
        let look_at_asker = since + LOOK_AT_ASKER;
        Self {
            moved: since,
            silent: None,
            is_silent: false,
            again: None,
            deadlines,
            look: since,
            look_at_asker,
        }
    }

    /// It had progress at `at`.
    pub fn moved(&mut self, at: Option<Instant>) {
        self.moved = at.map_or(self.moved, |at| at.max(self.moved));
    }

    /// Whether it may have waited too long: then [`Term::judge`] is to be asked.
    pub fn is_due(&self, now: Instant) -> bool {
        let counts = self.still(now) >= self.deadlines.some / 2;
        now >= self.look && (counts || self.is_silent || self.again.is_some())
    }

    /// Judges it, with what is known of its replicas now.
    pub fn judge(&mut self, now: Instant, silence: impl FnOnce() -> Silence) -> Verdict {
        if !self.is_due(now) {
            return Verdict::Waits;
        }
        self.look = now + LOOK;
        let is_past = self.still(now) >= self.deadlines.some;
        let in_all = now.saturating_duration_since(self.moved);
        match silence() {
            Silence::Broken if is_past => return Verdict::IsOver,
            Silence::Broken if self.is_silent => {
                let patience = LONGEST_PATIENCE.min(self.deadlines.some / 4);
                (self.is_silent, self.again) = (false, Some(now + patience));
            }
            Silence::Broken => {}
            _ if in_all >= self.deadlines.all => return Verdict::IsOver,
            Silence::Total => (self.silent, self.is_silent) = (Some(now), true),
            Silence::Unclear => {}
        }
        match self.again.take_if(|again| now >= *again) {
            Some(_) => Verdict::Again,
            None => Verdict::Waits,
        }
    }

    /// Whether all replicas have been silent during it.
    pub fn has_been_silent(&self) -> bool {
        self.silent.is_some()
    }

    /// Whether it is to be looked now whether the thread that waits has been killed.
    pub fn looks_at_asker(&mut self, now: Instant) -> bool {
        let is_due = now >= self.look_at_asker;
        if is_due {
            self.look_at_asker = now + LOOK_AT_ASKER;
        }
        is_due
    }

    /// For how long its deadline has counted.
    fn still(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.silent.unwrap_or(self.moved).max(self.moved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines =
        Deadlines { some: Duration::from_secs(10), all: Duration::from_secs(100) };

    /// Judges a request each second; returns when it was over.
    fn ends(mut term: Term, start: Instant, silence: impl Fn(u64) -> Silence) -> u64 {
        let at = |second| start + Duration::from_secs(second);
        let mut judge = |second: &u64| term.judge(at(*second), || silence(*second));
        (0..1000).find(|second| judge(second) == Verdict::IsOver).unwrap()
    }

    fn term(start: Instant) -> Term {
        Term::new(start, DEADLINES)
    }

    #[test]
    fn the_deadline_counts_while_a_replica_answers_and_stands_still_while_none_does() {
        let start = Instant::now();
        assert_eq!(ends(term(start), start, |_| Silence::Broken), 10);
        let restart = |second| if second < 60 { Silence::Total } else { Silence::Broken };
        assert_eq!(ends(term(start), start, restart), 69);
        // Nothing is known yet.
        let slow_root = |second| if second < 13 { Silence::Unclear } else { Silence::Broken };
        assert_eq!(ends(term(start), start, slow_root), 13);
    }

    #[test]
    fn silence_is_borne_until_the_longer_deadline_after_the_last_progress() {
        let start = Instant::now();
        assert_eq!(ends(term(start), start, |_| Silence::Total), 100);
        assert_eq!(ends(term(start), start, |_| Silence::Unclear), 100);
        let mut moved = term(start);
        moved.moved(Some(start + Duration::from_secs(7)));
        assert_eq!(ends(moved, start, |_| Silence::Total), 107);
        let deadlines = Deadlines { all: DEADLINES.some, ..DEADLINES };
        assert_eq!(ends(Term::new(start, deadlines), start, |_| Silence::Total), 10);
    }

    #[test]
    fn what_was_sent_before_a_silence_is_sent_again_once_after_it() {
        let (start, mut verdicts) = (Instant::now(), Vec::new());
        let mut term = term(start);
        for second in 0..30 {
            let silence = if second < 20 { Silence::Total } else { Silence::Broken };
            verdicts.push(term.judge(start + Duration::from_secs(second), || silence));
        }
        let again: Vec<_> = (0..30).filter(|at| verdicts[*at] == Verdict::Again).collect();
        assert_eq!(again, [23], "a quarter of the deadline after it");
        assert!(term.has_been_silent());
    }

    #[test]
    fn replicas_are_asked_late_in_the_deadline_only() {
        let (start, asked) = (Instant::now(), std::cell::Cell::new(0));
        let mut term = term(start);
        for tenth in 0..50 {
            term.judge(start + Duration::from_millis(100 * tenth), || {
                asked.set(asked.get() + 1);
                Silence::Broken
            });
        }
        assert_eq!(asked.get(), 0);
    }
}
