//! What time brings: late segments, passed deadlines, memory to be handed on, and
//! replicas that are to prove that they are back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::gather::Gather;
use super::term::LOOK_AT_ASKER;
use super::{ReadError, Reader, attempt};
use crate::backend::{About, Backend, BackendError, Errand, Lane, Origin, own};
use crate::scheduler::health::Proof;
use crate::scheduler::hedge;
use crate::volume::ReplicaId;

/// How often late segments and passed deadlines are looked for while anything
/// is under way. A tenth of the earliest hedge is close enough.
const TICK: Duration = Duration::from_millis(25);

/// And while the only thing to look after is that a replica comes back.
const SLOW_TICK: Duration = Duration::from_millis(250);

/// The clock stops when there was nothing to look after for so many ticks. To
/// start it wakes a thread, which is not to happen for each of a row of reads.
const IDLE_TICKS: u32 = 40;

/// Answered requests behind one that is not are swept out past this number.
const ANSWERED_KEPT: usize = 1024;

/// What there is to look after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Reads.
    Reads,
    /// Replicas that are not asked.
    Replicas,
    Nothing,
}

impl Reader {
    /// Something is under way that the clock is to look after.
    pub(super) fn wake_clock(&self) {
        if !self.ticking.load(Ordering::SeqCst) && !self.ticking.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Looks after what takes too long. Returns what there is left to look after.
    fn tick(self: &Arc<Self>, now: Instant) -> Due {
        let mut late = Vec::new();
        let mut dispatches = Vec::new();
        let to_prove;
        {
            let mut scheduler = self.scheduler.lock();
            scheduler.late(now, |fetch| fetch.is_awaited(), &mut late);
            for late in late {
                attempt::hedge(self, &mut scheduler, late);
            }
            scheduler.hung().for_each(|(fetch, replica)| fetch.file.hangs_on(replica, now));
            scheduler.next(now, &mut dispatches);
            to_prove = scheduler.to_prove(now);
        }
        self.dispatch(dispatches);
        self.replicas.iter().for_each(|(_, replica)| replica.tend());
        for replica in to_prove.iter() {
            self.have_prove_itself(replica, |_| {});
        }
        let (overdue, waiting, old): (Vec<_>, Vec<_>, Vec<_>) = {
            let mut requests = self.requests.lock();
            while requests.front().is_some_and(|first| first.is_over()) {
                requests.pop_front();
            }
            let half = self.policy.deadlines.some / 2;
            let age = |gather: &Gather| now.saturating_duration_since(gather.since);
            // Behind one that has progress there may be others that have been answered.
            let is_due =
                |gather: &&Arc<Gather>| !gather.is_over() && gather.term(|term| term.is_due(now));
            let late = requests.iter().take_while(|gather| age(gather) >= half);
            let overdue = late.filter(is_due).map(Arc::clone).collect();
            let old = requests.iter().take_while(|gather| age(gather) >= LOOK_AT_ASKER);
            let old = old.filter(|gather| !gather.is_over()).map(Arc::clone).collect();
            if requests.len() > ANSWERED_KEPT {
                requests.retain(|gather| !gather.is_over());
            }
            let since_long = |gather: &&Arc<Gather>| {
                hedge::is_late(now.saturating_duration_since(gather.since), Duration::ZERO)
            };
            let waiting = requests.iter().take_while(since_long).filter(|gather| gather.looks);
            let waiting = waiting.map(Arc::clone).collect();
            (overdue, waiting, old)
        };
        for gather in overdue.iter().filter(|gather| self.is_overdue(gather, now)) {
            self.fail(gather, ReadError::Deadline);
        }
        for gather in old.iter().filter(|gather| gather.is_killed(now)) {
            self.fail(gather, ReadError::Failed(BackendError::Os(Errno::INTR)));
        }
        for gather in waiting.iter().filter(|gather| gather.is_refuted()) {
            self.fail(gather, ReadError::Failed(BackendError::Version));
        }
        self.make_room();
        let scheduler = self.scheduler.lock();
        match (self.requests.lock().is_empty() && scheduler.is_idle(), scheduler.all_are_in()) {
            (false, _) => Due::Reads,
            (true, false) => Due::Replicas,
            (true, true) => Due::Nothing,
        }
    }

    /// Has a replica look whether it is the mount that it was. Where it hangs, so
    /// does that, on one of its own threads, and ends when it heals.
    pub(super) fn have_prove_itself(
        self: &Arc<Self>,
        id: ReplicaId,
        done: impl FnOnce(Proof) + Send + 'static,
    ) {
        let reader = Arc::clone(self);
        let prove = move |backend: &dyn Backend| {
            let same = own(|_| backend.prove()).and_then(|same| same);
            let proof = match same {
                Ok(true) => Proof::Same,
                Ok(false) => Proof::Gone,
                Err(error) => {
                    tracing::debug!(replica = %reader.replicas[id].name, %error, "no proof");
                    match error.origin() {
                        Origin::Machine => Proof::Unclear,
                        _ => Proof::Failed,
                    }
                }
            };
            let proof = {
                // Under one lock as in `gone`: what is out of service is absent, whatever
                // it was found to be before it left; so it is looked at again.
                let mut scheduler = reader.scheduler.lock();
                let is_in = reader.replicas[id].is_in_service();
                let proof = if is_in { proof } else { Proof::Gone };
                scheduler.proved(id, proof, Instant::now());
                proof
            };
            reader.wake_clock();
            done(proof);
        };
        let about = About::path(Path::new(""));
        let errand = Errand { about, is_probe: true, ..Errand::default() };
        if self.replicas[id].submit_about(Lane::Metadata, errand, prove).is_err() {
            self.scheduler.lock().proved(id, Proof::Unclear, Instant::now());
        }
    }

    /// Has a replica brought into service that has not been yet, and goes on trying;
    /// `done` is told what came of the first look. The look blocks where the replica
    /// does, on one of its own threads.
    pub fn bring_in(self: &Arc<Self>, id: ReplicaId, done: impl FnOnce(Proof) + Send + 'static) {
        self.scheduler.lock().expected(id, Instant::now());
        self.have_prove_itself(id, done);
        self.wake_clock();
    }

    /// A replica's `mount` has gone from its place: it leaves service, and its place is
    /// looked at soon, where another one may be already.
    pub fn gone(&self, replica: ReplicaId, mount: u64) {
        let now = Instant::now();
        let mut scheduler = self.scheduler.lock();
        self.replicas[replica].leave(mount);
        scheduler.gone(replica, now);
        scheduler.mounts_changed(now);
        drop(scheduler);
        self.wake_clock();
    }

    /// Something was mounted or unmounted somewhere: a replica that is absent may be
    /// back.
    pub fn mounts_changed(&self) {
        self.scheduler.lock().mounts_changed(Instant::now());
        self.wake_clock();
    }

    /// Runs the read path's clock; never returns. Spawn it once.
    pub async fn run_clock(self: Arc<Self>) {
        loop {
            let mut idle = 0;
            while idle < IDLE_TICKS {
                let due = self.tick(Instant::now());
                idle = if due == Due::Reads { 0 } else { idle + 1 };
                tokio::time::sleep(TICK).await;
            }
            self.ticking.store(false, Ordering::SeqCst);
            loop {
                // Also for who came before that was stored, and has not woken anybody.
                match self.tick(Instant::now()) {
                    Due::Reads => break,
                    Due::Nothing => break self.wake.notified().await,
                    Due::Replicas => {
                        if tokio::time::timeout(SLOW_TICK, self.wake.notified()).await.is_ok() {
                            break;
                        }
                    }
                }
            }
            self.ticking.store(true, Ordering::SeqCst);
        }
    }
}
