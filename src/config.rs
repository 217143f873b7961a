//! A volume's configuration: one TOML file, checked once, then immutable.
//!
//! [`settings`] is the file as written (serde, every key optional but the few
//! that have no sane default); [`load`] reads it, refuses what is unknown or
//! contradictory in one line that names file, line and key, fills in defaults,
//! and returns a [`Config`], whose values the rest of fanfs uses unchecked.
//!
//! *Invariant:* nothing outside this module parses a size, a duration or a rate.

use std::path::PathBuf;
use std::time::Duration;

use crate::volume::Mode;

/// Everything a volume needs to be mounted, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file this came from; names the volume in errors.
    pub source: PathBuf,
    /// `[volume]`
    pub volume: Volume,
    /// `[[replica]]`, in the file's order; at least one.
    pub replicas: Vec<Replica>,
    /// `[read]`
    pub read: Read,
    /// `[memory]`
    pub memory: Memory,
    /// `[fuse]`
    pub fuse: Fuse,
}

/// What the replicas hold and how they relate.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// Names the volume in logs, in `status` and as the mount's source.
    pub name: String,
    /// One file system seen N times, or N trees.
    pub mode: Mode,
    /// The unit of placement, bytes; a multiple of the segment size.
    pub chunk_size: u64,
    /// What the mount may change.
    pub access: Access,
}

/// Whether a volume may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing can be changed through the mount.
    ReadOnly,
}

/// One underlying mount.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Names the replica in logs and `status`; unique in the volume.
    pub name: String,
    /// An absolute directory.
    pub path: PathBuf,
    /// The storage node that the replica's gateway runs on.
    pub node: String,
    /// Relative speed assumed until there is a measurement.
    pub weight: f64,
    /// Most bytes in flight, where lower than `[read] max_in_flight`.
    pub max_in_flight: Option<u64>,
    /// Most bytes a second to ask of it.
    pub max_rate: Option<u64>,
    /// Refuse to start where the path is not (in) a mounted file system.
    pub require_mount: bool,
}

/// How reads are cut, sent and bounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    /// The unit of dispatch, bytes; a power of two from 64 KiB to 16 MiB.
    pub segment_size: u64,
    /// How far past a sequential reader's position to fetch at most, bytes; 0: never.
    pub readahead_max: u64,
    /// Threads of each replica's own pool.
    pub threads_per_replica: usize,
    /// Most bytes in flight to one replica.
    pub max_in_flight: u64,
    /// By when every request ends, in data or an error.
    pub deadline: Duration,
    /// How long one replica may take before another is asked as well.
    pub attempt_deadline: Duration,
    /// Who caches file data.
    pub cache: CachePolicy,
}

/// Who caches file data between reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// The kernel's page cache, kept across opens while the file is unchanged.
    Kernel,
    /// Nobody: every read reaches fanfs.
    Direct,
}

/// The buffer budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// Most bytes of file data that the daemon holds at once.
    pub budget: u64,
}

/// The FUSE session.
#[derive(Clone, Debug, PartialEq)]
pub struct Fuse {
    /// Threads that take requests from the kernel.
    pub threads: usize,
    /// Let other users than the mounting one in.
    pub allow_other: bool,
    /// Raise the kernel's readahead and queue limits for this mount.
    pub kernel_tuning: bool,
    /// The kernel's readahead for this mount where it may be set, bytes.
    pub kernel_readahead: u64,
    /// How long the kernel may trust names and attributes it was given.
    pub attribute_ttl: Duration,
}
