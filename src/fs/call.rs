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
//! One task looks after all calls, every [`clock::TICK`] while there are any: a task or
//! a timer for each would cost more than most calls take.

mod changes;
mod clock;
mod order;
mod overdue;
mod rights;
mod silent;
mod spot;
mod times;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::FsPolicy;
use crate::backend::{About, Asker, Backend, BackendError, Errand, Replica, Result};
use crate::read::{Reader, Term};
use crate::scheduler::health::Heard;
use crate::scheduler::hedge;
use crate::telemetry::VolumeCounters;
use crate::telemetry::counters::count;
use crate::volume::{Mode, ReplicaId, ReplicaMap, ReplicaSet};
use changes::{Changes, Counted};
use clock::{Watched, run_clock};
use overdue::Overdue;
use times::Times;

pub(super) use rights::{Once, Rights};
use silent::Silent;
use spot::Kind;
pub(super) use spot::Spot;
pub use times::PinnedTimes;

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
    /// Calls that have not been answered.
    pending: AtomicUsize,
    /// Those of them that may change something.
    pub(super) changes: Arc<Changes>,
    /// What is left for second calls, [`ONE_IN`] each.
    tokens: AtomicI64,
    /// Lookups that have just passed their deadline.
    overdue: Overdue,
    /// Where the clock gets the calls from. It holds no more than are unanswered
    /// and than are made in a [`clock::TICK`].
    clock: UnboundedSender<Arc<dyn Watched>>,
}

/// Before this nobody is given an old answer for want of a new one.
const FALLBACK_AFTER: Duration = Duration::from_millis(50);

/// One call in so many may be made twice, where the first replica answers others.
const ONE_IN: i64 = 25;

/// Calls that may be made twice in one go.
const BURST: i64 = 16;

type Op<T> = Arc<dyn Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync>;
type Done<T> = Box<dyn FnOnce(Result<(ReplicaId, T)>) + Send>;

struct Call<T> {
    caller: Arc<Caller>,
    /// Until it is over: what it holds on to may be waited for.
    op: Mutex<Option<Op<T>>>,
    kind: Kind,
    /// Where it may change something.
    change: Option<Counted>,
    rights: Rights,
    /// The replicas that may answer it.
    of: ReplicaSet,
    /// The thread that waits.
    asker: Asker,
    state: Mutex<State<T>>,
}

/// Counts as a call until it is dropped: a call that waits before it asks.
pub(super) struct WaitingCall(Arc<Caller>);

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

struct State<T> {
    /// Not asked yet, the next one last.
    left: Vec<ReplicaId>,
    silent: Vec<Silent>,
    term: Term,
    error: Option<BackendError>,
    /// Whether somebody has said that it is not there.
    denied: bool,
    done: Option<Done<T>>,
    /// When another one is asked.
    patient_until: Instant,
    /// The answer where nobody has given one by then.
    fallback: Option<(Instant, ReplicaId, T)>,
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
            changes: Arc::default(),
            tokens: AtomicI64::new(BURST * ONE_IN),
            overdue: Overdue::default(),
            clock,
        }
    }

    /// Calls that have not been answered.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// A call is about to wait.
    pub(super) fn waits(self: &Arc<Self>) -> WaitingCall {
        self.pending.fetch_add(1, Ordering::Relaxed);
        WaitingCall(Arc::clone(self))
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
        let term = self.term(spot);
        let call = Call::new(self, order, spot.into(), rights, term, Arc::new(op), done);
        self.begin(call);
    }

    /// As [`Caller::call_by_replica`], with an answer to be given where nobody has
    /// given another one after a call's usual time, [`FALLBACK_AFTER`] at least.
    pub(super) fn call_or<T: Send + 'static>(
        self: &Arc<Self>,
        fallback: Option<(ReplicaId, T)>,
        spot: Spot,
        rights: Rights,
        op: impl Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Result<(ReplicaId, T)>) + Send + 'static,
    ) {
        let (order, now) = (self.order(spot), Instant::now());
        let usual = order.first().map_or(Duration::ZERO, |first| self.times.patience(*first));
        let term = self.term(spot);
        let call = Call::new(self, order, spot.into(), rights, term, Arc::new(op), done);
        call.state.lock().fallback =
            fallback.map(|(replica, value)| (now + usual.max(FALLBACK_AFTER), replica, value));
        self.begin(call);
    }

    /// Has `op` carried out by one replica, at most once.
    pub(super) fn call_once<T: Send + 'static>(
        self: &Arc<Self>,
        once: Once,
        op: impl Fn(&dyn Backend) -> Result<T> + Send + Sync + 'static,
        done: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let Once { replica, lane, term, rights } = once;
        let op = Arc::new(move |_, backend: &dyn Backend| op(backend));
        let done = move |answer: Result<(ReplicaId, T)>| done(answer.map(|(_, value)| value));
        let about = About::default();
        let kind = Kind { once: true, pin: None, about, known: false, lane };
        let call = Call::new(self, vec![replica], kind, rights, term, op, done);
        self.begin(call);
    }

    fn term(&self, spot: Spot) -> Term {
        let since = spot.since.unwrap_or_else(Instant::now);
        Term::new(since, self.policy.deadlines)
    }

    fn begin<T: Send + 'static>(self: &Arc<Self>, call: Arc<Call<T>>) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        call.ask_next();
        // Without a clock the volume is going away.
        let _ = self.clock.send(call);
    }

    fn patience(&self, replica: ReplicaId) -> Duration {
        let patience = self.times.patience(replica);
        patience.max(hedge::SOONEST).min(self.policy.attempt_deadline)
    }

    /// Whether a call that is late may be made a second time: where its replica has
    /// been silent since, and else as far as the budget goes.
    fn may_ask_twice(&self, replica: ReplicaId, asked: Instant, now: Instant) -> bool {
        if self.times.is_silent_since(replica, asked)
            || now.saturating_duration_since(asked) >= self.policy.attempt_deadline
        {
            return true;
        }
        let spend = |tokens: i64| (tokens >= ONE_IN).then_some(tokens - ONE_IN);
        self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok()
    }

    fn earn(&self) {
        let earn = |tokens: i64| (tokens < BURST * ONE_IN).then_some(tokens + 1);
        let _ = self.tokens.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earn);
    }
}

impl<T: Send + 'static> Call<T> {
    fn new(
        caller: &Arc<Caller>,
        order: Vec<ReplicaId>,
        kind: Kind,
        rights: Rights,
        term: Term,
        op: Op<T>,
        done: impl FnOnce(Result<(ReplicaId, T)>) + Send + 'static,
    ) -> Arc<Self> {
        let of = order.iter().fold(ReplicaSet::EMPTY, |of, replica| of.with(*replica));
        let state = State {
            left: order.into_iter().rev().collect(),
            silent: Vec::new(),
            term,
            error: None,
            denied: false,
            done: Some(Box::new(done)),
            patient_until: Instant::now(),
            fallback: None,
        };
        let caller = Arc::clone(caller);
        let change = kind.once.then(|| caller.changes.queue());
        let op = Mutex::new(Some(op));
        let (asker, state) = (Asker::now(), Mutex::new(state));
        Arc::new(Self { caller, op, kind, change, rights, of, asker, state })
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
                state.silent.push(Silent { replica, asked, ticket: None });
                state.patient_until = asked + self.caller.patience(replica);
                replica
            };
            let (call, call_lane) = (Arc::clone(self), self.kind.lane);
            let job = move |backend: &dyn Backend| {
                let begun = Instant::now();
                let Some(op) = call.op.lock().clone() else {
                    // Whoever asked has been answered.
                    return;
                };
                if call.change.as_ref().is_some_and(|change| !change.enters()) {
                    // The kernel sends it to the next daemon.
                    return;
                }
                let answer = call.rights.exert(|| op(replica, backend));
                drop(op);
                if let Some(change) = &call.change {
                    change.comes_out();
                }
                if let Some(pin) = call.kind.pin {
                    // Without the wait for a thread: those who take all the
                    // calls would seem slower than those who take none.
                    call.caller.pinned_times[pin.rule].took(replica, begun.elapsed());
                }
                call.answered(replica, answer, asked.elapsed());
            };
            let of = Arc::clone(self);
            let errand = Errand {
                about: self.kind.about,
                once: self.kind.once,
                is_probe: false,
                is_over: Some(Box::new(move || of.op.lock().is_none())),
            };
            match self.caller.replicas[replica].submit_about(call_lane, errand, job) {
                Ok(ticket) => {
                    let mut state = self.state.lock();
                    let mut silent = state.silent.iter_mut().rev();
                    if let Some(silent) = silent.find(|silent| silent.replica == replica) {
                        silent.ticket = Some(ticket);
                    }
                    return;
                }
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
            Err(error) if !(error.is_definite() || self.kind.once && error.is_refusal()) => {
                if error.is_replica_fault() {
                    counters.error();
                    caller.reader.heard(replica, Heard::Doubtful);
                }
                if self.failed(replica, error) {
                    self.ask_next();
                }
                return;
            }
            answer => answer,
        };
        counters.metadata();
        caller.earn();
        caller.reader.heard(replica, Heard::Well);
        if let Err(error) = &answer
            && self.is_to_be_confirmed(replica, *error)
        {
            return self.ask_next();
        }
        let Some((done, failover)) = self.finish(Some(replica)) else { return };
        count(&caller.counters.metadata);
        if failover {
            count(&caller.counters.metadata_failovers);
        }
        self.asker.during(|| done(answer.map(|value| (replica, value))));
        self.is_told();
    }

    /// Whether somebody else is to be asked because this one says that something is
    /// not there which the kernel was shown: it may have another version of a
    /// directory, or have lost the file.
    fn is_to_be_confirmed(&self, replica: ReplicaId, error: BackendError) -> bool {
        use rustix::io::Errno as E;
        let is_shared = self.caller.policy.mode == Mode::Shared && !self.kind.once;
        let may_differ = match error {
            BackendError::Os(E::NOENT | E::NOTDIR | E::LOOP) => self.kind.known,
            // A server that has withdrawn its export refuses everything.
            BackendError::Os(E::ACCESS | E::PERM) => is_shared,
            _ => false,
        };
        if !may_differ {
            return false;
        }
        let usable = self.caller.reader.usable();
        let well = usable.replicas.minus(usable.suspect);
        let mut state = self.state.lock();
        // Who does not answer soon would not be waited for.
        let has_other = state.left.last().is_some_and(|next| well.contains(*next));
        if state.done.is_none() || state.denied || !has_other {
            return false;
        }
        state.silent.retain(|silent| silent.replica != replica);
        state.error = Some(error);
        state.denied = true;
        true
    }

    /// Notes a failure; true where there is somebody else to ask. Where there
    /// is not and nobody is silent, the call has failed.
    fn failed(&self, replica: ReplicaId, error: BackendError) -> bool {
        {
            let mut state = self.state.lock();
            // The oldest: it may have been asked again since.
            let asked = state.silent.iter().position(|silent| silent.replica == replica);
            asked.map(|asked| state.silent.remove(asked));
            if state.denied {
                // Nobody has said otherwise.
                state.left.clear();
            } else if state.error.is_none() || matches!(error, BackendError::Os(_)) {
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
            self.asker.during(|| done(Err(error)));
            self.is_told();
        }
    }

    /// Whoever asked has the answer, and the tables have followed it.
    fn is_told(&self) {
        self.caller.pending.fetch_sub(1, Ordering::Relaxed);
        if let Some(change) = &self.change {
            change.is_answered();
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
        if by.is_some() {
            for Silent { replica, asked, .. } in silent {
                if Some(replica) == by {
                    continue;
                }
                let heard = match self.caller.times.is_silent_since(replica, asked) {
                    true => Heard::Failed,
                    false => Heard::Late,
                };
                self.caller.reader.heard(replica, heard);
            }
        }
        Some((done, failover))
    }
}
