//! Pausing a session, while its mount is handed to another process.
//!
//! fuser's threads read requests from a descriptor by its number. To stop them without losing a
//! request, the number is made to refer to a socket that never has a message, and every thread
//! is interrupted. A thread that waits for a request then retries and waits at the socket.
//! Requests that were taken are answered as usual. Replies written to that number come out of
//! the socket's other end and are forwarded. To resume, the number refers to the device again.
//!
//! *Invariant:* when [`SessionPauser::pause`] has returned, no thread of the session takes a
//! request from the device. A thread may have taken one just before and not have begun it:
//! [`SessionPauser::busy_threads`] counts these threads.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
use parking_lot::Mutex;

use super::device_fd::{open_dev_null, redirect_fd, request_resend, seqpacket_pair};
use super::notifier::KernelNotifier;
use crate::backend::{INTERRUPT_SIGNAL, Interruptions, READ_THREAD_PREFIX, WRITE_THREAD_PREFIX};

/// fuser's names for the threads of a session begin so.
pub const SESSION_THREAD_PREFIX: &str = "fuser-";

/// Pauses the threads of a session.
pub(super) struct SessionPauser {
    /// The session's descriptor; `_notifier` keeps it open.
    session_fd: RawFd,
    _notifier: Arc<KernelNotifier>,
    /// The device, on another descriptor.
    device: Arc<OwnedFd>,
    /// While paused: receives a message for each [`END_MARK`] that the forwarding thread
    /// reaches.
    mark_receiver: Mutex<Option<Receiver<()>>>,
}

/// The ids of the threads to interrupt. Each becomes 0 when its thread was interrupted.
static PENDING_THREADS: [AtomicI32; 512] = [const { AtomicI32::new(0) }; 512];

/// Held during one interruption, which uses [`PENDING_THREADS`].
static INTERRUPT_LOCK: Mutex<()> = Mutex::new(());

/// How long threads may take to move to the socket. They need a few thread switches; a machine
/// may be busy.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Follows the replies written so far; every reply is longer.
const END_MARK: &[u8] = &[0];

/// No reply that fuser writes is longer. Replies to READ may be, but bypass fuser.
const MAX_REPLY_BYTES: usize = 2 << 20;

impl SessionPauser {
    pub(super) fn new(
        number: BorrowedFd<'_>,
        kernel: Arc<KernelNotifier>,
        device: Arc<OwnedFd>,
    ) -> Self {
        let passed_on = Mutex::default();
        Self { session_fd: number.as_raw_fd(), _notifier: kernel, device, mark_receiver: passed_on }
    }

    /// The device.
    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn session_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the notifier keeps the descriptor open for as long as this value lives.
        unsafe { BorrowedFd::borrow_raw(self.session_fd) }
    }

    /// Makes the session take no more requests.
    pub(super) fn pause(&self) -> io::Result<()> {
        let (inner, outer) = seqpacket_pair()?;
        // Root may set any size, other users one up to the system's limit.
        if rustix::net::sockopt::set_socket_send_buffer_size_force(&inner, MAX_REPLY_BYTES).is_err()
        {
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&inner, MAX_REPLY_BYTES);
        }
        let device = Arc::clone(&self.device);
        let (come, passed_on) = channel();
        std::thread::Builder::new().name("answers".to_owned()).spawn(move || {
            forward_replies(outer, &device, &come);
        })?;
        *self.mark_receiver.lock() = Some(passed_on);
        redirect_fd(self.session_descriptor(), inner.as_fd())?;
        drop(inner);
        self.interrupt_threads().inspect_err(|_| {
            let _ = self.unpause();
        })
    }

    /// Makes the session take requests again.
    pub(super) fn unpause(&self) -> io::Result<()> {
        redirect_fd(self.session_descriptor(), self.device.as_fd())?;
        self.interrupt_threads()
    }

    /// The number of session threads that have not returned for the next request: they may be
    /// about to begin one, or be inside a replica.
    pub(super) fn busy_threads(&self) -> io::Result<usize> {
        let threads = session_threads()?;
        Ok(threads.into_iter().filter(|thread| !is_reading(*thread, self.session_fd)).count())
    }

    /// Sends no more replies, and returns the device. Replies that were sent before reach the
    /// kernel.
    pub(super) fn release_device(&self) -> io::Result<OwnedFd> {
        if let Some(passed_on) = &*self.mark_receiver.lock() {
            rustix::io::write(self.session_descriptor(), END_MARK)?;
            passed_on.recv_timeout(INTERRUPT_TIMEOUT).map_err(io::Error::other)?;
        }
        let device = self.device.try_clone()?;
        let nothing = open_dev_null()?;
        redirect_fd(self.device.as_fd(), nothing.as_fd())?;
        Ok(device)
    }

    /// Sends replies again. Those sent meanwhile are lost; the kernel resends their requests.
    pub(super) fn reacquire_device(&self, device: &OwnedFd) -> io::Result<()> {
        redirect_fd(self.device.as_fd(), device.as_fd())?;
        request_resend(device.as_fd())
    }

    /// Drops the device for good. Later replies are discarded, and every thread of the session
    /// ends when it reads its next request.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        let nothing = open_dev_null()?;
        redirect_fd(self.session_descriptor(), nothing.as_fd())?;
        redirect_fd(self.device.as_fd(), nothing.as_fd())?;
        // A thread that waits for a request keeps the device open.
        self.interrupt_threads()
    }

    /// Makes every session thread that still reads the descriptor's previous target read the
    /// present one.
    fn interrupt_threads(&self) -> io::Result<()> {
        let _one = INTERRUPT_LOCK.lock();
        let interruptions = Interruptions::begin();
        let action = SigAction::new(
            SigHandler::Handler(on_interrupt_signal),
            SaFlags::empty(),
            SigSet::empty(),
        );
        // SAFETY: the handler only reads its thread's id and writes to atomics.
        unsafe { sigaction(INTERRUPT_SIGNAL, &action) }?;
        let threads = session_threads()?;
        if threads.len() > PENDING_THREADS.len() {
            return Err(io::Error::other("the FUSE session has too many threads"));
        }
        for (slot, thread) in PENDING_THREADS.iter().zip(&threads) {
            slot.store(*thread, Ordering::SeqCst);
        }
        for (slot, thread) in PENDING_THREADS.iter().zip(&threads) {
            match interruptions.may_interrupt(*thread) {
                true => send_signal(*thread),
                // Its next read(2) of the descriptor is after this.
                false => slot.store(0, Ordering::SeqCst),
            }
        }
        let until = Instant::now() + INTERRUPT_TIMEOUT;
        let waiting = || {
            let slots = PENDING_THREADS.iter().take(threads.len());
            let left = slots.map(|slot| slot.load(Ordering::SeqCst)).filter(|left| *left != 0);
            let may_read = |thread: &i32| {
                is_possibly_reading(*thread, self.session_fd)
                    && !interruptions.is_in_change(*thread)
            };
            left.filter(may_read).count()
        };
        let mut pause = Duration::from_micros(50);
        while waiting() > 0 {
            if Instant::now() >= until {
                return Err(io::Error::other(
                    "the threads of the FUSE session did not stop in time",
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        PENDING_THREADS.iter().for_each(|slot| slot.store(0, Ordering::SeqCst));
        Ok(())
    }
}

extern "C" fn on_interrupt_signal(_: libc::c_int) {
    // SAFETY: gettid has no arguments, and any thread may call it at any time.
    let own = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
    for slot in &PENDING_THREADS {
        let _ = slot.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

fn send_signal(thread: i32) {
    let process = std::process::id() as libc::pid_t;
    // SAFETY: tgkill takes numbers only; it refuses the id of a thread that has ended.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, INTERRUPT_SIGNAL as libc::c_int) };
}

/// The threads that fuser has started, of all sessions of this process.
fn session_threads() -> io::Result<Vec<i32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        // A thread that has been inside a replica for some time has a prefix.
        let usual = [READ_THREAD_PREFIX, WRITE_THREAD_PREFIX]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(&name);
        if usual.starts_with(SESSION_THREAD_PREFIX)
            && let Some(thread) = entry.file_name().to_str().and_then(|id| id.parse().ok())
        {
            threads.push(thread);
        }
    }
    Ok(threads)
}

/// The visible state of a thread.
enum ThreadState {
    /// It waits in a system call with this number and first argument.
    InSyscall(i64, i64),
    Running,
    Ended,
}

fn thread_state(thread: i32) -> ThreadState {
    let Ok(call) = fs::read_to_string(format!("/proc/self/task/{thread}/syscall")) else {
        let is_there = fs::exists(format!("/proc/self/task/{thread}")).unwrap_or(true);
        return if is_there { ThreadState::Running } else { ThreadState::Ended };
    };
    let mut words = call.split_whitespace();
    let hex = |word: &str| i64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    match (words.next().map(str::parse::<i64>), words.next().and_then(hex)) {
        (Some(Ok(call)), Some(first)) => ThreadState::InSyscall(call, first),
        _ => ThreadState::Running,
    }
}

/// Whether a thread that has not been interrupted yet may be inside a read(2) of the
/// descriptor. A thread inside a replica is not.
fn is_possibly_reading(thread: i32, number: RawFd) -> bool {
    match thread_state(thread) {
        ThreadState::InSyscall(call, first) => call == libc::SYS_read && first == i64::from(number),
        ThreadState::Running => true,
        ThreadState::Ended => false,
    }
}

/// Whether the thread waits in a read(2) of the descriptor, or has ended.
fn is_reading(thread: i32, number: RawFd) -> bool {
    match thread_state(thread) {
        ThreadState::InSyscall(call, first) => call == libc::SYS_read && first == i64::from(number),
        ThreadState::Running => false,
        ThreadState::Ended => true,
    }
}

/// Forwards fuser's replies until the other end is closed. Reports each [`END_MARK`], when
/// everything before it has been forwarded.
fn forward_replies(from: OwnedFd, to: &OwnedFd, come: &Sender<()>) {
    let mut answer = vec![0; MAX_REPLY_BYTES];
    loop {
        match rustix::io::read(&from, &mut answer[..]) {
            Ok(0) => return,
            Ok(n) if answer[..n] == *END_MARK => drop(come.send(())),
            Ok(n) => {
                if let Err(errno) = rustix::io::write(to, &answer[..n]) {
                    tracing::debug!(%errno, "the kernel rejected a reply");
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                tracing::warn!(%errno, "cannot forward replies to the kernel");
                return;
            }
        }
    }
}
