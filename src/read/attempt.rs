//! One segment read from one replica: sent, carried out, and what follows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::fetch::{Brought, Completed, Fetch, Next, Stage};
use super::file::OpenFile;
use super::trace::Attempted as Trace;
use super::visit::SMALL;
use super::{ReadError, Reader, compare};
use crate::backend::{Backend, BackendError, BackendFile, Errand, Lane, Origin, has_a_part};
use crate::buffer::{Data, Pipe, Reservation, size_class};
use crate::placement::Came;
use crate::scheduler::{AttemptId, Dispatch, Late, Outcome, Scheduler, Want};
use crate::telemetry::counters::count;
use crate::volume::{ByteRange, Holders, ReplicaId, ReplicaSet};

/// How long a thread may go on with small reads while others wait in the pool's queue.
const TURN: Duration = Duration::from_millis(100);

/// Hands an attempt to its replica's pool.
pub(super) fn send(reader: &Arc<Reader>, dispatch: Dispatch<Arc<Fetch>>) {
    let Dispatch { attempt, item: fetch, replica, .. } = dispatch;
    fetch.begin(replica);
    let job = {
        let (reader, fetch) = (Arc::clone(reader), Arc::clone(&fetch));
        move |backend: &dyn Backend| run(&reader, &fetch, attempt, replica, backend)
    };
    let of = Arc::clone(&fetch);
    let is_over: Box<dyn Fn() -> bool + Send> = Box::new(move || of.is_over());
    let about = fetch.file.about();
    let errand = Errand { about, is_over: Some(is_over), ..Errand::default() };
    match reader.replicas[replica].submit_about(Lane::Read, errand, job) {
        Ok(ticket) => fetch.state.lock().queued.push((replica, ticket)),
        Err(error) => {
            let failed = Err((error, fetch.take_claim(replica)));
            let next = ended(reader, &fetch, attempt, replica, failed);
            reader.dispatch(next.into_iter().collect());
        }
    }
}

/// Carries an attempt out on the calling thread, if its replica lets it in, and
/// hands it to the replica's pool if not.
pub(super) fn send_by_guest(reader: &Arc<Reader>, dispatch: Dispatch<Arc<Fetch>>) {
    let host = Arc::clone(&reader.replicas[dispatch.replica]);
    let Some(leave) = host.invite(&dispatch.item.file.about()) else {
        return send(reader, dispatch);
    };
    let Dispatch { attempt, item: fetch, replica, .. } = dispatch;
    fetch.begin(replica);
    host.visit(&leave, fetch.file.about(), |backend| {
        run(reader, &fetch, attempt, replica, backend)
    });
}

type Attempted = Result<Data, (BackendError, Option<Reservation>)>;

/// Runs on the replica's pool, or as its guest. Goes on with what is to be sent
/// there next as long as that is small: another thread would have to be woken.
fn run(
    reader: &Arc<Reader>,
    fetch: &Arc<Fetch>,
    attempt: AttemptId,
    replica: ReplicaId,
    backend: &dyn Backend,
) {
    let begun = Instant::now();
    let result = read(reader, fetch, replica, backend);
    let mut next = ended(reader, fetch, attempt, replica, result);
    while let Some(dispatch) = next {
        if begun.elapsed() >= TURN {
            return reader.dispatch(vec![dispatch]);
        }
        let Dispatch { attempt, item: fetch, .. } = dispatch;
        fetch.begin(replica);
        let result = read(reader, &fetch, replica, backend);
        next = ended(reader, &fetch, attempt, replica, result);
    }
}

/// Whatever happens, the attempt ends: its place at the replica would be taken
/// for ever.
fn read(reader: &Reader, fetch: &Fetch, replica: ReplicaId, backend: &dyn Backend) -> Attempted {
    let read = AssertUnwindSafe(|| read_segment(reader, fetch, replica, backend));
    catch_unwind(read).unwrap_or_else(|_| {
        tracing::error!("a read panicked; this is a bug in fanfs");
        Err((BackendError::Busy, None))
    })
}

fn read_segment(
    reader: &Reader,
    fetch: &Fetch,
    replica: ReplicaId,
    backend: &dyn Backend,
) -> Attempted {
    // Where another attempt has delivered meanwhile, there is none.
    let Some(claim) = fetch.take_claim(replica) else { return Err((BackendError::Busy, None)) };
    if fetch.is_over() {
        return Err((BackendError::Busy, Some(claim)));
    }
    let shared = fetch.state.lock().shared;
    let file = match fetch.file.on(replica, backend) {
        Ok(file) => file,
        Err(error) => return Err((error, Some(claim))),
    };
    let (claim, file) = match read_open(reader, fetch, &*file, shared, claim) {
        // Its server was restarted, or fails over: the same file may be there still.
        Err((BackendError::Os(Errno::STALE), Some(claim))) => {
            fetch.file.lost(replica, &file);
            match fetch.file.on(replica, backend) {
                Ok(file) => (claim, file),
                Err(error) => return Err((error, Some(claim))),
            }
        }
        read => return refused_where_it_ended(fetch, replica, read),
    };
    let read = match read_open(reader, fetch, &*file, shared, claim) {
        Err((BackendError::Os(Errno::STALE), claim)) => Err((BackendError::Version, claim)),
        read => read,
    };
    refused_where_it_ended(fetch, replica, read)
}

/// A replica whose file ended early, or is gone, is not at the version.
fn refused_where_it_ended(fetch: &Fetch, replica: ReplicaId, read: Attempted) -> Attempted {
    if let Err((BackendError::Short | BackendError::Version, _)) = &read {
        fetch.file.refuse(replica);
    }
    read
}

fn read_open(
    reader: &Reader,
    fetch: &Fetch,
    file: &dyn BackendFile,
    shared: bool,
    claim: Reservation,
) -> Attempted {
    let pipe = if shared { None } else { reader.pipe_for(fetch) };
    if let Some(mut pipe) = pipe {
        match splice(fetch.range, file, &mut pipe) {
            Ok(true) => return Ok(Data::pages(pipe, claim, reader.buffers.clone())),
            Ok(false) => {}
            Err(error) => return Err((error, Some(claim))),
        }
    }
    let mut buffer = match reader.buffers.buffer(fetch.range.len() as usize, claim) {
        Ok(buffer) => buffer,
        Err(claim) => return Err((BackendError::Os(Errno::NOMEM), Some(claim))),
    };
    let mut filled = 0;
    while filled < buffer.len() {
        if filled > 0 {
            has_a_part();
        }
        match file.read_at(fetch.range.start + filled as u64, &mut buffer[filled..]) {
            // The version says that there is more.
            Ok(0) => return Err((BackendError::Short, Some(buffer.into_claim()))),
            Ok(n) => filled += n,
            Err(error) => return Err((error, Some(buffer.into_claim()))),
        }
    }
    Ok(Data::memory(buffer))
}

/// Has the pages of `range` put into `pipe`; false where that is not possible.
fn splice(range: ByteRange, file: &dyn BackendFile, pipe: &mut Pipe) -> Result<bool, BackendError> {
    let len = range.len() as usize;
    while pipe.holds() < len {
        if pipe.holds() > 0 {
            has_a_part();
        }
        let at = range.start + pipe.holds() as u64;
        match file.splice_at(at, pipe.write_end(), len - pipe.holds()) {
            None => return Ok(false),
            // The version says that there is more.
            Some(Ok(0)) => return Err(BackendError::Short),
            Some(Ok(n)) => pipe.filled(n),
            // No room: some pages are not as full as they could be.
            Some(Err(BackendError::Os(Errno::AGAIN))) => return Ok(false),
            Some(Err(error)) => return Err(error),
        }
    }
    Ok(true)
}

/// An attempt has ended: makes room for the next, then sees to those who wait.
/// Returns what the calling thread is to read from the same replica now.
fn ended(
    reader: &Arc<Reader>,
    fetch: &Arc<Fetch>,
    attempt: AttemptId,
    replica: ReplicaId,
    result: Attempted,
) -> Option<Dispatch<Arc<Fetch>>> {
    let now = Instant::now();
    let outcome = match &result {
        Ok(data) => Outcome::Delivered(data.len() as u64),
        Err((error, _)) => match error.origin() {
            Origin::Unclear => {
                fetch.file.fails_on(replica, now);
                Outcome::Doubtful
            }
            Origin::Replica => {
                fetch.file.doubt(replica);
                Outcome::Failed
            }
            Origin::Answer | Origin::Object | Origin::Machine => Outcome::Unused,
        },
    };
    let mut dispatches = Vec::new();
    let (ended, usual) = {
        let mut scheduler = reader.scheduler.lock();
        let ended = scheduler.finished(attempt, outcome, now);
        scheduler.next(now, &mut dispatches);
        (ended, scheduler.steady(replica))
    };
    let own = |next: &Dispatch<_>| next.replica == replica && next.bytes <= SMALL;
    let next = dispatches.iter().position(own).map(|own| dispatches.swap_remove(own));
    reader.dispatch(dispatches);
    let counters = &reader.replicas[replica].counters;
    let took = ended.map_or(Duration::ZERO, |ended| ended.took);
    let is_hedge = ended.is_some_and(|ended| ended.is_hedge);
    let trace = |ahead: bool, result: Result<bool, BackendError>| {
        let attempted = Trace { fetch, replica, took, ahead, hedge: is_hedge, result };
        reader.trace_attempt(&attempted, now);
    };
    match result {
        Ok(data) => {
            let bytes = data.len() as u64;
            counters.read(bytes, took, now);
            *fetch.file.delivered.lock() = Some(now);
            match fetch.state.lock().holders {
                Some(holders) if holders.local.contains(replica) => counters.local(bytes),
                Some(_) => counters.remote(bytes),
                None => {}
            }
            if let Some(service) = ended.and_then(|ended| ended.service)
                && let Some(at) = &fetch.file.place().at
            {
                let came = Came {
                    offset: fetch.range.start,
                    replica,
                    pace: service.as_secs_f64() / bytes as f64,
                    usually_local: usual.local,
                    usually_remote: usual.remote,
                };
                reader.locator.came(at, came, now);
            }
            let brought = Brought { by: replica, at: now, took };
            let came_first = delivered(reader, fetch, data, brought, trace);
            compare::delivered(reader, fetch, replica);
            if is_hedge {
                count(if came_first {
                    &reader.counters.hedges_won
                } else {
                    &reader.counters.hedges_lost
                });
                reader.counters.hedge_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        Err((error, claim)) => {
            match error {
                BackendError::Version | BackendError::Short => counters.disagreement(),
                error if error.is_replica_fault() => {
                    counters.error();
                    tracing::debug!(replica = %reader.replicas[replica].name, %error, "a read failed");
                }
                _ => {}
            }
            trace(!fetch.is_awaited(), Err(error));
            failed(reader, fetch, error, claim);
        }
    }
    reader.make_room();
    next
}

/// Whether it was the first to bring the segment. `trace` is told before any read is
/// answered: a segment's line comes before those of the reads that it serves.
fn delivered(
    reader: &Reader,
    fetch: &Arc<Fetch>,
    data: Data,
    brought: Brought,
    trace: impl Fn(bool, Result<bool, BackendError>),
) -> bool {
    let bytes = data.len() as u64;
    match fetch.complete(data, brought) {
        Ok(Completed { waiters, want }) => {
            trace(waiters.is_empty(), Ok(true));
            if let Some(want) = want {
                reader.scheduler.lock().cancel(want);
            }
            if waiters.is_empty() {
                reader.cache.arrived(fetch);
            }
            for gather in waiters {
                if gather.arrived() {
                    reader.answer(&gather);
                }
            }
            true
        }
        // Somebody else was first, or nobody wants it any more.
        Err(_data) => {
            trace(false, Ok(false));
            reader.counters.bytes_wasted.fetch_add(bytes, Ordering::Relaxed);
            false
        }
    }
}

fn failed(
    reader: &Arc<Reader>,
    fetch: &Arc<Fetch>,
    error: BackendError,
    claim: Option<Reservation>,
) {
    // Nobody joins it between its being given up and its being forgotten: he would be
    // told an error of somebody else's attempts.
    let next = {
        let mut segments = fetch.file.segments.lock();
        let next = fetch.failed(error, claim);
        if matches!(next, Next::GiveUp { .. }) {
            OpenFile::forget_in(&mut segments, fetch);
        }
        next
    };
    match next {
        Next::Wait => {}
        Next::Retry(candidates) => {
            count(&reader.counters.retries);
            let mut dispatches = Vec::new();
            {
                let mut scheduler = reader.scheduler.lock();
                let mut state = fetch.state.lock();
                // The last who wanted it may have given up since.
                if matches!(state.stage, Stage::Pending) && state.want.is_none() {
                    let want = want(fetch, candidates, false, state.holders);
                    state.waits(scheduler.want(want));
                }
                drop(state);
                scheduler.next(Instant::now(), &mut dispatches);
            }
            reader.dispatch(dispatches);
        }
        Next::GiveUp { error, refuted, waiters, want } => {
            if let Some(want) = want {
                reader.scheduler.lock().cancel(want);
            }
            for gather in waiters {
                // Who looks what there is may find what all can read.
                let error = if refuted && gather.looks { BackendError::Version } else { error };
                reader.fail(&gather, ReadError::Failed(error));
            }
        }
    }
}

/// A segment for the queue, to be read from one of `candidates`; `holders` as
/// known of it.
pub(super) fn want(
    fetch: &Arc<Fetch>,
    candidates: ReplicaSet,
    ahead: bool,
    holders: Option<Holders>,
) -> Want<Arc<Fetch>> {
    let is_all_there_is = fetch.range.len() == fetch.file.version().size;
    Want {
        item: Arc::clone(fetch),
        bytes: fetch.range.len(),
        ahead,
        candidates,
        holders: holders.unwrap_or(Holders::UNKNOWN),
        pinned: fetch.file.place().pinned,
        hedge: false,
        stream: fetch.file.stream(),
        start: fetch.range.start,
        open: if is_all_there_is { fetch.file.open_on() } else { ReplicaSet::ALL },
    }
}

/// Puts a segment that is not here into the queue once more, for any replica, if memory
/// allows.
pub(super) fn again(reader: &Reader, scheduler: &mut Scheduler<Arc<Fetch>>, fetch: &Arc<Fetch>) {
    let mut state = fetch.state.lock();
    let pending = matches!(state.stage, Stage::Pending);
    if !pending || state.want.is_some() || state.is_unwanted() {
        return;
    }
    if state.claim.is_none() {
        state.claim = reader.buffers.budget().claim(size_class(fetch.range.len()));
    }
    if state.claim.is_none() {
        return;
    }
    state.tried = ReplicaSet::EMPTY;
    let want = Want { hedge: true, ..want(fetch, fetch.file.candidates(), false, state.holders) };
    state.waits(scheduler.want(want));
    count(&reader.counters.retries);
}

/// Asks a second replica for a segment that is late, if memory allows; if it does
/// not, it is tried again with the next look at what is late.
pub(super) fn hedge(
    reader: &Reader,
    scheduler: &mut Scheduler<Arc<Fetch>>,
    late: Late<Arc<Fetch>>,
) {
    let fetch = &late.item;
    let cost = size_class(fetch.range.len());
    let mut state = fetch.state.lock();
    let left = fetch.file.candidates().minus(state.tried).and(late.candidates);
    let pending = matches!(state.stage, Stage::Pending);
    if !pending || left.is_empty() || state.want.is_some() || state.is_unwanted() {
        return;
    }
    if state.claim.is_none() {
        state.claim = reader.buffers.budget().claim(cost);
    }
    if state.claim.is_none() {
        return scheduler.not_hedged(&late);
    }
    let want = Want { hedge: true, ..want(fetch, left, false, state.holders) };
    state.waits(scheduler.want(want));
    drop(state);
    reader.replicas[late.replica].counters.late();
    count(&reader.counters.hedges);
}
