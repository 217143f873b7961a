//! Memory for the data of requests: the bytes of writes, the values of attributes.
//!
//! The kernel sends these bytes with the request, and the write replica may not take them for a
//! long time. So each request is *charged* to a share of the volume's budget until the replica has
//! its bytes, or its caller has been answered. If a request finds no room, its session thread waits
//! while the write replica completes others. That slows its callers down. It also delays the
//! requests behind it in the kernel's queue, which has one order for all requests. If the write
//! replica has completed none for as long as one attempt may take, it is *silent*. A request that
//! finds no room then fails at once, and reads continue. A handover waits for the session's
//! threads, so it lifts the limit for requests that wait.
//!
//! *Invariants:*
//! - Requests get room in the order in which they ask for it.
//! - The excess over the share is bounded. Requests that the kernel sends in the background may
//!   exceed it, at most `[fuse] max_background` at once. At a handover one request of each session
//!   thread may do so, too.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::error::Errno;
use crate::buffer::{Buffer, Reservation, size_class};
use crate::read::Reader;
use crate::replicas::task;

/// Admits the data of requests to memory.
pub(super) struct PayloadBudget {
    reader: Arc<Reader>,
    share: Arc<PayloadShare>,
    /// How long the write replica may complete no request before it counts as silent.
    patience: Duration,
    /// The write replica's name.
    replica_name: String,
}

/// How a request proceeds if there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnFull {
    /// It waits, and fails if the write replica is silent.
    WaitOrFail,
    /// It waits, and exceeds the share if the write replica is silent: no caller would see the
    /// failure.
    WaitOrExceed,
    /// It exceeds the share: other requests that have room wait for it.
    Exceed,
}

/// A request's part of the share, which is released when this is dropped.
pub(super) struct Charge {
    share: Arc<PayloadShare>,
    bytes: u64,
}

/// The bytes of a request.
pub(super) struct Payload {
    bytes: Buffer,
    pub(super) charge: Charge,
}

struct PayloadShare {
    limit: u64,
    state: Mutex<ShareState>,
    /// There may be room, or the write replica has become silent.
    changed: Condvar,
}

struct ShareState {
    used: u64,
    /// The waiting requests, by ticket.
    waiting: VecDeque<u64>,
    next_ticket: u64,
    /// When the write replica last completed a request, or a request was last admitted.
    last_progress: Instant,
    is_silent: bool,
    /// Whether requests may exceed the share.
    is_unlimited: bool,
}

/// The share of the budget, in sixteenths. With the shares of listings and locks it leaves reads
/// enough for two of the largest requests.
const SHARE_SIXTEENTHS: u64 = 5;

/// How long a request waits for memory that reads hold. Replicas that answer release it far sooner.
const READ_MEMORY_TIMEOUT: Duration = Duration::from_secs(1);

impl PayloadBudget {
    pub(super) fn new(reader: Arc<Reader>, patience: Duration, replica: &str) -> Self {
        let room = Arc::new(PayloadShare::new(reader.budget().limit() / 16 * SHARE_SIXTEENTHS));
        Self { reader, share: room, patience, replica_name: replica.to_owned() }
    }

    /// Copies the bytes of a request. Blocks while there is no room.
    ///
    /// # Errors EIO if there is no room and the write replica is silent; ENOMEM if the system has
    /// no memory.
    pub(super) fn copy_payload(&self, bytes: &[u8], need: OnFull) -> Result<Payload, Errno> {
        let class = size_class(bytes.len() as u64);
        let (charge, claim) = self.charge(class, need)?;
        let mut copy =
            self.reader.buffers().allocate(bytes.len(), claim).map_err(|_| Errno::NOMEM)?;
        copy.copy_from_slice(bytes);
        Ok(Payload { bytes: copy, charge })
    }

    /// Room for `bytes`, and their part of the budget. Blocks while there is no room.
    ///
    /// # Errors EIO if there is no room and the write replica is silent.
    pub(super) fn charge(&self, bytes: u64, need: OnFull) -> Result<(Charge, Reservation), Errno> {
        let Some(charge) = self.share.charge(bytes, need, self.patience, || self.warn_silent())
        else {
            return Err(Errno::IO);
        };
        Ok((charge, self.claim_budget(bytes)))
    }

    /// Claims `bytes` of the budget. If reads hold too much of it, the claim exceeds the budget;
    /// the share bounds by how much.
    fn claim_budget(&self, bytes: u64) -> Reservation {
        if let Some(claim) = self.reader.claim_memory(bytes) {
            return claim;
        }
        let promised = Arc::new(PendingClaim::default());
        let kept = Arc::clone(&promised);
        self.reader.budget().enqueue_waiter(0, bytes, move |claim| kept.fulfill(claim));
        self.reader.serve_waiters();
        promised.wait(READ_MEMORY_TIMEOUT).unwrap_or_else(|| self.reader.budget().overdraw(bytes))
    }

    /// Sets whether requests that find no room may exceed the share.
    pub(super) fn set_unlimited(&self, is_open: bool) {
        self.share.set_unlimited(is_open);
    }

    /// Gives released memory to reads that wait for it. Call it without any lock.
    fn serve_waiting_reads(&self) {
        if self.reader.budget().has_waiters() {
            self.reader.serve_waiters();
        }
    }

    /// Gives the memory of this request to waiting reads, once the reply has been sent.
    pub(super) fn serve_waiting_reads_after_reply(self: &Arc<Self>) {
        task::hold_until_reply(ServeWaitingReads(Arc::clone(self)));
    }

    fn warn_silent(&self) {
        tracing::warn!(
            replica = %self.replica_name,
            bytes = self.share.state.lock().used,
            "the write replica has completed no write for {} s; further writes fail with EIO until it does; \
             check the replica, or raise `[memory] budget`",
            self.patience.as_secs_f32()
        );
    }
}

/// Serves reads that wait for memory, when it is dropped.
struct ServeWaitingReads(Arc<PayloadBudget>);

impl Drop for ServeWaitingReads {
    fn drop(&mut self) {
        self.0.serve_waiting_reads();
    }
}

impl PayloadShare {
    fn new(limit: u64) -> Self {
        let state = ShareState {
            used: 0,
            waiting: VecDeque::new(),
            next_ticket: 0,
            last_progress: Instant::now(),
            is_silent: false,
            is_unlimited: false,
        };
        Self { limit, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Room for `bytes`; `None` if there is none. Calls `silent` if this request is the first to
    /// find the write replica silent.
    fn charge(
        self: &Arc<Self>,
        bytes: u64,
        need: OnFull,
        patience: Duration,
        silent: impl FnOnce(),
    ) -> Option<Charge> {
        let mut state = self.state.lock();
        let is_next = state.waiting.is_empty() && self.fits(&state, bytes);
        if is_next {
            state.record_admission();
        } else if need != OnFull::Exceed {
            let (has_room, is_first_to_see) = self.wait_for_room(&mut state, bytes, patience);
            if is_first_to_see {
                MutexGuard::unlocked(&mut state, silent);
            }
            if !has_room && need == OnFull::WaitOrFail {
                return None;
            }
        }
        state.used += bytes;
        Some(Charge { share: Arc::clone(self), bytes })
    }

    fn set_unlimited(&self, is_open: bool) {
        self.state.lock().is_unlimited = is_open;
        self.changed.notify_all();
    }

    /// A request that is larger than the share gets all of it.
    fn fits(&self, state: &ShareState, bytes: u64) -> bool {
        state.used + bytes <= self.limit || state.used == 0
    }

    /// Waits for room. Returns whether there is room, and whether this request is the first to find
    /// the write replica silent.
    fn wait_for_room(
        &self,
        state: &mut MutexGuard<'_, ShareState>,
        bytes: u64,
        patience: Duration,
    ) -> (bool, bool) {
        let own = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back(own);
        let mut is_first_to_see = false;
        let has_room = loop {
            if state.waiting.front() == Some(&own) && self.fits(state, bytes) {
                state.record_admission();
                break true;
            }
            if state.is_unlimited {
                break true;
            }
            if state.is_silent {
                break false;
            }
            let until = state.last_progress + patience;
            if Instant::now() >= until {
                (state.is_silent, is_first_to_see) = (true, true);
                break false;
            }
            self.changed.wait_until(state, until);
        };
        state.waiting.retain(|waiting| *waiting != own);
        self.changed.notify_all();
        (has_room, is_first_to_see)
    }
}

impl ShareState {
    fn record_admission(&mut self) {
        self.is_silent &= self.used > 0;
        if !self.is_silent {
            self.last_progress = Instant::now();
        }
    }
}

impl Charge {
    /// The write replica has completed the request.
    pub(super) fn record_completion(&self) {
        let mut state = self.share.state.lock();
        (state.last_progress, state.is_silent) = (Instant::now(), false);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = self.share.state.lock();
        state.used -= self.bytes;
        if !state.waiting.is_empty() {
            self.share.changed.notify_all();
        }
    }
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A claim on the budget that waits in its queue.
#[derive(Default)]
struct PendingClaim {
    /// The claim once granted, and whether its request has stopped waiting.
    state: Mutex<(Option<Reservation>, bool)>,
    fulfilled: Condvar,
}

impl PendingClaim {
    fn fulfill(&self, claim: Reservation) {
        let mut state = self.state.lock();
        if !state.1 {
            state.0 = Some(claim);
            self.fulfilled.notify_one();
        }
    }

    fn wait(&self, time: Duration) -> Option<Reservation> {
        let until = Instant::now() + time;
        let mut state = self.state.lock();
        while state.0.is_none() {
            if self.fulfilled.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
        state.1 = true;
        state.0.take()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(100);
    const NONE: Duration = Duration::ZERO;

    fn now(room: &Arc<PayloadShare>, bytes: u64, need: OnFull) -> Option<Charge> {
        room.charge(bytes, need, NONE, || ())
    }

    /// Asks for `bytes` on another thread, and returns once that thread waits in the queue.
    fn stands_in_line(room: &Arc<PayloadShare>, bytes: u64) -> Receiver<Option<Charge>> {
        let (own, before) = (Arc::clone(room), room.state.lock().waiting.len());
        let (done, charge) = channel();
        thread::spawn(move || done.send(own.charge(bytes, OnFull::WaitOrFail, LONG, || ())));
        while room.state.lock().waiting.len() == before {
            thread::yield_now();
        }
        charge
    }

    #[test]
    fn payload_memory_is_granted_in_order() {
        let room = Arc::new(PayloadShare::new(10));
        let (first, second) =
            (now(&room, 6, OnFull::WaitOrFail), now(&room, 4, OnFull::WaitOrFail).unwrap());
        let large = stands_in_line(&room, 5);
        let small = stands_in_line(&room, 1);
        drop(second);
        assert!(small.try_recv().is_err(), "the small one overtook the large one");
        drop(first);
        let (large, small) = (large.recv().unwrap(), small.recv().unwrap());
        assert!(large.is_some() && small.is_some());
        assert_eq!(room.state.lock().used, 6);
        drop((large, small));
        assert_eq!(room.state.lock().used, 0);
    }

    #[test]
    fn claims_without_room_fail_while_a_replica_is_silent() {
        let room = Arc::new(PayloadShare::new(10));
        let held = now(&room, 10, OnFull::WaitOrFail).unwrap();
        let waits = stands_in_line(&room, 1);
        assert!(now(&room, 1, OnFull::WaitOrFail).is_none());
        assert!(waits.recv().unwrap().is_none(), "one waits for a silent replica");
        let times = std::cell::Cell::new(0);
        let fails = || room.charge(1, OnFull::WaitOrFail, LONG, || times.set(times.get() + 1));
        assert!(fails().is_none() && times.get() == 0, "it was known to be silent");
        let beyond =
            [OnFull::WaitOrExceed, OnFull::Exceed].map(|need| now(&room, 3, need).unwrap());
        assert_eq!(room.state.lock().used, 16);
        held.record_completion();
        let waits = stands_in_line(&room, 1);
        drop((held, beyond));
        assert!(waits.recv().unwrap().is_some());
    }

    #[test]
    fn all_waiters_are_admitted_if_the_share_is_unlimited() {
        let room = Arc::new(PayloadShare::new(10));
        let held = now(&room, 10, OnFull::WaitOrFail).unwrap();
        let waiting = [stands_in_line(&room, 2), stands_in_line(&room, 1)];
        room.set_unlimited(true);
        let let_in = waiting.map(|waits| waits.recv().unwrap().unwrap());
        assert_eq!(room.state.lock().used, 13);
        room.set_unlimited(false);
        let waits = stands_in_line(&room, 1);
        drop((held, let_in));
        assert!(waits.recv().unwrap().is_some());
        assert_eq!(room.state.lock().used, 0);
    }

    #[test]
    fn a_payload_above_the_share_gets_all_of_it() {
        let room = Arc::new(PayloadShare::new(10));
        let all = now(&room, 11, OnFull::WaitOrFail).unwrap();
        assert!(now(&room, 1, OnFull::WaitOrFail).is_none());
        drop(all);
        assert!(
            now(&room, 1, OnFull::WaitOrFail).is_some(),
            "an empty share has no silent replica"
        );
    }

    #[test]
    fn a_claim_granted_too_late_is_released() {
        let budget = crate::buffer::Budget::new(10);
        let held = budget.claim(10).unwrap();
        let promised = Arc::new(PendingClaim::default());
        let kept = Arc::clone(&promised);
        budget.enqueue_waiter(0, 5, move |claim| kept.fulfill(claim));
        assert!(promised.wait(NONE).is_none());
        drop(held);
        budget.grant_waiters();
        assert_eq!(budget.used(), 0);
    }
}
