//! One segment on its way: fetched once, for everybody who waits for it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::request::{self, RequestPart};
use super::segment_map::{Segment, SegmentMap};
use super::versioned_file::VersionedFile;
use crate::backend::{BackendError, Ticket};
use crate::buffer::{Reservation, SegmentData};
use crate::scheduler::QueueKey;
use crate::sync::{LockRank, RankedMutex};
use crate::volume::{ByteRange, Holders, ReplicaId, ReplicaSet};

/// The known segments of an open file.
pub(super) type SharedSegments = RankedMutex<SegmentMap<SegmentFetch>>;

/// A request for segments.
pub(super) type ReadRequest = request::ReadRequest<SegmentFetch>;

/// A range of a file that is being fetched or has been.
pub(super) struct SegmentFetch {
    pub(super) file: Arc<VersionedFile>,
    /// Where it is known; they may be gone before it, with their open file.
    segments: Weak<SharedSegments>,
    pub(super) range: ByteRange,
    pub(super) state: RankedMutex<FetchState>,
}

pub(super) struct FetchState {
    pub(super) stage: FetchStage,
    /// Requests that cannot be answered without it, those that are over included.
    pub(super) waiters: Vec<Arc<ReadRequest>>,
    /// Its place in the scheduler's queue.
    pub(super) queue_key: Option<QueueKey>,
    /// When it last came into that queue.
    queued_at: Option<Instant>,
    /// When its turn last came there.
    dispatched_at: Option<Instant>,
    /// Who holds its chunk; `None` where that is not known.
    pub(super) holders: Option<Holders>,
    /// Replicas that have been asked.
    pub(super) tried: ReplicaSet,
    /// Attempts that have not ended.
    pub(super) attempts_in_flight: usize,
    /// Pays for the next attempt's buffer.
    pub(super) claim: Option<Reservation>,
    /// Pays for the buffers of attempts that have been sent and not carried out yet:
    /// each has its own, whichever is carried out first.
    attempt_claims: Vec<(ReplicaId, Reservation)>,
    /// Attempts in the replicas' pools.
    pub(super) tickets: Vec<(ReplicaId, Ticket)>,
    /// Bytes that applications were given of it.
    pub(super) consumed: u64,
    /// What of it has been promised to requests, each byte once.
    requested: RequestedRanges,
    /// Whether some byte was promised to two: pages, which can be taken once,
    /// will not do.
    pub(super) is_shared: bool,
    /// Where it waits to be given up when memory is short.
    pub(super) eviction_queue: EvictionQueue,
    /// The most telling error so far.
    error: Option<BackendError>,
    /// Whether somebody has said that the file is another one by now.
    has_version_mismatch: bool,
    /// Who brought it.
    pub(super) delivered_by: Option<DeliveredBy>,
}

/// Which attempt brought a segment.
#[derive(Clone, Copy)]
pub(super) struct DeliveredBy {
    pub(super) replica: ReplicaId,
    pub(super) at: Instant,
    pub(super) took: Duration,
}

impl FetchState {
    /// It is in the scheduler's queue.
    pub(super) fn set_queued(&mut self, want: QueueKey) {
        self.queue_key = Some(want);
        self.queued_at = Some(Instant::now());
    }

    /// Whether some request waits for it.
    fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_answered())
    }

    /// Whether all requests that have waited for it are over: it is not worth
    /// another attempt. What is fetched ahead, and nobody has come for yet, is.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.waiters.is_empty() && !self.is_awaited()
    }
}

pub(super) enum FetchStage {
    /// Not here yet.
    Pending,
    /// Here.
    Ready(Arc<SegmentData>),
    /// Nobody could deliver it, or nobody wants it any more.
    Ended,
}

/// Where a segment is listed. What has been read may still be in both queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EvictionQueue {
    #[default]
    NotQueued,
    Readahead,
    Consumed,
}

/// Ranges that have been promised, in order and apart. Mostly one: what a
/// reader has asked for so far.
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
    /// When its turn in the scheduler's queue last came.
    pub(super) dispatched_at: Option<Instant>,
    /// Its attempts in the replicas' pools.
    pub(super) tickets: Vec<(ReplicaId, Ticket)>,
    /// The replicas that it may be sent to, and since when it waits for that.
    pub(super) queued_for: Option<(ReplicaSet, Instant)>,
}

/// Less in the scheduler's queue is no wait: the turn that ends it is no progress.
const MIN_QUEUE_WAIT: Duration = Duration::from_millis(100);

/// How a request stands to a segment that it needs.
pub(super) enum JoinOutcome {
    /// Its bytes are here.
    Ready,
    /// It waits; this is the segment's place in the queue, if it is in it.
    Waiting(Option<QueueKey>),
    /// The segment has just failed, with this error.
    Failed(BackendError),
}

/// What follows from one that delivered.
pub(super) struct CompletedFetch {
    pub(super) waiters: Vec<Arc<ReadRequest>>,
    /// Another attempt that has not been sent and need not be.
    pub(super) queue_key: Option<QueueKey>,
}

/// What follows from a failed attempt.
pub(super) enum FailureAction {
    /// Ask somebody else; these are left.
    Retry(ReplicaSet),
    /// Another attempt is under way, or has delivered.
    Wait,
    /// Nobody is left to ask, or to want it: tell those who wait.
    GiveUp {
        error: BackendError,
        /// Whether somebody has said that the file is another one by now.
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
    /// One of `segments`, which it is to be entered in.
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

    /// The known segments of its open file; `None` where that has been closed.
    pub(super) fn segments(&self) -> Option<Arc<SharedSegments>> {
        self.segments.upgrade()
    }

    /// The same for one that may outlive the open file.
    pub(super) fn weak_segments(&self) -> Weak<SharedSegments> {
        Weak::clone(&self.segments)
    }

    /// Has its open file forget it.
    pub(super) fn forget(self: &Arc<Self>) {
        if let Some(segments) = self.segments() {
            segments.lock().forget(self);
        }
    }

    /// Whether it has `part`, or will have it. What has been handed on as pages
    /// is gone. Ask under the same lock of the file's segments as you join.
    pub(super) fn can_serve(&self, part: ByteRange) -> bool {
        let mut state = self.state.lock();
        let promised = state.requested.intersects(part);
        match &state.stage {
            FetchStage::Ready(data) => {
                let start = (part.start - self.range.start) as usize;
                let end = (part.end - self.range.start) as usize;
                !promised || data.materialize(start..end)
            }
            FetchStage::Pending => {
                // Now, as it may arrive before this request joins it.
                state.is_shared |= promised;
                true
            }
            FetchStage::Ended => true,
        }
    }

    /// Joins `request`, which wants `part`, to those who wait, if there is
    /// something to wait for.
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

    /// Where all its requests are over, does without another attempt: returns
    /// that one's place in the queue, to be given back.
    pub(super) fn withdraw_if_unwanted(&self) -> Option<QueueKey> {
        let mut state = self.state.lock();
        if !state.is_unwanted() {
            return None;
        }
        let want = state.queue_key.take()?;
        state.claim = None;
        Some(want)
    }

    /// Ends a segment that nobody waits for and that is not on its way; false
    /// where it is too late for that.
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

    /// Whether some request waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.state.lock().is_awaited()
    }

    /// The bytes, if they are here.
    pub(super) fn data(&self) -> Option<Arc<SegmentData>> {
        match &self.state.lock().stage {
            FetchStage::Ready(data) => Some(Arc::clone(data)),
            FetchStage::Pending | FetchStage::Ended => None,
        }
    }

    /// Bytes that are here and that no request has asked for, and their attempt.
    pub(super) fn unread_bytes(&self) -> Option<(u64, DeliveredBy)> {
        let state = self.state.lock();
        let unread = self.range.len().saturating_sub(state.requested.bytes());
        let is_here = matches!(state.stage, FetchStage::Ready(_)) && unread > 0;
        state.delivered_by.filter(|_| is_here).map(|brought| (unread, brought))
    }

    /// An attempt begins. False where it is no longer needed.
    pub(super) fn start_attempt(&self, replica: ReplicaId) -> bool {
        let mut state = self.state.lock();
        state.queue_key = None;
        let now = Instant::now();
        let waited = state.queued_at.take().map(|wanted| now.saturating_duration_since(wanted));
        if waited.is_some_and(|waited| waited >= MIN_QUEUE_WAIT) {
            state.dispatched_at = Some(now);
        }
        state.tried = state.tried.with(replica);
        state.attempts_in_flight += 1;
        if let Some(claim) = state.claim.take() {
            state.attempt_claims.push((replica, claim));
        }
        matches!(state.stage, FetchStage::Pending)
    }

    /// Whether it is here, or everybody who wanted it has given up.
    pub(super) fn is_ended_or_unwanted(&self) -> bool {
        let state = self.state.lock();
        !matches!(state.stage, FetchStage::Pending) || state.is_unwanted()
    }

    /// What pays for the buffer of the attempt that was sent there.
    pub(super) fn take_attempt_claim(&self, replica: ReplicaId) -> Option<Reservation> {
        let mut state = self.state.lock();
        let place = state.attempt_claims.iter().position(|(id, _)| *id == replica)?;
        Some(state.attempt_claims.swap_remove(place).1)
    }

    /// An attempt delivered. Returns who waited and what is still in the queue of
    /// it, or the data where another attempt was first.
    pub(super) fn complete(
        &self,
        data: SegmentData,
        brought: DeliveredBy,
    ) -> Result<CompletedFetch, SegmentData> {
        let mut state = self.state.lock();
        state.attempts_in_flight -= 1;
        if !matches!(state.stage, FetchStage::Pending) {
            return Err(data);
        }
        if state.is_shared {
            data.materialize(0..0);
        }
        state.stage = FetchStage::Ready(Arc::new(data));
        state.delivered_by = Some(brought);
        // What was kept to pay for other attempts is not needed any more.
        state.claim = None;
        state.attempt_claims.clear();
        Ok(CompletedFetch {
            waiters: std::mem::take(&mut state.waiters),
            queue_key: state.queue_key.take(),
        })
    }

    /// Where it waits, while it is not here.
    pub(super) fn progress(&self) -> FetchProgress {
        let state = self.state.lock();
        let left = || self.file.candidates().minus(state.tried);
        FetchProgress {
            dispatched_at: state.dispatched_at,
            tickets: state.tickets.clone(),
            queued_for: state.queue_key.and(state.queued_at).map(|since| (left(), since)),
        }
    }

    /// Whether it is not here, and somebody has said that the file is another one.
    pub(super) fn has_version_mismatch(&self) -> bool {
        let state = self.state.lock();
        matches!(state.stage, FetchStage::Pending) && state.has_version_mismatch
    }

    /// An attempt failed; `claim` is what had paid for its buffer.
    pub(super) fn attempt_failed(
        &self,
        error: BackendError,
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
        // An errno says more than a disagreement, and that more than silence.
        let weight = |e: &BackendError| match e {
            BackendError::Os(_) => 3,
            BackendError::VersionMismatch | BackendError::Truncated | BackendError::WrongObject => {
                2
            }
            BackendError::Late => 1,
            BackendError::QueueFull | BackendError::Absent => 0,
        };
        if state.error.is_none_or(|known| weight(&error) >= weight(&known)) {
            state.error = Some(error);
        }
        state.has_version_mismatch |=
            matches!(error, BackendError::VersionMismatch | BackendError::Truncated);
        let is_unwanted = state.is_unwanted();
        let left = self.file.candidates_after(state.tried);
        if is_unwanted {
            state.claim = None;
            if state.attempts_in_flight > 0 {
                return FailureAction::Wait;
            }
            state.stage = FetchStage::Ended;
            let want = state.queue_key.take();
            return FailureAction::GiveUp {
                error,
                has_version_mismatch: state.has_version_mismatch,
                waiters: Vec::new(),
                queue_key: want,
            };
        }
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
        fn what_was_promised_is_known_and_nothing_else(
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
