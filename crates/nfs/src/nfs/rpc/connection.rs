//! What callers and the transport's thread share of one connection: the calls that wait for replies
//! on it, and those that are still to be sent.
//!
//! A caller sends its call itself if the socket takes it: that saves a thread switch. Everything
//! else is the work of the transport's thread.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::pending::{PendingCall, Receipt, RpcError};
use super::receiver::Calls;

/// The receipts that a connection keeps, at most: a server may reply to some calls for ever, and to
/// others never.
const MAX_RECEIPTS: usize = 256;

/// One connection.
#[derive(Default)]
pub(super) struct Connection {
    state: Mutex<ConnectionState>,
    /// The sum of [`PendingCall::load`]. Sequentially consistent, because the transport's thread
    /// decides by it whether to wait for ever.
    load: AtomicUsize,
    is_connected: AtomicBool,
    /// Calls that are made again later, on whichever connection.
    delayed: Mutex<Vec<PendingCall>>,
    has_delayed: AtomicBool,
    pub(super) counters: Counters,
}

/// Counts of one connection since the start.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) calls: AtomicU64,
    pub(super) resent: AtomicU64,
    pub(super) connected: AtomicU64,
    pub(super) discarded: AtomicU64,
    pub(super) received: AtomicU64,
}

#[derive(Default)]
struct ConnectionState {
    socket: Option<Arc<TcpStream>>,
    /// The calls that were not sent yet, in order. Those that have ended meanwhile are passed over.
    unsent: VecDeque<u32>,
    /// A call of which the socket has taken a part. The rest follows even if the call has ended:
    /// the server would take the next call for it.
    begun: Option<PartlySent>,
    calls: HashMap<u32, PendingCall>,
    /// The receipts of calls that ended before their reply, by their numbers: with NFSv4.1 each
    /// stands for a slot of a session.
    receipts: HashMap<u32, Arc<dyn Receipt>>,
    is_stopped: bool,
}

struct PartlySent {
    record: Arc<[u8]>,
    sent: usize,
}

/// Whether the transport's thread has something to do for a call that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    Sent,
    /// The socket has not taken all of it, or there is none.
    Waits,
}

impl Connection {
    /// Enters a call, and sends it if there is a socket.
    pub(super) fn submit(&self, mut call: PendingCall) -> Submitted {
        let mut state = self.state.lock();
        if state.is_stopped {
            drop(state);
            call.fail(RpcError::Stopped);
            return Submitted::Sent;
        }
        call.entered = Instant::now();
        self.load.fetch_add(call.load, Ordering::SeqCst);
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        state.unsent.push_back(call.xid);
        // Entered first, as the reply may come at once.
        state.calls.insert(call.xid, call);
        // The thread finds an error of the socket by itself.
        let _ = state.send();
        if state.has_sent_all() { Submitted::Sent } else { Submitted::Waits }
    }

    /// Begins to use a socket: sends all calls.
    pub(super) fn open(&self, socket: Arc<TcpStream>) -> io::Result<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.socket = Some(socket);
        state.unsent = state.calls.keys().copied().collect();
        let now = Instant::now();
        state.calls.values_mut().for_each(|call| call.entered = now);
        let resent = state.calls.values().filter(|call| call.losses.any()).count();
        self.counters.connected.fetch_add(1, Ordering::Relaxed);
        self.counters.resent.fetch_add(resent as u64, Ordering::Relaxed);
        self.is_connected.store(true, Ordering::Relaxed);
        state.send()
    }

    /// Gives up the socket. Returns the calls, which wait for another one.
    pub(super) fn close(&self) -> Vec<PendingCall> {
        let mut state = self.state.lock();
        self.is_connected.store(false, Ordering::Relaxed);
        state.socket = None;
        state.unsent = VecDeque::new();
        state.begun = None;
        self.load.store(0, Ordering::SeqCst);
        let receipts = std::mem::take(&mut state.receipts);
        let calls = state.calls.drain().map(|(_, call)| call).collect();
        drop(state);
        drop(receipts);
        calls
    }

    /// The same, for good. Returns the delayed calls, too.
    pub(super) fn stop(&self) -> Vec<PendingCall> {
        self.state.lock().is_stopped = true;
        let mut calls = self.close();
        calls.append(&mut self.delayed.lock());
        calls
    }

    /// Keeps a call that cannot be made again yet.
    pub(super) fn delay(&self, call: PendingCall) {
        self.delayed.lock().push(call);
        self.has_delayed.store(true, Ordering::SeqCst);
    }

    /// Takes the delayed calls out that are due, or over.
    pub(super) fn take_due(&self, now: Instant) -> Vec<PendingCall> {
        if !self.has_delayed.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut delayed = self.delayed.lock();
        let is_due = |call: &mut PendingCall| {
            call.not_before.is_none_or(|at| at <= now) || call.is_over(now)
        };
        let due = delayed.extract_if(.., is_due).collect();
        self.has_delayed.store(!delayed.is_empty(), Ordering::SeqCst);
        due
    }

    /// Sends what the socket takes.
    pub(super) fn send(&self) -> io::Result<()> {
        self.state.lock().send()
    }

    /// Whether the socket has not taken all calls yet.
    pub(super) fn has_unsent(&self) -> bool {
        !self.state.lock().has_sent_all()
    }

    /// Takes the calls out that are over ([`PendingCall::is_over`]).
    pub(super) fn take_ended(&self, now: Instant) -> Vec<PendingCall> {
        let mut state = self.state.lock();
        let is_over = |call: &&PendingCall| call.is_over(now);
        let over: Vec<u32> = state.calls.values().filter(is_over).map(|call| call.xid).collect();
        let mut over: Vec<_> = over.iter().filter_map(|xid| state.calls.remove(xid)).collect();
        let mut unsent_receipts = Vec::new();
        let mut unknown = Vec::new();
        for call in &mut over {
            let Some(receipt) = call.receipt.take() else { continue };
            let is_sent_here = state.socket.is_some() && !state.unsent.contains(&call.xid);
            match is_sent_here {
                true => unknown.extend(state.receipts.insert(call.xid, receipt)),
                // Another connection has sent it, and no reply can come any more.
                false if call.was_sent => unknown.push(receipt),
                false => unsent_receipts.push(receipt),
            }
        }
        let too_many = match state.receipts.len() > MAX_RECEIPTS {
            true => std::mem::take(&mut state.receipts),
            false => HashMap::new(),
        };
        if !over.is_empty() {
            let ConnectionState { unsent, calls, .. } = &mut *state;
            unsent.retain(|xid| calls.contains_key(xid));
        }
        drop(state);
        drop(too_many);
        drop(unknown);
        unsent_receipts.iter().for_each(|receipt| receipt.record_unsent());
        over.iter().for_each(|call| self.forget_load(call.load));
        over
    }

    /// Bytes that calls on it are still to send and to receive. A reply that is being received
    /// counts.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::SeqCst)
    }

    /// Whether calls wait for replies.
    pub(super) fn is_busy(&self) -> bool {
        self.load() > 0
    }

    /// Whether calls wait to be made again.
    pub(super) fn has_delayed(&self) -> bool {
        self.has_delayed.load(Ordering::SeqCst)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// A call that was taken out will get no reply.
    pub(super) fn forget_load(&self, load: usize) {
        self.load.fetch_sub(load, Ordering::SeqCst);
    }

    /// The calls, for the replies that are received.
    pub(super) fn replies(&self) -> Replies<'_> {
        Replies { connection: self, completed: 0, discarded: 0 }
    }
}

/// Matches replies with the calls of a connection.
pub(super) struct Replies<'a> {
    connection: &'a Connection,
    pub(super) completed: u64,
    pub(super) discarded: u64,
}

impl Calls for Replies<'_> {
    fn take(&mut self, xid: u32) -> Option<PendingCall> {
        let mut state = self.connection.state.lock();
        let call = state.calls.remove(&xid);
        let receipt = if call.is_none() { state.receipts.remove(&xid) } else { None };
        drop(state);
        if let Some(receipt) = receipt {
            receipt.record_late_reply();
        }
        if call.is_none() {
            self.discarded += 1;
            self.connection.counters.discarded.fetch_add(1, Ordering::Relaxed);
        }
        call
    }

    fn completed(&mut self, load: usize) {
        self.completed += 1;
        self.connection.forget_load(load);
    }

    fn repeat(&mut self, call: PendingCall) {
        self.connection.delay(call);
    }
}

impl ConnectionState {
    fn has_sent_all(&self) -> bool {
        self.begun.is_none() && self.unsent.is_empty()
    }

    fn send(&mut self) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        loop {
            let mut next = match self.begun.take() {
                Some(begun) => begun,
                None => match self.unsent.pop_front() {
                    None => return Ok(()),
                    Some(xid) => match self.calls.get_mut(&xid) {
                        Some(call) => {
                            call.was_sent = true;
                            PartlySent { record: Arc::clone(&call.record), sent: 0 }
                        }
                        None => continue,
                    },
                },
            };
            let result = next.send(socket);
            if next.sent < next.record.len() {
                self.begun = Some(next);
            }
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl PartlySent {
    /// Sends the rest of it.
    fn send(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.sent < self.record.len() {
            match socket.write(&self.record[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
