//! A volume's configuration: one TOML file, checked once, then immutable.
//!
//! [`raw`] is the file as written (serde, every key optional but the few
//! that have no sane default); [`load`] reads it, refuses what is unknown or
//! contradictory in one line that names file, line and key, fills in defaults,
//! and returns a [`Config`], whose values the rest of fanfs uses unchecked.
//!
//! The way a file goes: text -> TOML tables that know where they stand ->
//! [`key_index`] (which keys are there, on which lines, and are they known) ->
//! [`raw`] (are the values of the right type, with their units) ->
//! [`validate`] (ranges, and keys that contradict each other) -> [`Config`].
//! The first thing found wrong is the one reported.
//!
//! Imports run one way: [`validate`] has the tables with a file of their own ([`log`],
//! [`metrics`], [`placement`], [`mod@write`]) check themselves; all of them use [`checks`] of one
//! value and the [`key_index`], which takes the known keys from [`raw`]; that describes each
//! key with its [`defaults`] and [`choices`].
//!
//! [`schema`] is the same file as a JSON schema, for editors and for fanfs.toml(5).
//!
//! *Invariant:* nothing outside this module parses a size, a duration or a rate;
//! [`units`] is public so that command-line arguments go through it as well.

mod checks;
mod choices;
mod defaults;
mod error;
mod key_index;
mod log;
mod metrics;
pub mod placement;
mod range_text;
mod raw;
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

use crate::survey::{ReplicaSpec, SurveyRequest};
use crate::volume::VolumeMode;

/// The largest configuration read, bytes. 64 replicas with every key and
/// comment come to 64 KiB; whoever names a data file or `/dev/zero` by mistake
/// gets an error instead of a daemon that fills the memory.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// Reads and checks the configuration file at `path`.
///
/// # Errors
/// The first problem found, in one line; every one of them means exit status 2.
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

/// Opens a regular file, or a directory, which fails when it is read. A FIFO would block the
/// open or the read until a writer comes.
///
/// # Errors
/// Where it cannot be opened, or is neither.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_dir() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Checks a configuration given as text; `source` names it in errors.
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
    /// The file this came from; names the volume in errors.
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
    /// `[[affinity]]`, the first that matches counts.
    pub affinities: Vec<AffinityConfig>,
}

impl Config {
    /// What it asks of a survey. `mount_point`, canonical, is known where it is mounted.
    pub fn survey_request(&self, mount_point: Option<&Path>) -> SurveyRequest {
        let subjects = self.replicas.iter().map(|replica| ReplicaSpec {
            name: replica.name.clone(),
            path: replica.path.clone(),
            require_mount: replica.require_mount,
        });
        SurveyRequest {
            replicas: subjects.collect(),
            mode: self.volume.mode,
            segment_size: self.read.segment_size,
            deadline: self.read.deadline,
            write_replica: (self.volume.access == Access::ReadWrite).then_some(self.write.replica),
            lag: self.write.lag,
            mount_point: mount_point.map(Path::to_owned),
        }
    }
}

/// What the replicas hold and how they relate.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeConfig {
    /// Names the volume in logs, in `status` and as the mount's source.
    pub name: String,
    /// One file system seen N times, or N trees.
    pub mode: VolumeMode,
    /// The unit of placement, bytes; a multiple of the segment size.
    pub chunk_size: u64,
    /// What the mount may change.
    pub access: Access,
    /// Replicas that must be in service before the mount is up.
    pub min_replicas: usize,
}

/// One underlying mount.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaConfig {
    /// Names the replica in logs and `status`; unique in the volume.
    pub name: String,
    /// An absolute directory.
    pub path: PathBuf,
    /// The storage node that the replica's gateway runs on.
    pub node: String,
    /// Other names that providers have for that node.
    pub aliases: Vec<String>,
    /// Relative speed assumed until there is a measurement.
    pub weight: f64,
    /// Most bytes in flight, where lower than `[read] max_in_flight`.
    pub max_in_flight: Option<u64>,
    /// Most bytes a second to ask of it.
    pub max_rate: Option<u64>,
    /// Whether its files are read through its own page cache.
    pub page_cache: PageCache,
    /// Leave it out while the path is not (in) a mounted file system.
    pub require_mount: bool,
}

/// How reads are cut, sent and bounded.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadConfig {
    /// The unit of dispatch, bytes; a power of two from 64 KiB to 16 MiB.
    pub segment_size: u64,
    /// How far past a sequential reader's position to fetch at most, bytes; 0: never.
    pub readahead_max: u64,
    /// Threads of each replica's own pool.
    pub threads_per_replica: usize,
    /// Most bytes in flight to one replica.
    pub max_in_flight: u64,
    /// By when every request ends, in data or an error, while some replica answers.
    pub deadline: Duration,
    /// The same while none does.
    pub deadline_all: Duration,
    /// How long one replica may take before another is asked as well.
    pub attempt_deadline: Duration,
    /// In `copies` volumes, how much of what is delivered is compared with the
    /// deciding replica's.
    pub compare: Share,
    /// Who caches file data.
    pub cache: CachePolicy,
    /// Which files the kernel reads from one replica by itself.
    pub passthrough: Passthrough,
}

/// The buffer budget.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Most bytes of file data that the daemon holds at once.
    pub budget: u64,
}

/// The FUSE session.
#[derive(Clone, Debug, PartialEq)]
pub struct FuseConfig {
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Let other users than the mounting one in.
    pub allow_other: bool,
    /// Raise the kernel's readahead and queue limits for this mount.
    pub kernel_tuning: bool,
    /// Hand pages of the replicas' page cache on instead of copying them.
    pub splice: bool,
    /// The kernel's readahead for this mount where it may be set, bytes.
    pub kernel_readahead: u64,
    /// Requests that the kernel may have under way in the background.
    pub max_background: u16,
    /// How long the kernel may trust names and attributes it was given.
    pub attribute_ttl: Duration,
}
