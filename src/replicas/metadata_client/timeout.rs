//! The waiting of a call: when it asks the next replica, and when it gives up.

use std::sync::Arc;
use std::time::Instant;

use super::fallback::take_due;
use super::{CallAttempt, MetadataCall, TickedCall};
use crate::backend::BackendError;
use crate::replicas::request_deadline::DeadlineVerdict;

impl<T: Send + 'static> MetadataCall<T> {
    /// Whether the call has passed its deadline.
    fn check_deadline(&self, now: Instant) -> DeadlineVerdict {
        let silent = match &*self.state.lock() {
            state if state.deadline.is_due(now) => state.attempts(),
            _ => return DeadlineVerdict::Wait,
        };
        // Without the lock: a pool asks calls whether they are over.
        let moved =
            silent.iter().filter_map(|silent| silent.last_progress(&self.client.replicas)).max();
        let since = {
            let term = &mut self.state.lock().deadline;
            term.record_progress(moved);
            if !term.is_due(now) {
                return DeadlineVerdict::Wait;
            }
            term.last_progress()
        };
        let silence = self.client.replicas.responsiveness(self.replicas, since, now);
        self.state.lock().deadline.check(now, || silence)
    }

    /// Whether the waiting thread has been killed. A change is given up for that only after its
    /// replica has been unresponsive, because it may have been made.
    fn is_killed(&self, now: Instant) -> bool {
        let looks = {
            let mut state = self.state.lock();
            let may = self.pending_change.is_none() || state.deadline.has_been_unresponsive();
            may && state.deadline.take_due_kill_check(now)
        };
        looks && self.requesting_thread.is_killed()
    }

    /// Ends a call whose caller was killed.
    fn interrupt(&self) {
        if self.pending_change.is_none() {
            self.state.lock().error = Some(BackendError::Os(rustix::io::Errno::INTR));
        }
        self.fail();
    }

    /// Whether the replica that should confirm a negative answer is too late. A listing takes its
    /// time, so its replica may be silent as long as any attempt.
    fn is_confirmation_late(&self, now: Instant) -> bool {
        let asked = {
            let state = self.state.lock();
            if state.unanswered.is_empty() {
                // Otherwise the next one is about to be asked.
                return state.untried.is_empty();
            }
            state.attempts()
        };
        if !self.options.is_long {
            return true;
        }
        // Without the lock, as above.
        let is_late = |attempt: &CallAttempt| {
            let moved = attempt.last_progress(&self.client.replicas).unwrap_or(attempt.sent_at);
            now.saturating_duration_since(moved) >= self.client.policy.attempt_deadline
        };
        asked.iter().all(is_late)
    }

    /// Whether the next replica is asked too, if there is one.
    fn may_hedge(&self, now: Instant) -> bool {
        let last = {
            let state = self.state.lock();
            if state.untried.is_empty() {
                return false;
            }
            state.unanswered.last().map(|silent| silent.attempt)
        };
        last.is_none_or(|last| self.client.can_hedge(last.replica, last.sent_at, now))
    }

    /// Asks the unanswered replicas again.
    fn retry(self: &Arc<Self>) {
        if self.pending_change.is_some() {
            return;
        }
        let mut state = self.state.lock();
        let asked: Vec<_> =
            state.unanswered.iter().rev().map(|silent| silent.attempt.replica).collect();
        for replica in asked {
            if !state.untried.contains(&replica) {
                state.untried.push(replica);
            }
        }
        drop(state);
        self.send_next();
    }
}

impl<T: Send + 'static> TickedCall for MetadataCall<T> {
    fn tick(self: Arc<Self>, now: Instant) -> bool {
        let (fallback, is_late, negative_from) = {
            let mut state = self.state.lock();
            if state.is_over {
                return false;
            }
            let fallback = take_due(&mut state.fallback, now);
            (fallback, now >= state.hedge_at, state.negative_from)
        };
        if is_late {
            for (_, replica) in self.client.replicas.iter() {
                replica.on_tick();
            }
        }
        if let Some(answer) = fallback {
            if self.finish(None).is_some() {
                self.answer.deliver(Ok(answer));
            }
            return false;
        }
        let verdict = self.check_deadline(now);
        if verdict == DeadlineVerdict::Expired {
            self.fail();
            return false;
        }
        if is_late && negative_from.is_some() && self.is_confirmation_late(now) {
            self.fail_by(negative_from);
            return false;
        }
        if self.is_killed(now) {
            self.interrupt();
            return false;
        }
        if verdict == DeadlineVerdict::Retry {
            self.retry();
            return true;
        }
        if is_late && self.may_hedge(now) {
            self.send_next();
        }
        true
    }
}
