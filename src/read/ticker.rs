//! What time brings: late segments, passed deadlines, memory to be handed on, and
//! replicas that are to prove that they are back.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::fetch::ReadRequest;
use super::request_deadline::KILL_CHECK_INTERVAL;
use super::{ReadError, Reader, fetch_queue};
use crate::backend::{
    Backend, BackendError, ErrorOrigin, JobOptions, Lane, PathKey, with_daemon_credentials,
};
use crate::replicas::{PendingWork, Ticked, Ticker};
use crate::scheduler::health::MountCheck;
use crate::scheduler::hedge;
use crate::volume::{ReplicaId, ReplicaSet};

/// Answered requests behind one that is not are swept out past this number.
const MAX_ANSWERED: usize = 1024;

/// Requests that have waited for long.
struct OldRequests {
    /// Their deadlines may have passed.
    due: Vec<Arc<ReadRequest>>,
    /// Old enough to ask whether their callers were killed.
    may_be_killed: Vec<Arc<ReadRequest>>,
    /// Their callers look again where a replica says that the file is another one.
    fail_fast: Vec<Arc<ReadRequest>>,
}

impl Reader {
    /// Something is under way that the clock is to look after.
    pub(super) fn wake_ticker(&self) {
        self.ticker.wake_to_linger();
    }

    /// Sends late segments to a second replica. Returns the replicas that are to prove that
    /// they are the mounts that they were.
    fn hedge_late_segments(self: &Arc<Self>, now: Instant) -> ReplicaSet {
        let mut late = Vec::new();
        let mut dispatches = Vec::new();
        let to_prove;
        {
            let mut scheduler = self.scheduler.lock();
            scheduler.find_late(now, |fetch| fetch.is_awaited(), &mut late);
            for late in late {
                fetch_queue::enqueue_hedge(self, &mut scheduler, late);
            }
            scheduler
                .hung_attempts()
                .for_each(|(fetch, replica)| fetch.file.ban_for_hang(replica, now));
            scheduler.schedule(now, &mut dispatches);
            to_prove = scheduler.due_mount_checks(now);
        }
        self.dispatch(dispatches);
        to_prove
    }

    /// Sweeps answered requests out, and returns those that have waited for long.
    fn old_requests(&self, now: Instant) -> OldRequests {
        let mut requests = self.requests.lock();
        while requests.front().is_some_and(|first| first.is_answered()) {
            requests.pop_front();
        }
        let age = |request: &ReadRequest| now.saturating_duration_since(request.since);
        let half = self.policy.deadlines.while_responsive / 2;
        // Behind one that has progress there may be others that have been answered.
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
            requests.iter().take_while(|request| hedge::is_late(age(request), Duration::ZERO));
        let fail_fast =
            late.filter(|request| request.fails_fast_on_stale).map(Arc::clone).collect();
        OldRequests { due, may_be_killed, fail_fast }
    }

    fn pending_work(&self) -> PendingWork {
        let scheduler = self.scheduler.lock();
        match (self.requests.lock().is_empty() && scheduler.is_idle(), scheduler.all_available()) {
            (false, _) => PendingWork::Calls,
            (true, false) => PendingWork::Replicas,
            (true, true) => PendingWork::Idle,
        }
    }

    /// Has a replica look whether it is the mount that it was. Where it hangs, so
    /// does that, on one of its own threads, and ends when it heals.
    pub(super) fn start_mount_check(
        self: &Arc<Self>,
        id: ReplicaId,
        done: impl FnOnce(MountCheck) + Send + 'static,
    ) {
        let reader = Arc::clone(self);
        let prove = move |backend: &dyn Backend| {
            let same = with_daemon_credentials(|_| backend.check_mount()).and_then(|same| same);
            let proof = match same {
                Ok(true) => MountCheck::SameMount,
                Ok(false) => MountCheck::MountGone,
                Err(error) => {
                    tracing::debug!(replica = %reader.replicas[id].name, %error, "no proof");
                    match error.origin() {
                        ErrorOrigin::Machine => MountCheck::Inconclusive,
                        _ => MountCheck::Failed,
                    }
                }
            };
            let proof = {
                // Under one lock as in `gone`: what is out of service is absent, whatever
                // it was found to be before it left; so it is looked at again.
                let mut scheduler = reader.scheduler.lock();
                let is_in = reader.replicas[id].is_in_service();
                let proof = if is_in { proof } else { MountCheck::MountGone };
                scheduler.mount_checked(id, proof, Instant::now());
                proof
            };
            reader.wake_ticker();
            done(proof);
        };
        let about = PathKey::from_path(Path::new(""));
        let errand = JobOptions { path_key: about, is_probe: true, ..JobOptions::default() };
        if self.replicas[id].submit_with(Lane::Metadata, errand, prove).is_err() {
            self.scheduler.lock().mount_checked(id, MountCheck::Inconclusive, Instant::now());
        }
    }

    /// Has a replica brought into service that has not been yet, and goes on trying;
    /// `done` is told what came of the first look. The look blocks where the replica
    /// does, on one of its own threads.
    pub fn start_admission(
        self: &Arc<Self>,
        id: ReplicaId,
        done: impl FnOnce(MountCheck) + Send + 'static,
    ) {
        self.scheduler.lock().mark_awaiting_admission(id, Instant::now());
        self.start_mount_check(id, done);
        self.wake_ticker();
    }

    /// A replica's `mount` has gone from its place: it leaves service, and its place is
    /// looked at soon, where another one may be already.
    pub fn mount_gone(&self, replica: ReplicaId, mount: u64) {
        let now = Instant::now();
        let mut scheduler = self.scheduler.lock();
        self.replicas[replica].handle_unmount(mount);
        scheduler.mount_gone(replica, now);
        scheduler.mounts_changed(now);
        drop(scheduler);
        self.wake_ticker();
    }

    /// Something was mounted or unmounted somewhere: a replica that is absent may be
    /// back.
    pub fn mounts_changed(&self) {
        self.scheduler.lock().mounts_changed(Instant::now());
        self.wake_ticker();
    }

    /// The clock, for what else waits for replicas.
    pub fn ticker(&self) -> &Arc<Ticker> {
        &self.ticker
    }

    /// Runs the clock, which looks after reads too; never returns. Spawn it once.
    pub async fn run_ticker(self: Arc<Self>) {
        let reader: Weak<dyn Ticked> = Arc::<Self>::downgrade(&self);
        self.ticker.add(reader);
        self.ticker.run().await;
    }
}

impl Ticked for Reader {
    fn tick(self: Arc<Self>, now: Instant) -> PendingWork {
        let to_prove = self.hedge_late_segments(now);
        self.replicas.iter().for_each(|(_, replica)| replica.on_tick());
        for replica in to_prove.iter() {
            self.start_mount_check(replica, |_| {});
        }
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
