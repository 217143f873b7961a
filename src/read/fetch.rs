//! One segment's fetch: made once, for all requests that wait for it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::request::{self, RequestPart};
use super::segment_map::{Segment, SegmentMap};
use super::versioned_file::VersionedFile;
use crate::backend::{BackendError, Ticket};
use crate::buffer::{Reservation, SegmentData};
use crate::scheduler::{QueueKey, SegmentNeed};
use crate::sync::{LockRank, RankedMutex};
use crate::volume::{ByteRange, Holders, ReplicaId, ReplicaSet};

/// The known segments of an open file.
pub(super) type SharedSegments = RankedMutex<SegmentMap<SegmentFetch>>;

/// A request for segments.
pub(super) type ReadRequest = request::ReadRequest<SegmentFetch>;

/// A range of a file that is being fetched or has been.
pub(super) struct SegmentFetch {
    pub(super) file: Arc<VersionedFile>,
    /// The map that contains it; a closed open file may drop the map first.
    segments: Weak<SharedSegments>,
    pub(super) range: ByteRange,
    pub(super) state: RankedMutex<FetchState>,
}

pub(super) struct FetchState {
    pub(super) stage: FetchStage,
    /// Requests that need this segment, including those that have ended.
    pub(super) waiters: Vec<Arc<ReadRequest>>,
    /// Its position in the scheduler's queue.
    pub(super) queue_key: Option<QueueKey>,
    /// When it last entered that queue.
    queued_at: Option<Instant>,
    /// When it was last dispatched after a wait there.
    dispatched_at: Option<Instant>,
    /// The holders of its chunk; `None` if unknown.
    pub(super) holders: Option<Holders>,
    /// Replicas that have been asked.
    pub(super) tried: ReplicaSet,
    /// Those of them whose last attempt failed.
    failed: ReplicaSet,
    /// When an attempt last failed.
    failed_at: Option<Instant>,
    /// Attempts that have not ended.
    pub(super) attempts_in_flight: usize,
    /// Pays for the next attempt's buffer.
    pub(super) claim: Option<Reservation>,
    /// Pay for the buffers of submitted attempts that have not started to read. Each attempt has
    /// its own claim, in whichever order the attempts run.
    attempt_claims: Vec<(ReplicaId, Reservation)>,
    /// The tickets of attempts in the replicas' pools.
    pub(super) tickets: Vec<(ReplicaId, Ticket)>,
    /// Bytes of it that applications have received.
    pub(super) consumed: u64,
    /// The ranges that requests have asked for.
    requested: RequestedRanges,
    /// Whether two requests want the same byte. Pages can be moved only once, so they will not do.
    pub(super) is_shared: bool,
    /// The eviction queue that it is in.
    pub(super) eviction_queue: EvictionQueue,
    /// The most significant error so far.
    error: Option<BackendError>,
    /// Whether a replica has reported another version of the file.
    has_version_mismatch: bool,
    /// The attempt that delivered it.
    pub(super) delivered_by: Option<DeliveredBy>,
}

/// The attempt that delivered a segment.
#[derive(Clone, Copy)]
pub(super) struct DeliveredBy {
    pub(super) replica: ReplicaId,
    pub(super) at: Instant,
    pub(super) took: Duration,
}

impl FetchState {
    /// Records that it entered the scheduler's queue.
    pub(super) fn set_queued(&mut self, want: QueueKey) {
        self.queue_key = Some(want);
        self.queued_at = Some(Instant::now());
    }

    /// Whether one more attempt would be of use.
    pub(super) fn may_be_hedged(&self) -> bool {
        let is_pending = matches!(self.stage, FetchStage::Pending);
        is_pending && self.queue_key.is_none() && !self.is_unwanted()
    }

    /// Keeps the error if it is at least as significant as the one before.
    fn record_error(&mut self, error: BackendError) {
        // An errno says more than a version mismatch, and a mismatch more than silence.
        let weight = |e: &BackendError| match e {
            BackendError::Os(_) => 3,
            BackendError::VersionMismatch | BackendError::Truncated | BackendError::WrongObject => {
                2
            }
            BackendError::Late => 1,
            BackendError::QueueFull | BackendError::Absent => 0,
        };
        if self.error.is_none_or(|known| weight(&error) >= weight(&known)) {
            self.error = Some(error);
        }
        self.has_version_mismatch |=
            matches!(error, BackendError::VersionMismatch | BackendError::Truncated);
    }

    /// The replicas to ask while those that have been asked are late: others that are well, or else
    /// those that failed before and may work again.
    pub(super) fn alternatives(&self, file: &VersionedFile) -> ReplicaSet {
        let well = file.candidates_not_banned();
        let is_over = self.failed_at.is_some_and(|at| at.elapsed() >= FAILED_PAUSE);
        let failed = if is_over { well.and(self.failed) } else { ReplicaSet::EMPTY };
        let others = well.minus(self.tried).non_empty_or(failed);
        others.non_empty_or(file.candidates_after(self.tried))
    }

    /// Ends a segment that no request wants any more, with its last attempt.
    fn end_unwanted(&mut self, error: BackendError) -> FailureAction {
        self.claim = None;
        if self.attempts_in_flight > 0 {
            return FailureAction::Wait;
        }
        self.stage = FetchStage::Ended;
        FailureAction::GiveUp {
            error,
            has_version_mismatch: self.has_version_mismatch,
            waiters: Vec::new(),
            queue_key: self.queue_key.take(),
        }
    }

    /// Whether some request waits for it.
    fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_answered())
    }

    /// Whether all requests that waited for it have ended, so that it is not worth another attempt.
    /// A segment that was fetched ahead and that no request has asked for yet is not unwanted.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.waiters.is_empty() && !self.is_awaited()
    }
}

pub(super) enum FetchStage {
    /// Not delivered yet.
    Pending,
    /// In memory or in a pipe.
    Ready(Arc<SegmentData>),
    /// No replica could deliver it, or no request wants it any more.
    Ended,
}

/// The eviction queue that a segment is in. A segment that has been read may still be in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EvictionQueue {
    #[default]
    NotQueued,
    Readahead,
    Consumed,
}

/// Ranges that requests have asked for, in order and not adjacent. Usually there is one.
#[derive(Default)]
struct RequestedRanges(Vec<ByteRange>);

impl RequestedRanges {
    fn intersects(&self, part: ByteRange) -> bool {
        self.0.iter().any(|range| !range.intersect(part).is_empty())
    }

    fn add(&mut self, part: ByteRange) {
        let at = self.0.partition_point(|range| range.end < part.start);
        let mut all = part;
        while let Some(next) = self.0.get(at).filter(|next| next.start <= all.end) {
            all = ByteRange::new(all.start.min(next.start), all.end.max(next.end));
            self.0.remove(at);
        }
        self.0.insert(at, all);
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(ByteRange::len).sum()
    }
}

/// Where a segment waits.
pub(super) struct FetchProgress {
    /// When it was last dispatched from the scheduler's queue after a wait.
    pub(super) dispatched_at: Option<Instant>,
    /// The tickets of its attempts in the replicas' pools.
    pub(super) tickets: Vec<(ReplicaId, Ticket)>,
    /// The replicas to which it may be dispatched, and since when it has been queued.
    pub(super) queued_for: Option<(ReplicaSet, Instant)>,
}

/// How long a replica that failed a segment is not asked for it again.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// A shorter time in the scheduler's queue does not count as a wait, so its end is no progress.
const MIN_QUEUE_WAIT: Duration = Duration::from_millis(100);

/// The state of a segment that a request needs.
pub(super) enum JoinOutcome {
    /// Its bytes are here.
    Ready,
    /// The request waits for it; the key is the segment's position in the queue, if it is queued.
    Waiting(Option<QueueKey>),
    /// The segment has just failed, with this error.
    Failed(BackendError),
}

/// The consequences of a delivery.
pub(super) struct CompletedFetch {
    pub(super) waiters: Vec<Arc<ReadRequest>>,
    /// The queue position of another attempt that is no longer needed.
    pub(super) queue_key: Option<QueueKey>,
}

/// Data that does not complete its segment.
pub(super) enum RejectedData {
    /// The segment has already ended.
    Late(SegmentData),
    /// The replica's bytes differ from the deciding replica's. The attempt has failed.
    Excluded(SegmentData),
}

/// The reason why an attempt delivered no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptError {
    /// There was no call, because no request wanted the segment then.
    Skipped,
    /// The call was given up, because no request had waited for the segment for long.
    Unwanted,
    /// The call failed.
    Failed(BackendError),
}

impl From<BackendError> for AttemptError {
    fn from(error: BackendError) -> Self {
        Self::Failed(error)
    }
}

/// The consequence of a failed attempt.
pub(super) enum FailureAction {
    /// Ask one of these replicas.
    Retry(ReplicaSet),
    /// Another attempt is queued or in flight, or has delivered.
    Wait,
    /// No replica is left to ask, or no request wants the segment: fail the waiting requests.
    GiveUp {
        error: BackendError,
        /// Whether a replica has reported another version of the file.
        has_version_mismatch: bool,
        waiters: Vec<Arc<ReadRequest>>,
        queue_key: Option<QueueKey>,
    },
}

impl RequestPart for SegmentFetch {
    fn range(&self) -> ByteRange {
        self.range
    }

    fn data(&self) -> Option<Arc<SegmentData>> {
        Self::data(self)
    }

    fn has_version_mismatch(&self) -> bool {
        Self::has_version_mismatch(self)
    }
}

impl Segment for SegmentFetch {
    fn range(&self) -> ByteRange {
        self.range
    }

    fn can_serve(&self, part: ByteRange) -> bool {
        Self::can_serve(self, part)
    }
}

impl SegmentFetch {
    /// A new fetch for `segments`; the caller inserts it there.
    #[inline]
    pub(super) fn new(
        file: Arc<VersionedFile>,
        segments: &Arc<SharedSegments>,
        range: ByteRange,
        claim: Reservation,
    ) -> Self {
        let state = FetchState {
            stage: FetchStage::Pending,
            waiters: Vec::new(),
            queue_key: None,
            queued_at: None,
            dispatched_at: None,
            holders: None,
            tried: ReplicaSet::EMPTY,
            failed: ReplicaSet::EMPTY,
            failed_at: None,
            attempts_in_flight: 0,
            claim: Some(claim),
            attempt_claims: Vec::new(),
            tickets: Vec::new(),
            consumed: 0,
            requested: RequestedRanges::default(),
            is_shared: false,
            eviction_queue: EvictionQueue::NotQueued,
            error: None,
            has_version_mismatch: false,
            delivered_by: None,
        };
        Self {
            file,
            segments: Arc::downgrade(segments),
            range,
            state: RankedMutex::new(LockRank::Fetch, state),
        }
    }

    /// The map that contains it; `None` if its open file has been closed.
    pub(super) fn segments(&self) -> Option<Arc<SharedSegments>> {
        self.segments.upgrade()
    }

    /// A weak reference to that map, for a holder that may outlive the open file.
    pub(super) fn weak_segments(&self) -> Weak<SharedSegments> {
        Weak::clone(&self.segments)
    }

    /// Removes it from its open file's map.
    pub(super) fn forget(self: &Arc<Self>) {
        if let Some(segments) = self.segments() {
            segments.lock().forget(self);
        }
    }

    /// Whether it has `part` or will have it. Data that was moved away as pages is gone, and that of
    /// an excluded replica is not used. Hold the lock of the file's segments from this call until
    /// you join.
    pub(super) fn can_serve(&self, part: ByteRange) -> bool {
        let mut state = self.state.lock();
        let promised = state.requested.intersects(part);
        match &state.stage {
            FetchStage::Ready(_)
                if state.delivered_by.is_some_and(|by| self.file.is_excluded(by.replica)) =>
            {
                false
            }
            FetchStage::Ready(data) => {
                let start = (part.start - self.range.start) as usize;
                let end = (part.end - self.range.start) as usize;
                !promised || data.materialize(start..end)
            }
            FetchStage::Pending => {
                // Set it now: the data may arrive before this request joins.
                state.is_shared |= promised;
                true
            }
            FetchStage::Ended => true,
        }
    }

    /// Adds `request`, which wants `part`. The request waits if the data is pending.
    pub(super) fn join(&self, request: &Arc<ReadRequest>, part: ByteRange) -> JoinOutcome {
        let mut state = self.state.lock();
        state.is_shared |= state.requested.intersects(part);
        state.requested.add(part);
        match state.stage {
            FetchStage::Ready(_) => JoinOutcome::Ready,
            FetchStage::Pending => {
                state.waiters.push(Arc::clone(request));
                JoinOutcome::Waiting(state.queue_key)
            }
            FetchStage::Ended => JoinOutcome::Failed(state.error.unwrap_or(BackendError::Late)),
        }
    }

    /// If no request wants it any more, cancels the next attempt: returns its queue key, which the
    /// caller cancels in the scheduler.
    pub(super) fn withdraw_if_unwanted(&self) -> Option<QueueKey> {
        let mut state = self.state.lock();
        if !state.is_unwanted() {
            return None;
        }
        state.claim = None;
        state.queue_key.take()
    }

    /// Ends a pending segment that no request waits for and that has no attempt in flight. False if
    /// it cannot be ended.
    pub(super) fn abandon(&self) -> bool {
        let mut state = self.state.lock();
        let idle = !state.is_awaited() && state.attempts_in_flight == 0;
        let abandoned = idle && matches!(state.stage, FetchStage::Pending);
        if abandoned {
            state.stage = FetchStage::Ended;
            state.claim = None;
        }
        abandoned
    }

    /// The need for it while an attempt is late. No replica may be asked if it has ended, if no
    /// request wants it, or if another attempt is queued.
    pub(super) fn need(&self) -> SegmentNeed {
        self.file.expire_bans();
        let state = self.state.lock();
        let alternatives = match state.may_be_hedged() {
            true => state.alternatives(&self.file),
            false => ReplicaSet::EMPTY,
        };
        SegmentNeed { is_awaited: state.is_awaited(), alternatives }
    }

    /// The replicas to which it may be dispatched now.
    pub(super) fn present_candidates(&self) -> ReplicaSet {
        self.file.expire_bans();
        self.state.lock().alternatives(&self.file)
    }

    /// Whether some request waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.state.lock().is_awaited()
    }

    /// Its data, if delivered.
    pub(super) fn data(&self) -> Option<Arc<SegmentData>> {
        match &self.state.lock().stage {
            FetchStage::Ready(data) => Some(Arc::clone(data)),
            FetchStage::Pending | FetchStage::Ended => None,
        }
    }

    /// The number of delivered bytes that no request has asked for, and the attempt that delivered
    /// them.
    pub(super) fn unread_bytes(&self) -> Option<(u64, DeliveredBy)> {
        let state = self.state.lock();
        let unread = self.range.len().saturating_sub(state.requested.bytes());
        let is_here = matches!(state.stage, FetchStage::Ready(_)) && unread > 0;
        state.delivered_by.filter(|_| is_here).map(|brought| (unread, brought))
    }

    /// Records that an attempt starts. False if it is no longer needed.
    pub(super) fn start_attempt(&self, replica: ReplicaId) -> bool {
        let mut state = self.state.lock();
        state.queue_key = None;
        let now = Instant::now();
        let waited = state.queued_at.take().map(|wanted| now.saturating_duration_since(wanted));
        if waited.is_some_and(|waited| waited >= MIN_QUEUE_WAIT) {
            state.dispatched_at = Some(now);
        }
        state.tried = state.tried.with(replica);
        state.failed = state.failed.minus(ReplicaSet::EMPTY.with(replica));
        state.attempts_in_flight += 1;
        if let Some(claim) = state.claim.take() {
            state.attempt_claims.push((replica, claim));
        }
        matches!(state.stage, FetchStage::Pending)
    }

    /// Whether it has ended, or all requests that wanted it have given up.
    pub(super) fn is_ended_or_unwanted(&self) -> bool {
        let state = self.state.lock();
        !matches!(state.stage, FetchStage::Pending) || state.is_unwanted()
    }

    /// Takes the claim for the buffer of the attempt at `replica`.
    pub(super) fn take_attempt_claim(&self, replica: ReplicaId) -> Option<Reservation> {
        let mut state = self.state.lock();
        let place = state.attempt_claims.iter().position(|(id, _)| *id == replica)?;
        Some(state.attempt_claims.swap_remove(place).1)
    }

    /// Keeps the claim for the attempt at `replica`, which begins again.
    pub(super) fn return_attempt_claim(&self, replica: ReplicaId, claim: Reservation) {
        let mut state = self.state.lock();
        // After a delivery no attempt needs it.
        if matches!(state.stage, FetchStage::Pending) {
            state.attempt_claims.push((replica, claim));
        }
    }

    /// Completes the segment with the data of an attempt. Returns the waiting requests and the
    /// queue key of an attempt that is no longer needed.
    ///
    /// # Errors
    /// The data, if it must not be used.
    pub(super) fn complete(
        &self,
        data: SegmentData,
        brought: DeliveredBy,
    ) -> Result<CompletedFetch, RejectedData> {
        let mut state = self.state.lock();
        // Under the lock: a comparison first marks the replica, and then forgets its segments.
        if self.file.is_excluded(brought.replica) {
            return Err(RejectedData::Excluded(data));
        }
        state.attempts_in_flight -= 1;
        if !matches!(state.stage, FetchStage::Pending) {
            return Err(RejectedData::Late(data));
        }
        if state.is_shared {
            data.materialize(0..0);
        }
        state.stage = FetchStage::Ready(Arc::new(data));
        state.delivered_by = Some(brought);
        // Claims for further attempts are no longer needed.
        state.claim = None;
        state.attempt_claims.clear();
        Ok(CompletedFetch {
            waiters: std::mem::take(&mut state.waiters),
            queue_key: state.queue_key.take(),
        })
    }

    /// Where it waits, until it is delivered.
    pub(super) fn progress(&self) -> FetchProgress {
        let state = self.state.lock();
        let left = || self.file.candidates().minus(state.tried);
        FetchProgress {
            dispatched_at: state.dispatched_at,
            tickets: state.tickets.clone(),
            queued_for: state.queue_key.and(state.queued_at).map(|since| (left(), since)),
        }
    }

    /// Whether it is pending and a replica has reported another version of the file.
    pub(super) fn has_version_mismatch(&self) -> bool {
        let state = self.state.lock();
        matches!(state.stage, FetchStage::Pending) && state.has_version_mismatch
    }

    /// Records an attempt at `replica` without data; `claim` had paid for its buffer.
    pub(super) fn attempt_failed(
        &self,
        replica: ReplicaId,
        error: AttemptError,
        claim: Option<Reservation>,
    ) -> FailureAction {
        let mut state = self.state.lock();
        state.attempts_in_flight -= 1;
        if !matches!(state.stage, FetchStage::Pending) {
            return FailureAction::Wait;
        }
        if state.claim.is_none() {
            state.claim = claim;
        }
        let was_given_up = error == AttemptError::Unwanted;
        let error = match error {
            // A request that has joined since may need this replica.
            AttemptError::Skipped | AttemptError::Unwanted => {
                state.tried = state.tried.minus(ReplicaSet::EMPTY.with(replica));
                BackendError::QueueFull
            }
            AttemptError::Failed(error) => {
                state.failed = state.failed.with(replica);
                state.failed_at = Some(Instant::now());
                state.record_error(error);
                error
            }
        };
        // Readahead that was given up would be given up again.
        if state.is_unwanted() || was_given_up && !state.is_awaited() {
            return state.end_unwanted(error);
        }
        let left = self.file.candidates_after(state.tried);
        if state.claim.is_some() && !left.is_empty() && state.queue_key.is_none() {
            return FailureAction::Retry(left);
        }
        if state.attempts_in_flight > 0 || state.queue_key.is_some() {
            return FailureAction::Wait;
        }
        state.stage = FetchStage::Ended;
        let error = state.error.unwrap_or(error);
        let waiters = std::mem::take(&mut state.waiters);
        FailureAction::GiveUp {
            error,
            has_version_mismatch: state.has_version_mismatch,
            waiters,
            queue_key: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn only_requested_ranges_are_known(
            parts in proptest::collection::vec((0u64..60, 1u64..9), 0..20), asked in (0u64..60, 1u64..9),
        ) {
            let mut promised = RequestedRanges::default();
            for (start, len) in &parts {
                promised.add(ByteRange::at(*start, *len));
            }
            let asked = ByteRange::at(asked.0, asked.1);
            let meets = parts.iter().any(|(start, len)| {
                !ByteRange::at(*start, *len).intersect(asked).is_empty()
            });
            prop_assert_eq!(promised.intersects(asked), meets);
            prop_assert!(promised.0.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
