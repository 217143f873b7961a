//! A small process that starts programs for the daemon.
//!
//! execve(2) closes descriptors that are marked close-on-exec, and closing a file of a hung
//! FUSE mount waits for that mount's answer. So a daemon with a file open on a hung replica
//! could not start its successor. The child would hang inside execve, where even ps(1) waits
//! for it. Therefore the daemon forks this process before it opens anything on a replica, and
//! sends it requests.
//!
//! A request is a [`LaunchRequest`] with the program's standard input. The answer is a process
//! id with a descriptor of the process (pidfd_open(2)).
//!
//! *Invariants:*
//! - The launcher has nothing open but its socket and the standard streams.
//! - The launcher ends when the daemon does. The socket shows the daemon's end. If threads of
//!   the daemon hang in the kernel and keep the other end open, the death of the daemon's first
//!   thread ends the launcher.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, fork};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

static LAUNCHER: OnceLock<Mutex<Launcher>> = OnceLock::new();

/// The daemon's end of the socket.
struct Launcher {
    socket: OwnedFd,
    /// The number of the last request.
    last_request: u64,
}

/// The longest message, bytes: the arguments of a mount.
const MAX_MESSAGE: usize = 128 * 1024;

/// How long starting a program may take; the program is read from a disk.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30);

/// A program to start.
#[derive(Serialize, Deserialize)]
struct LaunchRequest {
    /// The response has the same number, so that a late response is not taken for the response
    /// to the next request.
    number: u64,
    program: OsString,
    args: Vec<OsString>,
    /// The working directory.
    at: OsString,
}

/// The result: a process id, or an errno and its text.
type LaunchResult = Result<u32, (Option<i32>, String)>;

/// The number of a request, and its result.
type LaunchResponse = (u64, LaunchResult);

/// A process that was started.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    /// Its process id.
    pub pid: u32,
    pidfd: OwnedFd,
}

impl ChildProcess {
    /// Kills it.
    pub(crate) fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }
}

/// How long threads that have finished their work may take to end.
const THREAD_EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether the process has one thread.
fn is_single_threaded() -> io::Result<bool> {
    Ok(std::fs::read_dir("/proc/self/task")?.count() == 1)
}

/// Forks the launcher. Must be called while the process has one thread, and before it has
/// anything open on a replica. Later calls have no effect.
///
/// # Errors
/// If there are no processes or descriptors, or there is a second thread.
pub(crate) fn fork_launcher() -> io::Result<()> {
    if LAUNCHER.get().is_some() {
        return Ok(());
    }
    // The kernel shows a thread for a moment after its last instruction.
    let until = Instant::now() + THREAD_EXIT_TIMEOUT;
    while !is_single_threaded()? && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    if !is_single_threaded()? {
        return Err(io::Error::other("the process already has more than one thread"));
    }
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the process has one thread, so no lock is held that the child waits for.
    match unsafe { fork() }? {
        ForkResult::Parent { .. } => {
            // With its other end closed here, this end shows the launcher's death.
            drop(theirs);
            // The launcher sends this when it has closed everything of the daemon's.
            recv::<()>(ours.as_fd())?;
            let _ = LAUNCHER.set(Mutex::new(Launcher { socket: ours, last_request: 0 }));
            Ok(())
        }
        ForkResult::Child => {
            drop(ours);
            let ready = become_launcher(&theirs).and_then(|()| send(theirs.as_fd(), &(), None));
            let ended = ready.and_then(|()| serve_requests(&theirs));
            std::process::exit(i32::from(ended.is_err()))
        }
    }
}

/// Starts a program under the name `fanfs`, with `stdin` as its standard input.
///
/// # Errors
/// The error of starting the program, or that there is no launcher any more.
pub(crate) fn launch(
    program: &Path,
    args: Vec<OsString>,
    stdin: BorrowedFd<'_>,
) -> io::Result<ChildProcess> {
    let launcher = LAUNCHER
        .get()
        .ok_or_else(|| io::Error::other("the process that starts programs is not running"))?;
    launcher.lock().launch(program, args, stdin, LAUNCH_TIMEOUT)
}

impl Launcher {
    fn launch(
        &mut self,
        program: &Path,
        args: Vec<OsString>,
        stdin: BorrowedFd<'_>,
        within: Duration,
    ) -> io::Result<ChildProcess> {
        let gone = |_| {
            io::Error::other("the process that starts programs has ended; unmount and mount again")
        };
        self.last_request += 1;
        let at = std::env::current_dir().unwrap_or_else(|_| "/".into()).into_os_string();
        let request =
            LaunchRequest { number: self.last_request, program: program.into(), args, at };
        send(self.socket.as_fd(), &request, Some(stdin)).map_err(gone)?;
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !poll_readable(self.socket.as_fd(), left)? {
                let late = format!("{} was not started within {within:?}", program.display());
                return Err(io::Error::new(io::ErrorKind::TimedOut, late));
            }
            let ((number, came), process) =
                recv::<LaunchResponse>(self.socket.as_fd()).map_err(gone)?;
            let started = to_child_process(came, process);
            if number == self.last_request {
                return started;
            }
            // The caller of that request no longer waits.
            if let Ok(late) = started {
                late.kill();
            }
        }
    }
}

fn to_child_process(came: LaunchResult, process: Option<OwnedFd>) -> io::Result<ChildProcess> {
    match (came, process) {
        (Ok(pid), Some(process)) => Ok(ChildProcess { pid, pidfd: process }),
        (Err((Some(errno), _)), _) => Err(io::Error::from_raw_os_error(errno)),
        (Err((None, why)), _) => Err(io::Error::other(why)),
        (Ok(_), None) => Err(io::Error::other("the launcher sent no process descriptor")),
    }
}

/// Drops everything that belongs to the daemon.
fn become_launcher(socket: &OwnedFd) -> io::Result<()> {
    rustix::thread::set_name(c"fanfs-launcher")?;
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if rustix::process::getppid() != parent {
        return Err(io::Error::other("the daemon has ended"));
    }
    // Handled, not ignored: a started program does not inherit a handler.
    let handler = SigHandler::Handler(ignore_signal);
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        // SAFETY: the handler does nothing, which is safe at any moment.
        unsafe { sigaction(signal, &action) }?;
    }
    // A command may wait for the end of this standard output.
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    drop(null);
    let own = socket.as_raw_fd();
    let number =
        |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let open: Vec<i32> = std::fs::read_dir("/proc/self/fd")?.filter_map(number).collect();
    for number in open.into_iter().filter(|number| *number > 2 && *number != own) {
        // Nothing in this process uses the descriptor: the code from here on has `socket`. The
        // listing's own descriptor is closed already.
        let _ = nix::unistd::close(number);
    }
    std::env::set_current_dir("/")
}

extern "C" fn ignore_signal(_: i32) {}

fn serve_requests(socket: &OwnedFd) -> io::Result<()> {
    let mut children: Vec<(Pid, OwnedFd)> = Vec::new();
    loop {
        let is_asked = wait_for_request_or_exit(socket, &children)?;
        children.retain(|(pid, _)| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
        if !is_asked {
            continue;
        }
        let (request, stdin) = match recv::<LaunchRequest>(socket.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            received => received?,
        };
        let number = request.number;
        match spawn(request, stdin) {
            Ok((pid, process)) => {
                let id = pid.as_raw_nonzero().get() as u32;
                send::<LaunchResponse>(socket.as_fd(), &(number, Ok(id)), Some(process.as_fd()))?;
                children.push((pid, process));
            }
            Err(error) => {
                let came = Err((error.raw_os_error(), error.to_string()));
                send::<LaunchResponse>(socket.as_fd(), &(number, came), None)?;
            }
        }
    }
}

/// Sleeps until the daemon sends a request or ends, which returns true, or a child ends.
fn wait_for_request_or_exit(socket: &OwnedFd, children: &[(Pid, OwnedFd)]) -> io::Result<bool> {
    let all = std::iter::once(socket).chain(children.iter().map(|(_, process)| process));
    let mut all: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    loop {
        match poll(&mut all, None) {
            Err(rustix::io::Errno::INTR) => {}
            ready => {
                ready?;
                return Ok(!all[0].revents().is_empty());
            }
        }
    }
}

fn spawn(request: LaunchRequest, stdin: Option<OwnedFd>) -> io::Result<(Pid, OwnedFd)> {
    let mut command = Command::new(&request.program);
    command.arg0("fanfs").args(&request.args).current_dir(&request.at);
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::null());
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    Ok((pid, pidfd_open(pid, PidfdFlags::empty())?))
}

fn poll_readable(socket: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    let within = Timespec::try_from(within).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], Some(&within)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    along: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let along = along.as_slice();
    if !along.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(along));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn recv<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<(T, Option<OwnedFd>)> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let along = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((serde_json::from_slice(&bytes[..received.bytes])?, along))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleep() -> (std::process::Child, OwnedFd) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("a pidfd");
        (child, process)
    }

    #[test]
    fn a_late_launcher_answer_is_dropped_and_its_process_ends() {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets");
        let mut launcher = Launcher { socket: ours, last_request: 0 };
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let mut launch =
            |within| launcher.launch(Path::new("program"), Vec::new(), null.as_fd(), within);

        let late = launch(Duration::ZERO).expect_err("no answer yet");
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        let (mut first, first_fd) = sleep();
        let (mut second, second_fd) = sleep();
        let answer = |number, child: &std::process::Child, process: &OwnedFd| {
            let answer: LaunchResponse = (number, Ok(child.id()));
            send(theirs.as_fd(), &answer, Some(process.as_fd())).expect("an answer");
        };
        let (request, _) = recv::<LaunchRequest>(theirs.as_fd()).expect("the first request");
        answer(request.number, &first, &first_fd);
        answer(request.number + 1, &second, &second_fd);

        let started = launch(Duration::from_secs(60)).expect("the answer to the second request");
        assert_eq!(started.pid, second.id());
        assert!(!first.wait().expect("the first process").success(), "it was killed");
        started.kill();
        assert!(!second.wait().expect("the second process").success());
    }

    #[test]
    fn an_exited_process_is_released_without_a_request() {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets");
        let launcher = std::thread::spawn(move || serve_requests(&theirs));
        let mut daemon = Launcher { socket: ours, last_request: 0 };
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let within = Duration::from_secs(60);
        let started = daemon.launch(Path::new("true"), Vec::new(), null.as_fd(), within);
        let process = format!("/proc/{}", started.expect("true starts").pid);
        let until = Instant::now() + within;
        while Path::new(&process).exists() {
            assert!(Instant::now() < until, "it stays a zombie");
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(daemon);
        launcher.join().expect("no panic").expect("it ends with the daemon");
    }
}
