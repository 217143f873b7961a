//! Metadata calls: one replica at a time, and the next one if it fails or is late.
//!
//! In `copies` mode, calls ask the replicas in configuration order, so that the first healthy or
//! merely slow one decides how the tree looks. In `shared` mode, calls are spread over the
//! replicas, and subtrees may be pinned ([`crate::replicas::metadata_order`]).
//!
//! A call does not wait for a late replica: it also asks the next one, and the first answer counts.
//! An error about the object itself (it does not exist, it may not be read) is an answer.
//!
//! A call that changes something asks the write replica, once ([`MetadataClient::call_once`]). No
//! other replica is asked if that one fails or is late. If the caller has already been answered
//! with a timeout, the call is not started at all.
//!
//! The volume's ticker drives all calls ([`crate::replicas`]): a task or a timer for each would
//! cost more than most calls take.

mod call_attempt;
mod call_dispatch;
mod call_future;
mod call_latency;
mod call_load;
mod fallback;
mod lookup_timeouts;
mod order;
mod pending_changes;
mod run_as;
mod target;
mod timeout;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::health::CallOutcome;
use super::hedge_budget::{HedgeBudget, HedgeLimits};
use super::metadata_order::ReplicaOrder;
use super::request_deadline::{Deadlines, RequestDeadline};
use super::{PendingWork, Replicas, Ticked, lateness, task};
use crate::backend::{Backend, BackendError, PathKey, RequestingThread, Result};
use crate::telemetry::VolumeCounters;
use crate::telemetry::counters::increment;
use crate::volume::{ReplicaId, ReplicaSet, VolumeMode};
use call_future::{AnswerSlot, CallFuture};
use call_latency::{CallLatency, ChangeLatency, CloseLatency};
use call_load::CallLoad;
use fallback::TimedFallback;
use lookup_timeouts::LookupTimeouts;
use pending_changes::{PendingChange, PendingChanges};

use call_attempt::{CallAttempt, SentCall, UnansweredAttempt};
pub use call_latency::PinnedLatencies;
pub use fallback::{EarlyAnswer, Fallback};
pub use run_as::{ChangeClass, RunAs, SingleCall};
use target::CallOptions;
pub use target::CallTarget;

/// The rules for calls.
#[derive(Clone, Copy, Debug)]
pub struct CallPolicy {
    /// Whether the replicas share one tree or are copies.
    pub mode: VolumeMode,
    /// The time limits of a call.
    pub deadlines: Deadlines,
    /// How long one replica may take before the next is asked in any case.
    pub attempt_deadline: Duration,
}

/// Makes metadata calls on replicas.
pub struct MetadataClient {
    policy: CallPolicy,
    replicas: Arc<Replicas>,
    /// The latencies of all calls.
    latency: CallLatency,
    /// The calls in flight.
    load: Arc<CallLoad>,
    /// The latencies of changes.
    change_latency: ChangeLatency,
    /// The latencies of closes by session threads.
    close_latency: CloseLatency,
    /// The latencies of the calls under each affinity rule.
    pinned_latency: Vec<CallLatency>,
    counters: Arc<VolumeCounters>,
    /// Calls that have not been answered.
    pending: AtomicUsize,
    /// The pending calls that may change something.
    pub pending_changes: Arc<PendingChanges>,
    /// Pays for hedged calls.
    hedges: HedgeBudget,
    /// Lookups that have just timed out.
    lookup_timeouts: LookupTimeouts,
    /// The calls that the ticker drives: those that are unanswered or were made since its last
    /// tick. `None` once the ticker has stopped.
    ticked_calls: Mutex<Option<Vec<Arc<dyn TickedCall>>>>,
}

/// A call as the ticker sees it.
trait TickedCall: Send + Sync {
    /// Does the work that is due; false once the call is over.
    fn tick(self: Arc<Self>, now: Instant) -> bool;
}

impl Ticked for MetadataClient {
    fn tick(self: Arc<Self>, now: Instant) -> PendingWork {
        // Without the lock: a failed call continues its request, which may make another call.
        let mut calls = self.ticked_calls.lock().as_mut().map(std::mem::take).unwrap_or_default();
        calls.retain(|call| Arc::clone(call).tick(now));
        let mut ticked = self.ticked_calls.lock();
        let Some(new) = &mut *ticked else { return PendingWork::Idle };
        // The oldest first: hedges are few, and the first call that needs one gets it.
        calls.append(new);
        std::mem::swap(new, &mut calls);
        if new.is_empty() { PendingWork::Idle } else { PendingWork::Calls }
    }

    fn stop(self: Arc<Self>) {
        let calls = self.ticked_calls.lock().take();
        drop(calls);
    }
}

/// The earliest time at which a fallback answer may be used instead of a fresh one.
const MIN_FALLBACK_DELAY: Duration = Duration::from_millis(50);

/// The most hedged calls in one burst.
const MAX_HEDGE_BURST: u64 = 16;

type CallOp<T> = Arc<dyn Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync>;

struct MetadataCall<T> {
    client: Arc<MetadataClient>,
    /// `None` once the call is over, as other code may wait for values that it holds.
    op: Mutex<Option<CallOp<T>>>,
    options: CallOptions,
    /// Present if the call may change something.
    pending_change: Option<PendingChange>,
    /// The replicas that may answer it.
    replicas: ReplicaSet,
    /// The thread that waits for the answer.
    requesting_thread: RequestingThread,
    answer: Arc<AnswerSlot<T>>,
    state: Mutex<CallState<T>>,
}

impl<T> Drop for MetadataCall<T> {
    fn drop(&mut self) {
        self.answer.abandon();
    }
}

/// Counts as a pending call until it is dropped: a request that waits before its call.
pub struct WaitingCall(Arc<MetadataClient>);

impl Drop for WaitingCall {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

struct CallState<T> {
    /// Replicas not asked yet; the next one is last.
    untried: ReplicaOrder,
    unanswered: SmallVec<[UnansweredAttempt; 1]>,
    deadline: RequestDeadline,
    error: Option<BackendError>,
    /// The replica whose negative answer another one must confirm.
    negative_from: Option<ReplicaId>,
    /// Whether the answer is settled.
    is_over: bool,
    /// When the next replica is asked.
    hedge_at: Instant,
    fallback: Option<TimedFallback<T>>,
}

impl<T> CallState<T> {
    /// The attempts that have not been answered.
    fn attempts(&self) -> SmallVec<[CallAttempt; 1]> {
        self.unanswered.iter().map(|silent| silent.attempt).collect()
    }

    /// Whether one of these replicas was asked and has not answered.
    fn is_any_asked(&self, replicas: ReplicaSet) -> bool {
        self.unanswered.iter().any(|silent| replicas.contains(silent.attempt.replica))
    }
}

impl MetadataClient {
    /// `affinity_rules` is the number of rules that pin paths to replicas.
    pub fn new(
        policy: CallPolicy,
        replicas: Arc<Replicas>,
        affinity_rules: usize,
        counters: Arc<VolumeCounters>,
    ) -> Arc<Self> {
        let latency = || CallLatency::new(replicas.len());
        let client = Arc::new(Self {
            policy,
            latency: latency(),
            load: CallLoad::new(replicas.len()),
            change_latency: ChangeLatency::new(replicas.len()),
            close_latency: CloseLatency::new(replicas.len()),
            pinned_latency: (0..affinity_rules).map(|_| latency()).collect(),
            counters,
            pending: AtomicUsize::new(0),
            pending_changes: Arc::default(),
            hedges: HedgeBudget::new(HedgeLimits { burst: MAX_HEDGE_BURST, overdraft: 0 }),
            lookup_timeouts: LookupTimeouts::default(),
            ticked_calls: Mutex::new(Some(Vec::new())),
            replicas,
        });
        let ticked: Weak<dyn Ticked> = Arc::downgrade(&client) as Weak<dyn Ticked>;
        client.replicas.ticker().add(ticked);
        client
    }

    /// The number of calls that have not been answered.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Counts a request that is about to wait before its call.
    pub fn register_waiting(self: &Arc<Self>) -> WaitingCall {
        self.pending.fetch_add(1, Ordering::Relaxed);
        WaitingCall(Arc::clone(self))
    }

    /// The latencies under each affinity rule, in the order of the rules.
    pub fn pinned_latencies(&self) -> Vec<PinnedLatencies> {
        let reading = |times: &CallLatency| PinnedLatencies {
            calls: times.calls.load(Ordering::Relaxed),
            latencies_us: times.latencies_us(),
        };
        self.pinned_latency.iter().map(reading).collect()
    }

    /// Runs `op` on a replica and returns the answer; `op` gets the replica's id. Calls about the
    /// same path go to the same replica, unless it is slow or busier than others.
    pub fn call<T: Send + 'static>(
        self: &Arc<Self>,
        target: CallTarget,
        run_as: RunAs,
        op: impl Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync + 'static,
    ) -> CallFuture<T> {
        self.call_in_order(self.replica_order(target), target, run_as, op)
    }

    /// Like [`MetadataClient::call`], with only the replicas in `order`.
    pub fn call_in_order<T: Send + 'static>(
        self: &Arc<Self>,
        order: ReplicaOrder,
        target: CallTarget,
        run_as: RunAs,
        op: impl Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync + 'static,
    ) -> CallFuture<T> {
        let options = CallOptions::query(target, run_as, self.deadline(target));
        self.start(MetadataCall::new(self, order, options, Arc::new(op)))
    }

    /// Like [`MetadataClient::call`]. If no replica has answered after a call's usual time, and at
    /// least [`MIN_FALLBACK_DELAY`], the answer is `fallback`.
    pub fn call_with_fallback<T: Send + 'static>(
        self: &Arc<Self>,
        fallback: Option<Fallback<T>>,
        target: CallTarget,
        run_as: RunAs,
        op: impl Fn(ReplicaId, &dyn Backend) -> Result<T> + Send + Sync + 'static,
    ) -> CallFuture<T> {
        let order = self.replica_order(target);
        let fallback = fallback.map(|answer| {
            // After a silence, a usual time may be as long as that silence.
            let least = match &answer {
                Fallback::KnownAfter(least, ..) => *least,
                Fallback::Known(..) | Fallback::Early(_) => MIN_FALLBACK_DELAY,
            };
            let late_after = |first: &ReplicaId| {
                let usual = self.latency.late_after(*first, least);
                usual.min(self.policy.attempt_deadline)
            };
            let due = Instant::now() + order.first().map_or(least, late_after);
            TimedFallback { due, answer }
        });
        let options = CallOptions::query(target, run_as, self.deadline(target));
        let call = MetadataCall::new(self, order, options, Arc::new(op));
        if fallback.is_some() {
            call.state.lock().fallback = fallback;
        }
        self.start(call)
    }

    /// Runs `op` on one replica, at most once.
    pub async fn call_once<T: Send + 'static>(
        self: &Arc<Self>,
        once: SingleCall,
        op: impl Fn(&dyn Backend) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let SingleCall { replica, class, lane, deadline, run_as } = once;
        let op = Arc::new(move |_, backend: &dyn Backend| op(backend));
        let options = CallOptions {
            change: Some(class),
            pin: None,
            path_key: PathKey::default(),
            is_known_to_exist: false,
            is_long: false,
            lane,
            run_as,
            deadline,
        };
        let call = self.start(MetadataCall::new(self, smallvec![replica], options, op));
        call.await.map(|(_, value)| value)
    }

    fn deadline(&self, target: CallTarget) -> RequestDeadline {
        let since = target.requested_at.unwrap_or_else(Instant::now);
        RequestDeadline::new(since, self.policy.deadlines)
    }

    fn start<T: Send + 'static>(self: &Arc<Self>, call: Arc<MetadataCall<T>>) -> CallFuture<T> {
        let slot = Arc::clone(&call.answer);
        let future = CallFuture::new(slot, self, call.pending_change.clone());
        // This call now counts for the request, so the guards of the previous one can go.
        task::release_held();
        call.send_next();
        if let Some(ticked) = &mut *self.ticked_calls.lock() {
            ticked.push(call);
        }
        self.replicas.ticker().wake();
        future
    }

    fn hedge_delay(&self, replica: ReplicaId) -> Duration {
        let patience = self.latency.late_after(replica, lateness::MIN_HEDGE_DELAY);
        patience.min(self.policy.attempt_deadline)
    }

    /// Whether a late call may be hedged. If its replica has answered nothing since, or the attempt
    /// deadline has passed: always. Otherwise if the hedge budget allows it.
    fn can_hedge(&self, replica: ReplicaId, asked: Instant, now: Instant) -> bool {
        if self.latency.is_unresponsive_since(replica, asked)
            || now.saturating_duration_since(asked) >= self.policy.attempt_deadline
        {
            return true;
        }
        self.hedges.spend(1).is_some()
    }
}

impl<T: Send + 'static> MetadataCall<T> {
    #[inline]
    fn new(
        client: &Arc<MetadataClient>,
        mut order: ReplicaOrder,
        options: CallOptions,
        op: CallOp<T>,
    ) -> Arc<Self> {
        let replicas = order.iter().fold(ReplicaSet::EMPTY, |of, replica| of.with(*replica));
        order.reverse();
        let state = CallState {
            untried: order,
            unanswered: SmallVec::new(),
            deadline: options.deadline,
            error: None,
            negative_from: None,
            is_over: false,
            hedge_at: options.deadline.last_progress(),
            fallback: None,
        };
        Arc::new(Self {
            client: Arc::clone(client),
            op: Mutex::new(Some(op)),
            pending_change: options.is_mutation().then(|| client.pending_changes.add_queued()),
            options,
            replicas,
            requesting_thread: RequestingThread::current(),
            answer: AnswerSlot::new(),
            state: Mutex::new(state),
        })
    }

    fn send_next(self: &Arc<Self>) {
        loop {
            let asked = Instant::now();
            let (replica, sent) = {
                let mut state = self.state.lock();
                if state.is_over {
                    return;
                }
                let Some(replica) = state.untried.pop() else { return };
                let in_flight = self.options.is_short().then(|| self.client.load.enter(replica));
                let is_alone = in_flight.as_ref().is_some_and(|call| call.is_alone);
                state.unanswered.push(UnansweredAttempt {
                    attempt: CallAttempt { replica, sent_at: asked, ticket: None },
                    _in_flight: in_flight,
                });
                state.hedge_at = asked + self.client.hedge_delay(replica);
                (replica, SentCall { at: asked, is_alone })
            };
            match self.dispatch(replica, sent) {
                Ok(()) => return,
                Err(error) => {
                    if !self.handle_failure(replica, error) {
                        return;
                    }
                }
            }
        }
    }

    /// Handles the answer to a call, which came at `at`.
    fn handle_answer(
        self: &Arc<Self>,
        replica: ReplicaId,
        answer: Result<T>,
        sent: SentCall,
        at: Instant,
    ) {
        let took = at.saturating_duration_since(sent.at);
        let caller = &self.client;
        let counters = &caller.replicas[replica].counters;
        caller.latency.record(replica, took);
        if sent.is_alone {
            caller.latency.record_alone(replica, took);
        }
        let answer = match answer {
            Err(error)
                if !(error.is_definite() || self.options.is_mutation() && error.is_refusal()) =>
            {
                if error.is_replica_fault() {
                    counters.record_error();
                    caller.replicas.record_call(replica, CallOutcome::AmbiguousError);
                }
                if self.handle_failure(replica, error) {
                    self.send_next();
                }
                return;
            }
            answer => answer,
        };
        counters.record_metadata_call();
        caller.hedges.refill(1);
        caller.replicas.record_call(replica, CallOutcome::Success);
        if let Err(error) = &answer
            && self.should_confirm_negative(replica, *error)
        {
            return self.send_next();
        }
        let Some(has_failed_over) = self.finish(Some(replica)) else { return };
        increment(&caller.counters.metadata);
        if has_failed_over {
            increment(&caller.counters.metadata_failovers);
        }
        self.deliver(answer.map(|value| (replica, value)));
    }

    /// Delivers an answer, or instead of an error, one that an operation had early.
    fn deliver(&self, answer: Result<(ReplicaId, T)>) {
        let early = answer.is_err().then(|| fallback::take_early(&self.state.lock().fallback));
        self.answer.deliver(early.flatten().map_or(answer, Ok));
    }

    /// Whether another replica must confirm that an object is missing although the kernel has seen
    /// it. This replica may have another version of the directory, or have lost the file.
    fn should_confirm_negative(&self, replica: ReplicaId, error: BackendError) -> bool {
        use rustix::io::Errno as E;
        let is_shared =
            self.client.policy.mode == VolumeMode::Shared && !self.options.is_mutation();
        let may_differ = match error {
            BackendError::Os(E::NOENT | E::NOTDIR | E::LOOP) => self.options.is_known_to_exist,
            // A server that has withdrawn its export refuses every call.
            BackendError::Os(E::ACCESS | E::PERM) => is_shared,
            _ => false,
        };
        if !may_differ {
            return false;
        }
        let usable = self.client.replicas.availability();
        let others = usable.usable.minus(usable.suspects).minus(ReplicaSet::EMPTY.with(replica));
        let mut state = self.state.lock();
        if state.is_over || state.negative_from.is_some_and(|first| first != replica) {
            return false;
        }
        // fanfs does not wait for a replica that may answer late. But a slow listing is not late.
        let is_other_asked = self.options.is_long && state.is_any_asked(others);
        let is_other_untried = state.untried.iter().any(|next| others.contains(*next));
        if !is_other_asked && !is_other_untried {
            return false;
        }
        state.untried.retain(|next| others.contains(*next));
        state.unanswered.retain(|silent| silent.attempt.replica != replica);
        state.error = Some(error);
        state.negative_from = Some(replica);
        true
    }

    /// Records a failure. True if another replica is left to ask. If none is left and none is in
    /// flight, the call fails.
    fn handle_failure(&self, replica: ReplicaId, error: BackendError) -> bool {
        {
            let mut state = self.state.lock();
            // The oldest attempt: the replica may have been asked again since.
            let asked =
                state.unanswered.iter().position(|silent| silent.attempt.replica == replica);
            asked.map(|asked| state.unanswered.remove(asked));
            let is_first = state.error.is_none() || matches!(error, BackendError::Os(_));
            if is_first && state.negative_from.is_none() {
                state.error = Some(error);
            }
            if !state.untried.is_empty() {
                return true;
            }
            if !state.unanswered.is_empty() {
                return false;
            }
        }
        self.fail();
        false
    }

    fn fail(&self) {
        self.fail_by(None);
    }

    /// Fails; if one replica's answer is the reason, the others that were asked are late.
    fn fail_by(&self, by: Option<ReplicaId>) {
        let error = self.state.lock().error.unwrap_or(BackendError::Late);
        if self.finish(by).is_some() {
            self.deliver(Err(error));
        }
    }

    /// Ends the call, once. Returns whether a replica failed or was late before. Records replicas
    /// that were asked and had not answered when `by` did as late or unanswered.
    fn finish(&self, by: Option<ReplicaId>) -> Option<bool> {
        let (silent, has_failed_over) = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_over, true) {
                return None;
            }
            let silent = std::mem::take(&mut state.unanswered);
            let has_failed_over = state.error.is_some() || silent.len() > 1;
            (silent, has_failed_over)
        };
        let op = self.op.lock().take();
        // Without the lock: this may close a file, which waits for a pool, and a thread of that pool
        // may ask whether this call is over.
        drop(op);
        if by.is_some() {
            for CallAttempt { replica, sent_at: asked, .. } in
                silent.iter().map(|silent| silent.attempt)
            {
                if Some(replica) == by {
                    continue;
                }
                let outcome = match self.client.latency.is_unresponsive_since(replica, asked) {
                    true => CallOutcome::Unanswered,
                    false => CallOutcome::Late,
                };
                self.client.replicas.record_call(replica, outcome);
            }
        }
        Some(has_failed_over)
    }
}
