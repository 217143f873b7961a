//! The audience of a command: the reader of its standard output, its terminal, and the
//! signals of its user. A command without an audience ends.
//!
//! One watcher serves all commands. [`super::run`] starts it before the command begins.
//! One exhaustive `match` sets the [`CancelPolicy`] of each command, so a new command cannot be
//! without one. The watcher is a thread that sleeps in poll(2) and requests no events. The
//! kernel then reports only a reader that has closed the pipe or socket (POLLERR,
//! POLLHUP), or a terminal that has hung up (POLLHUP). The watcher needs no write for
//! that, and works while the command is stuck: crossterm, for example, reads a hung-up
//! terminal forever.
//!
//! *Invariant:* once a command prints its result ([`write_result`]), a reader that closes early
//! changes neither the result nor the exit status.

use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};

/// The exit status that a shell shows for a program that Ctrl-C ended.
pub(super) const INTERRUPTED_STATUS: u8 = 130;

/// How a command ends when its audience goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CancelPolicy {
    /// It changes something in bounded time: nothing interrupts it. A daemon has no
    /// audience, and handles its own signals.
    Ignore,
    /// It leaves nothing behind: the watcher ends the process after [`EXIT_DELAY`]. Signals
    /// have their default action.
    ExitProcess,
    /// It owns the terminal's modes. It polls the flag; if it does not end, the watcher
    /// ends the process. Its terminal counts even under nohup(1).
    TerminalUi,
    /// It writes its output as events happen. It polls the flag and ends in order; if it
    /// does not end, the watcher ends the process. A terminal that is its standard output
    /// counts even under nohup(1): without it, the output has no reader.
    Streaming,
    /// It must remove mounts or files first: it polls the flag, and the watcher never
    /// ends it.
    CleanUp,
}

/// How long the watcher waits for a command to end before it replaces the output by
/// /dev/null, and again before it ends the process. A write to a full terminal or pipe
/// can block the command.
const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// How long a command of [`CancelPolicy::TerminalUi`] may go on without its terminal.
const SCREEN_GRACE_PERIOD: Duration = Duration::from_millis(100);

/// How long a command of [`CancelPolicy::ExitProcess`] may go on without a reader.
const EXIT_DELAY: Duration = Duration::from_secs(5);

/// Whether the command has begun to print its result.
static IS_PRINTING_RESULT: AtomicBool = AtomicBool::new(false);

/// Whether the command still has an audience.
#[derive(Clone, Debug)]
pub(super) struct Cancellation {
    is_canceled: Arc<AtomicBool>,
}

impl Cancellation {
    /// Starts to watch.
    ///
    /// # Errors
    /// The process cannot wait for signals, or cannot start a thread.
    pub(super) fn watch(ending: CancelPolicy) -> io::Result<Self> {
        let gone = Arc::new(AtomicBool::new(false));
        let audience = Self { is_canceled: gone };
        if ending == CancelPolicy::Ignore {
            return Ok(audience);
        }
        if ending != CancelPolicy::ExitProcess {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let signals = {
                let _entered = runtime.enter();
                CancelSignals::new()?
            };
            let asked = audience.clone();
            spawn_thread("signals", move || {
                runtime.block_on(signals.recv());
                asked.cancel(ending);
            })?;
        }
        let left = audience.clone();
        spawn_thread("audience", move || {
            if wait_for_hangup(ending) {
                if ending == CancelPolicy::TerminalUi {
                    left.exit_without_terminal();
                }
                left.cancel(ending);
            }
        })?;
        Ok(audience)
    }

    /// Whether the audience has gone, or a signal asks the command to end.
    pub(super) fn is_canceled(&self) -> bool {
        self.is_canceled.load(Ordering::Relaxed)
    }

    /// The same as a flag.
    pub(super) fn flag(&self) -> &Arc<AtomicBool> {
        &self.is_canceled
    }

    /// Ends a command whose terminal is gone: it has no modes to restore, and may be reading
    /// the terminal's end over and over.
    fn exit_without_terminal(&self) {
        self.is_canceled.store(true, Ordering::Relaxed);
        thread::sleep(SCREEN_GRACE_PERIOD);
        std::process::exit(INTERRUPTED_STATUS.into());
    }

    /// Makes the command end.
    fn cancel(&self, ending: CancelPolicy) {
        if ending == CancelPolicy::ExitProcess {
            // Most commands end sooner, with their own exit status.
            thread::sleep(EXIT_DELAY);
            // A reader that has gone is not a failure, as in [`write_result`].
            if !IS_PRINTING_RESULT.load(Ordering::SeqCst) {
                std::process::exit(0);
            }
            return;
        }
        if self.is_canceled.swap(true, Ordering::Relaxed) {
            return;
        }
        thread::sleep(GRACE_PERIOD);
        unblock_writer();
        if ending != CancelPolicy::CleanUp {
            thread::sleep(GRACE_PERIOD);
            std::process::exit(INTERRUPTED_STATUS.into());
        }
    }
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// The signals that ask a program to end.
struct CancelSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: Option<tokio::signal::unix::Signal>,
}

impl CancelSignals {
    fn new() -> io::Result<Self> {
        let hangup = (!is_hangup_ignored()).then(|| signal(SignalKind::hangup())).transpose()?;
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { interrupt, terminate, hangup })
    }

    async fn recv(mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hangup => {}
        }
    }
}

/// Whether SIGHUP was ignored at the start, as under nohup(1). It stays ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is signal 1, and so the lowest bit.
    ignored.is_some_and(|mask| mask & 1 != 0)
}

/// Waits until the reader of standard output has gone, or the terminal of standard output
/// or standard error. Returns whether it has; without anything to watch, false at once.
fn wait_for_hangup(ending: CancelPolicy) -> bool {
    let output = io::stdout();
    let error = io::stderr();
    let terminals = ending == CancelPolicy::TerminalUi || !is_hangup_ignored();
    let mut watched: Vec<PollFd<'_>> = Vec::new();
    if terminals || ending == CancelPolicy::Streaming || !output.is_terminal() {
        watched.push(PollFd::new(&output, PollFlags::empty()));
    }
    // A pipe for standard error does not carry the result.
    if terminals && error.is_terminal() {
        watched.push(PollFd::new(&error, PollFlags::empty()));
    }
    if watched.is_empty() {
        return false;
    }
    loop {
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return false,
        }
        let gone = PollFlags::ERR | PollFlags::HUP;
        if watched.iter().any(|one| one.revents().intersects(gone)) {
            return true;
        }
        // Stop watching descriptors that cannot be polled (POLLNVAL).
        watched.retain(|one| !one.revents().contains(PollFlags::NVAL));
        if watched.is_empty() {
            return false;
        }
    }
}

/// Frees a thread that is blocked in a write to a full output. Later writes go to
/// /dev/null, and a signal interrupts the write in progress, which is then repeated.
fn unblock_writer() {
    let Ok(null) = std::fs::File::options().write(true).open("/dev/null") else { return };
    let output = io::stdout();
    let error = io::stderr();
    let is_full = |fd: BorrowedFd<'_>| {
        let mut one = [PollFd::new(&fd, PollFlags::OUT)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut one, Some(&now)).is_ok_and(|_| !one[0].revents().contains(PollFlags::OUT))
    };
    use std::os::fd::AsFd;
    if is_full(output.as_fd()) {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
    if is_full(error.as_fd()) {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    extern "C" fn ignore_signal(_: std::ffi::c_int) {}
    // Without SA_RESTART the write returns EINTR, and the caller repeats it.
    let action =
        SigAction::new(SigHandler::Handler(ignore_signal), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, and nothing else in this program uses SIGURG.
    if unsafe { sigaction(Signal::SIGURG, &action) }.is_ok() {
        // The kernel prefers the main thread, which is the one that writes.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::URG);
    }
}

/// Prints a command's result to standard output. A reader that has gone
/// (`fanfs status | head`) is not a failure.
///
/// # Errors
/// Any other failure of the write.
pub(super) fn write_result(text: &str) -> io::Result<()> {
    IS_PRINTING_RESULT.store(true, Ordering::SeqCst);
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes one message to standard error. If the terminal has gone, the message is lost;
/// `eprintln!` would panic.
pub(super) fn print_message(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
