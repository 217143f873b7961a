//! When a job's turn last came nearer.
//!
//! A job waits for the jobs that were queued before it, first for a thread and then at the server.
//! So each answer to one of them is progress for the job. Jobs that were queued later do not count:
//! a hung call makes no progress, no matter what else its replica serves. The earlier jobs are
//! finite in number, so their progress ends.

use std::time::Instant;

/// Identifies a queued job.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Ascending within each pool.
    pub(super) number: u64,
    /// When the job was queued.
    pub(super) queued_at: Instant,
}

/// Answered jobs by number, with their times, both ascending. An answer to an older job makes all
/// earlier answers to newer jobs superfluous.
#[derive(Default)]
pub(super) struct QueueProgress {
    answers: Vec<(u64, Instant)>,
    /// Above this length, answers that no job needs are dropped.
    capacity: usize,
}

/// The smallest effective [`QueueProgress::capacity`].
const MIN_CAPACITY: usize = 64;

impl QueueProgress {
    /// The replica answered a job; `left` lists the unfinished jobs.
    pub(super) fn record_answer(
        &mut self,
        job: u64,
        now: Instant,
        left: impl FnOnce() -> Vec<u64>,
    ) {
        while self.answers.last().is_some_and(|(answered, _)| *answered >= job) {
            self.answers.pop();
        }
        self.answers.push((job, now));
        if self.answers.len() > self.capacity.max(MIN_CAPACITY) {
            self.prune(left());
        }
    }

    /// When the replica last answered a job before this one.
    pub(super) fn last_before(&self, job: u64) -> Option<Instant> {
        let before = self.answers.partition_point(|(answered, _)| *answered < job);
        Some(self.answers[before.checked_sub(1)?].1)
    }

    /// Drops answers that no job of `left` needs.
    fn prune(&mut self, mut left: Vec<u64>) {
        left.sort_unstable();
        let is_needed = |place: usize| {
            let (job, _) = self.answers[place];
            let next = self.answers.get(place + 1).map_or(u64::MAX, |(next, _)| *next);
            let first = left.partition_point(|waits| *waits <= job);
            left.get(first).is_some_and(|waits| *waits <= next)
        };
        let needed = (0..self.answers.len()).filter(|place| is_needed(*place));
        self.answers = needed.map(|place| self.answers[place]).collect();
        self.capacity = 2 * self.answers.len();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_answers_to_earlier_jobs_are_progress() {
        let (mut progress, start) = (QueueProgress::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut answered = |job, seconds| progress.record_answer(job, at(seconds), Vec::new);
        answered(1, 1);
        answered(5, 2);
        answered(3, 3);
        let moved = |job| progress.last_before(job);
        assert_eq!(moved(1), None, "what comes after it");
        assert_eq!((moved(2), moved(3)), (Some(at(1)), Some(at(1))));
        assert_eq!((moved(4), moved(6)), (Some(at(3)), Some(at(3))));
    }

    #[test]
    fn a_long_hung_job_costs_no_memory() {
        let (mut progress, start) = (QueueProgress::default(), Instant::now());
        for job in 2..10_000 {
            progress.record_answer(job, start, || vec![1]);
        }
        assert!(progress.answers.len() <= 2 * MIN_CAPACITY + 1, "{}", progress.answers.len());
        assert_eq!(progress.last_before(1), None);
    }

    proptest! {
        #[test]
        fn dropping_old_progress_changes_no_result(
            order in proptest::collection::vec(0u64..400, 0..400),
            waits in proptest::collection::btree_set(0u64..400, 0..20),
        ) {
            let (mut progress, start) = (QueueProgress::default(), Instant::now());
            let mut ends = Vec::new();
            for (i, job) in order.into_iter().enumerate() {
                if waits.contains(&job) {
                    continue;
                }
                let now = start + Duration::from_secs(i as u64);
                let left = || waits.iter().copied().collect();
                progress.record_answer(job, now, left);
                ends.push((job, now));
            }
            for job in &waits {
                let last = ends.iter().filter(|(ended, _)| ended < job).map(|(_, at)| *at).max();
                prop_assert_eq!(progress.last_before(*job), last);
            }
        }
    }
}
