//! Calls on the replicas that are compared, each with its deadline.
//!
//! Every replica has its own pool of threads, as in the daemon, and nobody waits
//! for a call longer than its deadline, counted from when a thread begins with
//! it. A call that is late is left behind. While two calls of a replica are, it
//! is *absent*: it is asked nothing more until one of them returns, so that a
//! hung replica costs a deadline or two and not one for each file.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::pace::Pace;
use crate::backend::{Backend, BackendError, Lane, PoolLimits, Replica, Result as BackendResult};
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// Calls left behind that make a replica absent. With one, a single bad file
/// would.
const ABSENT_FROM: usize = 2;

/// How long a wait goes on before it looks whether the run was stopped, or the
/// replica has become absent.
const TICK: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Miss {
    /// The replica answered with an error.
    #[error("{0}")]
    Failed(BackendError),
    /// It did not answer in time.
    #[error("no answer in time")]
    Late,
    /// It was not asked: earlier calls have not come back.
    #[error("the replica does not answer")]
    Absent,
    /// The run was stopped.
    #[error("stopped")]
    Stopped,
}

/// One replica to be compared.
pub struct Member {
    /// Its name in the configuration.
    pub name: String,
    /// Its tree, or why it cannot be looked at.
    pub backend: Result<Arc<dyn Backend>, String>,
    /// Most bytes a second to ask of it.
    pub max_rate: Option<u64>,
}

/// All of a volume's replicas.
pub(super) struct Peers {
    replicas: ReplicaMap<Peer>,
    stopped: AtomicBool,
    deadline: Duration,
    pace: Option<Mutex<Pace>>,
}

struct Peer {
    name: String,
    replica: Result<Replica, String>,
    /// Calls left behind that have not come back.
    late: Arc<AtomicUsize>,
    pace: Option<Mutex<Pace>>,
}

impl Peers {
    /// `jobs` reads of each replica at a time; `rate` bytes a second of all.
    pub(super) fn new(
        members: Vec<Member>,
        jobs: usize,
        rate: Option<u64>,
        deadline: Duration,
    ) -> Self {
        let now = Instant::now();
        let pace = |rate: u64| Mutex::new(Pace::new(rate, now));
        // What all workers have under way at most, and much of it to spare.
        let limits =
            PoolLimits { threads: jobs.max(2) + 2, queue: jobs * (jobs + 16) + 64, guests: 0 };
        let peer = |(i, member): (usize, Member)| Peer {
            replica: member.backend.map(|backend| {
                let (id, name) = (ReplicaId::new(i), member.name.clone());
                Replica::new(id, name, backend, limits, Arc::default())
            }),
            name: member.name,
            late: Arc::default(),
            pace: member.max_rate.map(pace),
        };
        Self {
            replicas: members.into_iter().enumerate().map(peer).collect(),
            stopped: AtomicBool::new(false),
            deadline,
            pace: rate.map(pace),
        }
    }

    /// Those that can be looked at.
    pub(super) fn there(&self) -> ReplicaSet {
        let there = self.replicas.iter().filter(|(_, peer)| peer.replica.is_ok());
        there.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id))
    }

    /// Those that cannot, and why.
    pub(super) fn left_out(&self) -> impl Iterator<Item = (&str, &str)> {
        self.replicas.iter().filter_map(|(_, peer)| {
            Some((peer.name.as_str(), peer.replica.as_ref().err()?.as_str()))
        })
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

    /// Ends all waiting.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Has replica `id` carry out `job`.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        id: ReplicaId,
        lane: Lane,
        job: impl FnOnce(&dyn Backend) -> BackendResult<T> + Send + 'static,
    ) -> Pending<T> {
        let peer = &self.replicas[id];
        let call = Arc::new(Call { stage: Mutex::new(Stage::Queued), changed: Condvar::new() });
        let late = Arc::clone(&peer.late);
        let pending = Pending { call: Arc::clone(&call), late: Arc::clone(&late) };
        let carry_out = move |backend: &dyn Backend| {
            {
                let mut stage = call.stage.lock();
                if matches!(*stage, Stage::LeftBehind { .. }) {
                    return;
                }
                *stage = Stage::Running(Instant::now());
            }
            let result = job(backend);
            let mut stage = call.stage.lock();
            match *stage {
                Stage::LeftBehind { counted } => {
                    late.fetch_sub(usize::from(counted), Ordering::Relaxed);
                }
                _ => *stage = Stage::Done(result.map_err(Miss::Failed)),
            }
            call.changed.notify_all();
        };
        let sent = match &peer.replica {
            Ok(replica) if !is_absent(&peer.late) => replica.submit(lane, carry_out).is_ok(),
            _ => false,
        };
        if !sent {
            *pending.call.stage.lock() = Stage::Done(Err(Miss::Absent));
        }
        pending
    }

    /// The answer to a call; `None` for the usual deadline.
    pub(super) fn answer<T>(
        &self,
        pending: Pending<T>,
        deadline: Option<Duration>,
    ) -> Result<T, Miss> {
        let deadline = deadline.unwrap_or(self.deadline);
        let Pending { call, late } = pending;
        let mut stage = call.stage.lock();
        loop {
            let left = match &*stage {
                Stage::Done(_) => {
                    let left_behind = Stage::LeftBehind { counted: false };
                    let done = std::mem::replace(&mut *stage, left_behind);
                    let Stage::Done(result) = done else { return Err(Miss::Absent) };
                    return result;
                }
                Stage::Running(since) => deadline.saturating_sub(since.elapsed()),
                Stage::Queued if is_absent(&late) => {
                    *stage = Stage::LeftBehind { counted: false };
                    return Err(Miss::Absent);
                }
                Stage::Queued => TICK,
                // Only by this function, which takes the call.
                Stage::LeftBehind { .. } => return Err(Miss::Absent),
            };
            if left.is_zero() {
                *stage = Stage::LeftBehind { counted: true };
                late.fetch_add(1, Ordering::Relaxed);
                return Err(Miss::Late);
            }
            if self.is_stopped() {
                *stage = Stage::LeftBehind { counted: false };
                return Err(Miss::Stopped);
            }
            call.changed.wait_for(&mut stage, left.min(TICK));
        }
    }

    /// The answers of all of `whom` to the same question.
    pub(super) fn answers<T: Send + 'static, J>(
        &self,
        whom: ReplicaSet,
        lane: Lane,
        job: impl Fn(ReplicaId) -> J,
    ) -> Vec<(ReplicaId, Result<T, Miss>)>
    where
        J: FnOnce(&dyn Backend) -> BackendResult<T> + Send + 'static,
    {
        let asked: Vec<_> = whom.iter().map(|id| (id, self.ask(id, lane, job(id)))).collect();
        asked.into_iter().map(|(id, pending)| (id, self.answer(pending, None))).collect()
    }

    /// Waits until `bytes` may be read from each of `whom`.
    pub(super) fn keep_pace(&self, whom: ReplicaSet, bytes: u64) -> Result<(), Miss> {
        let now = Instant::now();
        let own = whom.iter().filter_map(|id| {
            let pace = self.replicas[id].pace.as_ref()?;
            Some(pace.lock().take(bytes, now))
        });
        let all = self.pace.iter().map(|pace| pace.lock().take(bytes * whom.len() as u64, now));
        let until = now + own.chain(all).max().unwrap_or_default();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if self.is_stopped() {
                return Err(Miss::Stopped);
            }
            std::thread::sleep(left.min(TICK));
        }
    }
}

fn is_absent(late: &AtomicUsize) -> bool {
    late.load(Ordering::Relaxed) >= ABSENT_FROM
}

/// A question that has been asked.
pub(super) struct Pending<T> {
    call: Arc<Call<T>>,
    late: Arc<AtomicUsize>,
}

struct Call<T> {
    stage: Mutex<Stage<T>>,
    changed: Condvar,
}

enum Stage<T> {
    Queued,
    Running(Instant),
    Done(Result<T, Miss>),
    /// Nobody waits for it; whether it counts as late.
    LeftBehind {
        counted: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Directory, Fault, FaultRule, FaultScript, Faulty, Op};
    use std::path::Path;

    #[test]
    fn a_replica_that_hangs_is_absent_until_it_answers() {
        let script = Arc::new(FaultScript::default());
        let tree = tempfile::tempdir().unwrap();
        let backend = Faulty::new(Directory::open(tree.path()).unwrap(), Arc::clone(&script));
        let member = Member { name: "a".into(), backend: Ok(Arc::new(backend)), max_rate: None };
        let peers = Peers::new(vec![member], 2, None, Duration::from_secs(2));
        let id = ReplicaId::new(0);
        let stat = || {
            let pending = peers.ask(id, Lane::Metadata, |backend| backend.stat(Path::new("")));
            peers.answer(pending, None).map(drop)
        };
        assert_eq!(stat(), Ok(()));
        script.add(FaultRule::always(Op::Any, Fault::Hang));
        let misses: Vec<_> = (0..4).map(|_| stat().unwrap_err()).collect();
        assert_eq!(misses, [Miss::Late, Miss::Late, Miss::Absent, Miss::Absent]);
        script.heal();
        let until = Instant::now() + Duration::from_secs(60);
        while stat() != Ok(()) {
            assert!(Instant::now() < until, "it stays absent");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
