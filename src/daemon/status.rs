//! The state of a mounted volume, for `fanfs status` and metrics.

use std::sync::Arc;
use std::time::Instant;

use super::supervisor::client::SupervisorClient;
use super::volume_core::VolumeCore;
use crate::backend::{ConnectionCounters, HungPath, Replica};
use crate::config::AffinityConfig;
use crate::fs::PinnedLatencies;
use crate::metrics::{MetricsSnapshot, ProcessStats};
use crate::replicas::health::HealthState;
use crate::replicas::metadata_order;
use crate::scheduler::rate::Locality;
use crate::status::{
    self, AffinityStatus, ConnectionStatus, HungObject, ReplicaStatus, Status, VolumeGauges,
};
use crate::telemetry;
use crate::volume::ReplicaId;

/// The most hung objects that the status names for each replica.
const MAX_LISTED_HUNG: usize = 16;

fn connection_status(counters: &ConnectionCounters) -> ConnectionStatus {
    let ConnectionCounters { calls, resent, connected, discarded, received } = *counters;
    ConnectionStatus { calls, resent, connected, discarded, received }
}

impl VolumeCore {
    pub(super) fn status(&self) -> Status {
        let clock = self.clock.anchor();
        let hung_object = |hung: HungPath| HungObject {
            path: hung.path.to_string_lossy().into_owned(),
            threads: hung.threads,
            since_s: clock.timestamp(hung.since),
        };
        let standings = self.reader.replica_snapshots();
        let replica = |(id, replica): (ReplicaId, &Arc<Replica>)| {
            let configured = &self.config.replicas[id.index()];
            let standing = &standings[id];
            let hung_objects = replica.hung_paths();
            let bandwidth = |locality: Locality| {
                standing.is_measured[locality].then_some(standing.rate[locality] as u64)
            };
            ReplicaStatus {
                name: configured.name.clone(),
                path: configured.location.to_path(),
                node: configured.node.clone(),
                health: standing.health.state,
                health_reason: standing.health.reason,
                health_since_s: clock.timestamp(standing.health.since),
                absence: (standing.health.state == HealthState::Absent)
                    .then(|| self.absence_reason(id)),
                ejections: standing.health.ejections,
                estimated_bandwidth_local: bandwidth(Locality::Local),
                estimated_bandwidth_remote: bandwidth(Locality::Remote),
                in_flight: standing.in_flight,
                in_flight_limit: standing.cap,
                active_threads: replica.busy_threads(),
                hung_threads: replica.stuck_threads(self.config.read.attempt_deadline),
                hung_objects: hung_objects.len(),
                hung: hung_objects.into_iter().take(MAX_LISTED_HUNG).map(&hung_object).collect(),
                connections: replica.connections().iter().map(connection_status).collect(),
                counters: replica.counters.snapshot(),
            }
        };
        Status {
            format: status::FORMAT,
            time_s: clock.timestamp(Instant::now()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            volume: self.config.volume.name.clone(),
            source: self.config.source.clone(),
            mount_point: self.mount_point.clone(),
            mode: self.config.volume.mode,
            pid: std::process::id(),
            keeper: self.supervisor.get().map(SupervisorClient::state),
            start_time_s: clock.timestamp(self.started_at),
            replicas: self.replicas.iter().map(replica).collect(),
            placement: self.reader.locator().status(),
            affinities: self.affinity_status(),
            counters: self.counters.snapshot(),
            passthrough: self.fs.open_files.passthrough_status().into(),
            gauges: VolumeGauges::new(self.reader.gauges(), self.fs.gauges()),
            log: telemetry::log::snapshot(),
        }
    }

    pub(super) fn metrics_snapshot(&self) -> MetricsSnapshot {
        MetricsSnapshot { status: self.status(), process: ProcessStats::read().ok() }
    }

    fn affinity_status(&self) -> Vec<AffinityStatus> {
        let name = |id: ReplicaId| self.config.replicas[id.index()].name.clone();
        let rules = self.config.affinities.iter().zip(self.fs.pinned_latencies());
        let status = |(rule, pinned): (&AffinityConfig, PinnedLatencies)| {
            let faster =
                metadata_order::faster_unpinned_replica(&pinned.latencies_us, rule.replicas);
            AffinityStatus {
                path: rule.path.clone(),
                replicas: rule.replicas.iter().map(name).collect(),
                calls: pinned.calls,
                times_us: pinned.latencies_us.iter().map(|(_, time)| *time).collect(),
                faster: faster.map(|(id, _, _)| name(id)),
            }
        };
        rules.map(status).collect()
    }
}
