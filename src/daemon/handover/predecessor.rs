//! Handing a mount over: the predecessor's side.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::protocol::{PredecessorMessage, SuccessorMessage, send_state};
use crate::control::HandoverReport;
use crate::daemon::earlier_daemons::EarlierDaemons;
use crate::daemon::fd_channel::FdChannel;
use crate::daemon::handover_error::HandoverError;
use crate::daemon::handover_request::HandoverRequest;
use crate::daemon::mount::Mount;
use crate::daemon::mount_snapshot::MountSnapshot;
use crate::daemon::respawn::ChildRole;
use crate::daemon::supervisor::client::SupervisorClient;
use crate::daemon::systemd;
use crate::daemon::volume_core::VolumeCore;
use crate::fuse::Session;
use crate::launcher::{self, ChildProcess};

/// How long a successor may take to get ready; applications do not wait meanwhile.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a handover waits for reads and lookups in flight. The kernel resends the slower
/// ones, if it can.
const READ_DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// The same for changes, which must not be made twice, and for all requests if the kernel
/// cannot resend. Applications wait as long. Changes that a silent replica has not answered by
/// then are left to the next daemon, to which the kernel resends them, as after a kill.
const CHANGE_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a successor may take to restore inodes and handles, and then to serve.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);

/// A write replica counts as silent if it has neither begun nor answered a change for this
/// long.
const SILENCE_THRESHOLD: Duration = Duration::from_secs(4);

/// The next daemon, from its start until it serves the mount. Dropping it kills the process
/// without waiting for its end: it may be inside a hung replica.
struct LaunchedSuccessor {
    link: FdChannel,
    process: Option<ChildProcess>,
    pid: u32,
}

impl Drop for LaunchedSuccessor {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }
}

impl LaunchedSuccessor {
    /// Waits until the successor has taken its next step.
    fn wait_for_step(&self, patience: Duration) -> Result<(), HandoverError> {
        let said = self.link.recv(Some(patience)).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => HandoverError::SuccessorEnded,
            io::ErrorKind::TimedOut => HandoverError::SuccessorLate,
            _ => HandoverError::System(error),
        })?;
        match said.0 {
            SuccessorMessage::Refused { why } => Err(HandoverError::Refused(why)),
            SuccessorMessage::Prepared | SuccessorMessage::Restored | SuccessorMessage::Serving => {
                Ok(())
            }
        }
    }

    /// Lets the process outlive this value.
    fn release(mut self) {
        self.process = None;
    }
}

/// The requests in flight when the tables are written down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DrainOutcome {
    /// None.
    Idle,
    /// Requests that the kernel resends to the successor.
    RequestsLeft,
}

/// A session that takes no requests until the successor has its device or the session is
/// resumed.
struct PausedSession<'a> {
    core: &'a VolumeCore,
    session: &'a Session,
    /// The device, once the session has dropped it.
    device: Option<OwnedFd>,
}

impl Mount {
    /// Hands the mount over to a successor, which it starts. Afterwards this process has no
    /// mount any more and must end without touching it.
    ///
    /// # Errors
    /// [`HandoverError`]; then this process serves the mount as before.
    pub(in crate::daemon) fn hand_over(
        &self,
        request: &HandoverRequest,
    ) -> Result<HandoverReport, HandoverError> {
        let successor = self.launch_successor(request)?;
        let session = self.session.lock();
        let session = session.as_ref().ok_or(HandoverError::Unmounting)?;
        let agreed = session.init_params().clone();
        let snapshot = MountSnapshot::new(&self.core, agreed, request.is_strict);
        // Errors are ignored: a successor that has ended already may have sent the reason.
        let _ = successor.link.send(&PredecessorMessage::Mount(snapshot), &[]);
        successor.wait_for_step(PREPARE_TIMEOUT)?;
        let paused_at = Instant::now();
        self.core.fs.track_unanswered();
        session.pause()?;
        let mut paused = PausedSession { core: &self.core, session, device: None };
        let handles = match paused.transfer(&successor) {
            Ok(handles) => handles,
            Err(why) => {
                paused.resume();
                return Err(why);
            }
        };
        // There is no way back from here: this process can no longer answer the kernel.
        drop(paused.device.take());
        Ok(self.complete_handover(successor, handles, paused_at))
    }

    fn launch_successor(
        &self,
        request: &HandoverRequest,
    ) -> Result<LaunchedSuccessor, HandoverError> {
        let mut respawn = self.respawn.clone().ok_or(HandoverError::NoRespawnCommand)?;
        if let Some(volume) = &request.volume {
            respawn.volume.clone_from(volume);
        }
        let (link, theirs) = FdChannel::pair()?;
        // The launcher starts it. A child of this process would close inherited files in
        // exec(2), which blocks for a file on a hung replica.
        let args = respawn.args(ChildRole::Successor);
        let process = launcher::launch(&request.program, args, theirs.as_fd());
        // Otherwise the link would stay open after the successor's death.
        drop(theirs);
        let process = process
            .map_err(|error| HandoverError::Launch { program: request.program.clone(), error })?;
        Ok(LaunchedSuccessor { link, pid: process.pid, process: Some(process) })
    }

    /// Lets the successor serve, after this process has dropped the device.
    fn complete_handover(
        &self,
        successor: LaunchedSuccessor,
        handles: usize,
        paused_at: Instant,
    ) -> HandoverReport {
        let pid = successor.pid;
        if let Some(metrics) = &self.metrics {
            metrics.suspend();
        }
        self.core.fs.seal_journal();
        if let Some(supervisor) = self.core.supervisor.get() {
            supervisor.report_successor(pid);
        }
        let _ = successor.link.send(&PredecessorMessage::Go, &[]);
        systemd::notify_main_pid(pid);
        let stalled_ms = paused_at.elapsed().as_millis() as u64;
        if let Err(error) = successor.wait_for_step(RESTORE_TIMEOUT) {
            tracing::error!(%error, "the new daemon did not confirm that it serves the mount");
        }
        successor.release();
        tracing::info!(pid, handles, stalled_ms, "handed the mount over to a new daemon");
        HandoverReport { pid, stalled_ms, handles: handles as u64 }
    }
}

impl PausedSession<'_> {
    /// Sends the state to the successor, and drops the device when the successor has restored
    /// it. Returns the number of open handles.
    fn transfer(&mut self, successor: &LaunchedSuccessor) -> Result<usize, HandoverError> {
        // A request that is answered after the tables were written down would be missing in
        // them, so the device is dropped first.
        if self.drain()? == DrainOutcome::RequestsLeft {
            self.release_device()?;
        }
        let handles = self.send_tables(&successor.link)?;
        successor.wait_for_step(RESTORE_TIMEOUT)?;
        self.release_device()?;
        Ok(handles)
    }

    fn release_device(&mut self) -> io::Result<()> {
        if self.device.is_none() {
            self.device = Some(self.session.release_device()?);
        }
        Ok(())
    }

    fn send_tables(&self, link: &FdChannel) -> Result<usize, HandoverError> {
        let (snapshot, files) = self.core.fs.snapshot().map_err(HandoverError::Tables)?;
        let handles = snapshot.handle_count();
        let daemons = match self.core.earlier_daemons_and_self() {
            // If the kernel cannot resend (before Linux 6.9), no change is left to the
            // successor.
            Err(_) if !self.session.init_params().can_resend() => EarlierDaemons::default(),
            daemons => daemons?,
        };
        send_state(link, snapshot, &files, &daemons)?;
        let device = self.device.as_ref().map_or(self.session.device(), AsFd::as_fd);
        let supervisor = self.core.supervisor.get().map(SupervisorClient::descriptor);
        let along: Vec<_> = std::iter::once(device).chain(supervisor).collect();
        link.send(&PredecessorMessage::Device, &along)?;
        Ok(handles)
    }

    /// Waits until no request is in flight that must not be left to the successor.
    fn drain(&self) -> Result<DrainOutcome, HandoverError> {
        let begun = Instant::now();
        let resends = self.session.init_params().can_resend();
        self.core.fs.lift_payload_limit();
        loop {
            // The threads are read first: a request that they hand on later shows in the other
            // counters.
            let busy = self.session.busy_threads()?;
            // Before the changes: a change counts before its thread is inside.
            let inside = self.core.replicas.inline_permits().in_use();
            let changing = self.core.fs.has_changes_in_flight();
            // A change in an inline call counts above, until its caller was answered. Another
            // replica may have answered a query: then no reply is owed, however long the thread
            // hangs.
            if busy <= inside && !changing && self.core.is_idle() {
                return Ok(DrainOutcome::Idle);
            }
            let changing = changing || busy > inside;
            if !resends && self.core.fs.locks.has_waiters() {
                return Err(HandoverError::LockWaiter);
            }
            let waited = begun.elapsed();
            // No request that is left may begin a change here.
            if waited >= READ_DRAIN_TIMEOUT
                && resends
                && !changing
                && self.core.fs.hand_over_changes(Duration::ZERO)
            {
                tracing::info!("requests are in flight; the kernel resends them to the new daemon");
                return Ok(DrainOutcome::RequestsLeft);
            }
            if waited >= CHANGE_DRAIN_TIMEOUT {
                let is_taken = busy <= self.core.replicas.inline_permits().in_use();
                if resends && is_taken && self.core.fs.hand_over_changes(SILENCE_THRESHOLD) {
                    tracing::warn!("the write replica hangs; the new daemon takes its changes");
                    return Ok(DrainOutcome::RequestsLeft);
                }
                return Err(match (changing, resends) {
                    (true, true) => HandoverError::ChangesInFlight,
                    (true, false) => HandoverError::ChangeHangs,
                    (false, _) => HandoverError::ReadHangs,
                });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes the session take requests again.
    fn resume(self) {
        self.core.fs.resume_changes();
        let taken_up = self.device.map_or(Ok(()), |device| self.session.reacquire_device(&device));
        if let Err(error) = taken_up.and(self.session.unpause()) {
            tracing::error!(%error, "the handover failed, and the daemon cannot resume");
        }
    }
}
