//! Calls on the compared replicas, each with a deadline.
//!
//! Every replica has its own pool of threads, as in the daemon. No worker waits for a call longer
//! than its deadline, counted from when a thread starts it. A late call is abandoned. While two
//! calls on a replica are abandoned, the replica is *absent*: it is not asked until one of them
//! returns. So a hung replica costs one or two deadlines, not one for each file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::throttle::RateThrottle;
use crate::backend::{Backend, BackendError, Lane, PoolLimits, Replica, Result as BackendResult};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// The number of abandoned calls that makes a replica absent. With 1, a single bad file would
/// suffice.
const LATE_CALLS_TO_ABSENT: usize = 2;

/// How often a wait checks whether the run was stopped or the replica became absent.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Why a call gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallError {
    /// The replica answered with an error.
    #[error("{0}")]
    Failed(BackendError),
    /// The replica did not answer in time.
    #[error("no answer in time")]
    Late,
    /// The replica was not asked, because earlier calls have not returned.
    #[error("the replica does not answer")]
    Absent,
    /// The run was stopped.
    #[error("stopped")]
    Stopped,
}

/// A call that gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailedCall {
    pub(super) replica: ReplicaId,
    pub(super) error: CallError,
}

/// Why a replica is excluded from the comparison.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExclusionReason {
    /// The survey of the volume found an error.
    #[error("{0}")]
    Unfit(String),
    /// Its root cannot be opened.
    #[error("{replica}: {reason}")]
    NotOpened {
        /// Its name in the configuration.
        replica: String,
        /// The error of opening it.
        reason: String,
    },
}

/// A replica that is excluded from the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExcludedReplica {
    /// Its name in the configuration.
    pub name: String,
    /// The reason.
    pub reason: ExclusionReason,
}

/// A replica to compare.
pub struct ComparedReplica {
    /// Its name in the configuration.
    pub name: String,
    /// Its backend, or why it is excluded.
    pub backend: Result<Arc<dyn Backend>, ExclusionReason>,
    /// The most bytes per second to read from it.
    pub max_rate: Option<u64>,
}

/// All of a volume's replicas.
pub(super) struct ReplicaCalls {
    replicas: ReplicaMap<ReplicaEntry>,
    is_stopped: AtomicBool,
    deadline: Duration,
    throttle: Option<Mutex<RateThrottle>>,
}

struct ReplicaEntry {
    name: String,
    replica: Result<Replica, ExclusionReason>,
    /// Abandoned calls that have not returned.
    late_calls: Arc<AtomicUsize>,
    throttle: Option<Mutex<RateThrottle>>,
}

impl ReplicaCalls {
    /// `jobs` is the number of reads of each replica at a time; `rate` limits the bytes per second
    /// of all together.
    pub(super) fn new(
        members: Vec<ComparedReplica>,
        jobs: usize,
        rate: Option<u64>,
        deadline: Duration,
    ) -> Self {
        let now = Instant::now();
        let throttle = |rate: u64| Mutex::new(RateThrottle::new(rate, now));
        // Enough for the calls that all workers can have in flight, with a large margin.
        let limits = PoolLimits {
            threads: jobs.max(2) + 2,
            queue: jobs * (jobs + 16) + 64,
            max_inline_calls: 0,
        };
        let entry = |(i, member): (usize, ComparedReplica)| ReplicaEntry {
            replica: member.backend.map(|backend| {
                let name = member.name.clone();
                Replica::new(ReplicaId::new(i), name, backend, limits, Arc::default())
            }),
            name: member.name,
            late_calls: Arc::default(),
            throttle: member.max_rate.map(throttle),
        };
        Self {
            replicas: members.into_iter().enumerate().map(entry).collect(),
            is_stopped: AtomicBool::new(false),
            deadline,
            throttle: rate.map(throttle),
        }
    }

    /// The replicas that can be compared.
    pub(super) fn reachable(&self) -> ReplicaSet {
        let reachable = self.replicas.iter().filter(|(_, entry)| entry.replica.is_ok());
        reachable.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id))
    }

    /// The excluded replicas.
    pub(super) fn excluded(&self) -> Vec<ExcludedReplica> {
        let excluded = self.replicas.iter().filter_map(|(_, entry)| {
            let reason = entry.replica.as_ref().err()?.clone();
            Some(ExcludedReplica { name: entry.name.clone(), reason })
        });
        excluded.collect()
    }

    pub(super) fn len(&self) -> usize {
        self.replicas.len()
    }

    pub(super) fn name(&self, id: ReplicaId) -> &str {
        &self.replicas[id].name
    }

    /// The names of a set's members.
    pub(super) fn names(&self, set: ReplicaSet) -> Vec<String> {
        set.iter().map(|id| self.name(id).to_owned()).collect()
    }

    /// Ends all waits.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Starts `job` on replica `id`.
    pub(super) fn start_call<T: Send + 'static>(
        &self,
        id: ReplicaId,
        lane: Lane,
        job: impl FnOnce(&dyn Backend) -> BackendResult<T> + Send + 'static,
    ) -> PendingCall<T> {
        let entry = &self.replicas[id];
        let call =
            Arc::new(SharedCall { stage: Mutex::new(CallStage::Queued), changed: Condvar::new() });
        let late = Arc::clone(&entry.late_calls);
        let pending = PendingCall { call: Arc::clone(&call), late_calls: Arc::clone(&late) };
        let carry_out = move |backend: &dyn Backend| {
            {
                let mut stage = call.stage.lock();
                if matches!(*stage, CallStage::Abandoned { .. }) {
                    return;
                }
                *stage = CallStage::Running(Instant::now());
            }
            let result = job(backend);
            let mut stage = call.stage.lock();
            match *stage {
                CallStage::Abandoned { is_counted_late: counted } => {
                    late.fetch_sub(usize::from(counted), Ordering::Relaxed);
                }
                _ => *stage = CallStage::Done(result.map_err(CallError::Failed)),
            }
            call.changed.notify_all();
        };
        let sent = match &entry.replica {
            Ok(replica) if !is_absent(&entry.late_calls) => replica.submit(lane, carry_out).is_ok(),
            _ => false,
        };
        if !sent {
            *pending.call.stage.lock() = CallStage::Done(Err(CallError::Absent));
        }
        pending
    }

    /// Waits for a call's answer. A deadline of `None` means the usual one.
    pub(super) fn wait_for<T>(
        &self,
        pending: PendingCall<T>,
        deadline: Option<Duration>,
    ) -> Result<T, CallError> {
        let deadline = deadline.unwrap_or(self.deadline);
        let PendingCall { call, late_calls: late } = pending;
        let mut stage = call.stage.lock();
        loop {
            let left = match &*stage {
                CallStage::Done(_) => {
                    let left_behind = CallStage::Abandoned { is_counted_late: false };
                    let done = std::mem::replace(&mut *stage, left_behind);
                    let CallStage::Done(result) = done else { return Err(CallError::Absent) };
                    return result;
                }
                CallStage::Running(since) => deadline.saturating_sub(since.elapsed()),
                CallStage::Queued if is_absent(&late) => {
                    *stage = CallStage::Abandoned { is_counted_late: false };
                    return Err(CallError::Absent);
                }
                CallStage::Queued => STOP_CHECK_INTERVAL,
                // Only this function abandons a call, and it consumes the call.
                CallStage::Abandoned { .. } => return Err(CallError::Absent),
            };
            if left.is_zero() {
                *stage = CallStage::Abandoned { is_counted_late: true };
                late.fetch_add(1, Ordering::Relaxed);
                return Err(CallError::Late);
            }
            if self.is_stopped() {
                *stage = CallStage::Abandoned { is_counted_late: false };
                return Err(CallError::Stopped);
            }
            call.changed.wait_for(&mut stage, left.min(STOP_CHECK_INTERVAL));
        }
    }

    /// Waits for the answers of all `replicas` to the same call.
    pub(super) fn call_all<T: Send + 'static, J>(
        &self,
        replicas: ReplicaSet,
        lane: Lane,
        job: impl Fn(ReplicaId) -> J,
    ) -> Vec<ReplicaAnswer<T>>
    where
        J: FnOnce(&dyn Backend) -> BackendResult<T> + Send + 'static,
    {
        let asked: Vec<_> =
            replicas.iter().map(|id| (id, self.start_call(id, lane, job(id)))).collect();
        let answer =
            |(replica, pending)| ReplicaAnswer { replica, result: self.wait_for(pending, None) };
        asked.into_iter().map(answer).collect()
    }

    /// Waits until the rate limits allow reading `bytes` from each of `replicas`.
    pub(super) fn wait_for_rate(&self, replicas: ReplicaSet, bytes: u64) -> Result<(), CallError> {
        let now = Instant::now();
        let own = replicas.iter().filter_map(|id| {
            let throttle = self.replicas[id].throttle.as_ref()?;
            Some(throttle.lock().reserve(bytes, now))
        });
        let all =
            self.throttle.iter().map(|all| all.lock().reserve(bytes * replicas.len() as u64, now));
        let until = now + own.chain(all).max().unwrap_or_default();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if self.is_stopped() {
                return Err(CallError::Stopped);
            }
            std::thread::sleep(left.min(STOP_CHECK_INTERVAL));
        }
    }
}

fn is_absent(late: &AtomicUsize) -> bool {
    late.load(Ordering::Relaxed) >= LATE_CALLS_TO_ABSENT
}

/// A replica's answer to a call.
pub(super) struct ReplicaAnswer<T> {
    pub(super) replica: ReplicaId,
    pub(super) result: Result<T, CallError>,
}

/// A call that was sent to a replica.
pub(super) struct PendingCall<T> {
    call: Arc<SharedCall<T>>,
    late_calls: Arc<AtomicUsize>,
}

struct SharedCall<T> {
    stage: Mutex<CallStage<T>>,
    changed: Condvar,
}

enum CallStage<T> {
    Queued,
    Running(Instant),
    Done(Result<T, CallError>),
    /// No worker waits for it; whether it counts as late.
    Abandoned {
        is_counted_late: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript};
    use std::path::Path;

    #[test]
    fn a_hung_replica_is_absent_until_it_answers() {
        let script = Arc::new(FaultScript::default());
        let tree = tempfile::tempdir().unwrap();
        let backend =
            FaultInjector::new(DirBackend::open(tree.path()).unwrap(), Arc::clone(&script));
        let member =
            ComparedReplica { name: "a".into(), backend: Ok(Arc::new(backend)), max_rate: None };
        let calls = ReplicaCalls::new(vec![member], 2, None, Duration::from_secs(2));
        let id = ReplicaId::new(0);
        let stat = || {
            let pending =
                calls.start_call(id, Lane::Metadata, |backend| backend.stat(Path::new("")));
            calls.wait_for(pending, None).map(drop)
        };
        assert_eq!(stat(), Ok(()));
        script.add(FaultRule::always(FaultOp::Any, Fault::Hang));
        let misses: Vec<_> = (0..4).map(|_| stat().unwrap_err()).collect();
        assert_eq!(
            misses,
            [CallError::Late, CallError::Late, CallError::Absent, CallError::Absent]
        );
        script.heal();
        let until = Instant::now() + Duration::from_secs(60);
        while stat() != Ok(()) {
            assert!(Instant::now() < until, "it stays absent");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
