//! A server that carries one segment at a time, in order of arrival: a disk, or a network port.

use std::collections::VecDeque;

/// Nanoseconds since the simulation began.
pub(super) type SimTime = u64;

/// A server and its queue.
#[derive(Clone, Debug)]
pub(super) struct FifoServer {
    /// Bytes per second; 0 while it hangs.
    rate: f64,
    waiting: VecDeque<QueuedJob>,
    current: Option<ServedJob>,
    /// Incremented on every change, to recognize completions that were announced before it.
    generation: u64,
}

#[derive(Clone, Debug)]
struct QueuedJob {
    job: usize,
    bytes: f64,
}

#[derive(Clone, Debug)]
struct ServedJob {
    job: usize,
    /// Bytes that remained at time `since`.
    left: f64,
    since: SimTime,
}

/// An announced completion. It is valid only if the server still has this version at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub(super) time: SimTime,
    pub(super) version: u64,
}

/// A job that the server has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletedJob {
    pub(super) job: usize,
    /// The completion of the next job.
    pub(super) next: Option<Completion>,
}

impl FifoServer {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, waiting: VecDeque::new(), current: None, generation: 0 }
    }

    /// Queues `job` with `bytes` of work. Returns the job's completion if the server was idle.
    pub(super) fn enqueue(&mut self, job: usize, bytes: f64, now: SimTime) -> Option<Completion> {
        if self.current.is_some() {
            self.waiting.push_back(QueuedJob { job, bytes });
            return None;
        }
        self.current = Some(ServedJob { job, left: bytes, since: now });
        self.next_completion(now)
    }

    /// Finishes the current job. Returns `None` if the completion was announced before a later
    /// change.
    pub(super) fn complete(&mut self, version: u64, now: SimTime) -> Option<CompletedJob> {
        if version != self.generation {
            return None;
        }
        let ServedJob { job, .. } = self.current.take()?;
        let next = self.waiting.pop_front().and_then(|next| {
            self.current = Some(ServedJob { job: next.job, left: next.bytes, since: now });
            self.next_completion(now)
        });
        Some(CompletedJob { job, next })
    }

    /// Changes the rate, for the current job too.
    pub(super) fn set_rate(&mut self, rate: f64, now: SimTime) -> Option<Completion> {
        if let Some(served) = &mut self.current {
            served.left = (served.left - (now - served.since) as f64 / 1e9 * self.rate).max(0.0);
            served.since = now;
        }
        self.rate = rate;
        self.next_completion(now)
    }

    fn next_completion(&mut self, now: SimTime) -> Option<Completion> {
        self.generation += 1;
        let left = self.current.as_ref()?.left;
        (self.rate > 0.0).then(|| Completion {
            time: now + (left / self.rate * 1e9).ceil() as SimTime,
            version: self.generation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: SimTime = 1_000_000_000;

    fn completion(time: SimTime, version: u64) -> Option<Completion> {
        Some(Completion { time, version })
    }

    #[test]
    fn requests_complete_in_order() {
        let mut server = FifoServer::new(100.0);
        assert_eq!(server.enqueue(1, 100.0, 0), completion(SECOND, 1));
        assert_eq!(server.enqueue(2, 50.0, 0), None);
        let first = CompletedJob { job: 1, next: completion(SECOND * 3 / 2, 2) };
        assert_eq!(server.complete(1, SECOND), Some(first));
        assert_eq!(server.complete(1, SECOND), None);
        let second = CompletedJob { job: 2, next: None };
        assert_eq!(server.complete(2, SECOND * 3 / 2), Some(second));
    }

    #[test]
    fn a_rate_change_applies_to_the_request_in_service() {
        let mut server = FifoServer::new(100.0);
        server.enqueue(1, 100.0, 0);
        assert_eq!(server.set_rate(0.0, SECOND / 2), None);
        assert_eq!(server.complete(1, SECOND), None);
        assert_eq!(server.set_rate(50.0, 2 * SECOND), completion(3 * SECOND, 3));
    }
}
