//! A volume's configuration: one TOML file, checked once, then immutable.
//!
//! [`raw`] is the file as written: serde structs in which every key is optional. [`load`] reads
//! the file and refuses unknown or contradictory keys, in one line that names file, line and key.
//! It fills in defaults and returns a [`Config`], whose values the rest of fanfs uses unchecked.
//!
//! The steps: text -> TOML tables with their positions -> [`key_index`] (the keys, their lines, and
//! whether fanfs knows them) -> [`raw`] (types and units) -> [`validate`] (ranges, and keys that
//! contradict each other) -> [`Config`]. fanfs reports the first problem that it finds.
//!
//! Imports run one way. [`validate`] calls the files of the larger tables ([`log`], [`metrics`],
//! [`placement`], [`mod@write`]). All of them use [`checks`] for single values, and the
//! [`key_index`], which gets the known keys from [`raw`]. [`raw`] describes each key with its
//! [`defaults`] and [`choices`].
//!
//! [`schema`] is the same file as a JSON schema, for editors and for fanfs.toml(5).
//!
//! *Invariant:* no code outside this module parses a size, a duration or a rate. [`units`] is
//! public because command-line arguments use it too.

mod checks;
mod choices;
mod defaults;
mod error;
pub mod globs;
mod key_index;
mod log;
mod metrics;
pub mod placement;
mod range_text;
mod raw;
mod replica;
pub mod schema;
pub mod units;
mod validate;
mod write;

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::Deserialize as _;
use toml::de::DeTable;

pub use choices::{Access, CachePolicy, ClusterTool, LockMode, LogFormat, PageCache, Passthrough};
pub use error::ConfigError;
pub use error::Escaped;
use error::Problem;
use key_index::KeyIndex;
pub use log::LogConfig;
pub use metrics::{ListenAddress, MetricsConfig, TextfileConfig};
pub use placement::{AffinityConfig, PlacementConfig};
use raw::RawConfig;
use units::Share;
pub use write::WriteConfig;

use crate::survey::{ReplicaLocation, ReplicaSpec, SurveyRequest};
use crate::volume::VolumeMode;

/// The largest configuration file, bytes. 64 replicas with every key and comment take 64 KiB. With
/// this limit, a data file or `/dev/zero` named by mistake causes an error and does not fill the
/// memory.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// Reads and checks the configuration file at `path`.
///
/// # Errors
/// The first problem found, in one line. Each means exit status 2.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let mut bytes = Vec::new();
    open(path)
        .and_then(|file| file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes))
        .map_err(|error| ConfigError::new(path, None, Problem::unreadable(&error)))?;
    if bytes.len() as u64 > MAX_FILE_SIZE {
        return Err(ConfigError::new(path, None, Problem::TooLarge));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => parse(text, path),
        Err(error) => {
            let line = error::line_of(&bytes, error.valid_up_to());
            Err(ConfigError::new(path, Some(line), Problem::NotUtf8))
        }
    }
}

/// Opens a regular file or a directory; reading the directory fails later. It refuses a FIFO,
/// which would block until a writer opens it.
///
/// # Errors
/// If the open fails, or `path` is neither a file nor a directory.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_dir() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Checks the text of a configuration; errors name it `source`.
///
/// # Errors
/// The first problem found, in one line.
pub fn parse(text: &str, source: &Path) -> Result<Config, ConfigError> {
    let table = DeTable::parse(text).map_err(|error| ConfigError::syntax(source, text, &error))?;
    let outline = KeyIndex::new(source, text, table.get_ref());
    outline.check_known()?;
    let settings = RawConfig::deserialize(toml::Deserializer::from(table))
        .map_err(|error| outline.type_error(&error))?;
    validate::config(settings, &outline)
}

/// Everything a volume needs to be mounted, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The configuration file; it names the volume in errors.
    pub source: PathBuf,
    /// `[volume]`
    pub volume: VolumeConfig,
    /// `[[replica]]`, in the file's order; at least one.
    pub replicas: Vec<ReplicaConfig>,
    /// `[read]`
    pub read: ReadConfig,
    /// `[write]`
    pub write: WriteConfig,
    /// `[memory]`
    pub memory: MemoryConfig,
    /// `[fuse]`
    pub fuse: FuseConfig,
    /// `[metrics]`
    pub metrics: MetricsConfig,
    /// `[log]`
    pub log: LogConfig,
    /// `[placement]`
    pub placement: PlacementConfig,
    /// `[[affinity]]`; the first match applies.
    pub affinities: Vec<AffinityConfig>,
}

impl Config {
    /// The survey request of this volume. `mount_point` is canonical, and known only if the volume
    /// is mounted.
    pub fn survey_request(&self, mount_point: Option<&Path>) -> SurveyRequest {
        SurveyRequest {
            replicas: self.replicas.iter().map(ReplicaConfig::spec).collect(),
            mode: self.volume.mode,
            segment_size: self.read.segment_size,
            deadline: self.read.deadline,
            write_replica: (self.volume.access == Access::ReadWrite).then_some(self.write.replica),
            lag: self.write.lag,
            mount_point: mount_point.map(Path::to_owned),
        }
    }
}

/// The volume, and how its replicas relate to each other.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeConfig {
    /// The volume's name in logs, in `status` and in the mount table.
    pub name: String,
    /// One file system seen N times, or N independent trees.
    pub mode: VolumeMode,
    /// The unit of placement, bytes; a multiple of the segment size.
    pub chunk_size: u64,
    /// What the mount may change.
    pub access: Access,
    /// Replicas that must be in service before the mount is up.
    pub min_replicas: usize,
    /// Whether nothing in it changes while it is mounted.
    pub immutable: bool,
}

/// One replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaConfig {
    /// The replica's name in logs and `status`; unique in the volume.
    pub name: String,
    /// Its directory or export.
    pub location: ReplicaLocation,
    /// The storage node that the replica's gateway runs on.
    pub node: String,
    /// Other names of that node in providers' answers.
    pub aliases: Vec<String>,
    /// Relative speed assumed until the replica is measured.
    pub weight: f64,
    /// Most bytes in flight; `None`: `[read] max_in_flight`.
    pub max_in_flight: Option<u64>,
    /// Most bytes per second to read from it; `None`: no limit.
    pub max_rate: Option<u64>,
    /// Whether fanfs reads its files through the page cache of its mount.
    pub page_cache: PageCache,
    /// Keep it out of service while its path is neither a mount point nor inside a network file
    /// system. `false` of an export.
    pub require_mount: bool,
}

impl ReplicaConfig {
    /// The replica as a survey and the roster know it.
    pub fn spec(&self) -> ReplicaSpec {
        ReplicaSpec {
            name: self.name.clone(),
            location: self.location.clone(),
            require_mount: self.require_mount,
        }
    }
}

/// How fanfs splits reads, sends them to replicas and limits them.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadConfig {
    /// The unit of dispatch, bytes; a power of two from 64 KiB to 16 MiB.
    pub segment_size: u64,
    /// How far past a sequential reader's position fanfs fetches at most, bytes; 0: no readahead.
    pub readahead_max: u64,
    /// Threads of each replica's own pool.
    pub threads_per_replica: usize,
    /// Most bytes in flight to one replica.
    pub max_in_flight: u64,
    /// How long a request may make no progress before it fails, while some replica answers.
    pub deadline: Duration,
    /// The same while no replica answers.
    pub deadline_all: Duration,
    /// How long one replica may take before fanfs also asks another.
    pub attempt_deadline: Duration,
    /// In `copies` volumes, the share of delivered segments that fanfs compares with the deciding
    /// replica's.
    pub compare: Share,
    /// Where file data is cached.
    pub cache: CachePolicy,
    /// Which files the kernel reads from one replica without the daemon.
    pub passthrough: Passthrough,
}

/// The memory budget.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Most bytes of file data, directory listings and locks that the daemon holds at once.
    pub budget: u64,
}

/// The FUSE session.
#[derive(Clone, Debug, PartialEq)]
pub struct FuseConfig {
    /// Threads that receive requests from the kernel.
    pub threads: usize,
    /// Let users other than the mounting user use the mount.
    pub allow_other: bool,
    /// Set the kernel's readahead for this mount, and raise the system's pipe limit if needed.
    pub kernel_tuning: bool,
    /// Pass pages of the replicas' page cache to the kernel without a copy.
    pub splice: bool,
    /// The kernel's readahead for this mount, bytes, if the daemon may set it.
    pub kernel_readahead: u64,
    /// Most background requests of the kernel in the daemon.
    pub max_background: u16,
    /// How long the kernel may cache names and attributes.
    pub attribute_ttl: Duration,
}
