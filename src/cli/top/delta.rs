//! The changes between two samples: rates, fractions, and the processes that read.
//!
//! Pure. Two samples go in and a [`View`] comes out, which is drawn, printed or written as JSON. A
//! counter that went back counts as no change: another daemon has taken over the mount and counts
//! from zero.
//!
//! Latencies cover the interval too: the samples hold histograms, and the quantiles are those of
//! their difference.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;

use super::files::{FileReads, reads_between};
use super::process::ProcessInfo;
use super::sample::Sample;
use crate::replicas::health::HealthState;
use crate::status::ReplicaStatus;
use crate::telemetry::histogram::HistogramSnapshot;
use crate::telemetry::wall_clock::Timestamp;
use crate::volume::path_serde;

/// The activity of a volume in one interval.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct View {
    /// The volume's name.
    pub(super) volume: String,
    /// Where it is mounted.
    #[serde(serialize_with = "path_serde::serialize")]
    pub(super) mount_point: PathBuf,
    /// fanfs's version.
    pub(super) version: String,
    /// The daemon's process ID.
    pub(super) pid: u32,
    /// When the second sample was made, seconds since 1970.
    pub(super) time_s: Timestamp,
    /// When this daemon began to serve the mount, seconds since 1970.
    pub(super) start_time_s: Timestamp,
    /// The interval that the rates cover, seconds.
    pub(super) seconds: f64,
    /// The totals of the volume.
    pub(super) total: Total,
    /// In configuration order.
    pub(super) replicas: Vec<ReplicaRow>,
    /// The files that were read, highest rate first.
    pub(super) files: Vec<FileRow>,
    /// The processes that read, highest rate first.
    pub(super) readers: Vec<ReaderRow>,
}

/// The totals of a volume.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Total {
    /// Bytes per second delivered to applications.
    pub(super) bytes_per_second: u64,
    /// Application reads per second answered with data.
    pub(super) reads_per_second: f64,
    /// Mean size of these reads, bytes.
    pub(super) average_read_bytes: u64,
    /// Fraction of the reads that found all their bytes in the daemon's memory, 0 to 1.
    pub(super) readahead_hit_ratio: f64,
    /// Median latency of application reads, microseconds; `None` without any.
    pub(super) p50_us: Option<u64>,
    /// The 99 % quantile of the same.
    pub(super) p99_us: Option<u64>,
    /// Application reads per second that failed.
    pub(super) errors_per_second: f64,
    /// Metadata calls per second.
    pub(super) metadata_per_second: f64,
    /// Bytes per second that applications wrote.
    pub(super) written_bytes_per_second: u64,
    /// Bytes per second that replicas delivered.
    pub(super) replica_bytes_per_second: u64,
    /// Segments per second sent to a second replica because the first one was late.
    pub(super) hedges_per_second: f64,
    /// Fraction of the completed hedges that delivered the segment first, 0 to 1.
    pub(super) hedges_won_ratio: f64,
    /// Segments per second sent to a second replica because the first one failed.
    pub(super) retries_per_second: f64,
    /// Fraction of the delivered bytes that another replica had already delivered, 0 to 1.
    pub(super) duplicate_ratio: f64,
    /// Segments in flight.
    pub(super) segments_in_flight: usize,
    /// Segments that are waiting for a replica.
    pub(super) segments_waiting: usize,
    /// Application reads that are not yet answered.
    pub(super) reads_pending: usize,
    /// Metadata calls that are not yet answered.
    pub(super) metadata_calls_pending: usize,
    /// Open files and directories.
    pub(super) handles: usize,
    /// Bytes of the buffer budget in use.
    pub(super) buffer_used: u64,
    /// The buffer budget.
    pub(super) buffer_budget: u64,
}

/// The activity of one replica.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReplicaRow {
    /// Its name.
    pub(super) name: String,
    /// Its gateway's node.
    pub(super) node: String,
    /// Its health.
    pub(super) health: HealthState,
    /// When it entered that state, seconds since 1970.
    pub(super) health_since_s: Timestamp,
    /// Bytes per second that it delivered.
    pub(super) bytes_per_second: u64,
    /// Its fraction of the bytes that all replicas delivered, 0 to 1.
    pub(super) share: f64,
    /// The bandwidth that the scheduler has measured for it, bytes per second.
    pub(super) estimated_bandwidth: Option<u64>,
    /// Its delivered rate divided by that estimate; it can exceed 1. 0 without one.
    pub(super) estimate_ratio: f64,
    /// Bytes in flight.
    pub(super) in_flight: u64,
    /// The limit of bytes in flight.
    pub(super) in_flight_limit: u64,
    /// Median latency of its reads, microseconds; `None` without any.
    pub(super) p50_us: Option<u64>,
    /// The 99 % quantile of the same.
    pub(super) p99_us: Option<u64>,
    /// Calls per second that failed through the replica's fault.
    pub(super) errors_per_second: f64,
    /// Reads per second that were hedged because the replica was slow.
    pub(super) slow_per_second: f64,
    /// Hung threads: inside one call for longer than an attempt may take.
    pub(super) hung_threads: usize,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct FileRow {
    /// Its path in the volume.
    pub(super) path: String,
    /// Bytes per second that its readers requested.
    pub(super) bytes_per_second: u64,
    /// Reads per second.
    pub(super) reads_per_second: f64,
    /// Open handles of these readers.
    pub(super) handles: usize,
    /// PID and command of its readers, highest rate first.
    pub(super) readers: Vec<String>,
}

/// A process that read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ReaderRow {
    /// Its process ID; 0 for reads of the kernel itself.
    pub(super) pid: u32,
    /// Its command.
    pub(super) command: String,
    /// Bytes per second that it requested.
    pub(super) bytes_per_second: u64,
    /// Reads per second.
    pub(super) reads_per_second: f64,
    /// The number of files that it read.
    pub(super) files: usize,
}

impl View {
    /// The activity from `before` to `now`. `process` maps a thread ID to its process.
    pub(super) fn between(
        before: &Sample,
        now: &Sample,
        process: &mut dyn FnMut(u32) -> ProcessInfo,
    ) -> Self {
        let seconds =
            now.taken_at.saturating_duration_since(before.taken_at).as_secs_f64().max(1e-3);
        let is_same = before.status.pid == now.status.pid;
        let status = &now.status;
        let mut replicas: Vec<ReplicaRow> = Vec::new();
        for replica in &status.replicas {
            let before = &before.status.replicas;
            let was = before.iter().find(|other| is_same && other.name == replica.name);
            replicas.push(replica_row(was, replica, seconds));
        }
        let delivered: u64 = replicas.iter().map(|row| row.bytes_per_second).sum();
        for row in &mut replicas {
            row.share = ratio(row.bytes_per_second, delivered);
        }
        // If one sample has no file list, the reads of each file are unknown.
        let files = before.files.as_deref().zip(now.files.as_deref()).filter(|_| is_same);
        let reads = files.map_or_else(Vec::new, |(was, is)| reads_between(was, is, seconds));
        let ActivityRows { files, readers } = ActivityRows::new(&reads, seconds, process);
        View {
            volume: status.volume.clone(),
            mount_point: status.mount_point.clone(),
            version: status.version.clone(),
            pid: status.pid,
            time_s: status.time_s,
            start_time_s: status.start_time_s,
            seconds,
            total: total_row(if is_same { before } else { now }, now, seconds, delivered),
            replicas,
            files,
            readers,
        }
    }
}

fn quantile_us(times: &HistogramSnapshot, part: f64) -> Option<u64> {
    (times.total() > 0).then(|| times.quantile_us(part))
}

fn ratio(some: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { some as f64 / all as f64 }
}

fn total_row(before: &Sample, now: &Sample, seconds: f64, delivered: u64) -> Total {
    let was = &before.status.counters;
    let is = &now.status.counters;
    let gauges = &now.status.gauges;
    let since = |was: u64, is: u64| is.saturating_sub(was);
    let per_second = |was: u64, is: u64| since(was, is) as f64 / seconds;
    let bytes = since(was.bytes_delivered, is.bytes_delivered);
    let reads = since(was.reads, is.reads);
    let won = since(was.hedges_won, is.hedges_won);
    let lost = since(was.hedges_lost, is.hedges_lost);
    let duplicate = since(was.bytes_duplicate, is.bytes_duplicate) as f64 / seconds;
    let latency = is.read_latency.since(&was.read_latency);
    Total {
        bytes_per_second: (bytes as f64 / seconds) as u64,
        reads_per_second: reads as f64 / seconds,
        average_read_bytes: bytes.checked_div(reads).unwrap_or(0),
        readahead_hit_ratio: ratio(since(was.buffer_hits, is.buffer_hits), reads),
        p50_us: quantile_us(&latency, 0.5),
        p99_us: quantile_us(&latency, 0.99),
        errors_per_second: per_second(was.read_errors, is.read_errors),
        metadata_per_second: per_second(was.metadata, is.metadata),
        written_bytes_per_second: per_second(was.bytes_written, is.bytes_written) as u64,
        replica_bytes_per_second: delivered,
        hedges_per_second: per_second(was.hedges, is.hedges),
        hedges_won_ratio: ratio(won, won + lost),
        retries_per_second: per_second(was.retries, is.retries),
        duplicate_ratio: if delivered == 0 { 0.0 } else { duplicate / delivered as f64 },
        segments_in_flight: gauges.segments_in_flight,
        segments_waiting: gauges.segments_waiting,
        reads_pending: gauges.requests,
        metadata_calls_pending: gauges.calls,
        handles: gauges.handles,
        buffer_used: gauges.buffer_used,
        buffer_budget: gauges.buffer_budget,
    }
}

fn replica_row(was: Option<&ReplicaStatus>, is: &ReplicaStatus, seconds: f64) -> ReplicaRow {
    let since = |of: fn(&ReplicaStatus) -> u64| {
        was.map_or(0.0, |was| of(is).saturating_sub(of(was)) as f64 / seconds)
    };
    let bytes = since(|replica| replica.counters.bytes);
    // The estimate for a mix of local and remote chunks lies between the two.
    let estimate = is.estimated_bandwidth_local.max(is.estimated_bandwidth_remote);
    let times = &is.counters.read_latency;
    let latency = was.map(|was| times.since(&was.counters.read_latency)).unwrap_or_default();
    ReplicaRow {
        name: is.name.clone(),
        node: is.node.clone(),
        health: is.health,
        health_since_s: is.health_since_s,
        bytes_per_second: bytes as u64,
        share: 0.0,
        estimated_bandwidth: estimate,
        estimate_ratio: match estimate {
            None | Some(0) => 0.0,
            Some(estimate) => bytes / estimate as f64,
        },
        in_flight: is.in_flight,
        in_flight_limit: is.in_flight_limit,
        p50_us: quantile_us(&latency, 0.5),
        p99_us: quantile_us(&latency, 0.99),
        errors_per_second: since(|replica| replica.counters.errors),
        slow_per_second: since(|replica| replica.counters.slow),
        hung_threads: is.hung_threads,
    }
}

/// The rows of the files and of the readers, highest rate first.
struct ActivityRows {
    files: Vec<FileRow>,
    readers: Vec<ReaderRow>,
}

/// A file's row, and the processes that read the file.
struct FileReaders {
    row: FileRow,
    by_pid: BTreeMap<u32, ProcessReads>,
}

/// What one process read of a file.
struct ProcessReads {
    bytes: u64,
    /// PID and command of the process.
    label: String,
}

impl FileReaders {
    fn new(path: &str) -> Self {
        let row = FileRow {
            path: path.to_owned(),
            bytes_per_second: 0,
            reads_per_second: 0.0,
            handles: 0,
            readers: Vec::new(),
        };
        Self { row, by_pid: BTreeMap::new() }
    }

    /// The row, with its readers.
    fn finish(self) -> FileRow {
        let mut readers: Vec<_> = self.by_pid.into_values().collect();
        readers.sort_by_key(|reads| Reverse(reads.bytes));
        let labels = readers.into_iter().map(|reads| reads.label.trim_end().to_owned());
        FileRow { readers: labels.collect(), ..self.row }
    }
}

impl ActivityRows {
    fn new(reads: &[FileReads], seconds: f64, process: &mut dyn FnMut(u32) -> ProcessInfo) -> Self {
        let mut files: BTreeMap<&str, FileReaders> = BTreeMap::new();
        let mut readers: BTreeMap<u32, ReaderRow> = BTreeMap::new();
        for used in reads.iter().filter(|used| used.reads > 0) {
            let ProcessInfo { pid, command } = match used.thread {
                0 => ProcessInfo { pid: 0, command: "(kernel)".to_owned() },
                thread => process(thread),
            };
            let bytes_per_second = (used.bytes as f64 / seconds) as u64;
            let reads_per_second = used.reads as f64 / seconds;
            let file = files.entry(&used.path).or_insert_with(|| FileReaders::new(&used.path));
            file.row.bytes_per_second += bytes_per_second;
            file.row.reads_per_second += reads_per_second;
            file.row.handles += used.handles;
            let unread = || ProcessReads { bytes: 0, label: format!("{pid} {command}") };
            file.by_pid.entry(pid).or_insert_with(unread).bytes += used.bytes;
            let reader = readers.entry(pid).or_insert_with(|| ReaderRow {
                pid,
                command,
                bytes_per_second: 0,
                reads_per_second: 0.0,
                files: 0,
            });
            reader.bytes_per_second += bytes_per_second;
            reader.reads_per_second += reads_per_second;
            reader.files += 1;
        }
        let mut files: Vec<FileRow> = files.into_values().map(FileReaders::finish).collect();
        let mut readers: Vec<ReaderRow> = readers.into_values().collect();
        files.sort_by_key(|row| Reverse(row.bytes_per_second));
        readers.sort_by_key(|row| Reverse(row.bytes_per_second));
        Self { files, readers }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::control::FileActivity;
    use crate::status;
    use crate::telemetry::histogram::LatencyHistogram;

    /// A volume of three replicas.
    pub(in crate::cli::top) fn sample(at: Instant) -> Sample {
        let status = status::sample::status(["n1", "n2", "n3"]);
        Sample { taken_at: at, status, files: Some(Vec::new()) }
    }

    fn file(path: &str, handle: Option<u64>, pid: u32, bytes: u64) -> FileActivity {
        let reads = bytes / 10;
        FileActivity { path: path.to_owned(), handle, pid, bytes, reads, idle_ms: 0 }
    }

    fn process(thread: u32) -> ProcessInfo {
        // Two threads of one process.
        ProcessInfo { pid: thread / 10 * 10, command: "dd".to_owned() }
    }

    /// Two seconds in which n1 delivered 200 MiB and n2 600 MiB.
    pub(in crate::cli::top) fn view() -> View {
        let start = Instant::now();
        let before = sample(start);
        let mut now = sample(start + Duration::from_secs(2));
        now.status.replicas[0].counters.bytes += 200 << 20;
        now.status.replicas[1].counters.bytes += 600 << 20;
        now.status.replicas[1].estimated_bandwidth_local = Some(300 << 20);
        now.status.counters.bytes_delivered += 780 << 20;
        now.status.counters.bytes_duplicate += 20 << 20;
        now.status.counters.reads += 780;
        now.status.counters.buffer_hits += 390;
        now.status.counters.hedges += 4;
        now.status.counters.hedges_won += 1;
        now.status.counters.hedges_lost += 3;
        now.files = Some(vec![
            file("a/large.bam", Some(1), 41, 600 << 20),
            file("a/large.bam", None, 42, 100 << 20),
            file("b", Some(2), 71, 80 << 20),
        ]);
        View::between(&before, &now, &mut process)
    }

    #[test]
    fn rates_are_differences_over_time() {
        let view = view();
        assert_eq!(view.total.bytes_per_second, 390 << 20);
        assert_eq!((view.total.average_read_bytes, view.total.readahead_hit_ratio), (1 << 20, 0.5));
        assert_eq!((view.total.hedges_per_second, view.total.hedges_won_ratio), (2.0, 0.25));
        assert!((view.total.duplicate_ratio - 0.025).abs() < 1e-9);
        let shares: Vec<f64> = view.replicas.iter().map(|row| row.share).collect();
        assert_eq!(shares, [0.25, 0.75, 0.0]);
        assert_eq!(view.replicas[1].estimate_ratio, 1.0);
    }

    #[test]
    fn latencies_cover_the_interval() {
        let times = LatencyHistogram::default();
        let start = Instant::now();
        let mut before = sample(start);
        (0..1_000).for_each(|_| times.record(Duration::from_secs(1)));
        before.status.counters.read_latency = times.snapshot();
        before.status.replicas[0].counters.read_latency = times.snapshot();
        let mut now = sample(start + Duration::from_secs(1));
        (0..10).for_each(|_| times.record(Duration::from_micros(100)));
        now.status.counters.read_latency = times.snapshot();
        now.status.replicas[0].counters.read_latency = times.snapshot();
        let view = View::between(&before, &now, &mut process);
        assert_eq!((view.total.p50_us, view.total.p99_us), (Some(100), Some(100)));
        assert_eq!((view.replicas[0].p50_us, view.replicas[0].p99_us), (Some(100), Some(100)));
        assert_eq!((view.replicas[1].p50_us, view.replicas[1].p99_us), (None, None));
    }

    #[test]
    fn threads_count_for_their_process_and_files_list_their_readers() {
        let view = view();
        assert_eq!(view.files[0].path, "a/large.bam");
        assert_eq!((view.files[0].bytes_per_second, view.files[0].handles), (350 << 20, 1));
        assert_eq!(view.files[0].readers, ["40 dd"]);
        let pids: Vec<_> = view.readers.iter().map(|row| (row.pid, row.files)).collect();
        assert_eq!(pids, [(40, 2), (70, 1)]);
    }

    #[test]
    fn without_a_file_list_in_both_samples_no_file_is_shown() {
        let start = Instant::now();
        let mut before = sample(start);
        let mut now = sample(start + Duration::from_secs(1));
        now.files = Some(vec![file("a", Some(1), 7, 1 << 40)]);
        before.files = None;
        let view = View::between(&before, &now, &mut process);
        assert!(view.files.is_empty() && view.readers.is_empty());
        let view = View::between(&now, &before, &mut process);
        assert!(view.files.is_empty() && view.readers.is_empty());
    }

    #[test]
    fn another_daemon_starts_from_zero() {
        let start = Instant::now();
        let mut before = sample(start);
        before.status.replicas[0].counters.bytes = 1 << 40;
        before.files = Some(vec![file("a", Some(1), 7, 1 << 40)]);
        let times = LatencyHistogram::default();
        times.record(Duration::from_micros(100));
        let mut now = sample(start + Duration::from_secs(1));
        now.status.pid += 1;
        now.status.counters.reads = 7;
        now.status.counters.read_latency = times.snapshot();
        now.files = Some(vec![file("a", Some(1), 7, 1000)]);
        let view = View::between(&before, &now, &mut process);
        assert!(view.replicas.iter().all(|row| row.bytes_per_second == 0));
        assert_eq!((view.total.reads_per_second, view.total.p50_us), (0.0, None));
        assert!(view.files.is_empty());
    }
}
