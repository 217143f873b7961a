//! The status record: the state of a mounted volume, of its replicas and of its affinity
//! rules, as the daemon sends it over the control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fs::{self, FsGauges};
use crate::placement::PlacementStatus;
use crate::replicas::health::{HealthReason, HealthState};
use crate::telemetry::counters::{ReplicaCountersSnapshot, VolumeCountersSnapshot};
use crate::telemetry::log::LogSnapshot;
use crate::volume::{VolumeMode, path_serde};

/// A mounted volume's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// fanfs's version.
    pub version: String,
    /// The volume's name.
    pub volume: String,
    /// Its configuration file.
    #[serde(with = "path_serde")]
    pub source: PathBuf,
    /// Where it is mounted.
    #[serde(with = "path_serde")]
    pub mount_point: PathBuf,
    /// How its replicas relate.
    pub mode: VolumeMode,
    /// The daemon.
    pub pid: u32,
    /// The keeper of a mount that has one (`-o keeper`).
    #[serde(default)]
    pub keeper: Option<KeeperState>,
    /// Seconds since it was mounted.
    pub uptime_s: u64,
    /// In configuration order.
    pub replicas: Vec<ReplicaStatus>,
    /// What is known of where chunks are.
    pub placement: PlacementStatus,
    /// The subtrees that are pinned to replicas.
    pub affinities: Vec<AffinityStatus>,
    /// Files that the kernel reads from one replica by itself.
    pub passthrough: PassthroughStatus,
    /// Sums since it was mounted.
    pub counters: VolumeCountersSnapshot,
    /// What is the case now.
    pub gauges: VolumeGauges,
    /// Log lines that were lost.
    #[serde(default)]
    pub log: LogSnapshot,
}

/// The state of a mount's keeper, the process that starts another daemon if one dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeeperState {
    /// It runs.
    Running,
    /// It has died: the mount is lost if its daemon dies.
    Gone,
}

/// One replica's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReplicaStatus {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Its gateway's node.
    pub node: String,
    /// Whether it is asked.
    pub health: HealthState,
    /// Why it is in that state.
    pub health_reason: HealthReason,
    /// For how long, seconds.
    pub health_s: u64,
    /// Why it is out of service, where it is absent.
    #[serde(default)]
    pub absence: Option<String>,
    /// How often it was ejected, or found absent, since the mount.
    pub ejections: u64,
    /// The rate that the scheduler expects of it for chunks that its node
    /// holds, bytes a second.
    pub rate: u64,
    /// And for other chunks.
    pub rate_remote: u64,
    /// Bytes sent for and not yet there.
    pub in_flight: u64,
    /// Most bytes in flight now.
    pub in_flight_cap: u64,
    /// Threads that are inside a call on it.
    pub busy_threads: usize,
    /// Of these, those that have been inside one call for longer than an attempt
    /// may take: what hangs there is left to itself, and comes back when it heals.
    pub stuck_threads: usize,
    /// Objects that calls on it hang on.
    #[serde(default)]
    pub hung_objects: usize,
    /// Of these, those that calls have hung on for longest, at most 16.
    #[serde(default)]
    pub hung: Vec<HungObject>,
    /// What it did.
    #[serde(flatten)]
    pub counters: ReplicaCountersSnapshot,
}

/// An object on a replica that calls hang on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HungObject {
    /// Its path in the replica; empty for the root.
    pub path: String,
    /// Threads inside calls about it.
    pub threads: usize,
    /// For how long, seconds.
    pub lasts_s: u64,
}

/// How an affinity rule does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AffinityStatus {
    /// The rule's glob.
    pub path: String,
    /// The replicas it names.
    pub replicas: Vec<String>,
    /// Metadata calls under it.
    pub calls: u64,
    /// Smoothed time of such a call on each replica of the volume, microseconds;
    /// 0 where none was made.
    pub times_us: Vec<u64>,
    /// A replica that answers them clearly sooner than those it names.
    pub quicker: Option<String>,
}

/// Files that the kernel reads from one replica by itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PassthroughStatus {
    /// Whether it is configured.
    pub wanted: bool,
    /// Opens that were answered with it.
    pub opens: u64,
    /// Files that are open so.
    pub files: usize,
    /// What stood in the way of it, as far as it was seen.
    pub obstacles: Vec<String>,
}

impl From<fs::PassthroughStatus> for PassthroughStatus {
    fn from(from: fs::PassthroughStatus) -> Self {
        let fs::PassthroughStatus { wanted, opens, files, obstacles } = from;
        Self { wanted, opens, files, obstacles }
    }
}

/// What is the case now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeGauges {
    /// Bytes of the buffer budget in use.
    pub buffer_used: u64,
    /// Bytes of buffers kept for reuse.
    pub buffer_idle: u64,
    /// Bytes of memory that buffers take, in use or kept; never above the budget.
    pub buffer_memory: u64,
    /// The buffer budget.
    pub buffer_budget: u64,
    /// Segments that wait for a replica.
    pub segments_waiting: usize,
    /// Segments in flight.
    pub segments_in_flight: usize,
    /// Read requests not answered yet.
    pub requests: usize,
    /// Metadata calls not answered yet.
    pub calls: usize,
    /// Inodes that the kernel knows.
    pub inodes: usize,
    /// Open files and directories.
    pub handles: usize,
}

impl VolumeGauges {
    /// All gauges of a volume.
    pub fn new(reads: crate::read::ReadGauges, fs: FsGauges) -> Self {
        Self {
            buffer_used: reads.buffer_used,
            buffer_idle: reads.buffer_idle,
            buffer_memory: reads.buffer_memory,
            buffer_budget: reads.buffer_budget,
            segments_waiting: reads.waiting,
            segments_in_flight: reads.in_flight,
            requests: reads.requests,
            calls: fs.calls,
            inodes: fs.inodes,
            handles: fs.handles,
        }
    }
}
