//! Metadata calls: one replica at a time, the next where it fails or is late.
//!
//! In `copies` mode replicas are asked in configuration order, so that the first
//! healthy one decides what the tree looks like. In `shared` mode calls are
//! spread, and subtrees may be pinned ([`crate::scheduler::metadata`]).
//!
//! A replica that is late is not waited for: the next is asked as well, and the
//! first answer counts. An error that says something about the object asked for
//! (it is not there, it may not be read) is an answer.
//!
//! A call that changes something asks the write replica, once ([`Caller::call_once`]):
//! nobody else when that one fails or is late, and not even that one any more when
//! its turn comes after the caller has been told that it was late.
//!
//! One task looks after all calls, every [`TICK`] while there are any: a task or
//! a timer for each would cost more than most calls take.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::FsPolicy;
use crate::backend::{Backend, BackendError, Identity, Lane, Replica, Requester, Result};
use crate::placement::affinity::Pin;
use crate::read::Reader;
use crate::scheduler::metadata::{self, Choice};
use crate::telemetry::VolumeCounters;
use crate::telemetry::counters::count;
use crate::volume::{Mode, ReplicaId, ReplicaMap, ReplicaSet};

/// Asks replicas for metadata.
pub(super) struct Caller {
    policy: FsPolicy,
    replicas: ReplicaMap<Arc<Replica>>,
    /// Of all calls.
    times: Times,
    /// Of those under each affinity rule.
    pinned_times: Vec<Times>,
    reader: Arc<Reader>,
    counters: Arc<VolumeCounters>,
    pending: AtomicUsize,
    /// Where the clock gets the calls from. It holds no more than are unanswered
    /// and than are made in a [`TICK`].
    clock: UnboundedSender<Arc<dyn Watched>>,
}

/// How often late calls and passed deadlines are looked for while there are
/// calls. A tenth of the least patience is close enough.
const TICK: Duration = Duration::from_millis(25);

/// Another replica is asked when the call takes this many times as long as it
/// usually does, and not before [`SOONEST`].
const PATIENCE: u32 = 8;
const SOONEST: Duration = Duration::from_millis(250);

/// What a call is about, as far as it matters who is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// The same for all calls about one path.
    affinity: u64,
    /// The rule that pins it.
    pin: Option<Pin>,
    /// The one replica that knows.
    only: Option<ReplicaId>,
    /// The one that knows best.
    first: Option<ReplicaId>,
}

impl Spot {
    /// A call about `path`, which `pin` pins.
    pub(super) fn new(path: &Path, pin: Option<Pin>) -> Self {
        let mut hasher = DefaultHasher::new();
        path.as_os_str().hash(&mut hasher);
        Self { affinity: hasher.finish(), pin, only: None, first: None }
    }

    /// The same call, which `replica` alone knows about.
    pub(super) fn only(self, replica: ReplicaId) -> Self {
        Self { only: Some(replica), ..self }
    }

    /// The same call, which `replica` is asked before all others.
    pub(super) fn first(self, replica: ReplicaId) -> Self {
        Self { first: Some(replica), ..self }
    }
}

/// In whose name a call is made.
#[derive(Clone, Debug)]
pub(super) enum Rights {
    /// His. For what opens or changes something.
    Of(Identity),
    /// The daemon's, and his where those do not do: where the server maps root to
    /// nobody. For looking at what the kernel has checked that he may look at.
    Enough(Requester),
    /// His, and the daemon's where those do not do. For what he may have and could
    /// not get in his own name: a program that he may run and not read, a directory
    /// that he opened when he was allowed to.
    Granted(Identity),
}

impl Rights {
    /// The daemon's own.
    pub(super) const DAEMON: Self = Self::Of(Identity::DAEMON);

    /// Makes a call with them.
    fn exert<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        use rustix::io::Errno;
        let (first, second): (_, Option<&dyn Fn() -> Identity>) = match self {
            Self::Of(identity) => (identity, None),
            Self::Granted(identity) => (identity, Some(&|| Identity::DAEMON)),
            Self::Enough(requester) => (&Identity::DAEMON, Some(&|| requester.identity())),
        };
        first.take_on()?;
        match (call(), second) {
            (Err(BackendError::Os(Errno::ACCESS | Errno::PERM)), Some(second)) => {
                second().take_on()?;
                call()
            }
            (answer, _) => answer,
        }
    }
}

/// How a call that changes something is made.
#[derive(Clone, Debug)]
pub(super) struct Once {
    /// Who is asked.
    pub(super) replica: ReplicaId,
    /// By which of its threads.
    pub(super) lane: Lane,
    /// For how long it is waited for.
    pub(super) deadline: Duration,
    /// In whose name.
    pub(super) rights: Rights,
}

/// Calls and their smoothed time, microseconds, on each replica; 0 where nothing
/// is known.
struct Times {
    calls: AtomicU64,
    since: Instant,
    /// When each was last asked or answered, microseconds from `since`.
    asked: ReplicaMap<AtomicU64>,
    smoothed: ReplicaMap<AtomicU64>,
}

impl Times {
    fn new(replicas: usize) -> Self {
        Self {
            calls: AtomicU64::new(0),
            since: Instant::now(),
            asked: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
            smoothed: ReplicaMap::from_fn(replicas, |_| AtomicU64::new(0)),
        }
    }

    fn of(&self, replica: ReplicaId) -> u64 {
        self.smoothed[replica].load(Ordering::Relaxed)
    }

    fn all(&self) -> ReplicaMap<u64> {
        self.smoothed.map(|_, time| time.load(Ordering::Relaxed))
    }

    /// How long each was not asked.
    fn idle(&self) -> ReplicaMap<Duration> {
        let now = self.since.elapsed();
        let at = |at: &AtomicU64| Duration::from_micros(at.load(Ordering::Relaxed));
        self.asked.map(|_, asked| now.saturating_sub(at(asked)))
    }

    fn asks(&self, replica: ReplicaId) {
        self.asked[replica].store(self.since.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    fn took(&self, replica: ReplicaId, time: Duration) {
        self.asks(replica);
        let smoothed = &self.smoothed[replica];
        let mean = smoothed.load(Ordering::Relaxed);
        // A lost update is one sample less.
        smoothed.store(metadata::smooth(mean, time.as_micros() as u64), Ordering::Relaxed);
    }
}

/// How an affinity rule does, as `fanfs status` shows it.
#[derive(Clone, Debug)]
pub struct PinnedTimes {
    /// Calls under the rule.
    pub calls: u64,
    /// Smoothed time of a call on each replica, microseconds; 0 for unknown.
    pub times: ReplicaMap<u64>,
}

type Op<T> = Arc<dyn Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync>;
type Done<T> = Box<dyn FnOnce(Result<(ReplicaId, T)>) + Send>;

struct Call<T> {
    caller: Arc<Caller>,
    /// Until it is over: what it holds on to may be waited for.
    op: Mutex<Option<Op<T>>>,
    /// Whether it may change something.
    once: bool,
    pin: Option<Pin>,
    lane: Lane,
    rights: Rights,
    until: Instant,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// Not asked yet, the next one last.
    left: Vec<ReplicaId>,
    /// Asked and silent.
    silent: Vec<ReplicaId>,
    error: Option<BackendError>,
    done: Option<Done<T>>,
    /// When another one is asked.
    patient_until: Instant,
}

/// A call as the clock sees it.
trait Watched: Send + Sync {
    /// Does what is due; false once the call is over.
    fn tick(self: Arc<Self>, now: Instant) -> bool;
}

impl Caller {
    pub(super) fn new(
        policy: &FsPolicy,
        replicas: ReplicaMap<Arc<Replica>>,
        reader: Arc<Reader>,
        counters: Arc<VolumeCounters>,
        runtime: &tokio::runtime::Handle,
    ) -> Self {
        let (clock, begun) = unbounded_channel();
        runtime.spawn(run_clock(begun));
        Self {
            policy: policy.clone(),
            times: Times::new(replicas.len()),
            pinned_times: (0..reader.locator().affinities().rules().len())
                .map(|_| Times::new(replicas.len()))
                .collect(),
            replicas,
            reader,
            counters,
            pending: AtomicUsize::new(0),
            clock,
        }
    }

    /// Calls that have not been answered.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// A replica's name.
    pub(super) fn name(&self, replica: ReplicaId) -> &str {
        &self.replicas[replica].name
    }

    /// A replica.
    pub(super) fn replica(&self, replica: ReplicaId) -> &Arc<Replica> {
        &self.replicas[replica]
    }

    /// How the affinity rules do, in their order.
    pub(super) fn pinned(&self) -> Vec<PinnedTimes> {
        let reading = |times: &Times| PinnedTimes {
            calls: times.calls.load(Ordering::Relaxed),
            times: times.all(),
        };
        self.pinned_times.iter().map(reading).collect()
    }

    /// Has `op` answered by some replica. Calls about the same path go to the
    /// same one while it is well.
    pub(super) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        spot: Spot,
        rights: Rights,
        op: impl Fn(&dyn Backend) -> Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Result<(ReplicaId, T)>) + Send + 'static,
    ) {
        self.call_by_replica(spot, rights, move |_, backend| op(backend), done);
    }

    /// As [`Caller::call`], for an `op` that wants to know whom it asks.
    pub(super) fn call_by_replica<T: Send + 'static>(
        self: &Arc<Self>,
        spot: Spot,
        rights: Rights,
        op: impl Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Result<(ReplicaId, T)>) + Send + 'static,
    ) {
        self.call_in_order(self.order(spot), spot, rights, op, done);
    }

    /// As [`Caller::call_by_replica`], but `first`, where there is one, is asked
    /// before all others.
    pub(super) fn call_first<T: Send + 'static>(
        self: &Arc<Self>,
        first: Option<ReplicaId>,
        spot: Spot,
        rights: Rights,
        op: impl Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Result<(ReplicaId, T)>) + Send + 'static,
    ) {
        let spot = first.map_or(spot, |first| spot.first(first));
        let order = self.order(spot);
        self.call_in_order(order, spot, rights, op, done);
    }

    /// As [`Caller::call_by_replica`], with the replicas of `order` and no others.
    pub(super) fn call_in_order<T: Send + 'static>(
        self: &Arc<Self>,
        order: Vec<ReplicaId>,
        spot: Spot,
        rights: Rights,
        op: impl Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Result<(ReplicaId, T)>) + Send + 'static,
    ) {
        let until = Instant::now() + self.policy.deadline;
        let (pin, lane) = (spot.pin, Lane::Metadata);
        let call = Call::new(self, order, (false, pin, lane), rights, until, Arc::new(op), done);
        self.begin(call);
    }

    /// Has `op` carried out by one replica, at most once.
    pub(super) fn call_once<T: Send + 'static>(
        self: &Arc<Self>,
        once: Once,
        op: impl Fn(&dyn Backend) -> Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let Once { replica, lane, deadline, rights } = once;
        let until = Instant::now() + deadline;
        let op = Arc::new(move |_, backend: &dyn Backend| op(backend));
        let done = move |answer: Result<(ReplicaId, T)>| done(answer.map(|(_, value)| value));
        let call = Call::new(self, vec![replica], (true, None, lane), rights, until, op, done);
        self.begin(call);
    }

    fn begin<T: Send + 'static>(self: &Arc<Self>, call: Arc<Call<T>>) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        call.ask_next();
        // Without a clock the volume is going away.
        let _ = self.clock.send(call);
    }

    /// Whom to ask, the first first.
    fn order(&self, spot: Spot) -> Vec<ReplicaId> {
        if let Some(only) = spot.only {
            return vec![only];
        }
        let mut order = self.usual_order(spot);
        if let Some(first) = spot.first {
            order.retain(|id| *id != first);
            order.insert(0, first);
        }
        order
    }

    fn usual_order(&self, spot: Spot) -> Vec<ReplicaId> {
        let usable = self.reader.usable();
        let times = spot.pin.map_or(&self.times, |pin| &self.pinned_times[pin.rule]);
        let turn = times.calls.fetch_add(1, Ordering::Relaxed);
        if self.policy.mode == Mode::Copies && spot.pin.is_none() {
            let ejected = self.replicas.all().minus(usable);
            return usable.iter().chain(ejected.iter()).collect();
        }
        let order = metadata::order(&Choice {
            times: &times.all(),
            idle: &times.idle(),
            usable,
            pinned: spot.pin.map_or(ReplicaSet::EMPTY, |pin| pin.replicas),
            affinity: spot.affinity,
            turn,
        });
        if let Some(first) = order.first() {
            // Before it answers, so that those who come meanwhile ask others.
            times.asks(*first);
        }
        order
    }

    fn patience(&self, replica: ReplicaId) -> Duration {
        let patience = Duration::from_micros(self.times.of(replica)) * PATIENCE;
        patience.max(SOONEST).min(self.policy.attempt_deadline)
    }
}

impl<T: Send + 'static> Call<T> {
    fn new(
        caller: &Arc<Caller>,
        order: Vec<ReplicaId>,
        (once, pin, lane): (bool, Option<Pin>, Lane),
        rights: Rights,
        until: Instant,
        op: Op<T>,
        done: impl FnOnce(Result<(ReplicaId, T)>) + Send + 'static,
    ) -> Arc<Self> {
        let state = State {
            left: order.into_iter().rev().collect(),
            silent: Vec::new(),
            error: None,
            done: Some(Box::new(done)),
            patient_until: Instant::now(),
        };
        let caller = Arc::clone(caller);
        let op = Mutex::new(Some(op));
        Arc::new(Self { caller, op, once, pin, lane, rights, until, state: Mutex::new(state) })
    }

    /// Asks the next replica, if one is left.
    fn ask_next(self: &Arc<Self>) {
        loop {
            let asked = Instant::now();
            let replica = {
                let mut state = self.state.lock();
                if state.done.is_none() {
                    return;
                }
                let Some(replica) = state.left.pop() else { return };
                state.silent.push(replica);
                state.patient_until = asked + self.caller.patience(replica);
                replica
            };
            let (call, call_lane) = (Arc::clone(self), self.lane);
            let job = move |backend: &dyn Backend| {
                let begun = Instant::now();
                let Some(op) = call.op.lock().clone() else {
                    // Whoever asked has been answered.
                    return;
                };
                let answer = call.rights.exert(|| op(replica, backend));
                drop(op);
                if let Some(pin) = call.pin {
                    // Without the wait for a thread: those who take all the
                    // calls would seem slower than those who take none.
                    call.caller.pinned_times[pin.rule].took(replica, begun.elapsed());
                }
                call.answered(replica, answer, asked.elapsed());
            };
            match self.caller.replicas[replica].submit(call_lane, job) {
                Ok(()) => return,
                Err(error) => {
                    if !self.failed(replica, error) {
                        return;
                    }
                }
            }
        }
    }

    fn answered(self: &Arc<Self>, replica: ReplicaId, answer: Result<T>, took: Duration) {
        let caller = &self.caller;
        let counters = &caller.replicas[replica].counters;
        caller.times.took(replica, took);
        let answer = match answer {
            Err(error) if !(error.is_definite() || self.once && error.is_refusal()) => {
                if error.is_replica_fault() {
                    counters.error();
                    caller.reader.heard(replica, false);
                }
                if self.failed(replica, error) {
                    self.ask_next();
                }
                return;
            }
            answer => answer,
        };
        counters.metadata();
        let Some((done, failover)) = self.finish(Some(replica)) else { return };
        count(&caller.counters.metadata);
        if failover {
            count(&caller.counters.metadata_failovers);
        }
        done(answer.map(|value| (replica, value)));
    }

    /// Notes a failure; true where there is somebody else to ask. Where there
    /// is not and nobody is silent, the call has failed.
    fn failed(&self, replica: ReplicaId, error: BackendError) -> bool {
        {
            let mut state = self.state.lock();
            state.silent.retain(|id| *id != replica);
            if state.error.is_none() || matches!(error, BackendError::Os(_)) {
                state.error = Some(error);
            }
            if !state.left.is_empty() {
                return true;
            }
            if !state.silent.is_empty() {
                return false;
            }
        }
        self.give_up();
        false
    }

    fn give_up(&self) {
        let error = self.state.lock().error.unwrap_or(BackendError::Late);
        if let Some((done, _)) = self.finish(None) {
            done(Err(error));
        }
    }

    /// Ends the call, once. Those who were asked and stayed silent while
    /// `by` answered have failed.
    fn finish(&self, by: Option<ReplicaId>) -> Option<(Done<T>, bool)> {
        let (done, silent, failover) = {
            let mut state = self.state.lock();
            let done = state.done.take()?;
            let silent = std::mem::take(&mut state.silent);
            let failover = state.error.is_some() || silent.len() > 1;
            (done, silent, failover)
        };
        self.op.lock().take();
        self.caller.pending.fetch_sub(1, Ordering::Relaxed);
        if by.is_some() {
            for replica in silent.into_iter().filter(|id| Some(*id) != by) {
                self.caller.reader.heard(replica, false);
            }
        }
        Some((done, failover))
    }
}

impl<T: Send + 'static> Watched for Call<T> {
    fn tick(self: Arc<Self>, now: Instant) -> bool {
        let (over, late) = {
            let state = self.state.lock();
            (state.done.is_none(), now >= state.patient_until)
        };
        if over {
            return false;
        }
        if now >= self.until {
            self.give_up();
            return false;
        }
        if late {
            self.ask_next();
        }
        true
    }
}

/// Looks after calls until there can be no more.
async fn run_clock(mut begun: UnboundedReceiver<Arc<dyn Watched>>) {
    let mut calls = Vec::new();
    while let Some(call) = begun.recv().await {
        calls.push(call);
        while !calls.is_empty() {
            tokio::time::sleep(TICK).await;
            while let Ok(call) = begun.try_recv() {
                calls.push(call);
            }
            let now = Instant::now();
            calls.retain(|call| Arc::clone(call).tick(now));
        }
    }
}
