//! A mounted volume: everything wired together, started and ended.
//!
//! [`Mount::start_from_config`] builds the replicas, the read path and the file system from a
//! [`Config`]. It brings replicas into service ([`admission`]) and reads the root from
//! one of them, so that no unreadable volume is mounted. Then it mounts, tunes the
//! kernel, and listens on the control socket. [`Mount::stop`] works in reverse: it
//! detaches the mount, waits briefly for requests in flight, and fails the rest.
//!
//! One process may follow another on a mount: [`handover`] and [`successor`] are the
//! two sides of that, [`supervisor`] a process that stays when this one dies, [`systemd`]
//! what systemd does for it.
//!
//! *Invariant:* whatever `start` returns an error for has been undone.

mod admission;
mod control_handlers;
mod dead_mount;
mod explain_facts;
mod fd_channel;
mod handover;
mod handover_protocol;
mod kernel_tuning;
mod locator_setup;
mod mount_point;
mod mount_watcher;
mod predecessors;
mod required_capabilities;
mod shutdown;
mod status;
mod successor;
mod supervisor;
mod supervisor_client;
mod system_memory;
pub mod systemd;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;

use crate::backend::{Attr, Backend, PoolLimits, Replica};
use crate::buffer::PipePool;
use crate::config::units::Share;
use crate::config::{Access, Config, LockMode, Passthrough};
use crate::control::{self, ControlRequest, ControlResponse, ControlServer, Status};
use crate::explain::ExplainFacts;
use crate::fs::{CacheModePolicy, Fs, FsPolicy, WritePolicy};
use crate::fuse::{InitParams, MountError, MountOptions, MountTarget, Session};
use crate::metrics::{BoundListener, Exporter, MetricsError, SnapshotFn};
use crate::placement::{Locator, PlacementError, PlacementSource};
use crate::read::{Deadlines, ReadPolicy, Reader};
use crate::scheduler::ReplicaPolicy;
use crate::telemetry::{ReplicaCounters, VolumeCounters};
use crate::volume::fanfs_mounts;
use crate::volume::survey::Roster;
use crate::volume::{ReplicaMap, ReplicaSet, VolumeMode};
use admission::{ReplicaRequirement, VolumeBackends};
use predecessors::Predecessors;

pub use admission::survey_replicas;
pub use required_capabilities::drop_privileges;

pub use dead_mount::DeadMount;
pub use fd_channel::FdChannel;
pub use handover::{HandoverRequest, RespawnCommand, self_command};
pub use mount_point::is_automounted;
pub use successor::refuse_handover;
pub use supervisor::{SupervisorError, supervise};
pub use supervisor_client::{StartMode, SupervisorClient};

/// Why a volume could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The mount point is no directory, or cannot be looked at.
    #[error("mount point {}: {reason}", .path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration can never be right, or too few replicas can come into service.
    #[error("{0}")]
    Refused(String),
    /// No replica shows its root.
    #[error("no replica could be read: {0}")]
    Root(io::Error),
    /// The mount itself failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The placement provider cannot be used as it is configured.
    #[error("{}: [placement]: {error}", .source_file.display())]
    Placement {
        /// The volume's configuration.
        source_file: PathBuf,
        /// What is wrong.
        error: PlacementError,
    },
    /// Metrics cannot be published where the configuration says.
    #[error("{}: {error}", .source_file.display())]
    Metrics {
        /// The volume's configuration.
        source_file: PathBuf,
        /// What is wrong.
        error: MetricsError,
    },
    /// Threads or sockets.
    #[error("{what}: {error}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What it failed with.
        error: io::Error,
    },
}

/// The facts about a file of a volume that need not be mounted: nothing is
/// measured then, and the provider is asked from here.
///
/// # Errors
/// What is wrong with the provider, in one line.
pub fn explain_facts_unmounted(
    config: &Config,
    path: &Path,
    attr: &Attr,
) -> Result<ExplainFacts, String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let source = locator_setup::configured_source(config).map_err(|error| error.to_string())?;
    let locator = locator_setup::build_locator(config, source, runtime.handle().clone());
    Ok(runtime.block_on(explain_facts::collect_facts(config, &locator, path, attr.version(), None)))
}

/// What may be said about a mount besides the volume's configuration.
#[derive(Clone, Debug, Default)]
pub struct MountOverrides {
    /// Honour set-id bits.
    pub suid: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Do not let programs be run.
    pub noexec: bool,
    /// Let nothing be changed, whatever the configuration says.
    pub read_only: bool,
    /// Let other users in, whatever the configuration says.
    pub allow_other: bool,
    /// Do not listen on a control socket.
    pub no_control: bool,
    /// Somebody keeps the device: write down what the next daemon has to know if this
    /// one is killed.
    pub is_supervised: bool,
}

/// Session threads that never call a replica: one that takes requests, and one
/// that takes them while the first answers.
const RESERVED_SESSION_THREADS: usize = 2;

/// Jobs that may wait for one replica's threads.
const POOL_QUEUE_DEPTH: usize = 4096;

/// A mounted volume.
pub struct Mount {
    core: Arc<VolumeCore>,
    session: Mutex<Option<Session>>,
    mount_point: PathBuf,
    runtime: Option<tokio::runtime::Runtime>,
    control: Option<ControlServer>,
    metrics: Option<Exporter>,
    respawn: Option<RespawnCommand>,
}

/// What serves the volume, apart from the session.
struct VolumeCore {
    config: Config,
    mount_point: PathBuf,
    overrides: MountOverrides,
    /// The process that starts another daemon if this one dies.
    supervisor: OnceLock<SupervisorClient>,
    /// The daemons before this one that may not have ended.
    predecessors: OnceLock<Arc<Predecessors>>,
    /// Where what somebody wants of the mount goes to.
    handover_requests: Mutex<Option<tokio::sync::mpsc::UnboundedSender<HandoverRequest>>>,
    replicas: ReplicaMap<Arc<Replica>>,
    /// The checks that replicas have passed, and why some are out of service.
    roster: Arc<Roster>,
    reader: Arc<Reader>,
    fs: Arc<Fs>,
    counters: Arc<VolumeCounters>,
    reply_pipes: Option<PipePool>,
    started_at: Instant,
}

/// Looks whether the placement provider can be used as it is configured.
///
/// # Errors
/// [`StartError::Placement`] where it cannot.
pub fn check_placement(config: &Config) -> Result<(), StartError> {
    validated_source(config).map(drop)
}

fn validated_source(config: &Config) -> Result<PlacementSource, StartError> {
    locator_setup::configured_source(config)
        .map_err(|error| StartError::Placement { source_file: config.source.clone(), error })
}

impl Mount {
    /// Mounts a volume over `backends`, one for each replica of `config`.
    ///
    /// # Errors
    /// [`StartError`]; nothing is mounted then.
    pub fn start_with_backends(
        config: Config,
        backends: ReplicaMap<Arc<dyn Backend>>,
        mount_point: &Path,
        extra: &MountOverrides,
    ) -> Result<Self, StartError> {
        let members = VolumeBackends::from_backends(&config, backends);
        Self::start_with_members(config, members, ReplicaSet::EMPTY, mount_point, extra)
    }

    /// Mounts a volume. `silent` are replicas that have just failed to answer.
    ///
    /// # Errors
    /// [`StartError`]; nothing is mounted then.
    pub fn start_from_config(
        config: Config,
        silent: ReplicaSet,
        mount_point: &Path,
        extra: &MountOverrides,
    ) -> Result<Self, StartError> {
        let members = VolumeBackends::absent(&config, |_| None);
        Self::start_with_members(config, members, silent, mount_point, extra)
    }

    fn start_with_members(
        config: Config,
        members: VolumeBackends,
        silent: ReplicaSet,
        mount_point: &Path,
        extra: &MountOverrides,
    ) -> Result<Self, StartError> {
        let place = mount_point::check_mount_point(mount_point)?;
        let opened = BoundListener::bind(&config.metrics)
            .map_err(|error| StartError::Metrics { source_file: config.source.clone(), error })?;
        let (core, runtime) = VolumeCore::start(config, members, &place.path, extra)?;
        core.admit_replicas(silent, ReplicaRequirement::from_config(&core.config))?;
        core.read_root()?;
        let session = core.start_session(&place)?;
        Ok(Self::with_session(core, runtime, session, opened))
    }

    /// A mount that a session serves. `opened` is where metrics are fetched, as far as
    /// that is had already.
    fn with_session(
        core: Arc<VolumeCore>,
        runtime: tokio::runtime::Runtime,
        session: Session,
        opened: Option<BoundListener>,
    ) -> Self {
        if core.overrides.is_supervised {
            systemd::store_device(session.device());
        }
        let mut mount = Self {
            mount_point: session.mount_point().to_owned(),
            core,
            session: Mutex::new(Some(session)),
            runtime: Some(runtime),
            control: None,
            metrics: None,
            respawn: None,
        };
        mount.tune_kernel();
        if !mount.core.overrides.no_control {
            mount.start_control();
        }
        mount.start_metrics(opened);
        mount
    }

    fn tune_kernel(&self) {
        let fuse = &self.core.config.fuse;
        if fuse.kernel_tuning {
            match kernel_tuning::set_readahead(&self.mount_point, fuse.kernel_readahead) {
                Ok(()) => tracing::debug!(bytes = fuse.kernel_readahead, "kernel readahead set"),
                Err(error) => tracing::info!(%error, "kernel readahead is left as it is"),
            }
        }
    }

    fn start_control(&mut self) {
        let Some(runtime) = &self.runtime else { return };
        let core = Arc::clone(&self.core);
        let answer = move |ask| {
            let core = Arc::clone(&core);
            Box::pin(async move {
                core.handle_request(ask).await.map_err(control::ControlError::failed)
            }) as control::ResponseFuture
        };
        match ControlServer::listen(runtime.handle(), &self.mount_point, answer) {
            Ok(control) => self.control = Some(control),
            // The mount is what counts; only `fanfs status` misses it.
            Err(error) => tracing::warn!(%error, "no control socket"),
        }
    }

    fn start_metrics(&mut self, opened: Option<BoundListener>) {
        let config = &self.core.config.metrics;
        let Some(runtime) = &self.runtime else { return };
        if config.listen.is_none() && config.textfile.is_none() {
            return;
        }
        let core = Arc::clone(&self.core);
        let look: SnapshotFn = Arc::new(move || core.metrics_snapshot());
        self.metrics = Some(Exporter::start(runtime.handle(), config, opened, look));
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// What `fanfs status` shows.
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// Whether somebody has unmounted it.
    pub fn is_unmounted(&self) -> bool {
        self.session.lock().as_ref().is_none_or(Session::has_ended)
    }
}

impl VolumeCore {
    fn start(
        mut config: Config,
        members: VolumeBackends,
        mount_point: &Path,
        extra: &MountOverrides,
    ) -> Result<(Arc<Self>, tokio::runtime::Runtime), StartError> {
        if extra.read_only {
            config.volume.access = Access::ReadOnly;
        }
        kernel_tuning::raise_descriptor_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()
            .map_err(|error| StartError::System { what: "cannot start the runtime", error })?;
        let source = validated_source(&config)?;
        let locator = locator_setup::build_locator(&config, source, runtime.handle().clone());
        let place = (mount_point.to_owned(), extra.clone());
        let core = Arc::new(Self::new(config, members, locator, place, runtime.handle().clone()));
        runtime.spawn(Arc::clone(&core.reader).run_ticker());
        runtime.spawn(mount_watcher::watch_mounts(Arc::clone(&core.reader), core.replicas.clone()));
        Ok((core, runtime))
    }

    fn new(
        config: Config,
        VolumeBackends { roster, backends }: VolumeBackends,
        locator: Locator,
        (mount_point, extra): (PathBuf, MountOverrides),
        runtime: tokio::runtime::Handle,
    ) -> Self {
        // Of several replicas one alone must not get hold of all guests.
        let guests = config.fuse.threads.saturating_sub(RESERVED_SESSION_THREADS);
        let own = if backends.len() > 1 { guests.div_ceil(2) } else { guests };
        let threads = config.read.threads_per_replica;
        let pool = PoolLimits { threads, queue: POOL_QUEUE_DEPTH, max_inline_calls: own };
        let replicas = backends.map(|id, backend| {
            let name = config.replicas[id.index()].name.clone();
            let counters = Arc::new(ReplicaCounters::default());
            let replica = Replica::new(id, name, Arc::clone(backend), pool, counters);
            let is_written =
                config.volume.access == Access::ReadWrite && id == config.write.replica;
            Arc::new(if is_written { replica.as_write_replica() } else { replica })
        });
        let limits = replicas.map(|id, _| {
            let replica = &config.replicas[id.index()];
            ReplicaPolicy {
                weight: replica.weight,
                max_in_flight: replica
                    .max_in_flight
                    .unwrap_or(u64::MAX)
                    .min(config.read.max_in_flight),
                max_reads: pool.max_readers() + pool.max_inline_calls,
            }
        });
        let counters = Arc::new(VolumeCounters::default());
        let pipes = kernel_tuning::page_pipes(&config);
        let deadlines = Deadlines::new(config.read.deadline, config.read.deadline_all);
        let read = ReadPolicy {
            segment: config.read.segment_size,
            readahead_max: config.read.readahead_max,
            budget: config.memory.budget,
            deadlines,
            attempt_deadline: config.read.attempt_deadline,
            max_inline_calls: guests,
            compare_share: match config.volume.mode {
                VolumeMode::Shared => Share(0.0),
                VolumeMode::Copies => config.read.compare,
            },
            pipes: pipes.as_ref().map(|pipes| pipes.segments.clone()),
        };
        let locator = Arc::new(locator);
        let reader = Reader::new(read, replicas.clone(), limits, Arc::clone(&counters), locator);
        let reader = Arc::new(reader);
        let policy = FsPolicy {
            mode: config.volume.mode,
            deadlines,
            attempt_deadline: config.read.attempt_deadline,
            attribute_ttl: config.fuse.attribute_ttl,
            cache_mode: CacheModePolicy {
                cache: config.read.cache,
                memory: system_memory::memory_limit(),
            },
            passthrough: config.read.passthrough == Passthrough::WholeFile,
            write: (config.volume.access == Access::ReadWrite).then_some(WritePolicy {
                replica: config.write.replica,
                deadlines: Deadlines::new(config.write.deadline, config.read.deadline_all),
                lag: config.write.lag,
            }),
            lock_replica: (config.write.locks == LockMode::Forward).then_some(config.write.replica),
        };
        let fs =
            Fs::new(policy, replicas.clone(), Arc::clone(&reader), Arc::clone(&counters), runtime);
        let replies = pipes.map(|pipes| pipes.replies);
        let started = Instant::now();
        let orders = Mutex::default();
        Self {
            config,
            mount_point,
            supervisor: OnceLock::new(),
            predecessors: OnceLock::new(),
            overrides: extra,
            handover_requests: orders,
            replicas,
            roster,
            reader,
            fs,
            counters,
            reply_pipes: replies,
            started_at: started,
        }
    }

    fn read_root(&self) -> Result<(), StartError> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.fs.init_root(move |answer| {
            let _ = send.send(answer);
        });
        match receive.recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(errno)) => Err(StartError::Root(io::Error::from_raw_os_error(errno.raw()))),
            Err(_) => Err(StartError::Root(io::Error::from(io::ErrorKind::TimedOut))),
        }
    }

    fn start_session(self: &Arc<Self>, place: &MountTarget) -> Result<Session, MountError> {
        let options = self.mount_options(&self.overrides);
        let first = |agreed: &InitParams| self.start_journal(agreed);
        let session = Session::start(Arc::clone(&self.fs), place, &options, first)?;
        if place.has_dead_mount {
            let at = place.path.display();
            tracing::warn!(%at, "a dead mount was in the way and is unmounted");
        }
        Ok(session)
    }

    fn mount_options(&self, extra: &MountOverrides) -> MountOptions {
        let source = if extra.no_control {
            fanfs_mounts::PRIVATE_SOURCE_PREFIX
        } else {
            fanfs_mounts::SOURCE_PREFIX
        };
        MountOptions {
            name: format!("{source}{}", self.config.volume.name),
            allow_other: self.config.fuse.allow_other || extra.allow_other,
            suid: extra.suid,
            dev: extra.dev,
            exec: !extra.noexec,
            read_only: self.config.volume.access == Access::ReadOnly,
            threads: self.config.fuse.threads,
            max_background: self.config.fuse.max_background,
            max_request: kernel_tuning::max_request(&self.config),
            pipes: self.reply_pipes.clone(),
        }
    }

    fn is_idle(&self) -> bool {
        let reads = self.reader.gauges();
        reads.requests == 0 && self.fs.gauges().calls == 0
    }
}

impl VolumeCore {
    async fn handle_request(&self, ask: ControlRequest) -> Result<ControlResponse, String> {
        let json = match ask {
            ControlRequest::Trace => return Ok(ControlResponse::TraceStream(self.start_trace())),
            ControlRequest::Busiest => serde_json::to_vec(&self.file_activity()),
            ControlRequest::Status => serde_json::to_vec(&self.status()),
            ControlRequest::Explain { path } => serde_json::to_vec(&self.file_facts(path).await?),
            ControlRequest::Upgrade { program } => {
                serde_json::to_vec(&self.request_handover(HandoverRequest::upgrade(program)).await?)
            }
            ControlRequest::Reload { volume } => serde_json::to_vec(
                &self
                    .request_handover(HandoverRequest { volume, ..HandoverRequest::reload() })
                    .await?,
            ),
        };
        json.map(ControlResponse::Json).map_err(|error| error.to_string())
    }
}
