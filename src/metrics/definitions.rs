//! All metrics: their names, their meanings, and where their values come from.
//!
//! The name of a *stable* metric changes only with a note in the changelog, and its meaning never
//! does. An *experimental* metric may be removed. Each metric names the fields of `fanfs status
//! --json` that it shows. Tests fail if a field is shown by no metric, or if the table in
//! docs/METRICS.md differs from this one.

use Extract::{Daemon, Labeled, Replica, ReplicaHistogram, Volume, VolumeHistogram};

use super::{MetricsSnapshot, ProcessStats};
use crate::replicas::health::HealthState;
use crate::status::{AffinityStatus, ConnectionStatus, KeeperState, ReplicaStatus, Status};
use crate::telemetry::histogram::HistogramSnapshot;

/// Labels in addition to the volume's.
pub(super) type Labels = Vec<(&'static str, String)>;

/// The type of a metric in Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows, starting from 0 with each daemon.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Durations, counted in buckets.
    Histogram,
}

/// What users may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// The name and the meaning.
    Stable,
    /// Nothing.
    Experimental,
}

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// Its full name.
    pub name: &'static str,
    /// The fields of `fanfs status --json` that it shows, separated by spaces.
    pub status_fields: &'static str,
    /// Its meaning, in a few words.
    pub help: &'static str,
    /// What users may rely on.
    pub stability: Stability,
    kind: MetricKind,
    extract: Extract,
}

/// The source of a metric's values.
#[derive(Debug)]
enum Extract {
    /// One value for the volume.
    Volume(fn(&Status) -> u64),
    /// One value for each replica.
    Replica(fn(&ReplicaStatus) -> u64),
    /// One value for each combination of these labels' values.
    Labeled(&'static [&'static str], fn(&Status) -> Vec<LabeledValue>),
    /// The latency of applications' reads.
    VolumeHistogram,
    /// The latency of reads on each replica.
    ReplicaHistogram,
    Daemon(fn(&ProcessStats) -> Value),
}

/// A value, with the values of its labels other than the volume's.
struct LabeledValue {
    labels: Vec<String>,
    value: Value,
}

impl LabeledValue {
    fn new(labels: Vec<String>, value: Value) -> Self {
        Self { labels, value }
    }
}

/// A value, with the names and values of its labels.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) labels: Labels,
    pub(super) value: Value,
}

impl Sample {
    fn unlabeled(value: Value) -> Self {
        Self { labels: Vec::new(), value }
    }

    fn of_replica(replica: &ReplicaStatus, value: Value) -> Self {
        Self { labels: vec![("replica", replica.name.clone())], value }
    }
}

/// A value for one set of labels.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Integer(u64),
    Float(f64),
    Histogram(HistogramSnapshot),
}

impl Metric {
    /// The type in Prometheus.
    pub fn kind(&self) -> MetricKind {
        self.kind
    }

    /// Its labels.
    pub fn labels(&self) -> Vec<&'static str> {
        let own: &[&str] = match &self.extract {
            Replica(_) | ReplicaHistogram => &["replica"],
            Labeled(labels, _) => labels,
            Volume(_) | VolumeHistogram | Daemon(_) => &[],
        };
        [&["volume"], own].concat()
    }

    pub(super) fn samples(&self, snapshot: &MetricsSnapshot) -> Vec<Sample> {
        let status = &snapshot.status;
        match &self.extract {
            Volume(take) => vec![Sample::unlabeled(Value::Integer(take(status)))],
            Replica(take) => {
                let sample = |replica| Sample::of_replica(replica, Value::Integer(take(replica)));
                status.replicas.iter().map(sample).collect()
            }
            Labeled(names, rows) => {
                let sample = |row: LabeledValue| Sample {
                    labels: names.iter().copied().zip(row.labels).collect(),
                    value: row.value,
                };
                rows(status).into_iter().map(sample).collect()
            }
            VolumeHistogram => {
                vec![Sample::unlabeled(Value::Histogram(status.counters.read_latency.clone()))]
            }
            ReplicaHistogram => {
                let sample = |replica: &ReplicaStatus| {
                    let times = replica.counters.read_latency.clone();
                    Sample::of_replica(replica, Value::Histogram(times))
                };
                status.replicas.iter().map(sample).collect()
            }
            Daemon(take) => snapshot.process.iter().map(|p| Sample::unlabeled(take(p))).collect(),
        }
    }
}

type Text = &'static str;

const fn counter(name: Text, shows: Text, take: Extract, help: Text) -> Metric {
    Metric {
        name,
        status_fields: shows,
        help,
        stability: Stability::Stable,
        kind: MetricKind::Counter,
        extract: take,
    }
}

const fn gauge(name: Text, shows: Text, take: Extract, help: Text) -> Metric {
    Metric {
        name,
        status_fields: shows,
        help,
        stability: Stability::Stable,
        kind: MetricKind::Gauge,
        extract: take,
    }
}

/// A gauge that may be removed.
const fn experimental_gauge(name: Text, shows: Text, take: Extract, help: Text) -> Metric {
    Metric {
        name,
        status_fields: shows,
        help,
        stability: Stability::Experimental,
        kind: MetricKind::Gauge,
        extract: take,
    }
}

const fn histogram(name: Text, shows: Text, take: Extract, help: Text) -> Metric {
    Metric {
        name,
        status_fields: shows,
        help,
        stability: Stability::Stable,
        kind: MetricKind::Histogram,
        extract: take,
    }
}

/// The metrics, in the order of output.
#[rustfmt::skip] // One line each: it is a table.
pub static METRICS: &[Metric] = &[
    gauge("fanfs_build_info", "version", Labeled(&["version"], build_info), "Always 1; the version of fanfs"),
    gauge("fanfs_volume_info", "mode mount_point placement.provider", Labeled(&["mode", "mount_point", "provider"], volume_info), "Always 1; the volume's mode, mount point and placement provider"),
    gauge("fanfs_start_time_seconds", "start_time_s", Labeled(&[], start_time), "When this daemon began to serve the mount, seconds since 1970; another daemon has another time"),
    counter("fanfs_read_bytes_total", "counters.bytes_delivered", Volume(|s| s.counters.bytes_delivered), "Bytes delivered to applications"),
    counter("fanfs_reads_total", "counters.reads", Volume(|s| s.counters.reads), "Read requests answered with data"),
    counter("fanfs_read_errors_total", "counters.read_errors", Volume(|s| s.counters.read_errors), "Read requests answered with an error"),
    histogram("fanfs_read_duration_seconds", "counters.read_latency", VolumeHistogram, "Time from an application's read request to its answer, including errors"),
    counter("fanfs_buffer_hits_total", "counters.buffer_hits", Volume(|s| s.counters.buffer_hits), "Read requests served entirely from memory (readahead hits)"),
    counter("fanfs_buffer_waits_total", "counters.budget_waits", Volume(|s| s.counters.budget_waits), "Read requests that waited for the buffer budget"),
    counter("fanfs_retries_total", "counters.retries", Volume(|s| s.counters.retries), "Segments requested from a second replica because the first one failed"),
    counter("fanfs_hedges_total", "counters.hedges", Volume(|s| s.counters.hedges), "Segments requested from a second replica because the first one was late"),
    counter("fanfs_hedge_results_total", "counters.hedges_won counters.hedges_lost", Labeled(&["result"], hedge_results), "Hedged reads that delivered the segment first (won), or after it had already arrived (lost)"),
    counter("fanfs_hedge_bytes_total", "counters.hedge_bytes", Volume(|s| s.counters.hedge_bytes), "Bytes delivered by hedged reads"),
    counter("fanfs_duplicate_bytes_total", "counters.bytes_duplicate", Volume(|s| s.counters.bytes_duplicate), "Bytes that another replica had delivered, or that no request wanted any more (duplicate reads)"),
    counter("fanfs_compared_blocks_total", "counters.compared", Volume(|s| s.counters.compared), "Blocks of 64 KiB compared with the deciding replica's"),
    counter("fanfs_outvoted_blocks_total", "counters.outvoted", Volume(|s| s.counters.outvoted), "Blocks that differed and for which a third replica agreed with the other against the deciding replica"),
    counter("fanfs_metadata_calls_total", "counters.metadata", Volume(|s| s.counters.metadata), "Metadata calls answered"),
    counter("fanfs_metadata_failovers_total", "counters.metadata_failovers", Volume(|s| s.counters.metadata_failovers), "Metadata calls answered by a replica other than the first one asked"),
    counter("fanfs_writes_total", "counters.writes", Volume(|s| s.counters.writes), "Write requests completed"),
    counter("fanfs_write_errors_total", "counters.write_errors", Volume(|s| s.counters.write_errors), "Write requests that failed"),
    counter("fanfs_written_bytes_total", "counters.bytes_written", Volume(|s| s.counters.bytes_written), "Bytes written by applications"),
    counter("fanfs_changes_total", "counters.changes", Volume(|s| s.counters.changes), "Changes of names and attributes, including failed ones"),
    gauge("fanfs_buffer_used_bytes", "gauges.buffer_used", Volume(|s| s.gauges.buffer_used), "Buffer budget in use"),
    gauge("fanfs_buffer_idle_bytes", "gauges.buffer_idle", Volume(|s| s.gauges.buffer_idle), "Pooled buffers, kept for reuse"),
    gauge("fanfs_buffer_memory_bytes", "gauges.buffer_memory", Volume(|s| s.gauges.buffer_memory), "Memory of all buffers, in use or pooled; never above the budget"),
    gauge("fanfs_buffer_budget_bytes", "gauges.buffer_budget", Volume(|s| s.gauges.buffer_budget), "The buffer budget"),
    gauge("fanfs_segments_waiting", "gauges.segments_waiting", Volume(|s| s.gauges.segments_waiting as u64), "Segments queued for a replica"),
    gauge("fanfs_segments_in_flight", "gauges.segments_in_flight", Volume(|s| s.gauges.segments_in_flight as u64), "Segments in flight"),
    gauge("fanfs_reads_pending", "gauges.requests", Volume(|s| s.gauges.requests as u64), "Read requests not answered yet"),
    gauge("fanfs_metadata_calls_pending", "gauges.calls", Volume(|s| s.gauges.calls as u64), "Metadata calls not answered yet"),
    gauge("fanfs_inodes", "gauges.inodes", Volume(|s| s.gauges.inodes as u64), "Inodes that the kernel knows"),
    gauge("fanfs_handles", "gauges.handles", Volume(|s| s.gauges.handles as u64), "Open files and directories"),
    gauge("fanfs_keeper_gone", "keeper", Volume(|s| u64::from(s.keeper == Some(KeeperState::Gone))), "1 if the keeper has died: if the daemon dies as well, the mount is lost"),
    counter("fanfs_log_lines_lost_total", "log.lines_lost", Volume(|s| s.log.lines_lost), "Log lines that could not be written"),
    experimental_gauge("fanfs_placement_files", "placement.files", Volume(|s| s.placement.files as u64), "Files whose placement is in memory"),
    experimental_gauge("fanfs_placement_queries_pending", "placement.pending", Volume(|s| s.placement.pending as u64), "Placement queries not answered yet"),
    counter("fanfs_placement_answers_total", "placement.answers", Volume(|s| s.placement.answers), "Placement queries that the provider answered"),
    counter("fanfs_placement_failures_total", "placement.failures", Volume(|s| s.placement.failures), "Placement queries that failed"),
    gauge("fanfs_placement_failing", "placement.failing", Volume(|s| u64::from(s.placement.failing.is_some())), "1 if the last placement query failed"),
    counter("fanfs_placement_contradictions_total", "placement.contradicted", Volume(|s| s.placement.contradicted), "Times that a chunk read like a remote one from a replica whose node should hold it"),
    experimental_gauge("fanfs_placement_unmatched_nodes", "placement.unmatched", Volume(|s| s.placement.unmatched.len() as u64), "Nodes in the last answer that no replica is on, as many as fanfs status shows"),
    experimental_gauge("fanfs_passthrough_wanted", "passthrough.wanted", Volume(|s| u64::from(s.passthrough.wanted)), "1 if passthrough is configured"),
    counter("fanfs_passthrough_opens_total", "passthrough.opens", Volume(|s| s.passthrough.opens), "Opens answered with passthrough; no other metric counts the reads of these files"),
    experimental_gauge("fanfs_passthrough_files", "passthrough.files", Volume(|s| s.passthrough.files as u64), "Files open with passthrough"),
    experimental_gauge("fanfs_passthrough_obstacles", "passthrough.obstacles", Volume(|s| s.passthrough.obstacles.len() as u64), "Different reasons why files were opened without passthrough"),
    counter("fanfs_affinity_calls_total", "affinities[].calls", Labeled(&["rule"], affinity_calls), "Metadata calls under an affinity rule; rules are numbered from 1"),
    experimental_gauge("fanfs_affinity_call_seconds", "affinities[].times_us", Labeled(&["rule", "replica"], affinity_times), "Smoothed time of a metadata call under an affinity rule; absent before the first call"),
    experimental_gauge("fanfs_affinity_slower", "affinities[].faster", Labeled(&["rule"], affinity_slower), "1 if another replica answers clearly faster than the replicas that an affinity rule names"),
    gauge("fanfs_replica_info", "replicas[].name replicas[].node", Labeled(&["replica", "node"], replica_info), "Always 1; the node on which a replica's gateway runs"),
    gauge("fanfs_replica_health", "replicas[].health", Labeled(&["replica", "state"], health_rows), "1 for the replica's current state, 0 for the others"),
    experimental_gauge("fanfs_replica_health_reason", "replicas[].health_reason", Labeled(&["replica", "reason"], health_reason_rows), "Always 1; the reason for the replica's state"),
    gauge("fanfs_replica_health_change_timestamp_seconds", "replicas[].health_since_s", Labeled(&["replica"], health_changes), "When a replica entered its state, seconds since 1970"),
    counter("fanfs_replica_ejections_total", "replicas[].ejections", Replica(|r| r.ejections), "Times that a replica was ejected, or found absent"),
    gauge("fanfs_replica_estimated_bandwidth_bytes_per_second", "replicas[].estimated_bandwidth_local replicas[].estimated_bandwidth_remote", Labeled(&["replica", "locality"], estimated_bandwidths), "Estimated bandwidth of a replica for chunks that its node holds (local), and for others (remote)"),
    gauge("fanfs_replica_in_flight_bytes", "replicas[].in_flight", Replica(|r| r.in_flight), "Bytes requested and not yet received"),
    gauge("fanfs_replica_in_flight_limit_bytes", "replicas[].in_flight_limit", Replica(|r| r.in_flight_limit), "Current limit of bytes in flight"),
    gauge("fanfs_replica_active_threads", "replicas[].active_threads", Replica(|r| r.active_threads as u64), "Active threads: inside a call on a replica"),
    gauge("fanfs_replica_hung_threads", "replicas[].hung_threads", Replica(|r| r.hung_threads as u64), "Hung threads: active for longer than an attempt may take"),
    gauge("fanfs_replica_hung_objects", "replicas[].hung_objects", Replica(|r| r.hung_objects as u64), "Files and directories on which calls to a replica hang"),
    counter("fanfs_replica_read_bytes_total", "replicas[].bytes replicas[].bytes_local replicas[].bytes_remote replicas[].bytes_unknown", Labeled(&["replica", "locality"], replica_bytes), "Bytes of file data from a replica; local: its node holds the chunk, remote: it does not"),
    counter("fanfs_replica_reads_total", "replicas[].reads", Replica(|r| r.counters.reads), "Positioned reads that succeeded"),
    histogram("fanfs_replica_read_duration_seconds", "replicas[].read_latency", ReplicaHistogram, "Time of positioned reads that succeeded"),
    counter("fanfs_replica_metadata_calls_total", "replicas[].metadata", Replica(|r| r.counters.metadata), "Metadata calls that a replica answered"),
    counter("fanfs_replica_errors_total", "replicas[].errors", Replica(|r| r.counters.errors), "Calls that failed through a replica's fault"),
    counter("fanfs_replica_slow_reads_total", "replicas[].slow", Replica(|r| r.counters.slow), "Slow reads: segments that another replica was asked for because this one was late"),
    counter("fanfs_replica_disagreements_total", "replicas[].disagreements", Replica(|r| r.counters.disagreements), "Times that a replica had another version of a file than expected"),
    counter("fanfs_replica_differing_files_total", "replicas[].differing", Replica(|r| r.counters.differing), "Files not read from a replica because its bytes differ"),
    counter("fanfs_nfs_calls_total", "replicas[].connections[].calls", Labeled(&["replica", "connection"], |s| by_connection(s, |c| c.calls)), "Calls on a connection to an NFS server"),
    counter("fanfs_nfs_calls_resent_total", "replicas[].connections[].resent", Labeled(&["replica", "connection"], |s| by_connection(s, |c| c.resent)), "Calls resent"),
    counter("fanfs_nfs_connects_total", "replicas[].connections[].connected", Labeled(&["replica", "connection"], |s| by_connection(s, |c| c.connected)), "Connections made"),
    counter("fanfs_nfs_replies_discarded_total", "replicas[].connections[].discarded", Labeled(&["replica", "connection"], |s| by_connection(s, |c| c.discarded)), "Late replies"),
    counter("fanfs_nfs_received_bytes_total", "replicas[].connections[].received", Labeled(&["replica", "connection"], |s| by_connection(s, |c| c.received)), "Bytes received"),
    counter("process_cpu_seconds_total", "", Daemon(|p| Value::Float(p.cpu_s)), "User and system CPU time of the daemon"),
    gauge("process_resident_memory_bytes", "", Daemon(|p| Value::Integer(p.resident_memory)), "Resident memory of the daemon"),
    gauge("process_virtual_memory_bytes", "", Daemon(|p| Value::Integer(p.virtual_memory)), "Virtual memory of the daemon"),
    gauge("process_open_fds", "", Daemon(|p| Value::Integer(p.open_fds)), "Open file descriptors of the daemon"),
    gauge("process_max_fds", "", Daemon(|p| Value::Integer(p.max_fds)), "Limit of open file descriptors of the daemon"),
    gauge("process_start_time_seconds", "", Daemon(|p| Value::Float(p.started_s)), "Start time of the daemon, seconds since 1970"),
];

fn info_row(labels: Vec<String>) -> LabeledValue {
    LabeledValue::new(labels, Value::Integer(1))
}

fn build_info(status: &Status) -> Vec<LabeledValue> {
    vec![info_row(vec![status.version.clone()])]
}

fn volume_info(status: &Status) -> Vec<LabeledValue> {
    let mount_point = status.mount_point.display().to_string();
    vec![info_row(vec![json_name(&status.mode), mount_point, status.placement.provider.clone()])]
}

/// The name of a value in `fanfs status --json`.
fn json_name(value: &impl serde::Serialize) -> String {
    let name = serde_json::to_value(value).ok();
    name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn start_time(status: &Status) -> Vec<LabeledValue> {
    vec![LabeledValue::new(Vec::new(), Value::Float(status.start_time_s.unix_s()))]
}

fn hedge_results(status: &Status) -> Vec<LabeledValue> {
    let counters = &status.counters;
    let row = |result: &str, count| LabeledValue::new(vec![result.to_owned()], count);
    vec![
        row("won", Value::Integer(counters.hedges_won)),
        row("lost", Value::Integer(counters.hedges_lost)),
    ]
}

fn health_changes(status: &Status) -> Vec<LabeledValue> {
    let row = |replica: &ReplicaStatus| {
        let since = Value::Float(replica.health_since_s.unix_s());
        LabeledValue::new(vec![replica.name.clone()], since)
    };
    status.replicas.iter().map(row).collect()
}

/// A locality's name, and its value if there is one.
type LocalityValue = (&'static str, Option<u64>);

/// One value of a replica for each locality of chunks.
fn rows_by_locality<const N: usize>(
    status: &Status,
    values: fn(&ReplicaStatus) -> [LocalityValue; N],
) -> Vec<LabeledValue> {
    let rows = status.replicas.iter().flat_map(|replica| {
        values(replica).into_iter().filter_map(|(locality, value)| {
            let labels = vec![replica.name.clone(), locality.to_owned()];
            Some(LabeledValue::new(labels, Value::Integer(value?)))
        })
    });
    rows.collect()
}

fn estimated_bandwidths(status: &Status) -> Vec<LabeledValue> {
    rows_by_locality(status, |replica| {
        [
            ("local", replica.estimated_bandwidth_local),
            ("remote", replica.estimated_bandwidth_remote),
        ]
    })
}

fn replica_bytes(status: &Status) -> Vec<LabeledValue> {
    rows_by_locality(status, |replica| {
        let counters = &replica.counters;
        [
            ("local", Some(counters.bytes_local)),
            ("remote", Some(counters.bytes_remote)),
            ("unknown", Some(counters.bytes_unknown)),
        ]
    })
}

/// A value of each connection; connections are numbered from 1.
fn by_connection(status: &Status, value: fn(&ConnectionStatus) -> u64) -> Vec<LabeledValue> {
    let rows = status.replicas.iter().flat_map(|replica| {
        replica.connections.iter().zip(1..).map(move |(connection, number): (_, u32)| {
            let labels = vec![replica.name.clone(), number.to_string()];
            LabeledValue::new(labels, Value::Integer(value(connection)))
        })
    });
    rows.collect()
}

fn replica_info(status: &Status) -> Vec<LabeledValue> {
    let row = |replica: &ReplicaStatus| info_row(vec![replica.name.clone(), replica.node.clone()]);
    status.replicas.iter().map(row).collect()
}

fn health_rows(status: &Status) -> Vec<LabeledValue> {
    use HealthState::{Absent, Ejected, Healthy, Probing, Suspect};
    let row = |replica: &ReplicaStatus, state: HealthState| {
        let is_in_it = Value::Integer(u64::from(replica.health == state));
        LabeledValue::new(vec![replica.name.clone(), json_name(&state)], is_in_it)
    };
    let states =
        |replica| [Healthy, Suspect, Ejected, Probing, Absent].map(|state| row(replica, state));
    status.replicas.iter().flat_map(states).collect()
}

fn health_reason_rows(status: &Status) -> Vec<LabeledValue> {
    let row = |replica: &ReplicaStatus| {
        info_row(vec![replica.name.clone(), json_name(&replica.health_reason)])
    };
    status.replicas.iter().map(row).collect()
}

/// An affinity rule and its number. Metrics show the number, because the rule's path would be a
/// file name.
struct NumberedAffinity<'a> {
    number: String,
    rule: &'a AffinityStatus,
}

fn numbered_affinities(status: &Status) -> impl Iterator<Item = NumberedAffinity<'_>> {
    let rules = (1_usize..).zip(&status.affinities);
    rules.map(|(number, rule)| NumberedAffinity { number: number.to_string(), rule })
}

fn affinity_calls(status: &Status) -> Vec<LabeledValue> {
    let row = |NumberedAffinity { number, rule }: NumberedAffinity<'_>| {
        LabeledValue::new(vec![number], Value::Integer(rule.calls))
    };
    numbered_affinities(status).map(row).collect()
}

fn affinity_times(status: &Status) -> Vec<LabeledValue> {
    let rows = numbered_affinities(status).flat_map(|NumberedAffinity { number, rule }| {
        let times = status.replicas.iter().zip(&rule.times_us).filter(|(_, us)| **us > 0);
        times.map(move |(replica, us)| {
            let labels = vec![number.clone(), replica.name.clone()];
            LabeledValue::new(labels, Value::Float(*us as f64 / 1e6))
        })
    });
    rows.collect()
}

fn affinity_slower(status: &Status) -> Vec<LabeledValue> {
    let row = |NumberedAffinity { number, rule }: NumberedAffinity<'_>| {
        LabeledValue::new(vec![number], Value::Integer(u64::from(rule.faster.is_some())))
    };
    numbered_affinities(status).map(row).collect()
}

/// The table of docs/METRICS.md. A metric's name shows its type.
pub fn markdown_table() -> String {
    let mut table = String::from("| metric | labels | meaning |\n|---|---|---|\n");
    for metric in METRICS {
        let trial =
            if metric.stability == Stability::Experimental { " (experimental)" } else { "" };
        let labels: Vec<_> =
            metric.labels().into_iter().filter(|label| *label != "volume").collect();
        table.push_str(&format!(
            "| `{}`{trial} | {} | {} |\n",
            metric.name,
            labels.join(", "),
            metric.help
        ));
    }
    table
}
