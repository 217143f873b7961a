//! Handing a mount over: the predecessor's side.
//!
//! The successor is a process of this one's, so it lives where this one does: same
//! name spaces, same service. It gets everything ready while this one serves. Then no
//! more requests are taken, what is under way ends, the rest is written down and sent.
//! Applications wait for as long as that takes and notice nothing else.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::Mount;
use super::fd_channel::FdChannel;
use super::handover_protocol::{MountSnapshot, PredecessorMessage, SuccessorMessage, send_state};
use super::predecessors::Predecessors;
use super::supervisor_client::SupervisorClient;
use super::systemd;
use crate::control::HandoverReport;
use crate::fuse::Session;
use crate::launcher::{self, ChildProcess};

/// How this program is started again for the same mount.
#[derive(Clone, Debug)]
pub struct RespawnCommand {
    /// What comes before the volume's file.
    pub options: Vec<OsString>,
    /// The volume's file.
    pub volume: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
}

/// What somebody wants of a mount that is being served.
pub struct HandoverRequest {
    /// The program to go on with.
    pub program: PathBuf,
    /// The volume's file, where it is another one.
    pub volume: Option<PathBuf>,
    /// Whether to refuse a configuration that `fanfs mount` would refuse. If not, the
    /// mount goes on with the replicas that are well.
    pub is_strict: bool,
    /// Who waits for what comes of it.
    pub(super) reply: Option<tokio::sync::oneshot::Sender<Result<HandoverReport, String>>>,
}

/// This very program, also where its file has been replaced or removed.
pub(super) fn current_program() -> PathBuf {
    match std::env::current_exe() {
        // Of one that was removed the name says so.
        Ok(program) if program.exists() => program,
        _ => "/proc/self/exe".into(),
    }
}

/// A command that starts `program`, which is this one or another fanfs, under its own
/// name: by that of its file it could take itself for mount(8)'s helper.
pub fn self_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg0("fanfs");
    command
}

/// How long a successor may take to get ready; applications do not wait meanwhile.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long reads and looks that are under way are waited for. The kernel sends again
/// what takes longer, where it can.
const READ_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// The same for changes, which must not be made twice, and where the kernel cannot.
/// Applications wait as long. What a silent replica has not answered by then is left:
/// the next daemon is asked, as after a kill.
const CHANGE_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a successor may take to know inodes and handles, and then to serve.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Of this time a replica that is to be left has neither begun nor answered a change.
const SILENCE_THRESHOLD: Duration = Duration::from_secs(4);

/// Why a handover is refused whose kernel sends nothing again.
const CHANGE_HANGS_ERROR: &str = "a change is under way on the write replica and does not end, and \
    before Linux 6.9 it cannot be left to a successor; repair the replica, or wait for [write] \
    deadline";

/// Why a handover is refused that would have changes made twice or not at all.
const CHANGES_IN_FLIGHT_ERROR: &str = "changes are under way on the write replica and do not end within \
    5 s, although it answers; try again when fewer of them are under way";

impl RespawnCommand {
    /// The command that starts `program`, told by `told` what it is to the mount.
    pub fn command(&self, program: &Path, told: &str) -> Command {
        let mut command = self_command(program);
        command.args(self.args(told));
        command
    }

    fn args(&self, told: &str) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["mount".into(), told.into()];
        args.extend(self.options.iter().cloned());
        args.extend(["--".into(), self.volume.clone().into(), self.mount_point.clone().into()]);
        args
    }
}

impl HandoverRequest {
    /// To go on with the same program, and the volume's file as it is now.
    pub fn reload() -> Self {
        Self { program: current_program(), volume: None, is_strict: true, reply: None }
    }

    /// To go on with `program`.
    pub fn upgrade(program: PathBuf) -> Self {
        Self { program, is_strict: false, ..Self::reload() }
    }

    /// Says what came of it.
    pub fn respond(&mut self, answer: Result<HandoverReport, String>) {
        match (self.reply.take(), answer) {
            (Some(reply), answer) => drop(reply.send(answer)),
            (None, Err(why)) => tracing::warn!(%why, "the mount is not handed over"),
            (None, Ok(_)) => {}
        }
    }
}

/// Kills the successor of a failed handover. Does not wait for its end: it may be inside
/// a hung replica.
struct KillOnDrop(Option<ChildProcess>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            process.kill();
        }
    }
}

impl Mount {
    /// What somebody wants of it from now on.
    pub fn handover_requests(&self) -> tokio::sync::mpsc::UnboundedReceiver<HandoverRequest> {
        let (send, receive) = tokio::sync::mpsc::unbounded_channel();
        *self.core.handover_requests.lock() = Some(send);
        receive
    }

    /// Ends without touching the mount, which another process serves.
    pub fn exit_after_handover(mut self) -> ! {
        self.core.reader.end_traces();
        if let Some(control) = self.control.take() {
            control.drain_and_keep_socket();
        }
        // What the next one has made in the same place stays.
        self.metrics = None;
        std::process::exit(0)
    }

    /// Hands the mount over to a process that is started as `order` says. After that
    /// this process has no mount any more and must end without touching it.
    ///
    /// # Errors
    /// Why not, in one line; the mount is served as before then.
    pub fn hand_over(&self, order: &HandoverRequest) -> Result<HandoverReport, String> {
        let Some(again) = &self.respawn else { return Err("nobody knows how to".to_owned()) };
        let mut again = again.clone();
        if let Some(volume) = &order.volume {
            again.volume.clone_from(volume);
        }
        let (link, theirs) = FdChannel::pair().map_err(|error| error.to_string())?;
        // The launcher starts it. A child of this process would close inherited files in
        // exec(2), which blocks for a file on a hung replica.
        let child = launcher::launch(&order.program, again.args("--successor"), theirs.as_fd());
        // Otherwise the link would stay open after the successor's death.
        drop(theirs);
        let child = child.map_err(|error| format!("{}: {error}", order.program.display()))?;
        let pid = child.pid;
        let mut successor = KillOnDrop(Some(child));
        let said = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => "the successor ended".to_owned(),
            io::ErrorKind::TimedOut => "the successor takes too long".to_owned(),
            _ => error.to_string(),
        };
        let session = self.session.lock();
        let session = session.as_ref().ok_or("it is being unmounted")?;
        let estate = self.core.mount_snapshot(session.init_params().clone(), order.is_strict);
        // One that has ended already may have said why.
        let _ = link.send(&PredecessorMessage::Estate(estate), &[]);
        wait_for_step(&link, PREPARE_TIMEOUT).map_err(said)?;
        let stopped = Instant::now();
        self.core.fs.track_unanswered();
        session.pause().map_err(|error| error.to_string())?;
        let mut device = None;
        let given = self.drain_and_send(&link, session, &mut device).and_then(|handles| {
            wait_for_step(&link, RESTORE_TIMEOUT).map_err(said)?;
            if device.is_none() {
                device = Some(session.release_device().map_err(|error| error.to_string())?);
            }
            Ok(handles)
        });
        let handles = match given {
            Ok(handles) => handles,
            Err(why) => {
                self.core.fs.resume_changes();
                let taken_up = device.map_or(Ok(()), |device| session.reacquire_device(&device));
                if let Err(error) = taken_up.and(session.unpause()) {
                    tracing::error!(%error, "no more requests are taken");
                }
                return Err(why);
            }
        };
        // There is no way back from here: nothing of this process can answer the kernel.
        drop(device);
        if let Some(metrics) = &self.metrics {
            metrics.suspend();
        }
        self.core.fs.seal_journal();
        if let Some(keeper) = self.core.supervisor.get() {
            keeper.report_successor(pid);
        }
        let _ = link.send(&PredecessorMessage::Go, &[]);
        systemd::notify_main_pid(pid);
        let stalled = stopped.elapsed();
        if let Err(error) = wait_for_step(&link, RESTORE_TIMEOUT) {
            tracing::error!(%error, "the successor does not say that it serves the mount");
        }
        successor.0 = None;
        let stalled_ms = stalled.as_millis() as u64;
        tracing::info!(pid, handles, stalled_ms, "handed over");
        Ok(HandoverReport { pid, stalled_ms, handles: handles as u64 })
    }

    /// Sends everything; says how many handles there are. Where something is left under
    /// way it lets go of the device first, which is in `device` then: what is answered
    /// after the tables were written down would not be true of them.
    fn drain_and_send(
        &self,
        link: &FdChannel,
        session: &Session,
        device: &mut Option<OwnedFd>,
    ) -> Result<usize, String> {
        if !self.drain(session)? {
            *device = Some(session.release_device().map_err(|error| error.to_string())?);
        }
        let snapshot = self.core.fs.snapshot();
        let (carried, files) = snapshot.map_err(|error| error.to_string())?;
        let handles = carried.handle_count();
        let give = || {
            let former = match self.core.predecessors_and_self() {
                // Before Linux 6.9 nothing is left to the successor.
                Err(_) if !session.init_params().can_resend() => Predecessors::default(),
                former => former?,
            };
            send_state(link, carried, &files, &former)?;
            let mut along = vec![device.as_ref().map_or(session.device(), AsFd::as_fd)];
            along.extend(self.core.supervisor.get().map(SupervisorClient::descriptor));
            link.send(&PredecessorMessage::Device, &along)
        };
        give().map_err(|error| error.to_string())?;
        Ok(handles)
    }

    /// Waits until nothing is under way that must not be left; false where something is.
    fn drain(&self, session: &Session) -> Result<bool, String> {
        let (begun, resends) = (Instant::now(), session.init_params().can_resend());
        self.core.fs.lift_payload_limit();
        loop {
            // First the threads: what they took is counted by what comes then.
            let busy = session.busy_threads().map_err(|error| error.to_string())?;
            let changing = self.core.fs.has_changes_in_flight();
            if busy == 0 && !changing && self.core.is_idle() {
                return Ok(true);
            }
            // Who is inside a replica only reads.
            let changing = changing || busy > self.core.reader.inline_calls();
            if !resends && self.core.fs.has_lock_waiters() {
                return Err("somebody waits for a lock".to_owned());
            }
            let waited = begun.elapsed();
            if waited >= READ_DRAIN_TIMEOUT && resends && !changing {
                tracing::info!("what is under way is asked for again");
                return Ok(false);
            }
            if waited >= CHANGE_DRAIN_TIMEOUT {
                let is_taken = busy <= self.core.reader.inline_calls();
                if resends && is_taken && self.core.fs.hand_over_changes(SILENCE_THRESHOLD) {
                    tracing::warn!("the write replica answers no change; the next daemon is asked");
                    return Ok(false);
                }
                return Err(match (changing, resends) {
                    (true, true) => CHANGES_IN_FLIGHT_ERROR.to_owned(),
                    (true, false) => CHANGE_HANGS_ERROR.to_owned(),
                    (false, _) => "a read is under way that does not end".to_owned(),
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl super::VolumeCore {
    pub(super) async fn request_handover(
        &self,
        order: HandoverRequest,
    ) -> Result<HandoverReport, String> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let order = HandoverRequest { reply: Some(send), ..order };
        let orders = self.handover_requests.lock().clone();
        let sent = orders.is_some_and(|orders| orders.send(order).is_ok());
        let ended = || "it is being unmounted".to_owned();
        if !sent {
            return Err(ended());
        }
        receive.await.map_err(|_| ended())?
    }

    /// What a successor is to know first.
    pub(super) fn mount_snapshot(
        &self,
        agreed: crate::fuse::InitParams,
        strict: bool,
    ) -> MountSnapshot {
        let fixed = self.mount_options(&self.overrides).fixed_options();
        MountSnapshot::new(&self.config, &self.roster, agreed, fixed, strict)
    }
}

/// Hears that the successor has got on.
fn wait_for_step(link: &FdChannel, patience: Duration) -> io::Result<()> {
    match link.recv(Some(patience))?.0 {
        SuccessorMessage::Refused { why } => Err(io::Error::other(why)),
        SuccessorMessage::Prepared | SuccessorMessage::Restored | SuccessorMessage::Serving => {
            Ok(())
        }
    }
}
