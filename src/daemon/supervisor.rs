//! A process that keeps a mount alive when its daemon dies.
//!
//! The kernel keeps a mount while any process has its FUSE device open, and requests wait. So
//! the keeper, which never touches a replica, keeps the device open as well. When the daemon
//! dies by a signal or a panic, the keeper starts another one. That daemon continues with the
//! device and with the journal of the first ([`crate::fs`]). The keeper also notices a dead
//! daemon whose threads hang in a replica and hold its descriptors open.
//!
//! If no daemon can continue the mount, the keeper starts one that replaces it. The dead mount
//! stays until then, and calls on it fail: otherwise programs would write to the directory
//! beneath.
//!
//! If daemons die too often, the keeper gives the mount up and leaves it dead: [`RestartLimiter`].

pub(super) mod client;
mod signals;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::dead_mount::abort_dead_mount;
use super::device_number::DeviceNumber;
use super::earlier_daemons::EarlierDaemons;
use super::fd_channel::{FdChannel, MAX_FDS_PER_MESSAGE as MOST_WITH_ONE};
use super::mount_point::find_fanfs_mount;
use super::process_state::is_dead;
use super::respawn::{ChildRole, RespawnCommand, current_program};
use crate::fuse::unmount;
use client::{DaemonMessage, SupervisorMessage};
use signals::{SignalForwarder, reap_children};

/// Why a keeper failed.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The daemon could not mount.
    #[error("{why}")]
    Failed {
        /// The daemon's message.
        why: String,
        /// Whether the configuration or the usage is wrong.
        usage: bool,
    },
    /// The daemon died too often.
    #[error(
        "the daemon of {at} died more than {MAX_RESTARTS} times within {} s, and the keeper does \
         not restart it; its log may say why; run `fanfs umount {at}`, then mount again",
        RESTART_WINDOW.as_secs()
    )]
    TooManyRestarts {
        /// The mount point.
        at: String,
    },
    /// A system call for processes or descriptors failed.
    #[error("the keeper failed: {0}")]
    System(#[from] io::Error),
}

/// A daemon is restarted at most this many times within [`RESTART_WINDOW`].
const MAX_RESTARTS: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_secs(60);

/// At most this many earlier daemons are sent to the next one. The device takes one more
/// descriptor.
const MAX_EARLIER_DAEMONS_SENT: usize = MOST_WITH_ONE - 1;

/// How often the keeper checks that the daemon is alive.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(250);

/// Time between two attempts to replace a dead mount.
const REPLACE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The times of recent restarts.
#[derive(Default)]
struct RestartLimiter(Vec<Instant>);

impl RestartLimiter {
    /// Whether a daemon may be restarted `now`. Counts the restart.
    fn try_restart(&mut self, now: Instant) -> bool {
        self.0.retain(|at| now.saturating_duration_since(*at) < RESTART_WINDOW);
        self.0.push(now);
        self.0.len() <= MAX_RESTARTS
    }
}

/// The keeper's state.
struct Supervisor {
    program: PathBuf,
    respawn: RespawnCommand,
    /// The device of the mount, as long as a daemon may continue with it.
    device: Option<OwnedFd>,
    /// The device number of the mount.
    device_number: Option<DeviceNumber>,
    /// Why the last daemon could not replace the mount.
    last_error: String,
    restarts: RestartLimiter,
    /// Process id of the daemon that serves now.
    daemon_pid: u32,
    /// All daemons that have served the mount and have not ended.
    earlier_daemons: EarlierDaemons,
}

/// How a daemon ended.
enum DaemonExit {
    /// The volume is unmounted.
    Unmounted,
    /// The daemon is dead.
    Died,
    /// The daemon could not continue the mount of its predecessor.
    CannotRecover,
    /// The daemon could not replace the dead mount.
    CannotReplace,
}

/// Keeps the mount of the daemon that `again` starts; returns when it is unmounted. Calls
/// `ready` when the volume is mounted for the first time. SIGTERM and SIGINT unmount it.
///
/// # Errors
/// [`SupervisorError`]; a mounted volume is then a dead mount.
pub(super) fn supervise(
    again: RespawnCommand,
    ready: impl FnOnce(),
) -> Result<(), SupervisorError> {
    // When the daemon has ended, its successor becomes a child of this process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(io::Error::from)?;
    let mut keeping = Supervisor {
        program: current_program(),
        respawn: again,
        device: None,
        device_number: None,
        last_error: String::new(),
        restarts: RestartLimiter::default(),
        daemon_pid: 0,
        earlier_daemons: EarlierDaemons::default(),
    };
    let signals = SignalForwarder::listen(keeping.respawn.mount_point.clone())?;
    let mut ready = Some(ready);
    loop {
        let link = keeping.start_daemon()?;
        signals.forward_to(link.try_clone()?);
        match keeping.watch_daemon(&link, &mut ready)? {
            DaemonExit::Unmounted => return Ok(()),
            DaemonExit::Died if keeping.device.is_none() && keeping.device_number.is_none() => {
                let why =
                    "the daemon ended without an error message; its log may say why".to_owned();
                return Err(SupervisorError::Failed { why, usage: false });
            }
            DaemonExit::Died => tracing::warn!("the daemon of the mount has died"),
            DaemonExit::CannotRecover => {
                keeping.abort_connection();
                if !keeping.is_mounted() {
                    tracing::info!(
                        "the dead mount was unmounted, so the keeper does not replace it"
                    );
                    return Ok(());
                }
            }
            // This daemon reported an error and did not die; the cause may disappear.
            DaemonExit::CannotReplace if keeping.wait_to_retry(&signals) => continue,
            DaemonExit::CannotReplace => return Ok(()),
        }
        reap_children();
        if !keeping.restarts.try_restart(Instant::now()) {
            keeping.abort_connection();
            let at = keeping.respawn.mount_point.display().to_string();
            let error = SupervisorError::TooManyRestarts { at };
            tracing::error!("{error}");
            return Err(error);
        }
        tracing::warn!("the keeper restarts the daemon");
    }
}

impl Supervisor {
    fn start_daemon(&mut self) -> io::Result<FdChannel> {
        let (link, theirs) = FdChannel::pair()?;
        let program = if self.program.exists() { self.program.clone() } else { current_program() };
        let mut command = self.respawn.command(&program, ChildRole::Supervised);
        // `reap_children` reaps it with all others.
        self.daemon_pid = command.stdin(Stdio::from(theirs)).spawn()?.id();
        self.earlier_daemons.remove_ended();
        let mut along = self.earlier_daemons.running();
        along.truncate(MAX_EARLIER_DAEMONS_SENT);
        match (&self.device, self.device_number) {
            (Some(device), _) => {
                along.push(device.as_fd());
                link.send(&SupervisorMessage::GoOn, &along)?;
            }
            (None, Some(dead)) => link.send(&SupervisorMessage::Replace { dead }, &along)?,
            (None, None) => link.send(&SupervisorMessage::Begin, &[])?,
        }
        self.set_daemon(self.daemon_pid);
        Ok(link)
    }

    /// Records that this running process serves the mount from now on.
    fn set_daemon(&mut self, pid: u32) {
        self.daemon_pid = pid;
        self.earlier_daemons.remove_ended();
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
            && let Err(error) = self.earlier_daemons.add(pid)
        {
            tracing::debug!(%error, "the keeper cannot watch the daemon's process");
        }
    }

    fn watch_daemon(
        &mut self,
        link: &FdChannel,
        ready: &mut Option<impl FnOnce()>,
    ) -> Result<DaemonExit, SupervisorError> {
        let mut is_dying = false;
        loop {
            match link.recv(Some(LIVENESS_INTERVAL)) {
                // Only the second check in a row counts: by then the daemon's last message has
                // arrived, and usually the end of the link.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    if is_dying && is_dead(self.daemon_pid) {
                        tracing::warn!("the daemon is dead, but its threads hang in a replica");
                        return Ok(DaemonExit::Died);
                    }
                    is_dying = is_dead(self.daemon_pid);
                }
                Ok((DaemonMessage::Passes { pid }, _)) => {
                    self.set_daemon(pid);
                    is_dying = false;
                }
                Ok((DaemonMessage::Mounted, mut along)) => {
                    self.device = along.pop();
                    self.device_number = self.visible_mount();
                    self.last_error.clear();
                    if let Some(ready) = ready.take() {
                        ready();
                    }
                }
                Ok((DaemonMessage::Failed { why, .. }, _)) if self.device.is_some() => {
                    tracing::error!(
                        why,
                        "the mount cannot be continued and is replaced; open files are lost"
                    );
                    return Ok(DaemonExit::CannotRecover);
                }
                Ok((DaemonMessage::Failed { why, .. }, _)) if self.device_number.is_some() => {
                    if why != self.last_error {
                        let at = self.respawn.mount_point.display();
                        tracing::error!(
                            why, %at,
                            "the dead mount cannot be replaced; the keeper retries in 5 s"
                        );
                        self.last_error = why;
                    }
                    return Ok(DaemonExit::CannotReplace);
                }
                Ok((DaemonMessage::Failed { why, usage }, _)) => {
                    return Err(SupervisorError::Failed { why, usage });
                }
                Ok((DaemonMessage::Next { program, options, volume, mount_point }, _)) => {
                    self.program = program;
                    self.respawn = RespawnCommand { options, volume, mount_point };
                }
                Ok((DaemonMessage::Done, _)) => return Ok(DaemonExit::Unmounted),
                Err(error) if is_disconnect(&error) => return Ok(DaemonExit::Died),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Aborts the connection of a mount that no daemon can continue. The mount stays, and calls
    /// on it fail, including those that wait.
    fn abort_connection(&mut self) {
        self.device = None;
        if let Some(number) = self.device_number {
            abort_dead_mount(&self.respawn.mount_point, number);
        }
    }

    /// The device number of the fanfs mount at the mount point.
    fn visible_mount(&self) -> Option<DeviceNumber> {
        find_fanfs_mount(&self.respawn.mount_point).map(|mount| mount.device_number)
    }

    fn is_mounted(&self) -> bool {
        self.device_number.is_some() && self.device_number == self.visible_mount()
    }

    /// Waits before the next attempt. Returns false if the dead mount is unmounted, or a signal
    /// asks for that.
    fn wait_to_retry(&self, signals: &SignalForwarder) -> bool {
        let until = Instant::now() + REPLACE_RETRY_INTERVAL;
        while self.is_mounted() {
            if signals.is_received() {
                if let Err(error) = unmount(&self.respawn.mount_point, true) {
                    tracing::error!(%error, "cannot unmount the dead mount; use `fanfs umount`");
                }
                return false;
            }
            if Instant::now() >= until {
                return true;
            }
            std::thread::sleep(LIVENESS_INTERVAL);
        }
        tracing::info!("the dead mount was unmounted; the keeper ends");
        false
    }
}

fn is_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::UnexpectedEof | K::ConnectionReset | K::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_of_the_daemon_are_limited() {
        let (mut restarts, now) = (RestartLimiter::default(), Instant::now());
        assert!((0..MAX_RESTARTS).all(|_| restarts.try_restart(now)));
        assert!(!restarts.try_restart(now));
        assert!(restarts.try_restart(now + RESTART_WINDOW));
    }
}
