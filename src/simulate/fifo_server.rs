//! Something that carries one segment after the other: a disk, a network port.

use std::collections::VecDeque;

/// Nanoseconds since the simulation began.
pub(super) type SimTime = u64;

/// A server and those who wait for it.
#[derive(Clone, Debug)]
pub(super) struct FifoServer {
    /// Bytes a second; 0 while it hangs.
    rate: f64,
    waiting: VecDeque<(usize, f64)>,
    /// Who is served, the bytes left of it, and as of when.
    current: Option<(usize, f64, SimTime)>,
    /// Tells completions that were announced before a change from those after.
    generation: u64,
}

/// A completion to come: at this time, if the server's version is still this.
pub(super) type Completion = (SimTime, u64);

impl FifoServer {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, waiting: VecDeque::new(), current: None, generation: 0 }
    }

    /// `job` comes with `bytes` to be carried. Returns the next completion, if
    /// it was not announced before.
    pub(super) fn enqueue(&mut self, job: usize, bytes: f64, now: SimTime) -> Option<Completion> {
        if self.current.is_some() {
            self.waiting.push_back((job, bytes));
            return None;
        }
        self.current = Some((job, bytes, now));
        self.next_completion(now)
    }

    /// A completion is due; returns whose it is, and the next one. `None` where
    /// the announcement is old.
    pub(super) fn complete(
        &mut self,
        version: u64,
        now: SimTime,
    ) -> Option<(usize, Option<Completion>)> {
        if version != self.generation {
            return None;
        }
        let (job, ..) = self.current.take()?;
        let next = self.waiting.pop_front().and_then(|(job, bytes)| {
            self.current = Some((job, bytes, now));
            self.next_completion(now)
        });
        Some((job, next))
    }

    /// The rate changes, also for what is being served.
    pub(super) fn set_rate(&mut self, rate: f64, now: SimTime) -> Option<Completion> {
        if let Some((_, left, since)) = &mut self.current {
            *left = (*left - (now - *since) as f64 / 1e9 * self.rate).max(0.0);
            *since = now;
        }
        self.rate = rate;
        self.next_completion(now)
    }

    fn next_completion(&mut self, now: SimTime) -> Option<Completion> {
        self.generation += 1;
        let (_, left, _) = self.current?;
        (self.rate > 0.0)
            .then(|| (now + (left / self.rate * 1e9).ceil() as SimTime, self.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: SimTime = 1_000_000_000;

    #[test]
    fn one_after_the_other() {
        let mut server = FifoServer::new(100.0);
        assert_eq!(server.enqueue(1, 100.0, 0), Some((SECOND, 1)));
        assert_eq!(server.enqueue(2, 50.0, 0), None);
        assert_eq!(server.complete(1, SECOND), Some((1, Some((SECOND * 3 / 2, 2)))));
        assert_eq!(server.complete(1, SECOND), None);
        assert_eq!(server.complete(2, SECOND * 3 / 2), Some((2, None)));
    }

    #[test]
    fn a_change_counts_for_what_is_being_carried() {
        let mut server = FifoServer::new(100.0);
        server.enqueue(1, 100.0, 0);
        assert_eq!(server.set_rate(0.0, SECOND / 2), None);
        assert_eq!(server.complete(1, SECOND), None);
        assert_eq!(server.set_rate(50.0, 2 * SECOND), Some((3 * SECOND, 3)));
    }
}
