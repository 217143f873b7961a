//! The status of a volume without activity, for tests.

use super::{PassthroughStatus, ReplicaStatus, Status, VolumeGauges};
use crate::placement::PlacementStatus;
use crate::replicas::health::{HealthReason, HealthState};
use crate::telemetry::counters::{ReplicaCountersSnapshot, VolumeCountersSnapshot};
use crate::telemetry::log::LogSnapshot;
use crate::telemetry::wall_clock::Timestamp;
use crate::volume::VolumeMode;

/// When the sample was made, seconds since 1970.
pub(crate) const TIME_S: f64 = 1_000_000.0;

/// A timestamp `seconds` before the sample.
pub(crate) fn ago(seconds: u64) -> Timestamp {
    Timestamp::from_unix(TIME_S - seconds as f64)
}

/// A volume whose replicas have these names and have been healthy for five seconds.
pub(crate) fn status<'a>(replicas: impl IntoIterator<Item = &'a str>) -> Status {
    Status {
        format: super::FORMAT,
        time_s: ago(0),
        version: "0.1.0".to_owned(),
        volume: "genomes".to_owned(),
        source: "/etc/fanfs/genomes.toml".into(),
        mount_point: "/genomes".into(),
        mode: VolumeMode::Shared,
        pid: 4711,
        keeper: None,
        start_time_s: ago(93_784),
        replicas: replicas.into_iter().map(replica).collect(),
        placement: PlacementStatus::default(),
        affinities: Vec::new(),
        passthrough: PassthroughStatus::default(),
        counters: VolumeCountersSnapshot::default(),
        gauges: VolumeGauges {
            buffer_used: 64 << 20,
            buffer_idle: 0,
            buffer_memory: 64 << 20,
            buffer_budget: 256 << 20,
            segments_waiting: 3,
            segments_in_flight: 12,
            requests: 2,
            calls: 0,
            inodes: 9,
            handles: 2,
        },
        log: LogSnapshot::default(),
    }
}

fn replica(name: &str) -> ReplicaStatus {
    ReplicaStatus {
        name: name.to_owned(),
        path: format!("/mnt/{name}").into(),
        node: name.to_owned(),
        health: HealthState::Healthy,
        health_reason: HealthReason::Started,
        health_since_s: ago(5),
        absence: None,
        ejections: 0,
        estimated_bandwidth_local: Some(100 << 20),
        estimated_bandwidth_remote: Some(80 << 20),
        in_flight: 4 << 20,
        in_flight_limit: 8 << 20,
        active_threads: 1,
        hung_threads: 0,
        hung_objects: 0,
        hung: Vec::new(),
        connections: Vec::new(),
        counters: ReplicaCountersSnapshot::default(),
    }
}
