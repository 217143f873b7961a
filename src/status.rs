//! The status record: the state of a mounted volume, of its replicas and of its affinity
//! rules, as the daemon sends it over the control socket.
//!
//! `fanfs status --json` prints it. docs/status.schema.json is made from the types and comments
//! here: `FANFS_BLESS=1 cargo test --lib status`.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fs::{self, FsGauges};
use crate::placement::PlacementStatus;
use crate::replicas::health::{HealthReason, HealthState};
use crate::telemetry::counters::{ReplicaCountersSnapshot, VolumeCountersSnapshot};
use crate::telemetry::log::LogSnapshot;
use crate::telemetry::wall_clock::Timestamp;
use crate::volume::path_serde::PathJson;
use crate::volume::{VolumeMode, path_serde};

/// The number of this format. It increases when a field is removed or changes its meaning; fields
/// may be added.
pub const FORMAT: u32 = 1;

/// The state of a mounted volume.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The number of this format, 1. It increases when a key is removed or changes its meaning;
    /// keys may be added.
    pub format: u32,
    /// When the daemon made this answer, seconds since 1970.
    pub time_s: Timestamp,
    /// fanfs's version.
    pub version: String,
    /// The volume's name.
    pub volume: String,
    /// Its configuration file.
    #[serde(with = "path_serde")]
    #[schemars(with = "PathJson")]
    pub source: PathBuf,
    /// Where it is mounted.
    #[serde(with = "path_serde")]
    #[schemars(with = "PathJson")]
    pub mount_point: PathBuf,
    /// How its replicas relate to each other.
    pub mode: VolumeMode,
    /// The daemon's process id.
    pub pid: u32,
    /// The state of the mount's keeper, if it has one (`-o keeper`).
    pub keeper: Option<KeeperState>,
    /// When this daemon began to serve the mount, by mounting or by taking over from another
    /// daemon, seconds since 1970.
    pub start_time_s: Timestamp,
    /// The replicas, in configuration order.
    pub replicas: Vec<ReplicaStatus>,
    /// The state of placement.
    pub placement: PlacementStatus,
    /// The subtrees that are pinned to replicas.
    pub affinities: Vec<AffinityStatus>,
    /// Files that the kernel reads from one replica by itself.
    pub passthrough: PassthroughStatus,
    /// Totals since this daemon began to serve the mount.
    pub counters: VolumeCountersSnapshot,
    /// Current values.
    pub gauges: VolumeGauges,
    /// Log lines that were lost.
    pub log: LogSnapshot,
}

impl Status {
    /// How long this daemon had served the mount, seconds. A step of the system clock does not
    /// change it.
    pub fn uptime_s(&self) -> f64 {
        self.time_s.unix_s() - self.start_time_s.unix_s()
    }
}

/// The part of a status that daemons of all versions send. Commands use it, so that they also work
/// with a daemon of another version.
#[derive(Clone, Debug, Deserialize)]
pub struct DaemonInfo {
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
    /// How its replicas relate to each other.
    pub mode: VolumeMode,
    /// The daemon's process id.
    pub pid: u32,
    /// The state of the mount's keeper, if it has one.
    #[serde(default)]
    pub keeper: Option<KeeperState>,
    /// The replicas, in configuration order.
    pub replicas: Vec<ReplicaLocation>,
}

/// A replica's name and place.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ReplicaLocation {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
}

/// The state of a mount's keeper, the process that starts another daemon if one dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeeperState {
    /// It runs.
    Running,
    /// It has died: the mount is lost if its daemon dies.
    Gone,
}

/// One replica's state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaStatus {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Its gateway's node.
    pub node: String,
    /// Its health.
    pub health: HealthState,
    /// Why it is in that state.
    pub health_reason: HealthReason,
    /// When it entered that state, seconds since 1970.
    pub health_since_s: Timestamp,
    /// Why it is absent, if it is.
    pub absence: Option<String>,
    /// How often it was ejected or found absent since this daemon began to serve the mount.
    pub ejections: u64,
    /// The bandwidth that the scheduler has measured for chunks that its node holds, bytes per
    /// second; null before a measurement.
    pub estimated_bandwidth_local: Option<u64>,
    /// The same for other chunks.
    pub estimated_bandwidth_remote: Option<u64>,
    /// Bytes in flight.
    pub in_flight: u64,
    /// The current limit of bytes in flight.
    pub in_flight_limit: u64,
    /// Threads that are inside a call on it.
    pub active_threads: usize,
    /// The part of them that have been inside one call for longer than an attempt may take. Such a
    /// thread is left alone, and serves again when its call returns.
    pub hung_threads: usize,
    /// Objects on which calls hang.
    pub hung_objects: usize,
    /// Those on which calls have hung longest, at most 16.
    pub hung: Vec<HungObject>,
    /// Its connections to its NFS server, if it has an address instead of a directory.
    #[serde(default)]
    pub connections: Vec<ConnectionStatus>,
    /// Its totals.
    #[serde(flatten)]
    pub counters: ReplicaCountersSnapshot,
}

/// Totals of one connection to an NFS server, since the server's export was last opened.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionStatus {
    /// Calls, each time that they were given to the connection.
    pub calls: u64,
    /// Calls that were sent again because a connection had ended.
    pub resent: u64,
    /// Times that the connection was made.
    pub connected: u64,
    /// Replies that no call waited for any more.
    pub discarded: u64,
    /// Bytes received.
    pub received: u64,
}

/// An object on a replica on which calls hang.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HungObject {
    /// Its path in the replica; empty for the root.
    pub path: String,
    /// The number of threads inside calls about it.
    pub threads: usize,
    /// The start of the call that has been hanging longest, seconds since 1970.
    pub since_s: Timestamp,
}

/// The state of an affinity rule.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AffinityStatus {
    /// The rule's glob.
    pub path: String,
    /// The replicas it names.
    pub replicas: Vec<String>,
    /// Metadata calls under it.
    pub calls: u64,
    /// The smoothed duration of such a call on each replica of the volume, microseconds; 0 if there
    /// was none.
    pub times_us: Vec<u64>,
    /// A replica that answers them clearly faster than the named ones.
    pub faster: Option<String>,
}

/// Files that the kernel reads from one replica by itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PassthroughStatus {
    /// Whether it is configured.
    pub wanted: bool,
    /// Opens that used it.
    pub opens: u64,
    /// Open files that use it.
    pub files: usize,
    /// The reasons why it cannot be used, where they were seen.
    pub obstacles: Vec<String>,
}

impl From<fs::PassthroughStatus> for PassthroughStatus {
    fn from(from: fs::PassthroughStatus) -> Self {
        let fs::PassthroughStatus { wanted, opens, files, obstacles } = from;
        Self { wanted, opens, files, obstacles }
    }
}

/// Current values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeGauges {
    /// Bytes of the buffer budget in use.
    pub buffer_used: u64,
    /// Bytes of buffers kept for reuse.
    pub buffer_idle: u64,
    /// Bytes of memory that buffers take, in use or kept; never above the budget.
    pub buffer_memory: u64,
    /// The buffer budget.
    pub buffer_budget: u64,
    /// Segments that are waiting for a replica.
    pub segments_waiting: usize,
    /// Segments in flight.
    pub segments_in_flight: usize,
    /// Read requests that are not yet answered.
    pub requests: usize,
    /// Metadata calls that are not yet answered.
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
            segments_in_flight: reads.in_flight + reads.small_reads,
            requests: reads.requests + reads.small_reads,
            calls: fs.calls,
            inodes: fs.inodes,
            handles: fs.handles,
        }
    }
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
