//! A session at rest, while its mount is handed to another process.
//!
//! The library's threads read requests from a descriptor by its number. To stop them
//! without losing a request, the number is made to stand for a socket in which nothing
//! ever comes, and every thread is interrupted: one that waits for a request goes back
//! for the next and waits at the socket. What has been taken is answered by then or
//! later; answers that go to that number come out of the socket's other end and are
//! passed on. To go on, the number stands for the device again.
//!
//! *Invariant:* when [`SessionPauser::pause`] has returned, no thread of the session takes a
//! request from the device. What one has taken just before it may only be about to begin:
//! [`SessionPauser::busy_threads`] counts these.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use parking_lot::Mutex;

use super::device_fd::{open_dev_null, redirect_fd, request_resend, seqpacket_pair};
use super::notifier::KernelNotifier;

/// Where a session's threads can be stopped.
pub(super) struct SessionPauser {
    /// The session's descriptor; `kernel` keeps it open.
    session_fd: RawFd,
    _notifier: Arc<KernelNotifier>,
    /// The device, by another number.
    device: Arc<OwnedFd>,
    /// While parked: whoever passes answers on says when it has come to a [`END_MARK`].
    mark_receiver: Mutex<Option<Receiver<()>>>,
}

/// Interrupts; programs that end because of it do not know it from us.
const INTERRUPT_SIGNAL: Signal = Signal::SIGUSR2;

/// Interrupted threads are written down here: a thread's number until it was
/// interrupted, then 0.
static PENDING_THREADS: [AtomicI32; 512] = [const { AtomicI32::new(0) }; 512];

/// One interrupts at a time.
static INTERRUPT_LOCK: Mutex<()> = Mutex::new(());

/// How long threads may take to go to the socket. They are there within a few
/// switches of threads; a machine may be busy.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);

/// Comes after answers; none is so short.
const END_MARK: &[u8] = &[0];

/// No answer of the library's own is longer: READ, which may be, is answered past it.
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
        // SAFETY: whoever tells the kernel things has it open, for as long as this lives.
        unsafe { BorrowedFd::borrow_raw(self.session_fd) }
    }

    /// Takes no more requests.
    pub(super) fn pause(&self) -> io::Result<()> {
        let (inner, outer) = seqpacket_pair()?;
        // Root may have as much as it likes, others what the system allows.
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

    /// Takes requests again.
    pub(super) fn unpause(&self) -> io::Result<()> {
        redirect_fd(self.session_descriptor(), self.device.as_fd())?;
        self.interrupt_threads()
    }

    /// Threads of the session that are not back for the next request: they may be about
    /// to begin what they took, or are inside a replica.
    pub(super) fn busy_threads(&self) -> io::Result<usize> {
        let threads = session_threads()?;
        Ok(threads.into_iter().filter(|thread| !is_reading(*thread, self.session_fd)).count())
    }

    /// Gives no more answers; returns the device. Those that were given before get there.
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

    /// Gives answers again; those that were given meanwhile are lost.
    pub(super) fn reacquire_device(&self, device: &OwnedFd) -> io::Result<()> {
        redirect_fd(self.device.as_fd(), device.as_fd())?;
        request_resend(device.as_fd())
    }

    /// Lets go of the device for good. Later replies go nowhere, and every thread of the
    /// session ends when it asks for its next request.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        let nothing = open_dev_null()?;
        redirect_fd(self.session_descriptor(), nothing.as_fd())?;
        redirect_fd(self.device.as_fd(), nothing.as_fd())?;
        // A thread that waits for a request holds the device.
        self.interrupt_threads()
    }

    /// Has every session thread that waits at what the descriptor stood for before go
    /// to what it stands for now.
    fn interrupt_threads(&self) -> io::Result<()> {
        let _one = INTERRUPT_LOCK.lock();
        let action = SigAction::new(
            SigHandler::Handler(on_interrupt_signal),
            SaFlags::empty(),
            SigSet::empty(),
        );
        // SAFETY: the handler reads a thread's number and writes to atomics.
        unsafe { sigaction(INTERRUPT_SIGNAL, &action) }?;
        let threads = session_threads()?;
        if threads.len() > PENDING_THREADS.len() {
            return Err(io::Error::other("too many session threads"));
        }
        for (slot, thread) in PENDING_THREADS.iter().zip(&threads) {
            slot.store(*thread, Ordering::SeqCst);
        }
        for thread in &threads {
            send_signal(*thread);
        }
        let until = Instant::now() + INTERRUPT_TIMEOUT;
        let waiting = || {
            let slots = PENDING_THREADS.iter().take(threads.len());
            let left = slots.map(|slot| slot.load(Ordering::SeqCst)).filter(|left| *left != 0);
            left.filter(|thread| is_possibly_reading(*thread, self.session_fd)).count()
        };
        let mut pause = Duration::from_micros(50);
        while waiting() > 0 {
            if Instant::now() >= until {
                return Err(io::Error::other("the session's threads do not stop"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        PENDING_THREADS.iter().for_each(|slot| slot.store(0, Ordering::SeqCst));
        Ok(())
    }
}

extern "C" fn on_interrupt_signal(_: libc::c_int) {
    // SAFETY: it has no arguments, and any thread may ask it at any time.
    let own = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
    for slot in &PENDING_THREADS {
        let _ = slot.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

fn send_signal(thread: i32) {
    let process = std::process::id() as libc::pid_t;
    // SAFETY: it takes numbers; a thread that has ended is none any more.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, INTERRUPT_SIGNAL as libc::c_int) };
}

/// The threads that the library has started, of all sessions of this process.
fn session_threads() -> io::Result<Vec<i32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("fuser-")
            && let Some(thread) = entry.file_name().to_str().and_then(|id| id.parse().ok())
        {
            threads.push(thread);
        }
    }
    Ok(threads)
}

/// What a thread is doing, as far as it can be seen.
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

/// Whether the thread, which has not been interrupted yet, may be inside a read(2) of
/// the descriptor. One that is inside a replica is not.
fn is_possibly_reading(thread: i32, number: RawFd) -> bool {
    match thread_state(thread) {
        ThreadState::InSyscall(call, first) => call == libc::SYS_read && first == i64::from(number),
        ThreadState::Running => true,
        ThreadState::Ended => false,
    }
}

/// Whether it waits in a read(2) of the descriptor.
fn is_reading(thread: i32, number: RawFd) -> bool {
    match thread_state(thread) {
        ThreadState::InSyscall(call, first) => call == libc::SYS_read && first == i64::from(number),
        ThreadState::Running => false,
        ThreadState::Ended => true,
    }
}

/// Passes on answers of the library until there can be no more; says when a [`END_MARK`] has
/// come, as everything before it has been passed on then.
fn forward_replies(from: OwnedFd, to: &OwnedFd, come: &Sender<()>) {
    let mut answer = vec![0; MAX_REPLY_BYTES];
    loop {
        match rustix::io::read(&from, &mut answer[..]) {
            Ok(0) => return,
            Ok(n) if answer[..n] == *END_MARK => drop(come.send(())),
            Ok(n) => {
                if let Err(errno) = rustix::io::write(to, &answer[..n]) {
                    tracing::debug!(%errno, "an answer was not taken");
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                tracing::warn!(%errno, "answers are not passed on");
                return;
            }
        }
    }
}
