//! A mounted volume: its session, control socket and metrics.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Runtime;

use super::recovery_journal::start_journal;
use super::respawn::RespawnCommand;
use super::supervisor::client::SupervisorClient;
use super::volume_core::{StartedCore, VolumeCore};
use super::{kernel_tuning, systemd};
use crate::control::{self, ControlServer};
use crate::fuse::{MountError, MountTarget, Session};
use crate::metrics::{BoundListener, Exporter, SnapshotFn};
use crate::replicas::health::HealthState;
use crate::status::Status;

/// A mounted volume.
pub struct Mount {
    pub(super) core: Arc<VolumeCore>,
    pub(super) session: Mutex<Option<Session>>,
    pub(super) mount_point: PathBuf,
    pub(super) runtime: Option<Runtime>,
    pub(super) control: Option<ControlServer>,
    pub(super) metrics: Option<Exporter>,
    pub(super) respawn: Option<RespawnCommand>,
}

impl StartedCore {
    /// Mounts the volume at `target`.
    ///
    /// # Errors
    /// [`MountError`]; then nothing is mounted.
    pub(super) fn mount(
        self,
        target: &MountTarget,
        metrics: Option<BoundListener>,
    ) -> Result<Mount, MountError> {
        let options = self.core.mount_options();
        let first = |agreed: &_| start_journal(&self.core, agreed);
        let session = Session::start(Arc::clone(&self.core.fs), target, &options, first)?;
        if target.has_dead_mount {
            let at = target.path.display();
            tracing::warn!(%at, "replaced a dead mount");
        }
        Ok(Mount::with_session(self, session, metrics))
    }
}

impl Mount {
    /// A mount that `session` serves. `metrics` is the metrics listener, if it is bound
    /// already.
    pub(super) fn with_session(
        started: StartedCore,
        session: Session,
        metrics: Option<BoundListener>,
    ) -> Self {
        if started.core.overrides.is_supervised {
            systemd::store_device(session.device());
        }
        let mut mount = Self {
            mount_point: session.mount_point().to_owned(),
            core: started.core,
            session: Mutex::new(Some(session)),
            runtime: Some(started.runtime),
            control: None,
            metrics: None,
            respawn: None,
        };
        mount.tune_kernel();
        if !mount.core.overrides.no_control {
            mount.start_control();
        }
        mount.start_metrics(metrics);
        mount
    }

    fn tune_kernel(&self) {
        let fuse = &self.core.config.fuse;
        if fuse.kernel_tuning {
            match kernel_tuning::set_readahead(&self.mount_point, fuse.kernel_readahead) {
                Ok(()) => tracing::debug!(
                    bytes = fuse.kernel_readahead,
                    "set the mount's kernel readahead"
                ),
                Err(error) => tracing::info!(%error, "cannot set the kernel readahead"),
            }
        }
    }

    fn start_control(&mut self) {
        let Some(runtime) = &self.runtime else { return };
        let core = Arc::clone(&self.core);
        let answer = move |request| {
            let core = Arc::clone(&core);
            let response = async move { core.handle_request(request).await };
            Box::pin(async move { response.await.map_err(control::ControlError::failed) })
                as control::ResponseFuture
        };
        match ControlServer::listen(runtime.handle(), &self.mount_point, answer) {
            Ok(control) => self.control = Some(control),
            // Not worth failing the mount: only the commands that use the control socket miss
            // it.
            Err(error) => tracing::warn!(%error, "no control socket for `fanfs status`"),
        }
    }

    fn start_metrics(&mut self, bound: Option<BoundListener>) {
        let config = &self.core.config.metrics;
        let Some(runtime) = &self.runtime else { return };
        if config.listen.is_none() && config.textfile.is_none() {
            return;
        }
        let core = Arc::clone(&self.core);
        let look: SnapshotFn = Arc::new(move || core.metrics_snapshot());
        self.metrics = Some(Exporter::start(runtime.handle(), config, bound, look));
    }

    /// The mount point.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// The status record that `fanfs status` shows.
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// Whether the session has ended because another process unmounted the volume.
    pub fn is_unmounted(&self) -> bool {
        self.session.lock().as_ref().is_none_or(Session::has_ended)
    }

    /// The line that `systemctl status` shows.
    pub(super) fn service_status(&self) -> String {
        let replicas = self.core.reader.replica_snapshots();
        let is_read = |state| !matches!(state, HealthState::Absent | HealthState::Ejected);
        let read = replicas.iter().filter(|(_, replica)| is_read(replica.health.state)).count();
        let at = self.mount_point.display();
        format!("serving {at} from {read} of {} replicas", replicas.len())
    }

    /// Reports that the mount answers: to its keeper `supervisor`, if there is one, and to
    /// systemd. `respawn` is the command that starts this program again for the mount.
    pub(super) fn announce_ready(
        &mut self,
        supervisor: Option<SupervisorClient>,
        respawn: RespawnCommand,
    ) {
        if let Some(supervisor) = supervisor {
            self.set_supervisor(supervisor);
        }
        if let Some(supervisor) = self.core.supervisor.get() {
            if let Some(session) = &*self.session.lock() {
                supervisor.report_mounted(session.device());
            }
            supervisor.report_respawn_command(&respawn);
        }
        self.respawn = Some(respawn);
        systemd::notify_ready(&self.service_status());
    }

    /// The mount's keeper.
    pub(super) fn supervisor(&self) -> Option<&SupervisorClient> {
        self.core.supervisor.get()
    }

    /// Sets the mount's keeper. A mount has one keeper for its whole life, so only the first
    /// call counts.
    pub(super) fn set_supervisor(&self, supervisor: SupervisorClient) {
        let _ = self.core.supervisor.set(supervisor);
    }
}
