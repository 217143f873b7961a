//! A mounted volume: everything wired together, started and ended.
//!
//! [`Mount::begin`] builds the replicas, the read path and the file system from a
//! [`Config`]. It brings replicas into service ([`admission`]) and reads the root from
//! one of them, so that no unreadable volume is mounted. Then it mounts, tunes the
//! kernel, and listens on the control socket. [`Mount::stop`] works in reverse: it
//! detaches the mount, waits briefly for requests in flight, and fails the rest.
//!
//! One process may follow another on a mount: [`handover`] and [`successor`] are the
//! two sides of that, [`keeper`] a process that stays when this one dies, [`service`]
//! what systemd does for it.
//!
//! *Invariant:* whatever `start` returns an error for has been undone.

mod admission;
mod estate;
mod explaining;
mod former;
mod handover;
mod keeper;
mod kept;
mod link;
mod memory;
mod mount_point;
mod observing;
mod placing;
mod privileges;
mod replacing;
pub mod service;
mod successor;
mod telling;
mod tuning;
mod watching;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::backend::{Attr, Backend, PoolLimits, Replica};
use crate::buffer::Pipes;
use crate::config::units::Share;
use crate::config::{Access, Config, Locks, Passthrough};
use crate::control::{self, Ask, Control, Reply, Status};
use crate::explain::Facts;
use crate::fs::{CachingPolicy, Fs, FsPolicy, WritePolicy};
use crate::fuse::{Agreed, AttachError, MountOptions, Place, Session, detach};
use crate::metrics::{Exporter, Look, MetricsError, Opened};
use crate::placement::{Locator, PlacementError, Source};
use crate::read::{Deadlines, ReadPolicy, Reader};
use crate::scheduler::ReplicaPolicy;
use crate::telemetry::{ReplicaCounters, VolumeCounters};
use crate::volume::served;
use crate::volume::survey::Roster;
use crate::volume::{Mode, ReplicaMap, ReplicaSet};
use admission::{Members, Needed};
use former::Former;

pub use admission::look_around;
pub use privileges::drop_privileges;

pub use handover::{Again, Order, itself};
pub use keeper::{KeeperError, keep};
pub use kept::{Keeper, Task};
pub use link::Link;
pub use mount_point::is_automounted;
pub use replacing::Dead;
pub use successor::refuse;

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
    Attach(#[from] AttachError),
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
pub fn facts_unmounted(config: &Config, path: &Path, attr: &Attr) -> Result<Facts, String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let source = placing::provider(config).map_err(|error| error.to_string())?;
    let locator = placing::locator(config, source, runtime.handle().clone());
    Ok(runtime.block_on(explaining::facts(config, &locator, path, attr.version(), None)))
}

/// What may be said about a mount besides the volume's configuration.
#[derive(Clone, Debug, Default)]
pub struct Extra {
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
    pub is_kept: bool,
}

/// How long what is under way may take at the end, before it is failed.
const DRAIN: Duration = Duration::from_secs(3);

/// Session threads that never call a replica: one that takes requests, and one
/// that takes them while the first answers.
const LISTENERS: usize = 2;

/// Jobs that may wait for one replica's threads.
const POOL_QUEUE: usize = 4096;

/// A mounted volume.
pub struct Mount {
    core: Arc<Core>,
    session: Mutex<Option<Session>>,
    mount_point: PathBuf,
    runtime: Option<tokio::runtime::Runtime>,
    control: Option<Control>,
    metrics: Option<Exporter>,
    again: Option<Again>,
}

/// What serves the volume, apart from the session.
struct Core {
    config: Config,
    mount_point: PathBuf,
    extra: Extra,
    /// The process that starts another daemon if this one dies.
    keeper: OnceLock<Keeper>,
    /// The daemons before this one that may not have ended.
    former: OnceLock<Arc<Former>>,
    /// Where what somebody wants of the mount goes to.
    orders: Mutex<Option<tokio::sync::mpsc::UnboundedSender<Order>>>,
    replicas: ReplicaMap<Arc<Replica>>,
    /// The checks that replicas have passed, and why some are out of service.
    roster: Arc<Roster>,
    reader: Arc<Reader>,
    fs: Arc<Fs>,
    counters: Arc<VolumeCounters>,
    replies: Option<Pipes>,
    started: Instant,
}

/// Looks whether the placement provider can be used as it is configured.
///
/// # Errors
/// [`StartError::Placement`] where it cannot.
pub fn check_placement(config: &Config) -> Result<(), StartError> {
    usable_source(config).map(drop)
}

fn usable_source(config: &Config) -> Result<Source, StartError> {
    placing::provider(config)
        .map_err(|error| StartError::Placement { source_file: config.source.clone(), error })
}

impl Mount {
    /// Mounts a volume over `backends`, one for each replica of `config`.
    ///
    /// # Errors
    /// [`StartError`]; nothing is mounted then.
    pub fn start(
        config: Config,
        backends: ReplicaMap<Arc<dyn Backend>>,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let members = Members::made(&config, backends);
        Self::start_with(config, members, ReplicaSet::EMPTY, mount_point, extra)
    }

    /// Mounts a volume. `silent` are replicas that have just failed to answer.
    ///
    /// # Errors
    /// [`StartError`]; nothing is mounted then.
    pub fn begin(
        config: Config,
        silent: ReplicaSet,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let members = Members::absent(&config, |_| None);
        Self::start_with(config, members, silent, mount_point, extra)
    }

    fn start_with(
        config: Config,
        members: Members,
        silent: ReplicaSet,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<Self, StartError> {
        let place = mount_point::check(mount_point)?;
        let opened = Opened::all(&config.metrics)
            .map_err(|error| StartError::Metrics { source_file: config.source.clone(), error })?;
        let (core, runtime) = Core::start(config, members, &place.path, extra)?;
        core.bring_in(silent, Needed::by(&core.config))?;
        core.ask_for_root()?;
        let session = core.mount_at(&place)?;
        Ok(Self::served(core, runtime, session, opened))
    }

    /// A mount that a session serves. `opened` is where metrics are fetched, as far as
    /// that is had already.
    fn served(
        core: Arc<Core>,
        runtime: tokio::runtime::Runtime,
        session: Session,
        opened: Option<Opened>,
    ) -> Self {
        if core.extra.is_kept {
            service::keep(session.device());
        }
        let mut mount = Self {
            mount_point: session.mount_point().to_owned(),
            core,
            session: Mutex::new(Some(session)),
            runtime: Some(runtime),
            control: None,
            metrics: None,
            again: None,
        };
        mount.tune();
        if !mount.core.extra.no_control {
            mount.listen();
        }
        mount.publish(opened);
        mount
    }

    fn tune(&self) {
        let fuse = &self.core.config.fuse;
        if fuse.kernel_tuning {
            match tuning::set_readahead(&self.mount_point, fuse.kernel_readahead) {
                Ok(()) => tracing::debug!(bytes = fuse.kernel_readahead, "kernel readahead set"),
                Err(error) => tracing::info!(%error, "kernel readahead is left as it is"),
            }
        }
    }

    fn listen(&mut self) {
        let Some(runtime) = &self.runtime else { return };
        let core = Arc::clone(&self.core);
        let answer = move |ask| {
            let core = Arc::clone(&core);
            Box::pin(async move { core.answer(ask).await }) as control::Answering
        };
        match Control::listen(runtime.handle(), &self.mount_point, answer) {
            Ok(control) => self.control = Some(control),
            // The mount is what counts; only `fanfs status` misses it.
            Err(error) => tracing::warn!(%error, "no control socket"),
        }
    }

    fn publish(&mut self, opened: Option<Opened>) {
        let config = &self.core.config.metrics;
        let Some(runtime) = &self.runtime else { return };
        if config.listen.is_none() && config.textfile.is_none() {
            return;
        }
        let core = Arc::clone(&self.core);
        let look: Look = Arc::new(move || core.snapshot());
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
    pub fn is_over(&self) -> bool {
        self.session.lock().as_ref().is_none_or(Session::is_over)
    }

    /// Unmounts and ends what serves the volume. Open files keep the mount alive
    /// out of sight until what is under way has ended, [`DRAIN`] at most.
    ///
    /// # Errors
    /// Where the mount cannot be ended.
    pub fn stop(mut self) -> Result<(), AttachError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), AttachError> {
        let Some(mut session) = self.session.lock().take() else { return Ok(()) };
        self.control = None;
        self.metrics = None;
        if self.core.extra.is_kept {
            service::keep_no_more();
            let _ = std::fs::remove_file(control::journal_path(&self.mount_point));
        }
        if !session.is_over() {
            match detach(&self.mount_point, false) {
                Err(AttachError::Busy(_)) => {
                    tracing::info!("the mount is in use and is detached");
                    detach(&self.mount_point, true)?;
                }
                result => result?,
            }
        }
        let until = Instant::now() + DRAIN;
        while !session.is_over() && Instant::now() < until && !self.core.is_quiet() {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.core.reader.stop();
        if session.is_over()
            && let Err(error) = session.join()
        {
            tracing::warn!(%error, "the FUSE session ended badly");
        }
        for (_, replica) in self.core.replicas.iter() {
            replica.stop();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(100));
        }
        if let Some(keeper) = self.core.keeper.get() {
            keeper.done();
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "the mount may be left behind");
        }
    }
}

impl Core {
    fn start(
        mut config: Config,
        members: Members,
        mount_point: &Path,
        extra: &Extra,
    ) -> Result<(Arc<Self>, tokio::runtime::Runtime), StartError> {
        if extra.read_only {
            config.volume.access = Access::ReadOnly;
        }
        tuning::raise_descriptor_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()
            .map_err(|error| StartError::System { what: "cannot start the runtime", error })?;
        let source = usable_source(&config)?;
        let locator = placing::locator(&config, source, runtime.handle().clone());
        let place = (mount_point.to_owned(), extra.clone());
        let core = Arc::new(Self::new(config, members, locator, place, runtime.handle().clone()));
        runtime.spawn(Arc::clone(&core.reader).run_clock());
        runtime.spawn(watching::watch_mounts(Arc::clone(&core.reader), core.replicas.clone()));
        Ok((core, runtime))
    }

    fn new(
        config: Config,
        Members { roster, backends }: Members,
        locator: Locator,
        (mount_point, extra): (PathBuf, Extra),
        runtime: tokio::runtime::Handle,
    ) -> Self {
        // Of several replicas one alone must not get hold of all guests.
        let guests = config.fuse.threads.saturating_sub(LISTENERS);
        let own = if backends.len() > 1 { guests.div_ceil(2) } else { guests };
        let threads = config.read.threads_per_replica;
        let pool = PoolLimits { threads, queue: POOL_QUEUE, guests: own };
        let replicas = backends.map(|id, backend| {
            let name = config.replicas[id.index()].name.clone();
            let counters = Arc::new(ReplicaCounters::default());
            let replica = Replica::new(id, name, Arc::clone(backend), pool, counters);
            let is_written =
                config.volume.access == Access::ReadWrite && id == config.write.replica;
            Arc::new(if is_written { replica.for_changes() } else { replica })
        });
        let limits = replicas.map(|id, _| {
            let replica = &config.replicas[id.index()];
            ReplicaPolicy {
                weight: replica.weight,
                max_in_flight: replica
                    .max_in_flight
                    .unwrap_or(u64::MAX)
                    .min(config.read.max_in_flight),
                max_reads: pool.readers() + pool.guests,
            }
        });
        let counters = Arc::new(VolumeCounters::default());
        let pipes = tuning::page_pipes(&config);
        let deadlines = Deadlines::new(config.read.deadline, config.read.deadline_all);
        let read = ReadPolicy {
            segment: config.read.segment_size,
            readahead_max: config.read.readahead_max,
            budget: config.memory.budget,
            deadlines,
            attempt_deadline: config.read.attempt_deadline,
            guests,
            compare: match config.volume.mode {
                Mode::Shared => Share(0.0),
                Mode::Copies => config.read.compare,
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
            caching: CachingPolicy { cache: config.read.cache, memory: memory::available() },
            passthrough: config.read.passthrough == Passthrough::WholeFile,
            write: (config.volume.access == Access::ReadWrite).then_some(WritePolicy {
                replica: config.write.replica,
                deadlines: Deadlines::new(config.write.deadline, config.read.deadline_all),
                lag: config.write.lag,
            }),
            locks: (config.write.locks == Locks::Forward).then_some(config.write.replica),
        };
        let fs =
            Fs::new(policy, replicas.clone(), Arc::clone(&reader), Arc::clone(&counters), runtime);
        let replies = pipes.map(|pipes| pipes.replies);
        let started = Instant::now();
        let orders = Mutex::default();
        Self {
            config,
            mount_point,
            keeper: OnceLock::new(),
            former: OnceLock::new(),
            extra,
            orders,
            replicas,
            roster,
            reader,
            fs,
            counters,
            replies,
            started,
        }
    }

    fn ask_for_root(&self) -> Result<(), StartError> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.fs.start(move |answer| {
            let _ = send.send(answer);
        });
        match receive.recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(errno)) => Err(StartError::Root(io::Error::from_raw_os_error(errno.raw()))),
            Err(_) => Err(StartError::Root(io::Error::from(io::ErrorKind::TimedOut))),
        }
    }

    fn mount_at(self: &Arc<Self>, place: &Place) -> Result<Session, AttachError> {
        let options = self.mount_options(&self.extra);
        let first = |agreed: &Agreed| self.write_down(agreed);
        let session = Session::start(Arc::clone(&self.fs), place, &options, first)?;
        if place.is_dead {
            let at = place.path.display();
            tracing::warn!(%at, "a dead mount was in the way and is unmounted");
        }
        Ok(session)
    }

    fn mount_options(&self, extra: &Extra) -> MountOptions {
        let source = if extra.no_control { served::PRIVATE_SOURCE } else { served::SOURCE };
        MountOptions {
            name: format!("{source}{}", self.config.volume.name),
            allow_other: self.config.fuse.allow_other || extra.allow_other,
            suid: extra.suid,
            dev: extra.dev,
            exec: !extra.noexec,
            read_only: self.config.volume.access == Access::ReadOnly,
            threads: self.config.fuse.threads,
            max_background: self.config.fuse.max_background,
            max_request: tuning::max_request(&self.config),
            pipes: self.replies.clone(),
        }
    }

    fn is_quiet(&self) -> bool {
        let reads = self.reader.gauges();
        reads.requests == 0 && self.fs.gauges().calls == 0
    }
}

impl Core {
    async fn answer(&self, ask: Ask) -> Result<Reply, String> {
        let json = match ask {
            Ask::Trace => return Ok(Reply::Lines(self.trace())),
            Ask::Busiest => serde_json::to_vec(&self.busiest()),
            Ask::Status => serde_json::to_vec(&self.status()),
            Ask::Explain { path } => serde_json::to_vec(&self.facts(path).await?),
            Ask::Upgrade { program } => {
                serde_json::to_vec(&self.order(Order::upgrade(program)).await?)
            }
            Ask::Reload { volume } => {
                serde_json::to_vec(&self.order(Order { volume, ..Order::reload() }).await?)
            }
        };
        json.map(Reply::Once).map_err(|error| error.to_string())
    }
}
