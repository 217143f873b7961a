//! The daemon's side of the link to its keeper ([`crate::daemon::supervisor`]).

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::daemon::dead_mount::DeadMount;
use crate::daemon::device_number::DeviceNumber;
use crate::daemon::fd_channel::FdChannel;
use crate::daemon::respawn::{RespawnCommand, current_program};
use crate::status::KeeperState;
use crate::volume::path_serde;

/// The messages of a keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) enum SupervisorMessage {
    /// Mount.
    Begin,
    /// Continue the mount of the device that comes along as the last descriptor: its daemon is
    /// dead. The descriptors before it are the earlier daemons that have not ended.
    GoOn,
    /// Replace the mount with this device number: its daemon is dead, and no other can continue
    /// the mount. The earlier daemons that have not ended come along.
    Replace { dead: DeviceNumber },
    /// Unmount and end.
    End,
}

/// The messages of a daemon to its keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::daemon) enum DaemonMessage {
    /// The volume is mounted; its device comes along.
    Mounted,
    /// The volume could not be mounted.
    Failed { why: String, usage: bool },
    /// This process serves the mount from now on.
    Passes { pid: u32 },
    /// A restart after the daemon's death uses this program and these arguments.
    Next {
        #[serde(with = "path_serde")]
        program: PathBuf,
        options: Vec<OsString>,
        #[serde(with = "path_serde")]
        volume: PathBuf,
        #[serde(with = "path_serde")]
        mount_point: PathBuf,
    },
    /// The volume is unmounted, and the keeper must not start a daemon again.
    Done,
}

/// The daemon's end of the link.
pub(in crate::daemon) struct SupervisorClient(FdChannel);

/// How a supervised daemon begins.
pub(in crate::daemon) enum StartMode {
    Mount,
    /// Continue the mount of this daemon.
    Recover(DeadDaemon),
    /// Replace this mount.
    ReplaceDead(DeadMount),
}

/// A daemon that was killed, and whose mount is still there.
pub(in crate::daemon) struct DeadDaemon {
    /// The device of its mount.
    pub(in crate::daemon) device: OwnedFd,
    /// That daemon and those before it that have not ended.
    pub(in crate::daemon) earlier_daemons: Vec<OwnedFd>,
}

impl SupervisorClient {
    pub(in crate::daemon) fn new(link: FdChannel) -> Self {
        Self(link)
    }

    /// The keeper that started this process, and the start mode that it requests.
    ///
    /// # Errors
    /// If the keeper's end is closed, or its message is invalid.
    pub(in crate::daemon) fn from_stdin() -> io::Result<(Self, StartMode)> {
        let link = FdChannel::from_stdin()?;
        let task = match link.recv(None)? {
            (SupervisorMessage::GoOn, mut along) => match along.pop() {
                Some(device) => StartMode::Recover(DeadDaemon { device, earlier_daemons: along }),
                None => return Err(io::Error::other("the keeper sent no FUSE device")),
            },
            (SupervisorMessage::Replace { dead }, earlier_daemons) => {
                StartMode::ReplaceDead(DeadMount { device_number: dead, earlier_daemons })
            }
            (SupervisorMessage::Begin | SupervisorMessage::End, _) => StartMode::Mount,
        };
        Ok((Self(link), task))
    }

    pub(in crate::daemon) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    fn send(&self, message: &DaemonMessage, along: &[BorrowedFd<'_>]) {
        if let Err(error) = self.0.send(message, along) {
            tracing::warn!(
                %error,
                "cannot reach the keeper; if this daemon is killed, the mount is lost"
            );
        }
    }

    /// Whether the keeper's process lives: when it dies, the kernel closes its end of the link.
    pub(in crate::daemon) fn state(&self) -> KeeperState {
        if self.0.is_peer_closed() { KeeperState::Gone } else { KeeperState::Running }
    }

    pub(in crate::daemon) fn report_mounted(&self, device: BorrowedFd<'_>) {
        self.send(&DaemonMessage::Mounted, &[device]);
    }

    /// Names the successor's process to the keeper, which checks that it is alive. Must be
    /// called before this process ends.
    pub(in crate::daemon) fn report_successor(&self, pid: u32) {
        self.send(&DaemonMessage::Passes { pid }, &[]);
    }

    pub(in crate::daemon) fn report_unmounted(&self) {
        self.send(&DaemonMessage::Done, &[]);
    }

    /// Reports that the volume could not be mounted.
    pub(in crate::daemon) fn report_failure(&self, why: String, usage: bool) {
        self.send(&DaemonMessage::Failed { why, usage }, &[]);
    }

    pub(in crate::daemon) fn report_respawn_command(&self, again: &RespawnCommand) {
        let program = current_program();
        let RespawnCommand { options, volume, mount_point } = again.clone();
        self.send(&DaemonMessage::Next { program, options, volume, mount_point }, &[]);
    }

    /// Calls `end` when the keeper sends [`SupervisorMessage::End`].
    ///
    /// # Errors
    /// If the process has no free threads or descriptors.
    pub(in crate::daemon) fn listen_for_stop(
        &self,
        end: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let link = self.0.try_clone()?;
        let listen = move || {
            loop {
                match link.recv(None) {
                    Ok((SupervisorMessage::End, _)) => return end(),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the keeper has died; if this daemon dies, the mount is lost");
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new().name("keeper".to_owned()).spawn(listen).map(drop)
    }
}
