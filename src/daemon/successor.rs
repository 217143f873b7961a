//! Going on with a mount that another process has served so far.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::admission::{ReplicaRequirement, VolumeBackends, survey_replicas};
use super::fd_channel::FdChannel;
use super::handover_protocol::{
    MountSnapshot, PredecessorMessage, SuccessorMessage, group_descriptors, read_state,
};
use super::supervisor_client::SupervisorClient;
use super::{Mount, MountOverrides, StartError, VolumeCore};
use crate::backend::OwnedFds;
use crate::config::Config;
use crate::control::{self, journal_path};
use crate::fs::{FsSnapshot, recover_journal};
use crate::fuse::{InitParams, ResumableSession, Session};
use crate::mount_table::MountTable;
use crate::volume::ReplicaSet;

/// How long a predecessor may take for each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

fn system_error(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}

/// Tells the process at the other end of `link` that it has no successor in this one.
pub fn refuse_handover(link: &FdChannel, why: &str) {
    let _ = link.send(&SuccessorMessage::Refused { why: why.to_owned() }, &[]);
}

impl Mount {
    /// Takes a mount over from the process at the other end of `link`.
    ///
    /// # Errors
    /// [`StartError`]; the other process serves it as before then, and has been told.
    pub fn take_over(
        link: &FdChannel,
        config: Config,
        mount_point: &Path,
        extra: &MountOverrides,
    ) -> Result<Self, StartError> {
        let taken = receive_handover(link, config, mount_point, extra);
        match &taken {
            Ok(_) => drop(link.send(&SuccessorMessage::Serving, &[])),
            Err(error) => refuse_handover(link, &error.to_string()),
        }
        taken
    }

    /// Goes on with the mount of `device`, whose daemon was killed. `former` are that
    /// daemon and others before it, as far as they have not ended.
    ///
    /// # Errors
    /// [`StartError`], where what that daemon wrote down does not suffice.
    pub fn recover(
        (device, former): (OwnedFd, Vec<OwnedFd>),
        config: Config,
        mount_point: &Path,
        extra: &MountOverrides,
    ) -> Result<Self, StartError> {
        let what = "cannot continue the mount of a daemon that was killed";
        let journal = journal_path(mount_point);
        let lost = |error| system_error(what)(journal_error(&journal, &error));
        let (head, carried) = recover_journal(&journal, config.volume.mode).map_err(&lost)?;
        let head: JournalHead =
            postcard::from_bytes(&head).map_err(|e| lost(io::Error::other(e)))?;
        let estate = head.snapshot_for(mount_point).map_err(|why| lost(io::Error::other(why)))?;
        let handles = carried.handle_count();
        let kind = (what, TakeoverKind::Recovery);
        let heir = PendingSuccessor::prepare(estate, config, mount_point, extra, kind)?;
        heir.core.track_predecessors(former);
        heir.restore(carried, Vec::new())?;
        let mount = heir.serve(device)?;
        tracing::warn!(handles, "the daemon before was killed; this one goes on");
        Ok(mount)
    }
}

/// The head of a journal.
#[derive(Serialize, Deserialize)]
struct JournalHead {
    connection: Option<(u32, u32)>,
    estate: MountSnapshot,
}

/// Why a journal cannot be used, and how to have one next time.
fn journal_error(journal: &Path, error: &io::Error) -> io::Error {
    let why = format!(
        "journal {}: {error}; for the next daemon, make sure that {} has free space and that \
         nothing removes files there",
        journal.display(),
        control::runtime_dir().display()
    );
    io::Error::new(error.kind(), why)
}

/// The device number of the FUSE mount there, which identifies its connection.
fn connection_number(mount_point: &Path) -> Option<(u32, u32)> {
    let table = MountTable::read().ok()?;
    table
        .top_mount_at(mount_point)
        .filter(|mount| mount.fs_type.starts_with("fuse"))
        .map(|mount| mount.dev)
}

impl JournalHead {
    /// The estate, if the journal belongs to the mount at `mount_point`. If none is visible
    /// there (`umount -l`), the journal's mount may still be in use.
    fn snapshot_for(self, mount_point: &Path) -> Result<MountSnapshot, String> {
        match (self.connection, connection_number(mount_point)) {
            (Some(its), Some(now)) if its != now => {
                Err("the journal is another mount's".to_owned())
            }
            _ => Ok(self.estate),
        }
    }
}

/// Why one daemon follows another.
#[derive(Clone, Copy)]
enum TakeoverKind {
    /// The configuration is read again.
    Reload,
    /// Another program.
    Upgrade,
    /// The predecessor was killed.
    Recovery,
}

/// Ready to go on with what another process has served.
struct PendingSuccessor {
    mount_snapshot: MountSnapshot,
    core: Arc<VolumeCore>,
    runtime: Runtime,
    session: ResumableSession,
    /// What cannot be done, where something fails.
    error_context: &'static str,
}

impl PendingSuccessor {
    fn prepare(
        estate: MountSnapshot,
        config: Config,
        mount_point: &Path,
        extra: &MountOverrides,
        (what, kind): (&'static str, TakeoverKind),
    ) -> Result<Self, StartError> {
        let members = VolumeBackends::absent(&config, |id| estate.replica_record(&config, id));
        let (core, runtime) = VolumeCore::start(config, members, mount_point, extra)?;
        let options = core.mount_options(extra);
        let suits = estate.check_compatible(&core.config, &options.fixed_options());
        suits.map_err(|why| system_error(what)(io::Error::other(why)))?;
        let (silent, needed) = match kind {
            TakeoverKind::Reload => {
                let survey = survey_replicas(&core.config, &core.mount_point)?;
                (survey.timed_out(), ReplicaRequirement::from_config(&core.config))
            }
            TakeoverKind::Upgrade => (ReplicaSet::EMPTY, ReplicaRequirement::UPGRADE),
            TakeoverKind::Recovery => (ReplicaSet::EMPTY, ReplicaRequirement::RECOVERY),
        };
        core.admit_replicas(silent, needed)?;
        let fs = Arc::clone(&core.fs);
        let ready =
            Session::prepare_resume(fs, &options, &estate.agreed).map_err(system_error(what))?;
        Ok(Self { mount_snapshot: estate, core, runtime, session: ready, error_context: what })
    }

    /// Knows what the other one knew, and has open what is given of what it had open.
    fn restore(&self, carried: FsSnapshot, files: Vec<OwnedFds>) -> Result<(), StartError> {
        let map = |old| self.mount_snapshot.map_replica(&self.core.config, old);
        let restored = self.core.fs.restore(carried, files, &map);
        restored.map_err(|why| system_error(self.error_context)(io::Error::other(why)))
    }

    /// Answers the kernel from now on.
    fn serve(self, device: OwnedFd) -> Result<Mount, StartError> {
        let Self { mount_snapshot: estate, core, runtime, session: ready, error_context: what } =
            self;
        core.start_journal(&estate.agreed);
        let session = Session::resume(ready, estate.agreed, device, &core.mount_point);
        Ok(Mount::with_session(core, runtime, session.map_err(system_error(what))?, None))
    }
}

fn receive_handover(
    link: &FdChannel,
    config: Config,
    mount_point: &Path,
    extra: &MountOverrides,
) -> Result<Mount, StartError> {
    let what = "cannot take the mount over";
    let cannot = system_error(what);
    let out_of_turn = || cannot(io::Error::other("the other process says something else"));
    let hear = || link.recv::<PredecessorMessage>(Some(STEP_TIMEOUT)).map_err(&cannot);
    let (PredecessorMessage::Estate(estate), _) = hear()? else { return Err(out_of_turn()) };
    let kind = if estate.strict { TakeoverKind::Reload } else { TakeoverKind::Upgrade };
    let heir = PendingSuccessor::prepare(estate, config, mount_point, extra, (what, kind))?;
    link.send(&SuccessorMessage::Prepared, &[]).map_err(&cannot)?;

    let (PredecessorMessage::All, mut all) = hear()? else { return Err(out_of_turn()) };
    let (carried, which) = read_state(all.pop().ok_or_else(out_of_turn)?).map_err(&cannot)?;
    let (mut files, mut former, mut last) = (Vec::new(), Vec::new(), Vec::new());
    while last.is_empty() {
        match hear()? {
            (PredecessorMessage::Files, some) => files.extend(some),
            (PredecessorMessage::Former, some) => former.extend(some),
            (PredecessorMessage::Device, device) if !device.is_empty() => last = device,
            _ => return Err(out_of_turn()),
        }
    }
    let mut last = last.into_iter();
    let device = last.next().ok_or_else(out_of_turn)?;
    let keeper = last.next().map(|end| SupervisorClient::new(FdChannel::from_fd(end)));
    heir.core.track_predecessors(former);
    heir.restore(carried, group_descriptors(&which, files))?;
    link.send(&SuccessorMessage::Restored, &[]).map_err(&cannot)?;

    let (PredecessorMessage::Go, _) = hear()? else { return Err(out_of_turn()) };
    let mount = heir.serve(device)?;
    if let Some(keeper) = keeper {
        mount.set_supervisor(keeper);
    }
    Ok(mount)
}

impl VolumeCore {
    /// Writes down from now on what the next daemon has to know if this one is killed,
    /// where somebody keeps the device for it.
    pub(super) fn start_journal(self: &Arc<Self>, agreed: &InitParams) {
        if !self.overrides.is_supervised {
            return;
        }
        let connection = connection_number(&self.mount_point);
        let begin = || {
            control::make_runtime_dir()?;
            let path = journal_path(&self.mount_point);
            self.fs.start_journal(&path, self.journal_head(connection, agreed)?)
        };
        if let Err(error) = begin() {
            tracing::warn!(%error, "no journal: if this daemon is killed, the mount is lost");
            return;
        }
        // Weak, as the core owns the roster.
        let (core, agreed) = (Arc::downgrade(self), agreed.clone());
        self.roster.on_admission(move || {
            if let Some(core) = core.upgrade() {
                core.fs.update_journal_head(|| core.journal_head(connection, &agreed));
            }
        });
    }

    /// The head of a journal as of now.
    fn journal_head(
        &self,
        connection: Option<(u32, u32)>,
        agreed: &InitParams,
    ) -> io::Result<Vec<u8>> {
        let head = JournalHead { connection, estate: self.mount_snapshot(agreed.clone(), false) };
        postcard::to_stdvec(&head).map_err(io::Error::other)
    }
}
