//! The parts that serve a volume, apart from the session.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedSender;

use super::earlier_daemons::EarlierDaemons;
use super::error::StartError;
use super::handover_request::HandoverRequest;
use super::supervisor::client::SupervisorClient;
use super::volume_backends::VolumeBackends;
use super::volume_policies::{
    fs_policy, mount_options, pool_limits, read_policy, replica_policy, start_replicas,
};
use super::volume_setup::{MountOverrides, VolumeSetup};
use super::{kernel_tuning, locator_setup, mount_watcher};
use crate::buffer::PipePool;
use crate::config::{Access, Config};
use crate::fs::{Fs, run};
use crate::fuse::MountOptions;
use crate::placement::{Locator, PlacementSource};
use crate::read::Reader;
use crate::replicas::Replicas;
use crate::survey::Roster;
use crate::telemetry::VolumeCounters;
use crate::telemetry::wall_clock::WallClock;

/// The replicas, the read path and the file system of a volume.
pub(super) struct VolumeCore {
    pub(super) config: Config,
    pub(super) mount_point: PathBuf,
    pub(super) overrides: MountOverrides,
    /// The process that starts another daemon if this one dies.
    pub(super) supervisor: OnceLock<SupervisorClient>,
    /// The daemons before this one that may not have ended.
    earlier_daemons: OnceLock<Arc<EarlierDaemons>>,
    /// The channel for handover requests to the main loop.
    pub(super) handover_requests: Mutex<Option<UnboundedSender<HandoverRequest>>>,
    pub(super) replicas: Arc<Replicas>,
    /// The checks that replicas have passed, and why some are out of service.
    pub(super) roster: Arc<Roster>,
    pub(super) reader: Arc<Reader>,
    pub(super) fs: Arc<Fs>,
    pub(super) counters: Arc<VolumeCounters>,
    reply_pipes: Option<PipePool>,
    pub(super) started_at: Instant,
    /// Makes the timestamps of status reports.
    pub(super) clock: WallClock,
}

/// A core, and the runtime that its tasks run on.
pub(super) struct StartedCore {
    pub(super) core: Arc<VolumeCore>,
    pub(super) runtime: Runtime,
}

/// Checks whether the placement provider can be used as it is configured.
///
/// # Errors
/// [`StartError::Placement`] if it cannot.
pub fn check_placement(config: &Config) -> Result<(), StartError> {
    validated_source(config).map(drop)
}

fn validated_source(config: &Config) -> Result<PlacementSource, StartError> {
    locator_setup::configured_source(config)
        .map_err(|error| StartError::Placement { source_file: config.source.clone(), error })
}

impl VolumeCore {
    /// Starts the replicas' threads and the tasks of the read path.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub(super) fn start(
        mut setup: VolumeSetup,
        members: VolumeBackends,
    ) -> Result<StartedCore, StartError> {
        if setup.overrides.read_only {
            setup.config.volume.access = Access::ReadOnly;
        }
        kernel_tuning::raise_descriptor_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let source = validated_source(&setup.config)?;
        let locator = locator_setup::build_locator(&setup.config, source, runtime.handle().clone());
        locator.prepare();
        let core = Arc::new(Self::new(setup, members, locator, &runtime));
        runtime.spawn(Arc::clone(&core.replicas).run_ticker());
        runtime.spawn(mount_watcher::watch_mounts(Arc::clone(&core.replicas)));
        Ok(StartedCore { core, runtime })
    }

    fn new(
        setup: VolumeSetup,
        members: VolumeBackends,
        locator: Locator,
        runtime: &Runtime,
    ) -> Self {
        let config = setup.config;
        let limits = pool_limits(&config, members.backends.len());
        let replicas = start_replicas(&config, &members.backends, limits);
        let policies = replicas.map(|_, replica| replica_policy(&config, replica, limits));
        let counters = Arc::new(VolumeCounters::default());
        let pipes = kernel_tuning::page_pipes(&config);
        let reader = Reader::new(
            read_policy(&config, pipes.segments),
            Arc::clone(&replicas),
            policies,
            Arc::clone(&counters),
            Arc::new(locator),
        );
        let fs = Fs::new(
            fs_policy(&config),
            Arc::clone(&replicas),
            Arc::clone(&reader),
            Arc::clone(&counters),
            runtime.handle().clone(),
        );
        Self {
            config,
            mount_point: setup.mount_point,
            overrides: setup.overrides,
            supervisor: OnceLock::new(),
            earlier_daemons: OnceLock::new(),
            handover_requests: Mutex::default(),
            replicas,
            roster: members.roster,
            reader,
            fs,
            counters,
            reply_pipes: pipes.replies,
            started_at: Instant::now(),
            clock: WallClock::default(),
        }
    }

    /// Reads the root of a replica, so that no unreadable volume is mounted.
    ///
    /// # Errors
    /// [`StartError::Root`].
    pub(super) fn read_root(&self) -> Result<(), StartError> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let fs = Arc::clone(&self.fs);
        run(async move {
            let _ = send.send(fs.namespace.init_root().await);
        });
        match receive.recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(errno)) => Err(StartError::Root(io::Error::from_raw_os_error(errno.raw()))),
            Err(_) => Err(StartError::Root(io::Error::from(io::ErrorKind::TimedOut))),
        }
    }

    /// How the volume is mounted.
    pub(super) fn mount_options(&self) -> MountOptions {
        mount_options(&self.config, &self.overrides, self.reply_pipes.clone())
    }

    /// Whether no request is in flight.
    pub(super) fn is_idle(&self) -> bool {
        let reads = self.reader.gauges();
        reads.requests + reads.small_reads == 0 && self.fs.gauges().calls == 0
    }

    /// Records the processes that served the mount before and may not have ended.
    pub(super) fn track_earlier_daemons(&self, daemons: EarlierDaemons) {
        let daemons = Arc::new(daemons);
        if self.config.volume.access == Access::ReadWrite {
            let watched = Arc::clone(&daemons);
            self.fs.set_earlier_daemons(move || watched.has_no_change_in_flight());
        }
        let _ = self.earlier_daemons.set(daemons);
    }

    /// This daemon and the earlier ones that have not ended, for a successor.
    ///
    /// # Errors
    /// If the process has no free descriptors.
    pub(super) fn earlier_daemons_and_self(&self) -> io::Result<EarlierDaemons> {
        match self.earlier_daemons.get() {
            Some(daemons) => daemons.with_current(),
            None => EarlierDaemons::default().with_current(),
        }
    }
}
