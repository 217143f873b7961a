//! The periodic work of reads: late segments, passed deadlines, killed callers, and waiting
//! requests for memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::fetch::ReadRequest;
use super::{ReadError, Reader, fetch_queue};
use crate::backend::BackendError;
use crate::replicas::request_deadline::KILL_CHECK_INTERVAL;
use crate::replicas::{PendingWork, Ticked, lateness};

/// Above this number, answered requests behind an unanswered one are removed.
const MAX_ANSWERED: usize = 1024;

/// Requests that have waited for long.
struct OldRequests {
    /// Their deadlines may have passed.
    due: Vec<Arc<ReadRequest>>,
    /// Old enough to check whether their callers were killed.
    may_be_killed: Vec<Arc<ReadRequest>>,
    /// Late requests whose callers look for the current version after a version mismatch.
    fail_fast: Vec<Arc<ReadRequest>>,
}

impl Reader {
    /// Wakes the ticker: requests or attempts are in progress.
    pub(super) fn wake_ticker(&self) {
        self.replicas.ticker().wake_to_linger();
    }

    /// Hedges late segments.
    fn hedge_late_segments(self: &Arc<Self>, now: Instant) {
        let mut late = Vec::new();
        {
            let mut scheduler = self.scheduler.lock();
            let health = &mut *self.replicas.lock_health();
            scheduler.find_late(health, now, |fetch| fetch.need(), &mut late);
        }
        // Without a lock, because memory may have to be reclaimed.
        let paid = late.into_iter().map(|late| {
            let age = now.saturating_duration_since(late.since);
            let claim = fetch_queue::claim_for_another_attempt(self, &late.item, age);
            (late, claim)
        });
        let paid: Vec<_> = paid.collect();
        let mut dispatches = Vec::new();
        {
            let mut scheduler = self.scheduler.lock();
            let health = &mut *self.replicas.lock_health();
            for (late, claim) in paid {
                fetch_queue::enqueue_hedge(self, &mut scheduler, &late, claim);
            }
            scheduler.refresh_stranded(|fetch| fetch.present_candidates());
            scheduler
                .hung_attempts()
                .for_each(|(fetch, replica)| fetch.file.ban_for_hang(replica, now));
            scheduler.schedule(health, now, &mut dispatches);
        }
        self.dispatch(dispatches);
    }

    /// Removes answered requests, and returns those that have waited for long.
    fn old_requests(&self, now: Instant) -> OldRequests {
        let mut requests = self.requests.lock();
        while requests.front().is_some_and(|first| first.is_answered()) {
            requests.pop_front();
        }
        let age = |request: &ReadRequest| now.saturating_duration_since(request.since);
        let half = self.policy.deadlines.while_responsive / 2;
        // Behind a request that makes progress, others may have been answered.
        let is_due = |request: &&Arc<ReadRequest>| {
            !request.is_answered() && request.with_deadline(|deadline| deadline.is_due(now))
        };
        let due = requests.iter().take_while(|request| age(request) >= half).filter(is_due);
        let due = due.map(Arc::clone).collect();
        let old = requests.iter().take_while(|request| age(request) >= KILL_CHECK_INTERVAL);
        let may_be_killed = old.filter(|request| !request.is_answered()).map(Arc::clone).collect();
        if requests.len() > MAX_ANSWERED {
            requests.retain(|request| !request.is_answered());
        }
        let late =
            requests.iter().take_while(|request| lateness::is_late(age(request), Duration::ZERO));
        let fail_fast =
            late.filter(|request| request.fails_fast_on_stale).map(Arc::clone).collect();
        OldRequests { due, may_be_killed, fail_fast }
    }

    fn pending_work(&self) -> PendingWork {
        let scheduler = self.scheduler.lock();
        match self.requests.lock().is_empty() && scheduler.is_idle() {
            true => PendingWork::Idle,
            false => PendingWork::Calls,
        }
    }
}

impl Ticked for Reader {
    fn tick(self: Arc<Self>, now: Instant) -> PendingWork {
        self.hedge_late_segments(now);
        let old = self.old_requests(now);
        for request in old.due.iter().filter(|request| self.is_expired(request, now)) {
            self.fail_request(request, ReadError::Deadline);
        }
        for request in old.may_be_killed.iter().filter(|request| request.is_killed(now)) {
            self.fail_request(request, ReadError::Failed(BackendError::Os(Errno::INTR)));
        }
        for request in old.fail_fast.iter().filter(|request| request.has_version_mismatch()) {
            self.fail_request(request, ReadError::Failed(BackendError::VersionMismatch));
        }
        self.serve_waiters();
        self.pending_work()
    }

    fn stop(self: Arc<Self>) {
        // Requests are dropped with the reader.
    }
}
