//! One segment on its way: fetched once, for everybody who waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cache::Listed;
use super::file::OpenFile;
use super::gather::Gather;
use crate::backend::{BackendError, Ticket};
use crate::buffer::{Data, Reservation};
use crate::scheduler::WantId;
use crate::sync::Mutex;
use crate::volume::{ByteRange, Holders, ReplicaId, ReplicaSet};

/// A range of a file that is being fetched or has been.
pub(super) struct Fetch {
    pub(super) file: Arc<OpenFile>,
    pub(super) range: ByteRange,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) stage: Stage,
    /// Requests that cannot be answered without it, those that are over included.
    pub(super) waiters: Vec<Arc<Gather>>,
    /// Its place in the scheduler's queue.
    pub(super) want: Option<WantId>,
    /// When it last came into that queue.
    wanted: Option<Instant>,
    /// When its turn last came there.
    sent_on: Option<Instant>,
    /// Who holds its chunk; `None` where that is not known.
    pub(super) holders: Option<Holders>,
    /// Replicas that have been asked.
    pub(super) tried: ReplicaSet,
    /// Attempts that have not ended.
    pub(super) outstanding: usize,
    /// Pays for the next attempt's buffer.
    pub(super) claim: Option<Reservation>,
    /// Pays for the buffers of attempts that have been sent and not carried out yet:
    /// each has its own, whichever is carried out first.
    sent: Vec<(ReplicaId, Reservation)>,
    /// Attempts in the replicas' pools.
    pub(super) queued: Vec<(ReplicaId, Ticket)>,
    /// Bytes that applications were given of it.
    pub(super) consumed: u64,
    /// What of it has been promised to requests, each byte once.
    promised: Promised,
    /// Whether some byte was promised to two: pages, which can be taken once,
    /// will not do.
    pub(super) shared: bool,
    /// Where it waits to be given up when memory is short.
    pub(super) listed: Listed,
    /// The most telling error so far.
    error: Option<BackendError>,
    /// Whether somebody has said that the file is another one by now.
    refuted: bool,
    /// Who brought it.
    pub(super) brought: Option<Brought>,
}

/// Which attempt brought a segment.
#[derive(Clone, Copy)]
pub(super) struct Brought {
    pub(super) by: ReplicaId,
    pub(super) at: Instant,
    pub(super) took: Duration,
}

impl State {
    /// It is in the scheduler's queue.
    pub(super) fn waits(&mut self, want: WantId) {
        self.want = Some(want);
        self.wanted = Some(Instant::now());
    }

    /// Whether some request waits for it.
    fn is_awaited(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_over())
    }

    /// Whether all requests that have waited for it are over: it is not worth
    /// another attempt. What is fetched ahead, and nobody has come for yet, is.
    pub(super) fn is_unwanted(&self) -> bool {
        !self.waiters.is_empty() && !self.is_awaited()
    }
}

pub(super) enum Stage {
    /// Not here yet.
    Pending,
    /// Here.
    Ready(Arc<Data>),
    /// Nobody could deliver it, or nobody wants it any more.
    Over,
}

/// Ranges that have been promised, in order and apart. Mostly one: what a
/// reader has asked for so far.
#[derive(Default)]
struct Promised(Vec<ByteRange>);

impl Promised {
    fn meets(&self, part: ByteRange) -> bool {
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
pub(super) struct Place {
    /// When its turn in the scheduler's queue last came.
    pub(super) sent_on: Option<Instant>,
    /// Its attempts in the replicas' pools.
    pub(super) queued: Vec<(ReplicaId, Ticket)>,
    /// The replicas that it may be sent to, and since when it waits for that.
    pub(super) awaited: Option<(ReplicaSet, Instant)>,
}

/// Less in the scheduler's queue is no wait: the turn that ends it is no progress.
const A_WAIT: Duration = Duration::from_millis(100);

/// How a request stands to a segment that it needs.
pub(super) enum Joined {
    /// Its bytes are here.
    Ready,
    /// It waits; this is the segment's place in the queue, if it is in it.
    Waiting(Option<WantId>),
    /// The segment has just failed, with this error.
    Over(BackendError),
}

/// What follows from one that delivered.
pub(super) struct Completed {
    pub(super) waiters: Vec<Arc<Gather>>,
    /// Another attempt that has not been sent and need not be.
    pub(super) want: Option<WantId>,
}

/// What follows from a failed attempt.
pub(super) enum Next {
    /// Ask somebody else; these are left.
    Retry(ReplicaSet),
    /// Another attempt is under way, or has delivered.
    Wait,
    /// Nobody is left to ask, or to want it: tell those who wait.
    GiveUp {
        error: BackendError,
        /// Whether somebody has said that the file is another one by now.
        refuted: bool,
        waiters: Vec<Arc<Gather>>,
        want: Option<WantId>,
    },
}

impl Fetch {
    pub(super) fn new(file: Arc<OpenFile>, range: ByteRange, claim: Reservation) -> Self {
        let state = State {
            stage: Stage::Pending,
            waiters: Vec::new(),
            want: None,
            wanted: None,
            sent_on: None,
            holders: None,
            tried: ReplicaSet::EMPTY,
            outstanding: 0,
            claim: Some(claim),
            sent: Vec::new(),
            queued: Vec::new(),
            consumed: 0,
            promised: Promised::default(),
            shared: false,
            listed: Listed::Nowhere,
            error: None,
            refuted: false,
            brought: None,
        };
        Self { file, range, state: Mutex::new(state) }
    }

    /// Whether it has `part`, or will have it. What has been handed on as pages
    /// is gone. Ask under the same lock of the file's segments as you join.
    pub(super) fn has(&self, part: ByteRange) -> bool {
        let mut state = self.state.lock();
        let promised = state.promised.meets(part);
        match &state.stage {
            Stage::Ready(data) => {
                let (start, end) = (part.start - self.range.start, part.end - self.range.start);
                !promised || data.settle(start as usize..end as usize)
            }
            Stage::Pending => {
                // Now, as it may arrive before this request joins it.
                state.shared |= promised;
                true
            }
            Stage::Over => true,
        }
    }

    /// Joins `gather`, which wants `part`, to those who wait, if there is
    /// something to wait for.
    pub(super) fn join(&self, gather: &Arc<Gather>, part: ByteRange) -> Joined {
        let mut state = self.state.lock();
        state.shared |= state.promised.meets(part);
        state.promised.add(part);
        match state.stage {
            Stage::Ready(_) => Joined::Ready,
            Stage::Pending => {
                state.waiters.push(Arc::clone(gather));
                Joined::Waiting(state.want)
            }
            Stage::Over => Joined::Over(state.error.unwrap_or(BackendError::Late)),
        }
    }

    /// Where all its requests are over, does without another attempt: returns
    /// that one's place in the queue, to be given back.
    pub(super) fn withdraw(&self) -> Option<WantId> {
        let mut state = self.state.lock();
        if !state.is_unwanted() {
            return None;
        }
        let want = state.want.take()?;
        state.claim = None;
        Some(want)
    }

    /// Ends a segment that nobody waits for and that is not on its way; false
    /// where it is too late for that.
    pub(super) fn abandon(&self) -> bool {
        let mut state = self.state.lock();
        let idle = !state.is_awaited() && state.outstanding == 0;
        let abandoned = idle && matches!(state.stage, Stage::Pending);
        if abandoned {
            state.stage = Stage::Over;
            state.claim = None;
        }
        abandoned
    }

    /// Whether some request waits for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.state.lock().is_awaited()
    }

    /// The bytes, if they are here.
    pub(super) fn data(&self) -> Option<Arc<Data>> {
        match &self.state.lock().stage {
            Stage::Ready(data) => Some(Arc::clone(data)),
            Stage::Pending | Stage::Over => None,
        }
    }

    /// Bytes that are here and that no request has asked for, and their attempt.
    pub(super) fn unread(&self) -> Option<(u64, Brought)> {
        let state = self.state.lock();
        let unread = self.range.len().saturating_sub(state.promised.bytes());
        let is_here = matches!(state.stage, Stage::Ready(_)) && unread > 0;
        state.brought.filter(|_| is_here).map(|brought| (unread, brought))
    }

    /// An attempt begins. False where it is no longer needed.
    pub(super) fn begin(&self, replica: ReplicaId) -> bool {
        let mut state = self.state.lock();
        state.want = None;
        let now = Instant::now();
        let waited = state.wanted.take().map(|wanted| now.saturating_duration_since(wanted));
        if waited.is_some_and(|waited| waited >= A_WAIT) {
            state.sent_on = Some(now);
        }
        state.tried = state.tried.with(replica);
        state.outstanding += 1;
        if let Some(claim) = state.claim.take() {
            state.sent.push((replica, claim));
        }
        matches!(state.stage, Stage::Pending)
    }

    /// Whether it is here, or everybody who wanted it has given up.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state.lock();
        !matches!(state.stage, Stage::Pending) || state.is_unwanted()
    }

    /// What pays for the buffer of the attempt that was sent there.
    pub(super) fn take_claim(&self, replica: ReplicaId) -> Option<Reservation> {
        let mut state = self.state.lock();
        let place = state.sent.iter().position(|(id, _)| *id == replica)?;
        Some(state.sent.swap_remove(place).1)
    }

    /// An attempt delivered. Returns who waited and what is still in the queue of
    /// it, or the data where another attempt was first.
    pub(super) fn complete(&self, data: Data, brought: Brought) -> Result<Completed, Data> {
        let mut state = self.state.lock();
        state.outstanding -= 1;
        if !matches!(state.stage, Stage::Pending) {
            return Err(data);
        }
        if state.shared {
            data.settle(0..0);
        }
        state.stage = Stage::Ready(Arc::new(data));
        state.brought = Some(brought);
        // What was kept to pay for other attempts is not needed any more.
        state.claim = None;
        state.sent.clear();
        Ok(Completed { waiters: std::mem::take(&mut state.waiters), want: state.want.take() })
    }

    /// Where it waits, while it is not here.
    pub(super) fn place(&self) -> Place {
        let state = self.state.lock();
        let left = || self.file.candidates().minus(state.tried);
        Place {
            sent_on: state.sent_on,
            queued: state.queued.clone(),
            awaited: state.want.and(state.wanted).map(|since| (left(), since)),
        }
    }

    /// Whether it is not here, and somebody has said that the file is another one.
    pub(super) fn is_refuted(&self) -> bool {
        let state = self.state.lock();
        matches!(state.stage, Stage::Pending) && state.refuted
    }

    /// An attempt failed; `claim` is what had paid for its buffer.
    pub(super) fn failed(&self, error: BackendError, claim: Option<Reservation>) -> Next {
        let mut state = self.state.lock();
        state.outstanding -= 1;
        if !matches!(state.stage, Stage::Pending) {
            return Next::Wait;
        }
        if state.claim.is_none() {
            state.claim = claim;
        }
        // An errno says more than a disagreement, and that more than silence.
        let weight = |e: &BackendError| match e {
            BackendError::Os(_) => 3,
            BackendError::Version | BackendError::Short | BackendError::Another => 2,
            BackendError::Late => 1,
            BackendError::Busy | BackendError::Absent => 0,
        };
        if state.error.is_none_or(|known| weight(&error) >= weight(&known)) {
            state.error = Some(error);
        }
        state.refuted |= matches!(error, BackendError::Version | BackendError::Short);
        let is_unwanted = state.is_unwanted();
        let left = self.file.candidates_after(state.tried);
        if is_unwanted {
            state.claim = None;
            if state.outstanding > 0 {
                return Next::Wait;
            }
            state.stage = Stage::Over;
            let want = state.want.take();
            return Next::GiveUp { error, refuted: state.refuted, waiters: Vec::new(), want };
        }
        if state.claim.is_some() && !left.is_empty() && state.want.is_none() {
            return Next::Retry(left);
        }
        if state.outstanding > 0 || state.want.is_some() {
            return Next::Wait;
        }
        state.stage = Stage::Over;
        let error = state.error.unwrap_or(error);
        let waiters = std::mem::take(&mut state.waiters);
        Next::GiveUp { error, refuted: state.refuted, waiters, want: None }
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
            let mut promised = Promised::default();
            for (start, len) in &parts {
                promised.add(ByteRange::at(*start, *len));
            }
            let asked = ByteRange::at(asked.0, asked.1);
            let meets = parts.iter().any(|(start, len)| {
                !ByteRange::at(*start, *len).intersect(asked).is_empty()
            });
            prop_assert_eq!(promised.meets(asked), meets);
            prop_assert!(promised.0.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
