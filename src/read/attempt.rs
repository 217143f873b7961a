//! Attempts to read one segment from one replica: the read on a thread, and its consequences.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::fetch::{
    AttemptError, CompletedFetch, DeliveredBy, FailureAction, FetchStage, RejectedData,
    SegmentFetch,
};
use super::trace::AttemptTrace as Trace;
use super::{ReadError, Reader, content_check, fetch_queue};
use crate::backend::{Backend, BackendError, BackendFile, ErrorOrigin, report_progress};
use crate::buffer::{Pipe, Reservation, SegmentData};
use crate::placement::Delivery;
use crate::scheduler::rate::PerLocality;
use crate::scheduler::{AttemptId, AttemptOutcome, Dispatch, FinishedAttempt};
use crate::telemetry::counters::{ChunkLocality, increment};
use crate::volume::{ByteRange, ReplicaId};

/// How long a thread may continue with small reads while others wait in the pool's queue.
const MAX_BATCH_TIME: Duration = Duration::from_millis(100);

/// The current thread may read segments up to this size itself: reading 128 KiB from a quick
/// replica takes less time than handing the read to another thread.
pub(super) const MAX_INLINE_BYTES: u64 = 128 * 1024;

pub(super) type AttemptResult = Result<SegmentData, (AttemptError, Option<Reservation>)>;

/// Runs on the replica's pool or inline. Continues with the next attempt at this replica while that
/// is small: waking another thread would cost more.
pub(super) fn run_attempts(
    reader: &Arc<Reader>,
    fetch: &Arc<SegmentFetch>,
    attempt: AttemptId,
    replica: ReplicaId,
    backend: &dyn Backend,
) {
    let begun = Instant::now();
    let result = read_catching_panics(reader, fetch, replica, backend);
    let mut next = finish_attempt(reader, fetch, attempt, replica, result);
    while let Some(dispatch) = next {
        if begun.elapsed() >= MAX_BATCH_TIME {
            return reader.dispatch(vec![dispatch]);
        }
        let Dispatch { attempt, item: fetch, .. } = dispatch;
        fetch.start_attempt(replica);
        let result = read_catching_panics(reader, &fetch, replica, backend);
        next = finish_attempt(reader, &fetch, attempt, replica, result);
    }
}

/// Catches panics so that the attempt always ends; otherwise its place at the replica would be
/// lost.
fn read_catching_panics(
    reader: &Reader,
    fetch: &SegmentFetch,
    replica: ReplicaId,
    backend: &dyn Backend,
) -> AttemptResult {
    let read = AssertUnwindSafe(|| read_segment(reader, fetch, replica, backend));
    catch_unwind(read).unwrap_or_else(|_| {
        tracing::error!("a read of a replica panicked; this is a bug in fanfs");
        Err((BackendError::QueueFull.into(), None))
    })
}

fn read_segment(
    reader: &Reader,
    fetch: &SegmentFetch,
    replica: ReplicaId,
    backend: &dyn Backend,
) -> AttemptResult {
    // No claim is left if another attempt has delivered since.
    let Some(claim) = fetch.take_attempt_claim(replica) else {
        return Err((AttemptError::Skipped, None));
    };
    if fetch.is_ended_or_unwanted() {
        return Err((AttemptError::Skipped, Some(claim)));
    }
    let file = match fetch.file.open_on(replica, backend) {
        Ok(file) => file,
        Err(error) => return Err((error.into(), Some(claim))),
    };
    let (claim, file) = match read_opened(reader, fetch, &*file, claim) {
        // The server has restarted or failed over, and may still have the same file.
        Err((AttemptError::Failed(BackendError::Os(Errno::STALE)), Some(claim))) => {
            fetch.file.drop_stale(replica, &file);
            match fetch.file.open_on(replica, backend) {
                Ok(file) => (claim, file),
                Err(error) => return Err((error.into(), Some(claim))),
            }
        }
        read => return ban_if_truncated(fetch, replica, read),
    };
    let read = match read_opened(reader, fetch, &*file, claim) {
        Err((AttemptError::Failed(BackendError::Os(Errno::STALE)), claim)) => {
            Err((BackendError::VersionMismatch.into(), claim))
        }
        read => read,
    };
    ban_if_truncated(fetch, replica, read)
}

/// Bans a replica whose file ended early or is gone: it does not have this version.
pub(super) fn ban_if_truncated(
    fetch: &SegmentFetch,
    replica: ReplicaId,
    read: AttemptResult,
) -> AttemptResult {
    if let Err((AttemptError::Failed(BackendError::Truncated | BackendError::VersionMismatch), _)) =
        &read
    {
        fetch.file.ban_for_version(replica);
    }
    read
}

fn read_opened(
    reader: &Reader,
    fetch: &SegmentFetch,
    file: &dyn BackendFile,
    claim: Reservation,
) -> AttemptResult {
    if let Some(mut pipe) = reader.pipe_for(fetch) {
        match splice_range(fetch.range, file, &mut pipe) {
            Ok(true) => return Ok(SegmentData::from_pipe(pipe, claim, reader.buffers.clone())),
            Ok(false) => {}
            Err(error) => return Err((error.into(), Some(claim))),
        }
    }
    let mut buffer = match reader.buffers.allocate(fetch.range.len() as usize, claim) {
        Ok(buffer) => buffer,
        Err(claim) => return Err((BackendError::Os(Errno::NOMEM).into(), Some(claim))),
    };
    let mut filled = 0;
    while filled < buffer.len() {
        if filled > 0 {
            report_progress();
        }
        match file.read_at(fetch.range.start + filled as u64, &mut buffer[filled..]) {
            // The version promises more.
            Ok(0) => return Err((BackendError::Truncated.into(), Some(buffer.into_claim()))),
            Ok(n) => filled += n,
            Err(error) => return Err((error.into(), Some(buffer.into_claim()))),
        }
    }
    Ok(SegmentData::from_buffer(buffer))
}

/// Moves the pages of `range` into `pipe`; false if that is not possible.
fn splice_range(
    range: ByteRange,
    file: &dyn BackendFile,
    pipe: &mut Pipe,
) -> Result<bool, BackendError> {
    let len = range.len() as usize;
    while pipe.buffered() < len {
        if pipe.buffered() > 0 {
            report_progress();
        }
        let at = range.start + pipe.buffered() as u64;
        match file.splice_at(at, pipe.write_end(), len - pipe.buffered()) {
            None => return Ok(false),
            // The version promises more.
            Some(Ok(0)) => return Err(BackendError::Truncated),
            Some(Ok(n)) => pipe.add_buffered(n),
            // The pipe has no room: some pages are only partly filled.
            Some(Err(BackendError::Os(Errno::AGAIN))) => return Ok(false),
            Some(Err(error)) => return Err(error),
        }
    }
    Ok(true)
}

/// Ends an attempt: makes room for the next one, then serves the requests that wait for it. Returns
/// the next attempt for the calling thread at the same replica.
pub(super) fn finish_attempt(
    reader: &Arc<Reader>,
    fetch: &Arc<SegmentFetch>,
    attempt: AttemptId,
    replica: ReplicaId,
    result: AttemptResult,
) -> Option<Dispatch<Arc<SegmentFetch>>> {
    let now = Instant::now();
    let outcome = match &result {
        Ok(data) => AttemptOutcome::Delivered(data.len() as u64),
        Err((AttemptError::Failed(error), _)) => blame(fetch, replica, *error, now),
        Err((AttemptError::Skipped | AttemptError::Unwanted, _)) => AttemptOutcome::Neutral,
    };
    let mut dispatches = Vec::new();
    let ended = {
        let mut scheduler = reader.scheduler.lock();
        let health = &mut *reader.replicas.lock_health();
        let finished = scheduler.attempt_finished(attempt, outcome, health, now);
        scheduler.schedule(health, now, &mut dispatches);
        EndedAttempt { replica, at: now, finished, steady_rates: scheduler.steady_rates(replica) }
    };
    let takes_thread = !reader.replicas[replica].reads_without_threads();
    let own = |next: &Dispatch<_>| {
        takes_thread && next.replica == replica && next.bytes <= MAX_INLINE_BYTES
    };
    let next = dispatches.iter().position(own).map(|own| dispatches.swap_remove(own));
    reader.dispatch(dispatches);
    match result {
        Ok(data) => ended.deliver(reader, fetch, data),
        Err((error, claim)) => ended.fail(reader, fetch, error, claim),
    }
    reader.serve_waiters();
    next
}

/// How a failure counts for the replica. If the replica or the file may be at fault, its open file
/// must be verified again before the next read.
fn blame(
    fetch: &SegmentFetch,
    replica: ReplicaId,
    error: BackendError,
    now: Instant,
) -> AttemptOutcome {
    match error.origin() {
        ErrorOrigin::Unclear => {
            fetch.file.ban_for_failure(replica, now);
            AttemptOutcome::AmbiguousError
        }
        ErrorOrigin::Replica => {
            fetch.file.mark_unverified(replica);
            AttemptOutcome::Failed
        }
        ErrorOrigin::Answer | ErrorOrigin::Object | ErrorOrigin::Machine => AttemptOutcome::Neutral,
    }
}

/// An attempt that has ended in the scheduler.
struct EndedAttempt {
    replica: ReplicaId,
    at: Instant,
    /// `None` if the scheduler did not know the attempt.
    finished: Option<FinishedAttempt>,
    /// The steady rates of its replica.
    steady_rates: PerLocality<Option<f64>>,
}

impl EndedAttempt {
    fn took(&self) -> Duration {
        self.finished.map_or(Duration::ZERO, |finished| finished.took)
    }

    fn is_hedge(&self) -> bool {
        self.finished.is_some_and(|finished| finished.is_hedge)
    }

    /// Sends the attempt to trace subscribers; `result` is as in [`Trace`].
    fn trace(
        &self,
        reader: &Reader,
        fetch: &SegmentFetch,
        is_readahead: bool,
        result: Result<bool, BackendError>,
    ) {
        let trace = Trace {
            fetch,
            replica: self.replica,
            took: self.took(),
            is_readahead,
            is_hedge: self.is_hedge(),
            result,
        };
        reader.trace_attempt(&trace, self.at);
    }

    /// Handles a delivery.
    fn deliver(&self, reader: &Arc<Reader>, fetch: &Arc<SegmentFetch>, data: SegmentData) {
        let bytes = data.len() as u64;
        self.count_delivery(reader, fetch, bytes);
        self.report_to_locator(reader, fetch, bytes);
        let came_first = self.complete_fetch(reader, fetch, data);
        content_check::start_comparison(reader, fetch, self.replica);
        if self.is_hedge() {
            let result = match came_first {
                true => &reader.counters.hedges_won,
                false => &reader.counters.hedges_lost,
            };
            increment(result);
            reader.counters.hedge_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn count_delivery(&self, reader: &Reader, fetch: &SegmentFetch, bytes: u64) {
        fetch.file.last_delivery.set(self.at);
        let locality = match fetch.state.lock().holders {
            Some(holders) if holders.local.contains(self.replica) => ChunkLocality::Local,
            Some(_) => ChunkLocality::Remote,
            None => ChunkLocality::Unknown,
        };
        reader.replicas[self.replica].counters.record_read(bytes, self.took(), locality);
    }

    /// Reports the segment's service time to the locator, if it was measured.
    fn report_to_locator(&self, reader: &Reader, fetch: &SegmentFetch, bytes: u64) {
        let Some(service) = self.finished.and_then(|finished| finished.service_time) else {
            return;
        };
        let Some(at) = &fetch.file.placement_hints().located_file else { return };
        let delivery = Delivery {
            offset: fetch.range.start,
            replica: self.replica,
            seconds_per_byte: service.as_secs_f64() / bytes as f64,
            local_rate: self.steady_rates.local,
            remote_rate: self.steady_rates.remote,
        };
        reader.locator.record_delivery(at, delivery, self.at);
    }

    /// Completes the fetch. Returns whether this attempt was the first to deliver it. The trace
    /// line is written before any read is answered, so a segment's line precedes those of the reads
    /// that it serves.
    fn complete_fetch(
        &self,
        reader: &Arc<Reader>,
        fetch: &Arc<SegmentFetch>,
        data: SegmentData,
    ) -> bool {
        let bytes = data.len() as u64;
        let brought = DeliveredBy { replica: self.replica, at: self.at, took: self.took() };
        match fetch.complete(data, brought) {
            Ok(CompletedFetch { waiters, queue_key }) => {
                self.trace(reader, fetch, waiters.is_empty(), Ok(true));
                if let Some(queue_key) = queue_key {
                    reader.scheduler.lock().cancel(queue_key);
                }
                if waiters.is_empty() {
                    reader.eviction_queues.add_readahead(fetch);
                }
                for request in waiters {
                    if request.part_arrived() {
                        reader.answer_request(&request);
                    }
                }
                true
            }
            // Another attempt was first, or no request wants the segment any more.
            Err(RejectedData::Late(_data)) => {
                self.trace(reader, fetch, false, Ok(false));
                reader.counters.bytes_duplicate.fetch_add(bytes, Ordering::Relaxed);
                false
            }
            Err(RejectedData::Excluded(data)) => {
                self.fail(reader, fetch, BackendError::VersionMismatch.into(), data.into_claim());
                false
            }
        }
    }

    /// Handles a failure; `claim` had paid for the attempt's buffer.
    fn fail(
        &self,
        reader: &Arc<Reader>,
        fetch: &Arc<SegmentFetch>,
        error: AttemptError,
        claim: Option<Reservation>,
    ) {
        let replica = &reader.replicas[self.replica];
        let failure = match error {
            AttemptError::Skipped | AttemptError::Unwanted => BackendError::QueueFull,
            AttemptError::Failed(failure) => failure,
        };
        match failure {
            BackendError::VersionMismatch | BackendError::Truncated => {
                replica.counters.record_disagreement();
            }
            error if error.is_replica_fault() => {
                replica.counters.record_error();
                tracing::debug!(replica = %replica.name, %error, "a read of the replica failed");
            }
            _ => {}
        }
        self.trace(reader, fetch, !fetch.is_awaited(), Err(failure));
        // The lock is held until the fetch is forgotten. A request that joined in between would get
        // the error of attempts that were made before it.
        let next = {
            let known = fetch.segments();
            let known = known.as_ref().map(|known| known.lock());
            let next = fetch.attempt_failed(self.replica, error, claim);
            if matches!(next, FailureAction::GiveUp { .. })
                && let Some(mut known) = known
            {
                known.forget(fetch);
            }
            next
        };
        act_on_failure(reader, fetch, next);
    }
}

fn act_on_failure(reader: &Arc<Reader>, fetch: &Arc<SegmentFetch>, next: FailureAction) {
    match next {
        FailureAction::Wait => {}
        FailureAction::Retry(candidates) => {
            increment(&reader.counters.retries);
            let mut dispatches = Vec::new();
            {
                let mut scheduler = reader.scheduler.lock();
                let mut state = fetch.state.lock();
                // The last request that wanted it may have given up since, or another attempt, which
                // failed at the same time, may have taken the claim.
                let is_pending = matches!(state.stage, FetchStage::Pending);
                if is_pending && state.queue_key.is_none() && state.claim.is_some() {
                    let want =
                        fetch_queue::segment_request(fetch, candidates, false, state.holders);
                    state.set_queued(scheduler.enqueue(want));
                }
                drop(state);
                let health = &mut *reader.replicas.lock_health();
                scheduler.schedule(health, Instant::now(), &mut dispatches);
            }
            reader.dispatch(dispatches);
        }
        FailureAction::GiveUp {
            error,
            has_version_mismatch: refuted,
            waiters,
            queue_key: want,
        } => {
            if let Some(want) = want {
                reader.scheduler.lock().cancel(want);
            }
            for request in waiters {
                // This caller asks for the current version, which every replica may have.
                let error = if refuted && request.fails_fast_on_stale {
                    BackendError::VersionMismatch
                } else {
                    error
                };
                reader.fail_request(&request, ReadError::Failed(error));
            }
        }
    }
}
