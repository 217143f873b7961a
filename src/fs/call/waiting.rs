//! How a call waits: whom it asks next, and when it gives up.

use std::sync::Arc;
use std::time::Instant;

use super::Call;
use super::clock::Watched;
use crate::backend::BackendError;
use crate::read::Verdict;
use crate::volume::ReplicaId;

impl<T: Send + 'static> Call<T> {
    /// Whether the call has waited for long enough.
    fn verdict(&self, now: Instant) -> Verdict {
        let silent = match &*self.state.lock() {
            state if state.term.is_due(now) => state.silent.clone(),
            _ => return Verdict::Waits,
        };
        // Without the lock: a pool asks calls whether they are over.
        let moved = silent.iter().filter_map(|silent| silent.moved(&self.caller.replicas)).max();
        {
            let term = &mut self.state.lock().term;
            term.moved(moved);
            if !term.is_due(now) {
                return Verdict::Waits;
            }
        }
        let silence = self.caller.reader.silence(self.of, now);
        self.state.lock().term.judge(now, || silence)
    }

    /// Whether the thread that waits has been killed. A change is given up for that only
    /// while its replica is silent: it may have been made.
    fn is_killed(&self, now: Instant) -> bool {
        let looks = {
            let mut state = self.state.lock();
            let may = self.change.is_none() || state.term.has_been_silent();
            may && state.term.looks_at_asker(now)
        };
        looks && self.asker.is_killed()
    }

    /// Nobody waits for the call any more.
    fn interrupt(&self) {
        if self.change.is_none() {
            self.state.lock().error = Some(BackendError::Os(rustix::io::Errno::INTR));
        }
        self.give_up();
    }

    /// Asks once more those that have been asked.
    fn ask_again(self: &Arc<Self>) {
        if self.change.is_some() {
            return;
        }
        let mut state = self.state.lock();
        let asked: Vec<_> = state.silent.iter().rev().map(|silent| silent.replica).collect();
        for replica in asked {
            if !state.left.contains(&replica) {
                state.left.push(replica);
            }
        }
        drop(state);
        self.ask_next();
    }
}

impl<T: Send + 'static> Watched for Call<T> {
    fn tick(self: Arc<Self>, now: Instant) -> bool {
        let (over, fallback, late) = {
            let mut state = self.state.lock();
            let is_due = |(at, ..): &mut (Instant, ReplicaId, T)| now >= *at;
            let late =
                (now >= state.patient_until).then(|| (state.denied, state.silent.last().copied()));
            (state.done.is_none(), state.fallback.take_if(is_due), late)
        };
        if over {
            return false;
        }
        if late.is_some() {
            self.caller.replicas.iter().for_each(|(_, replica)| replica.tend());
        }
        if let Some((_, replica, value)) = fallback {
            if let Some((done, _)) = self.finish(None) {
                self.asker.during(|| done(Ok((replica, value))));
                self.is_told();
            }
            return false;
        }
        // Or who was to confirm that it is not there does not answer.
        let verdict = self.verdict(now);
        if verdict == Verdict::IsOver || matches!(late, Some((true, _))) {
            self.give_up();
            return false;
        }
        if self.is_killed(now) {
            self.interrupt();
            return false;
        }
        if verdict == Verdict::Again {
            self.ask_again();
            return true;
        }
        if let Some((_, last)) = late
            && last.is_none_or(|last| self.caller.may_ask_twice(last.replica, last.asked, now))
        {
            self.ask_next();
        }
        true
    }
}
