use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::replicas::health::{HealthReason, HealthState};
use crate::status::{AffinityStatus, ConnectionStatus, HungObject, sample};
use crate::telemetry::histogram::LatencyHistogram;

/// Fields that have no metric, and why.
const NOT_METRICS: &[(&str, &str)] = &[
    ("format", "metrics have no numbered format"),
    ("time_s", "Prometheus knows when it asked"),
    ("source", "it is what the volume was read from, and does not change"),
    ("pid", "process_start_time_seconds changes with it"),
    ("replicas[].path", "fanfs_replica_info says which replica it is"),
    ("replicas[].absence", "a reason in words; fanfs_replica_health says that it is absent"),
    ("replicas[].hung[].path", "a path of the volume; fanfs_replica_hung_objects counts them"),
    ("replicas[].hung[].threads", "fanfs_replica_hung_threads counts them"),
    ("replicas[].hung[].since_s", "it is of one object"),
    ("log.error", "a reason in words"),
    ("affinities[].path", "a path of the volume; rules have numbers"),
    ("affinities[].replicas[]", "the configuration says so"),
    ("placement.unnamed[]", "fanfs doctor reports it"),
    ("placement.notes[]", "fanfs doctor reports it"),
    ("placement.located", "fanfs_placement_answers_total counts answers"),
    ("placement.answer_ms", "a mean of all answers, which a rate cannot use"),
];

fn from_json<T: serde::de::DeserializeOwned>(json: &str) -> T {
    serde_json::from_str(json).unwrap()
}

fn snapshot() -> MetricsSnapshot {
    let mut status = sample::status(["r1", "r2"]);
    status.volume = "v".to_owned();
    status.mode = from_json("\"copies\"");
    status.placement = from_json(
        "{\"provider\":\"table\",\"files\":1,\"pending\":0,\"answers\":4,\"failures\":1,\
         \"failing\":\"no\",\"contradicted\":0,\"unmatched\":[\"x\"],\"unnamed\":[\"r2\"],\
         \"answer_ms\":7,\"notes\":[\"a\"]}",
    );
    status.affinities = vec![AffinityStatus {
        path: "/secret/**".to_owned(),
        replicas: vec!["r1".to_owned()],
        calls: 9,
        times_us: vec![1_500, 0],
        faster: None,
    }];
    status.passthrough.obstacles = vec!["a".into()];
    status.log.lines_lost = 11;
    let times = LatencyHistogram::default();
    [1, 3, 60_000].iter().for_each(|ms| times.record(Duration::from_millis(*ms)));
    status.counters.read_latency = times.snapshot();
    status.counters.reads = 3;
    status.counters.hedges_won = 2;
    for replica in &mut status.replicas {
        replica.node = "node\"1\\".to_owned();
        replica.health = HealthState::Probing;
        replica.health_reason = HealthReason::Proved;
        replica.hung =
            vec![HungObject { path: "d/f".to_owned(), threads: 1, since_s: sample::ago(9) }];
        replica.connections = vec![ConnectionStatus {
            calls: 5,
            resent: 4,
            connected: 3,
            discarded: 2,
            received: 1 << 40,
        }];
        replica.counters.read_latency = times.snapshot();
        replica.counters.bytes_local = 1 << 60;
        replica.counters.bytes_unknown = 7;
    }
    MetricsSnapshot { status, process: ProcessStats::read().ok() }
}

/// The fields of a status that have values, named as in [`Metric::status_fields`].
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            fields(value, &path, found);
        }),
        Value::Array(array) if array.iter().all(|v| v.is_object() || v.is_string()) => {
            assert!(!array.is_empty(), "{path}: nothing would be found in it");
            array.iter().for_each(|value| fields(value, &format!("{path}[]"), found));
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn every_field_of_a_status_is_a_metric() {
    let mut found = BTreeSet::new();
    fields(&serde_json::to_value(snapshot().status).unwrap(), "", &mut found);
    let shown: BTreeSet<&str> =
        METRICS.iter().flat_map(|m| m.status_fields.split_whitespace()).collect();
    let is_within = |field: &str, of: &str| {
        field.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    for field in &found {
        // The volume's name is a label of all metrics.
        let has_metric = field == "volume" || shown.iter().any(|shown| is_within(field, shown));
        let why = NOT_METRICS.iter().any(|(no_metric, _)| field == no_metric);
        assert!(
            has_metric != why,
            "`{field}` of a status has no metric in src/metrics/definitions.rs"
        );
    }
    for shown in shown {
        assert!(found.iter().any(|field| is_within(field, shown)), "there is no field `{shown}`");
    }
    for (field, _) in NOT_METRICS {
        assert!(found.contains(*field), "there is no field `{field}`");
    }
}

#[test]
fn metric_names_follow_the_rules() {
    let mut seen = BTreeSet::new();
    for metric in METRICS {
        let name = metric.name;
        assert!(seen.insert(name), "{name} is there twice");
        assert!(name.starts_with("fanfs_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind() == MetricKind::Counter, "{name}");
        let is_time = metric.kind() == MetricKind::Histogram;
        assert!(!is_time || name.ends_with("_duration_seconds"), "{name}");
        assert!(!["_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)), "{name}");
        assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{name}");
        assert!(metric.help.len() < 120 && !metric.help.contains('|'), "{name}");
        let known = ["volume", "replica", "node", "state", "reason", "rule", "version", "mode"];
        for label in metric.labels() {
            let more = ["mount_point", "provider", "locality", "result", "connection"];
            let is_known = known.contains(&label) || more.contains(&label);
            assert!(is_known, "{name} has a label `{label}`: is the number of its values bounded?");
        }
    }
}

#[test]
fn encoded_metrics_match_the_snapshot() {
    let text = encode_metrics(&snapshot(), ExpositionFormat::PrometheusText);
    for line in [
        "# TYPE fanfs_reads_total counter",
        "fanfs_reads_total{volume=\"v\"} 3",
        "fanfs_log_lines_lost_total{volume=\"v\"} 11",
        "fanfs_replica_read_bytes_total{volume=\"v\",replica=\"r2\",locality=\"local\"} 1152921504606846976",
        "fanfs_replica_read_bytes_total{volume=\"v\",replica=\"r2\",locality=\"remote\"} 0",
        "fanfs_replica_read_bytes_total{volume=\"v\",replica=\"r2\",locality=\"unknown\"} 7",
        "fanfs_hedge_results_total{volume=\"v\",result=\"won\"} 2",
        "fanfs_hedge_results_total{volume=\"v\",result=\"lost\"} 0",
        "fanfs_start_time_seconds{volume=\"v\"} 906216.0",
        "fanfs_replica_health_change_timestamp_seconds{volume=\"v\",replica=\"r1\"} 999995.0",
        "fanfs_replica_health{volume=\"v\",replica=\"r1\",state=\"probing\"} 1",
        "fanfs_replica_health{volume=\"v\",replica=\"r1\",state=\"healthy\"} 0",
        "fanfs_replica_health_reason{volume=\"v\",replica=\"r1\",reason=\"proved\"} 1",
        "fanfs_replica_info{volume=\"v\",replica=\"r1\",node=\"node\\\"1\\\\\"} 1",
        "fanfs_affinity_call_seconds{volume=\"v\",rule=\"1\",replica=\"r1\"} 0.0015",
        "fanfs_volume_info{volume=\"v\",mode=\"copies\",mount_point=\"/genomes\",provider=\"table\"} 1",
        "# TYPE fanfs_read_duration_seconds histogram",
        "fanfs_read_duration_seconds_bucket{volume=\"v\",le=\"0.002\"} 1",
        "fanfs_read_duration_seconds_bucket{volume=\"v\",le=\"32.768\"} 2",
        "fanfs_read_duration_seconds_bucket{volume=\"v\",le=\"+Inf\"} 3",
        "fanfs_read_duration_seconds_count{volume=\"v\"} 3",
        "fanfs_read_duration_seconds_sum{volume=\"v\"} 60.004",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("secret") && !text.contains("# EOF"), "{text}");
    for metric in METRICS {
        assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)));
    }
}

#[test]
fn the_openmetrics_format_is_valid() {
    let text = encode_metrics(&snapshot(), ExpositionFormat::OpenMetrics);
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    for line in [
        "# TYPE fanfs_replica_read_bytes counter",
        "# UNIT fanfs_replica_read_bytes bytes",
        "# UNIT fanfs_read_duration_seconds seconds",
        "fanfs_replica_read_bytes_total{volume=\"v\",replica=\"r1\",locality=\"local\"} 1152921504606846976",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn docs_list_the_same_metrics() {
    const BEGIN: &str = "<!-- metrics begin: FANFS_BLESS=1 cargo test --lib metrics -->\n";
    const END: &str = "<!-- metrics end -->";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/METRICS.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect(BEGIN);
    let (table, after) = rest.split_once(END).expect(END);
    if std::env::var_os("FANFS_BLESS").is_some() {
        let blessed = format!("{before}{BEGIN}{}{END}{after}", markdown_table());
        return std::fs::write(path, blessed).unwrap();
    }
    assert_eq!(table, markdown_table(), "FANFS_BLESS=1 cargo test --lib metrics writes it again");
}
