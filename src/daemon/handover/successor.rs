//! Continuing a mount that another process has served: the successor's side.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::protocol::{PredecessorMessage, StateMessage, SuccessorMessage};
use crate::backend::OwnedFileParts;
use crate::daemon::admission::{ReplicaRequirement, survey_replicas};
use crate::daemon::earlier_daemons::EarlierDaemons;
use crate::daemon::error::StartError;
use crate::daemon::fd_channel::FdChannel;
use crate::daemon::handover_error::TakeoverError;
use crate::daemon::mount::Mount;
use crate::daemon::mount_snapshot::MountSnapshot;
use crate::daemon::recovery_journal::{RecoveredJournal, start_journal};
use crate::daemon::supervisor::client::{DeadDaemon, SupervisorClient};
use crate::daemon::volume_backends::VolumeBackends;
use crate::daemon::volume_core::{StartedCore, VolumeCore};
use crate::daemon::volume_setup::VolumeSetup;
use crate::fs::FsSnapshot;
use crate::fuse::{ResumableSession, Session};
use crate::volume::ReplicaSet;

/// How long a predecessor may take for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Reports to the predecessor, at the other end of `link`, that this process cannot be its
/// successor.
pub(in crate::daemon) fn refuse_handover(link: &FdChannel, why: &str) {
    let _ = link.send(&SuccessorMessage::Refused { why: why.to_owned() }, &[]);
}

impl Mount {
    /// Takes a mount over from the process at the other end of `link`.
    ///
    /// # Errors
    /// [`StartError`], which the other process receives. Until it has dropped the device, that
    /// process resumes serving the mount.
    pub(in crate::daemon) fn take_over(
        link: &FdChannel,
        setup: VolumeSetup,
    ) -> Result<Self, StartError> {
        let taken = receive_handover(&Predecessor(link), setup);
        match &taken {
            Ok(_) => drop(link.send(&SuccessorMessage::Serving, &[])),
            Err(error) => refuse_handover(link, &error.to_string()),
        }
        taken
    }

    /// Continues the mount of a daemon that was killed.
    ///
    /// # Errors
    /// [`StartError`], for example if that daemon's journal cannot be used.
    pub(in crate::daemon) fn recover(
        dead: DeadDaemon,
        setup: VolumeSetup,
    ) -> Result<Self, StartError> {
        let kind = TakeoverKind::Recovery;
        let mode = setup.config.volume.mode;
        let journal =
            RecoveredJournal::read(&setup.mount_point, mode).map_err(|error| kind.error(error))?;
        let handles = journal.tables.handle_count();
        let successor = PendingSuccessor::prepare(journal.mount, setup, kind)?;
        let earlier = EarlierDaemons::new(dead.earlier_daemons);
        successor.started.core.track_earlier_daemons(earlier);
        successor.restore(journal.tables, Vec::new())?;
        let mount = successor.serve(dead.device)?;
        tracing::warn!(handles, "the previous daemon was killed; this one continues its mount");
        Ok(mount)
    }
}

/// Why one daemon follows another.
#[derive(Clone, Copy)]
enum TakeoverKind {
    /// The configuration is read again.
    Reload,
    /// Another program continues the mount.
    Upgrade,
    /// The predecessor was killed.
    Recovery,
}

impl TakeoverKind {
    /// The error of this takeover, caused by `error`.
    fn error(self, error: impl Into<TakeoverError>) -> StartError {
        let operation = match self {
            Self::Reload | Self::Upgrade => "cannot take over the mount",
            Self::Recovery => "cannot continue the mount of a killed daemon",
        };
        StartError::Takeover { operation, error: error.into() }
    }
}

/// A daemon that is ready to continue a mount.
struct PendingSuccessor {
    mount_snapshot: MountSnapshot,
    started: StartedCore,
    session: ResumableSession,
    kind: TakeoverKind,
}

impl PendingSuccessor {
    fn prepare(
        snapshot: MountSnapshot,
        setup: VolumeSetup,
        kind: TakeoverKind,
    ) -> Result<Self, StartError> {
        let config = &setup.config;
        let members = VolumeBackends::absent(config, |id| snapshot.replica_record(config, id));
        let started = VolumeCore::start(setup, members)?;
        let core = &started.core;
        let options = core.mount_options();
        snapshot
            .check_compatible(&core.config, &options.fixed_options())
            .map_err(|error| kind.error(error))?;
        match kind {
            TakeoverKind::Reload => {
                let silent = survey_replicas(&core.config, &core.mount_point)?.timed_out();
                core.admit_replicas(silent, ReplicaRequirement::from_config(&core.config))?;
            }
            TakeoverKind::Upgrade => {
                core.admit_replicas(ReplicaSet::EMPTY, ReplicaRequirement::UPGRADE)?;
            }
            TakeoverKind::Recovery => {
                core.admit_replicas(ReplicaSet::EMPTY, ReplicaRequirement::RECOVERY)?;
            }
        }
        let session = Session::prepare_resume(Arc::clone(&core.fs), &options, &snapshot.agreed)
            .map_err(|error| kind.error(error))?;
        Ok(Self { mount_snapshot: snapshot, started, session, kind })
    }

    /// Restores the predecessor's tables, with the files that came along.
    fn restore(&self, tables: FsSnapshot, files: Vec<OwnedFileParts>) -> Result<(), StartError> {
        let core = &self.started.core;
        let map = |old| self.mount_snapshot.map_replica(&core.config, old);
        let restored = core.fs.restore(tables, files, &map);
        restored.map_err(|why| self.kind.error(TakeoverError::Tables(why)))
    }

    /// Answers the kernel from now on, through `device`.
    fn serve(self, device: OwnedFd) -> Result<Mount, StartError> {
        let agreed = self.mount_snapshot.agreed;
        start_journal(&self.started.core, &agreed);
        let mount_point = &self.started.core.mount_point;
        let session = Session::resume(self.session, agreed, device, mount_point)
            .map_err(|error| self.kind.error(error))?;
        Ok(Mount::with_session(self.started, session, None))
    }
}

/// The process that hands its mount over.
struct Predecessor<'a>(&'a FdChannel);

/// The descriptors that a predecessor sends after its tables.
#[derive(Default)]
struct ReceivedDescriptors {
    files: Vec<OwnedFd>,
    earlier_daemons: Vec<OwnedFd>,
    /// The device, and the keeper's link if there is one.
    device: Vec<OwnedFd>,
}

/// A message with its descriptors.
type Received = (PredecessorMessage, Vec<OwnedFd>);

impl Predecessor<'_> {
    fn receive(&self) -> Result<Received, TakeoverError> {
        Ok(self.0.recv(Some(STEP_TIMEOUT))?)
    }

    fn receive_mount(&self) -> Result<MountSnapshot, TakeoverError> {
        match self.receive()? {
            (PredecessorMessage::Mount(snapshot), _) => Ok(snapshot),
            _ => Err(TakeoverError::OutOfTurn),
        }
    }

    fn receive_state(&self) -> Result<StateMessage, TakeoverError> {
        match self.receive()? {
            (PredecessorMessage::Tables, mut along) => {
                let tables = along.pop().ok_or(TakeoverError::OutOfTurn)?;
                Ok(StateMessage::read(tables, along.pop())?)
            }
            _ => Err(TakeoverError::OutOfTurn),
        }
    }

    fn receive_descriptors(&self) -> Result<ReceivedDescriptors, TakeoverError> {
        let mut received = ReceivedDescriptors::default();
        while received.device.is_empty() {
            match self.receive()? {
                (PredecessorMessage::Files, some) => received.files.extend(some),
                (PredecessorMessage::EarlierDaemons, some) => received.earlier_daemons.extend(some),
                (PredecessorMessage::Device, some) if !some.is_empty() => received.device = some,
                _ => return Err(TakeoverError::OutOfTurn),
            }
        }
        Ok(received)
    }

    fn await_permission(&self) -> Result<(), TakeoverError> {
        match self.receive()? {
            (PredecessorMessage::Go, _) => Ok(()),
            _ => Err(TakeoverError::OutOfTurn),
        }
    }

    fn send(&self, step: &SuccessorMessage) -> Result<(), TakeoverError> {
        Ok(self.0.send(step, &[])?)
    }
}

fn receive_handover(
    predecessor: &Predecessor<'_>,
    setup: VolumeSetup,
) -> Result<Mount, StartError> {
    // The first message shows whether this is a reload or an upgrade; the error's text is the
    // same for both.
    let cannot = |error| TakeoverKind::Upgrade.error(error);
    let snapshot = predecessor.receive_mount().map_err(cannot)?;
    let kind = if snapshot.strict { TakeoverKind::Reload } else { TakeoverKind::Upgrade };
    let successor = PendingSuccessor::prepare(snapshot, setup, kind)?;
    predecessor.send(&SuccessorMessage::Prepared).map_err(cannot)?;

    let mut state = predecessor.receive_state().map_err(cannot)?;
    let received = predecessor.receive_descriptors().map_err(cannot)?;
    let files = state.group_parts(received.files);
    let earlier = EarlierDaemons::new(received.earlier_daemons);
    successor.started.core.track_earlier_daemons(earlier);
    successor.restore(state.snapshot, files)?;
    predecessor.send(&SuccessorMessage::Restored).map_err(cannot)?;

    predecessor.await_permission().map_err(cannot)?;
    let mut descriptors = received.device.into_iter();
    let device = descriptors.next().ok_or_else(|| cannot(TakeoverError::OutOfTurn))?;
    let mount = successor.serve(device)?;
    if let Some(link) = descriptors.next() {
        mount.set_supervisor(SupervisorClient::new(FdChannel::from_fd(link)));
    }
    Ok(mount)
}
