//! How a mounted volume is: what `fanfs status` shows and metrics are made of.

use std::sync::Arc;
use std::time::Instant;

use super::{Core, Keeper};
use crate::backend::{Hung, Replica};
use crate::config::Affinity;
use crate::control::{self, AffinityStatus, HungObject, ReplicaStatus, Status};
use crate::fs::PinnedTimes;
use crate::metrics::{Process, Snapshot};
use crate::scheduler::health::HealthState;
use crate::scheduler::metadata;
use crate::telemetry;
use crate::volume::ReplicaId;

/// Hung objects that are named, of each replica.
const NAMED: usize = 16;

fn hung(hung: Hung) -> HungObject {
    let path = hung.path.to_string_lossy().into_owned();
    HungObject { path, threads: hung.threads, lasts_s: hung.lasts.as_secs() }
}

impl Core {
    pub(super) fn status(&self) -> Status {
        let now = Instant::now();
        let standings = self.reader.standings();
        let replica = |(id, replica): (ReplicaId, &Arc<Replica>)| {
            let configured = &self.config.replicas[id.index()];
            let standing = &standings[id];
            let hung_objects = replica.hung();
            ReplicaStatus {
                name: configured.name.clone(),
                path: configured.path.clone(),
                node: configured.node.clone(),
                health: standing.health.state,
                health_reason: standing.health.reason,
                health_s: standing.health.lasts.as_secs(),
                absence: (standing.health.state == HealthState::Absent).then(|| self.why_out(id)),
                ejections: standing.health.ejections,
                rate: standing.rate.local as u64,
                rate_remote: standing.rate.remote as u64,
                in_flight: standing.in_flight,
                in_flight_cap: standing.cap,
                busy_threads: replica.busy_threads(),
                stuck_threads: replica.stuck_threads(self.config.read.attempt_deadline),
                hung_objects: hung_objects.len(),
                hung: hung_objects.into_iter().take(NAMED).map(hung).collect(),
                counters: replica.counters.reading(now),
            }
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            volume: self.config.volume.name.clone(),
            source: self.config.source.clone(),
            mount_point: self.mount_point.clone(),
            mode: self.config.volume.mode,
            pid: std::process::id(),
            keeper: self.keeper.get().map(Keeper::state),
            uptime_s: now.saturating_duration_since(self.started).as_secs(),
            replicas: self.replicas.iter().map(replica).collect(),
            placement: self.reader.locator().status(),
            affinities: self.affinities(),
            counters: self.counters.reading(),
            passthrough: self.fs.passthrough().into(),
            gauges: control::Gauges::new(self.reader.gauges(), self.fs.gauges()),
            log: telemetry::log::reading(),
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            status: self.status(),
            read_times: self.counters.read_latency.reading(),
            replica_times: self.replicas.iter().map(|(_, r)| r.counters.read_times()).collect(),
            process: Process::read().ok(),
        }
    }

    fn affinities(&self) -> Vec<AffinityStatus> {
        let name = |id: ReplicaId| self.config.replicas[id.index()].name.clone();
        let rules = self.config.affinities.iter().zip(self.fs.pinned());
        let status = |(rule, pinned): (&Affinity, PinnedTimes)| {
            let quicker = metadata::quicker_elsewhere(&pinned.times, rule.replicas);
            AffinityStatus {
                path: rule.path.clone(),
                replicas: rule.replicas.iter().map(name).collect(),
                calls: pinned.calls,
                times_us: pinned.times.iter().map(|(_, time)| *time).collect(),
                quicker: quicker.map(|(id, _, _)| name(id)),
            }
        };
        rules.map(status).collect()
    }
}
