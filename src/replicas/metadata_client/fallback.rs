//! Answers that a call gives if no replica gives one in time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::volume::ReplicaId;

/// The answer of a call that is late.
pub enum Fallback<T> {
    /// This one, which may be of any replica.
    Known(ReplicaId, T),
    /// The same, for an answer that usually takes longer than those of other calls: not before this
    /// time.
    KnownAfter(Duration, ReplicaId, T),
    /// What the call's operation has stored there. If that is nothing, the call waits.
    Early(EarlyAnswer<T>),
}

/// An answer that an operation has before it ends.
pub struct EarlyAnswer<T>(Arc<Mutex<EarlyState<T>>>);

struct EarlyState<T> {
    answer: Option<(ReplicaId, T)>,
    /// When it was there.
    since: Option<Instant>,
}

impl<T> Clone for EarlyAnswer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for EarlyAnswer<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(EarlyState { answer: None, since: None })))
    }
}

impl<T> EarlyAnswer<T> {
    /// Stores the answer of a replica.
    pub fn set(&self, replica: ReplicaId, answer: T) {
        let state = EarlyState { answer: Some((replica, answer)), since: Some(Instant::now()) };
        *self.0.lock() = state;
    }

    /// Drops the answer, as the operation has ended.
    pub fn clear(&self) {
        let answer = self.0.lock().answer.take();
        drop(answer);
    }
}

/// A fallback, and the time from which it may be used.
pub(super) struct TimedFallback<T> {
    pub(super) due: Instant,
    pub(super) answer: Fallback<T>,
}

/// Removes and returns the answer that a call may give now.
pub(super) fn take_due<T>(
    fallback: &mut Option<TimedFallback<T>>,
    now: Instant,
) -> Option<(ReplicaId, T)> {
    if let Fallback::Early(early) = &fallback.as_ref().filter(|timed| now >= timed.due)?.answer {
        return early.0.lock().answer.take();
    }
    match fallback.take()?.answer {
        Fallback::Known(replica, answer) | Fallback::KnownAfter(_, replica, answer) => {
            Some((replica, answer))
        }
        Fallback::Early(_) => None,
    }
}

/// Removes and returns the early answer, which is better than an error.
pub(super) fn take_early<T>(fallback: &Option<TimedFallback<T>>) -> Option<(ReplicaId, T)> {
    match &fallback.as_ref()?.answer {
        Fallback::Known(..) | Fallback::KnownAfter(..) => None,
        Fallback::Early(early) => early.0.lock().answer.take(),
    }
}

/// When the early answer was there.
pub(super) fn early_since<T>(fallback: &Option<TimedFallback<T>>) -> Option<Instant> {
    match &fallback.as_ref()?.answer {
        Fallback::Known(..) | Fallback::KnownAfter(..) => None,
        Fallback::Early(early) => early.0.lock().since,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn replica() -> ReplicaId {
        ReplicaId::new(1)
    }

    #[test]
    fn a_fallback_is_given_once_it_is_due() {
        let now = Instant::now();
        let due = now + Duration::from_secs(1);
        let mut known = Some(TimedFallback { due, answer: Fallback::Known(replica(), 'a') });
        assert_eq!(take_due(&mut known, now), None);
        assert_eq!(take_due(&mut known, due), Some((replica(), 'a')));
        assert_eq!(take_due(&mut known, due), None);
    }

    #[test]
    fn an_early_answer_is_given_once_it_is_there() {
        let now = Instant::now();
        let early = EarlyAnswer::default();
        let answer = Fallback::Early(early.clone());
        let mut fallback = Some(TimedFallback { due: now, answer });
        assert_eq!(take_due(&mut fallback, now), None);
        early.set(replica(), 'a');
        assert_eq!(take_due(&mut fallback, now), Some((replica(), 'a')));
        early.set(replica(), 'b');
        assert!(early_since(&fallback).is_some_and(|since| since >= now));
        assert_eq!(take_early(&fallback), Some((replica(), 'b')));
    }

    /// The file of an open would stay open as long as the call is known.
    #[test]
    fn an_early_answer_is_dropped_when_its_operation_ends() {
        let early = EarlyAnswer::default();
        let file = Arc::new(());
        early.set(replica(), Arc::clone(&file));
        early.clear();
        assert_eq!(Arc::strong_count(&file), 1);
    }
}
