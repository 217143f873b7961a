//! The thread that serves a server's connections.
//!
//! It connects, receives replies, sends what a socket did not take at once, and ends calls at their
//! deadline. It blocks only to wait for events. A lost connection's calls go to another one, or wait
//! for the next: a server that restarts gets them again, with their transaction numbers.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connection::Connection;
use super::pending::{PendingCall, Renewed, RpcError};
use super::receiver::{Received, Receiver};
use super::shared::{ConnectFailure, Shared};
use super::socket::{finish_connect, set_low_water, start_connect};

/// While calls wait, deadlines are looked at this often.
const TICK: Duration = Duration::from_millis(25);

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The wait before the second attempt to connect; each later one takes twice as long.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// A part of a reply is useful from this size on: a server that sends a byte a second is silent.
const USEFUL_BYTES: usize = 64 << 10;

/// A call must have waited on a connection for this long, and no other reply have come, before its
/// deadline says anything about the connection.
const MIN_STUCK: Duration = Duration::from_secs(1);

/// A connection that was lost sooner has not worked, even if replies came.
const MIN_LIFE: Duration = Duration::from_secs(1);

/// Data that comes slowly is received in parts of this size. Smaller ones cost more processor time;
/// larger ones need a larger receive buffer.
const PIECE: usize = 256 << 10;

/// The end of a reply is received as it comes if it is shorter.
const MIN_PIECE: usize = 16 << 10;

/// What one connection receives before the others have a turn.
const BYTES_PER_TURN: usize = 16 << 20;
const RECEIVES_PER_TURN: usize = 256;

/// One connection.
struct Link {
    /// How many attempts to connect have begun: each takes the next address.
    attempts: usize,
    /// Attempts in a row that have failed.
    refused: usize,
    /// Connections lost since the last reply, and attempts that failed since.
    failures: u32,
    state: LinkState,
}

enum LinkState {
    Down { retry_at: Instant },
    Connecting { socket: OwnedFd, to: SocketAddr, until: Instant },
    Up(Box<UpLink>),
}

struct UpLink {
    socket: Arc<TcpStream>,
    receiver: Receiver,
    since: Instant,
    /// When something useful came.
    useful_at: Instant,
    /// The same, or when nothing was waited for.
    heard_at: Instant,
    /// Bytes that have come since.
    unheard: usize,
    /// The socket counts as ready when so many bytes are there.
    low_water: usize,
}

/// Why a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// The server, or the network, has ended it.
    Ended,
    /// Nothing useful comes.
    Silent,
}

thread_local! {
    /// Whether this is a transport's thread.
    static IS_TRANSPORT: Cell<bool> = const { Cell::new(false) };
}

/// A transport's thread completes calls, and must wait for none: it alone receives replies.
///
/// # Errors
/// On such a thread.
pub(crate) fn check_may_block() -> Result<(), RpcError> {
    debug_assert!(may_block(), "a completion waits for a server");
    if may_block() { Ok(()) } else { Err(RpcError::Stopped) }
}

/// Whether the calling thread may wait for a server: it is not a transport's.
pub fn may_block() -> bool {
    !IS_TRANSPORT.get()
}

/// The thread.
pub(super) struct Worker {
    shared: Arc<Shared>,
    links: Vec<Link>,
    /// Calls of lost connections. They get another one when all events of a turn are handled: those
    /// of a server that restarts end together.
    orphans: Vec<PendingCall>,
    next_look: Instant,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let now = Instant::now();
        let link = |first| Link {
            attempts: first,
            refused: 0,
            failures: 0,
            state: LinkState::Down { retry_at: now },
        };
        let links = (0..shared.connections.len()).map(link).collect();
        Self { shared, links, orphans: Vec::new(), next_look: now }
    }

    pub(super) fn run(mut self) {
        IS_TRANSPORT.set(true);
        while !self.shared.is_stopping.load(Ordering::SeqCst) {
            let ready = self.wait();
            let now = Instant::now();
            for (index, events) in ready.into_iter().enumerate() {
                if !events.is_empty() {
                    self.serve(index, events, now);
                }
            }
            if self.next_look <= now {
                self.next_look = now + TICK;
                self.receive_small_parts(now);
                self.renew_lease_if_due(now);
                (0..self.links.len()).for_each(|index| self.end_late_calls(index, now));
                self.repeat_delayed_calls(now);
            }
            (0..self.links.len()).for_each(|index| self.maintain(index, now));
            for call in std::mem::take(&mut self.orphans) {
                self.shared.submit(call);
            }
        }
    }

    /// Waits for events of the sockets; returns those of each connection.
    fn wait(&mut self) -> Vec<PollFlags> {
        self.shared.is_idle.store(true, Ordering::SeqCst);
        let is_busy = self.shared.is_busy();
        if is_busy {
            self.shared.is_idle.store(false, Ordering::SeqCst);
        }
        let ready = self.poll(match is_busy {
            true => Some(TICK),
            false => self.shared.lease_renewal_in(Instant::now()),
        });
        self.shared.is_idle.store(false, Ordering::SeqCst);
        if !is_busy {
            // Nothing was waited for.
            let now = Instant::now();
            for link in &mut self.links {
                if let LinkState::Up(up) = &mut link.state {
                    up.heard_at = now;
                }
            }
        }
        ready
    }

    fn poll(&self, limit: Option<Duration>) -> Vec<PollFlags> {
        let mut sockets = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let mut indexes = Vec::new();
        for (index, link) in self.links.iter().enumerate() {
            let socket = match &link.state {
                LinkState::Down { .. } => continue,
                LinkState::Connecting { socket, .. } => PollFd::new(socket, PollFlags::OUT),
                LinkState::Up(up) => {
                    let wants = match self.shared.connections[index].has_unsent() {
                        true => PollFlags::IN | PollFlags::OUT,
                        false => PollFlags::IN,
                    };
                    PollFd::from_borrowed_fd(up.socket.as_fd(), wants)
                }
            };
            sockets.push(socket);
            indexes.push(index);
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut ready = vec![PollFlags::empty(); self.links.len()];
        match poll(&mut sockets, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return ready,
            // Out of memory, for example: not a reason to occupy a processor.
            Err(_) => {
                std::thread::sleep(TICK);
                return ready;
            }
        }
        if !sockets[0].revents().is_empty() {
            let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        }
        for (socket, index) in sockets[1..].iter().zip(indexes) {
            ready[index] = socket.revents();
        }
        ready
    }

    /// Ends the calls that are over. Gives the connection up if nothing useful has come since it got
    /// one of them, so that it does not attract the next calls.
    fn end_late_calls(&mut self, index: usize, now: Instant) {
        let connection = &self.shared.connections[index];
        let mut late = connection.take_ended(now);
        let mut is_stuck = false;
        if let LinkState::Up(up) = &mut self.links[index].state {
            if let Some(call) = up.receiver.take_ended(now) {
                connection.forget_load(call.load);
                if let Some(receipt) = &call.receipt {
                    receipt.record_late_reply();
                }
                late.push(call);
            }
            is_stuck = late.iter().filter(|call| call.deadline <= now).any(|call| {
                let waited = now.saturating_duration_since(call.entered);
                call.entered >= up.useful_at && waited >= MIN_STUCK
            });
        }
        late.into_iter().for_each(|call| self.end_call(call, now));
        if is_stuck {
            self.lose(index, Loss::Silent, now);
        }
    }

    /// Receives the data that has come where more is awaited ([`UpLink::set_low_water`]): it shows
    /// that the server is not silent. Kernels before Linux 5.12 may also not report it.
    fn receive_small_parts(&mut self, now: Instant) {
        for index in 0..self.links.len() {
            if let LinkState::Up(up) = &self.links[index].state
                && up.low_water > 1
            {
                self.serve(index, PollFlags::IN, now);
            }
        }
    }

    /// Makes the calls again that the server could not execute yet.
    fn repeat_delayed_calls(&self, now: Instant) {
        for mut call in self.shared.connections.iter().flat_map(|one| one.take_due(now)) {
            if call.is_over(now) {
                self.end_call(call, now);
                continue;
            }
            match call.renew(self.shared.next_xid()) {
                Renewed::Ready => self.shared.submit(call),
                Renewed::Later => self.shared.connections[0].delay(call),
                Renewed::Never => call.fail(RpcError::Unwanted),
            }
        }
    }

    fn renew_lease_if_due(&self, now: Instant) {
        if let Some(renew) = self.shared.take_due_renewal(now) {
            renew();
        }
    }

    /// Ends a call that is over.
    fn end_call(&self, call: PendingCall, now: Instant) {
        let error = if call.deadline <= now { self.shared.late() } else { RpcError::Unwanted };
        call.fail(error);
    }

    /// Does the work that is due without an event.
    fn maintain(&mut self, index: usize, now: Instant) {
        let is_wanted = self.shared.is_busy();
        let silence = self.shared.target.silence;
        let connection = &self.shared.connections[index];
        match &mut self.links[index].state {
            LinkState::Up(up) if !connection.is_busy() => {
                up.heard_at = now;
                up.unheard = 0;
            }
            LinkState::Up(up) if now.saturating_duration_since(up.heard_at) >= silence => {
                self.lose(index, Loss::Silent, now);
            }
            LinkState::Up(_) => {}
            // Its calls need not wait for it.
            _ if connection.is_busy() && self.shared.is_connected() => {
                self.orphans.extend(connection.close());
            }
            LinkState::Down { retry_at } if is_wanted && *retry_at <= now => {
                self.connect(index, now);
            }
            LinkState::Connecting { to, until, .. } if *until <= now => {
                let to = *to;
                self.back_off(index, to, io::ErrorKind::TimedOut.into(), now);
            }
            LinkState::Down { .. } | LinkState::Connecting { .. } => {}
        }
    }

    fn connect(&mut self, index: usize, now: Instant) {
        let target = &self.shared.target;
        let link = &mut self.links[index];
        let to = target.addresses[link.attempts % target.addresses.len()];
        link.attempts += 1;
        match start_connect(to, target.reserved_port) {
            Ok(socket) => {
                let until = now + CONNECT_TIMEOUT;
                link.state = LinkState::Connecting { socket, to, until };
            }
            Err(error) => self.back_off(index, to, error, now),
        }
    }

    /// Waits before the next attempt to connect.
    fn back_off(&mut self, index: usize, address: SocketAddr, error: io::Error, now: Instant) {
        tracing::debug!(%address, %error, "no connection");
        *self.shared.last_failure.lock() = Some(ConnectFailure { address, error: Arc::new(error) });
        let most = self.shared.target.max_backoff;
        let link = &mut self.links[index];
        link.failures += 1;
        link.refused += 1;
        link.state = LinkState::Down { retry_at: now + backoff(link.failures, most) };
        let target = &self.shared.target;
        if !target.is_patient && link.refused >= target.addresses.len() {
            let calls = self.shared.connections[index].close();
            calls.into_iter().for_each(|call| call.fail(self.shared.late()));
        }
    }

    /// Handles the events of one connection's socket.
    fn serve(&mut self, index: usize, events: PollFlags, now: Instant) {
        let link = &mut self.links[index];
        match std::mem::replace(&mut link.state, LinkState::Down { retry_at: now }) {
            LinkState::Down { retry_at } => link.state = LinkState::Down { retry_at },
            LinkState::Connecting { socket, to, .. } => match finish_connect(socket) {
                Ok(socket) => self.begin(index, socket, now),
                Err(error) => self.back_off(index, to, error, now),
            },
            LinkState::Up(mut up) => {
                let connection = &self.shared.connections[index];
                let transferred = up.transfer(connection, events);
                let lives = now.saturating_duration_since(up.since) >= MIN_LIFE;
                if lives && transferred.as_ref().is_ok_and(|replies| *replies > 0) {
                    link.failures = 0;
                }
                link.state = LinkState::Up(up);
                if let Err(error) = transferred {
                    tracing::debug!(%error, "the connection has ended");
                    self.lose(index, Loss::Ended, now);
                }
            }
        }
    }

    /// Begins to use a new connection.
    fn begin(&mut self, index: usize, socket: TcpStream, now: Instant) {
        let socket = Arc::new(socket);
        let opened = self.shared.connections[index].open(Arc::clone(&socket));
        let link = &mut self.links[index];
        link.refused = 0;
        link.state = LinkState::Up(Box::new(UpLink {
            socket,
            receiver: Receiver::new(),
            since: now,
            useful_at: now,
            heard_at: now,
            unheard: 0,
            low_water: 1,
        }));
        *self.shared.last_failure.lock() = None;
        if opened.is_err() {
            self.lose(index, Loss::Ended, now);
        }
    }

    /// Gives up a connection.
    fn lose(&mut self, index: usize, loss: Loss, now: Instant) {
        let link = &mut self.links[index];
        // The first time at once: the server may have closed an idle connection.
        let wait = if link.failures == 0 {
            Duration::ZERO
        } else {
            backoff(link.failures, self.shared.target.max_backoff)
        };
        link.failures += 1;
        let state = LinkState::Down { retry_at: now + wait };
        let LinkState::Up(up) = std::mem::replace(&mut link.state, state) else { return };
        let mut calls = self.shared.connections[index].close();
        calls.extend(up.receiver.into_unfinished());
        for mut call in calls {
            if loss == Loss::Ended {
                call.losses.record(up.since, now);
            }
            match call.losses.are_too_many(self.shared.target.is_patient, now) {
                true => call.fail(RpcError::Lost),
                false => self.orphans.push(call),
            }
        }
    }
}

impl UpLink {
    /// Lets data that comes in small parts gather, as each wakeup costs processor time.
    fn set_low_water(&mut self, received: usize) -> io::Result<()> {
        let wanted = low_water(self.low_water, received, self.receiver.missing_data());
        if wanted != self.low_water {
            set_low_water(&self.socket, wanted)?;
            self.low_water = wanted;
        }
        Ok(())
    }

    /// Receives and sends what the socket has and takes. Returns the number of replies.
    fn transfer(&mut self, connection: &Connection, events: PollFlags) -> io::Result<u64> {
        let mut replies = connection.replies();
        let mut received = 0;
        let mut result = Ok(());
        for _ in 0..RECEIVES_PER_TURN {
            match self.receiver.receive(&mut &*self.socket, &mut replies) {
                Ok(Received { bytes: 0, .. }) => {
                    result = Err(io::ErrorKind::ConnectionReset.into());
                }
                Ok(Received { bytes, is_all }) => {
                    received += bytes;
                    if is_all {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => result = Err(error),
            }
            if result.is_err() || received >= BYTES_PER_TURN {
                break;
            }
        }
        connection.counters.received.fetch_add(received as u64, Ordering::Relaxed);
        self.unheard += received;
        // A late reply shows that the server gets calls, too.
        if replies.completed + replies.discarded > 0 || self.unheard >= USEFUL_BYTES {
            // Not when the turn began: a call may have come in between.
            let now = Instant::now();
            self.useful_at = now;
            self.heard_at = now;
            self.unheard = 0;
        }
        result?;
        self.set_low_water(received)?;
        if events.contains(PollFlags::OUT) {
            connection.send()?;
        }
        Ok(replies.completed)
    }
}

/// How many bytes are worth a wakeup, after a turn in which `received` have come, where `missing`
/// bytes of data follow.
fn low_water(now: usize, received: usize, missing: usize) -> usize {
    let is_slow = now > 1 || received < PIECE / 2;
    if is_slow && missing >= MIN_PIECE { missing.min(PIECE) } else { 1 }
}

impl Drop for Worker {
    /// Also if the thread panics: no caller waits for ever.
    fn drop(&mut self) {
        let mut calls = std::mem::take(&mut self.orphans);
        for connection in &self.shared.connections {
            calls.extend(connection.stop());
        }
        for link in self.links.drain(..) {
            if let LinkState::Up(up) = link.state {
                calls.extend(up.receiver.into_unfinished());
            }
        }
        // Dropped, they complete.
        drop(calls);
    }
}

/// The wait after this many failures: each time twice as long, with a random part, so that many
/// clients of a restarted server do not connect at the same time.
fn backoff(failures: u32, most: Duration) -> Duration {
    let most = most.min(FIRST_BACKOFF * 2u32.pow(failures.saturating_sub(1).min(10)));
    let random = RandomState::new().hash_one(failures) % 1024;
    most / 2 + most.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that waits for more bytes than come would never be ready.
    #[test]
    fn a_socket_waits_for_no_more_than_what_comes() {
        for (now, received, missing, expected) in [
            (1, 30_000, 1 << 20, PIECE),
            // It comes fast: there is nothing to wait for.
            (1, 700_000, 300_000, 1),
            (PIECE, PIECE, 500_000, PIECE),
            (PIECE, PIECE, 100_000, 100_000),
            (100_000, 95_000, 5_000, 1),
            (PIECE, PIECE, 0, 1),
            (1, 100, 0, 1),
        ] {
            assert_eq!(low_water(now, received, missing), expected, "{now} {received} {missing}");
        }
    }
}
