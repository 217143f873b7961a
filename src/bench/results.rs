//! Turns the passes into rows: medians over the rounds, ratios within one round.
//!
//! Pure. `fanfs bench --json` prints [`Report`]; docs/BENCH.md describes each key. Rates are in MiB
//! (2^20 bytes) per second, times in seconds or milliseconds.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::pass_error::PassError;
use super::plan::{Candidate, FilePart, Load, PassSpec};
use crate::format::to_mib;
use crate::volume::{ReplicaId, ReplicaSet};

/// One pass that was completed.
#[derive(Clone, Debug)]
pub struct CompletedPass {
    /// The pass's specification.
    pub spec: PassSpec,
    /// Bytes read.
    pub bytes: u64,
    /// From the readers' start to the end of the last read.
    pub time: Duration,
    /// The latency of each read, microseconds.
    pub latency: Histogram<u64>,
    /// CPU time of the readers.
    pub reader_cpu: Duration,
    /// CPU time of fanfs; `None` where the pass reads directly.
    pub daemon_cpu: Option<Duration>,
    /// Whether it ended early because the file is small.
    pub is_cut_short: bool,
    /// The rate that fio measured for the same pass, MiB/s.
    pub fio_rate: Option<f64>,
    /// The most that each reader may read.
    pub parts: Vec<FilePart>,
}

impl CompletedPass {
    /// The rate, MiB/s.
    pub fn rate(&self) -> f64 {
        to_mib(self.bytes) / self.time.as_secs_f64().max(1e-9)
    }

    fn seconds_per_gib(&self, time: Duration) -> f64 {
        time.as_secs_f64() / (to_mib(self.bytes) / 1024.0).max(1e-9)
    }
}

/// The result of a pass.
#[derive(Debug)]
pub struct PassOutcome {
    /// The pass's specification.
    pub spec: PassSpec,
    /// Its figures, or why there are none.
    pub result: Result<CompletedPass, PassError>,
}

/// The least, the median and the largest of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The median; of an even number of values, the mean of the middle two.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread; `None` without values.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let min = *values.first()?;
        let max = *values.last()?;
        let half = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[half - 1], values[half])
        } else {
            values[half]
        };
        Some(Self { min, median, max })
    }
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// fanfs's version.
    pub version: &'static str,
    /// The start of the run, in UTC (RFC 3339).
    pub date: String,
    /// The name of the host that measured.
    pub host: String,
    /// Its kernel, as `uname -sr` prints it.
    pub kernel: String,
    /// The volume's name.
    pub volume: String,
    /// The file's path, relative to the volume's root.
    pub file: String,
    /// The file's size.
    pub file_bytes: u64,
    /// Whether bench created the file for the run and removed it afterwards.
    pub made: bool,
    /// The replicas, in the volume's order.
    pub replicas: Vec<ReportedReplica>,
    /// The settings of the run.
    pub settings: SettingsUsed,
    /// The duration of the whole run.
    pub seconds: f64,
    /// One row for each load and candidate.
    pub rows: Vec<ResultRow>,
    /// The replicas' rates during one sequential pass through fanfs.
    pub over_time: Option<RateTimeline>,
    /// Notes that help to interpret the figures.
    pub notes: Vec<String>,
    /// Whether a pass or a whole replica has no figures, or something failed after the passes.
    pub failed: bool,
}

impl Report {
    /// Adds a failure that happened after the passes.
    pub(super) fn add_failure(&mut self, why: String) {
        self.notes.push(why);
        self.failed = true;
    }
}

/// A replica, as reported.
#[derive(Clone, Debug, Serialize)]
pub struct ReportedReplica {
    /// Its name.
    pub name: String,
    /// Its directory, or its address.
    pub path: String,
    /// `O_DIRECT`, or `page cache` where O_DIRECT is not possible; bench drops that cache before
    /// each pass. `NFS` for an export.
    pub raw_reads: Option<&'static str>,
    /// Why bench left it out.
    pub failure: Option<String>,
}

/// The settings that the run used.
#[derive(Clone, Debug, Serialize)]
pub struct SettingsUsed {
    /// Bytes of a sequential read.
    pub block: u64,
    /// Bytes of a random read.
    pub random_block: u64,
    /// Readers of the loads with several.
    pub readers: usize,
    /// How often each pass ran.
    pub rounds: usize,
    /// The longest that one pass may read.
    pub seconds_per_pass: f64,
    /// How long one call may take.
    pub deadline_seconds: f64,
    /// The seed of the random orders.
    pub seed: u64,
}

/// The results of a load through one candidate.
#[derive(Clone, Debug, Serialize)]
pub struct ResultRow {
    /// How the readers read.
    pub load: Load,
    /// `alone`, `sum` or `fanfs`.
    pub kind: &'static str,
    /// The replicas' names.
    pub replicas: Vec<String>,
    /// The number of readers.
    pub readers: usize,
    /// Bytes read, in all rounds.
    pub bytes: u64,
    /// The rate, over the rounds.
    pub mib_per_second: Option<Spread>,
    /// The rate as a fraction of the raw sum of the same replicas in the same round.
    pub of_sum: Option<Spread>,
    /// The rate as a multiple of the fastest of these replicas alone in the same round.
    pub of_fastest: Option<Spread>,
    /// The latencies of all reads of all rounds, milliseconds.
    pub latency_ms: Option<LatencySummary>,
    /// CPU seconds of fanfs per GiB.
    pub daemon_cpu_per_gib: Option<f64>,
    /// CPU seconds of the readers per GiB.
    pub reader_cpu_per_gib: Option<f64>,
    /// The rate that fio measured for the same passes.
    pub fio_mib_per_second: Option<Spread>,
    /// The rate as a fraction of fio's rate in the same round.
    pub of_fio: Option<Spread>,
    /// The figures of each round.
    pub passes: Vec<PassFigures>,
    /// Why figures of some rounds are missing.
    pub failures: Vec<String>,
}

/// The figures of one pass.
#[derive(Clone, Debug, Serialize)]
pub struct PassFigures {
    /// The round, counted from 1.
    pub round: usize,
    /// Bytes read.
    pub bytes: u64,
    /// How long the pass took.
    pub seconds: f64,
    /// Bytes by time.
    pub mib_per_second: f64,
    /// See [`ResultRow`].
    pub of_sum: Option<f64>,
    /// See [`ResultRow`].
    pub of_fastest: Option<f64>,
    /// See [`ResultRow`].
    pub fio_mib_per_second: Option<f64>,
    /// Whether the pass ended early because the file is small.
    pub cut_short: bool,
    /// The most that each reader may read.
    pub parts: Vec<FilePart>,
}

/// Latency quantiles, milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct LatencySummary {
    /// The median.
    pub p50: f64,
    /// The 95 % quantile.
    pub p95: f64,
    /// The 99 % quantile.
    pub p99: f64,
    /// The 99.9 % quantile.
    pub p999: f64,
    /// The longest read.
    pub max: f64,
    /// The number of reads.
    pub reads: u64,
    /// Pairs: a fraction of the reads (0 to 1), and the longest time that any of that fraction
    /// took.
    pub quantiles: Vec<(f64, f64)>,
}

/// Rates during one pass.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RateTimeline {
    /// The round of that pass, counted from 1.
    pub round: usize,
    /// The ends of the intervals, seconds since the start.
    pub seconds: Vec<f64>,
    /// The reader's rate in each interval, MiB/s.
    pub reader: Vec<f64>,
    /// Each replica's rate in each interval, MiB/s.
    pub replicas: Vec<RateSeries>,
}

/// One replica's rates.
#[derive(Clone, Debug, Serialize)]
pub struct RateSeries {
    /// The replica's name.
    pub name: String,
    /// Its rate in each interval, MiB/s.
    pub mib_per_second: Vec<f64>,
}

/// The counters at one time.
#[derive(Clone, Debug)]
pub struct CounterSample {
    /// The time since the pass began.
    pub time: Duration,
    /// Bytes that the reader got.
    pub bytes: u64,
    /// Bytes that each replica delivered.
    pub replica_bytes: Vec<u64>,
}

impl RateTimeline {
    /// The rates between samples, the first of which is taken at the start.
    pub fn from_samples(round: usize, names: &[String], samples: &[CounterSample]) -> Self {
        let mut lines = Self { round, ..Self::default() };
        let line = |name: &String| RateSeries { name: name.clone(), mib_per_second: Vec::new() };
        lines.replicas = names.iter().map(line).collect();
        for pair in samples.windows(2) {
            let [before, after] = pair else { continue };
            let seconds = after.time.saturating_sub(before.time).as_secs_f64().max(1e-9);
            let rate = |before: u64, after: u64| to_mib(after.saturating_sub(before)) / seconds;
            lines.seconds.push(after.time.as_secs_f64());
            lines.reader.push(rate(before.bytes, after.bytes));
            let each = before.replica_bytes.iter().zip(&after.replica_bytes);
            for (line, (before, after)) in lines.replicas.iter_mut().zip(each) {
                line.mib_per_second.push(rate(*before, *after));
            }
        }
        lines
    }
}

impl LatencySummary {
    fn from_histogram(latency: &Histogram<u64>) -> Option<Self> {
        let ms = |us: u64| us as f64 / 1000.0;
        let at = |part: f64| ms(latency.value_at_quantile(part));
        // The rest halves every four points, so the tail is as fine as the number of reads
        // allows.
        let reads = latency.len();
        let parts = (0..).map(|i| 1.0 - 0.5_f64.powf(f64::from(i) / 4.0));
        let parts = parts.take_while(|part| (1.0 - part) * reads as f64 >= 1.0).take(100);
        (reads > 0).then(|| Self {
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: ms(latency.max()),
            reads,
            quantiles: parts.map(|part| (part, at(part))).collect(),
        })
    }
}

/// The rows of all candidates of all loads, in the order of the first round.
pub fn result_rows(
    outcomes: &[PassOutcome],
    readers: usize,
    name: impl Fn(ReplicaId) -> String,
) -> Vec<ResultRow> {
    let mut kinds: Vec<(Load, Candidate)> = Vec::new();
    for load in Load::ALL {
        for PassOutcome { spec, .. } in outcomes.iter().filter(|one| one.spec.load == load) {
            if !kinds.contains(&(load, spec.candidate)) {
                kinds.push((load, spec.candidate));
            }
        }
    }
    kinds
        .into_iter()
        .map(|(load, candidate)| result_row(outcomes, load, candidate, readers, &name))
        .collect()
}

fn result_row(
    outcomes: &[PassOutcome],
    load: Load,
    candidate: Candidate,
    readers: usize,
    name: &impl Fn(ReplicaId) -> String,
) -> ResultRow {
    let is_its = |one: &&PassOutcome| one.spec.load == load && one.spec.candidate == candidate;
    let its = outcomes.iter().filter(is_its);
    let passes: Vec<&CompletedPass> =
        its.clone().filter_map(|outcome| outcome.result.as_ref().ok()).collect();
    let failure = |PassOutcome { spec, result }: &PassOutcome| {
        result.as_ref().err().map(|why| format!("round {}: {why}", spec.round + 1))
    };
    let figures: Vec<PassFigures> =
        passes.iter().map(|pass| pass_figures(outcomes, pass)).collect();
    let mut latency: Option<Histogram<u64>> = None;
    for pass in &passes {
        match &mut latency {
            Some(all) => *all += &pass.latency,
            None => latency = Some(pass.latency.clone()),
        }
    }
    let median = |values: Vec<f64>| Spread::from_values(values).map(|spread| spread.median);
    let spread =
        |of: fn(&PassFigures) -> Option<f64>| Spread::from_values(figures.iter().filter_map(of));
    let daemon = |pass: &&CompletedPass| pass.daemon_cpu.map(|time| pass.seconds_per_gib(time));
    ResultRow {
        load,
        kind: match candidate {
            Candidate::Alone(_) => "alone",
            Candidate::Sum(_) => "sum",
            Candidate::Fanfs(_) => "fanfs",
        },
        replicas: candidate.replicas().iter().map(name).collect(),
        readers: candidate.readers(load, readers),
        bytes: passes.iter().map(|pass| pass.bytes).sum(),
        mib_per_second: spread(|figures| Some(figures.mib_per_second)),
        of_sum: spread(|figures| figures.of_sum),
        of_fastest: spread(|figures| figures.of_fastest),
        latency_ms: latency.as_ref().and_then(LatencySummary::from_histogram),
        daemon_cpu_per_gib: median(passes.iter().filter_map(daemon).collect()),
        reader_cpu_per_gib: median(
            passes.iter().map(|p| p.seconds_per_gib(p.reader_cpu)).collect(),
        ),
        fio_mib_per_second: spread(|figures| figures.fio_mib_per_second),
        of_fio: spread(|f| f.fio_mib_per_second.map(|fio| f.mib_per_second / fio)),
        failures: its.filter_map(failure).collect(),
        passes: figures,
    }
}

/// The figures of a pass, related to the other passes of its round.
fn pass_figures(outcomes: &[PassOutcome], pass: &CompletedPass) -> PassFigures {
    let PassSpec { round, load, candidate, .. } = pass.spec;
    let rate = |candidate: Candidate| {
        let found = outcomes.iter().find(|PassOutcome { spec, .. }| {
            spec.round == round && spec.load == load && spec.candidate == candidate
        });
        found.and_then(|outcome| outcome.result.as_ref().ok()).map(CompletedPass::rate)
    };
    let own = pass.rate();
    let set = candidate.replicas();
    let fastest = || {
        let alone = set.iter().filter_map(|id| rate(Candidate::Alone(id)));
        alone.fold(None, |most: Option<f64>, rate| Some(most.map_or(rate, |m| m.max(rate))))
    };
    PassFigures {
        round: round + 1,
        bytes: pass.bytes,
        seconds: pass.time.as_secs_f64(),
        mib_per_second: own,
        of_sum: match candidate {
            Candidate::Fanfs(_) => raw_sum_candidate(set).and_then(rate).map(|sum| own / sum),
            Candidate::Alone(_) | Candidate::Sum(_) => None,
        },
        of_fastest: match candidate {
            Candidate::Alone(_) => None,
            Candidate::Sum(_) | Candidate::Fanfs(_) => fastest().map(|fastest| own / fastest),
        },
        fio_mib_per_second: pass.fio_rate,
        cut_short: pass.is_cut_short,
        parts: pass.parts.clone(),
    }
}

/// The candidate whose rate is the raw sum of these replicas.
fn raw_sum_candidate(set: ReplicaSet) -> Option<Candidate> {
    match set.len() {
        1 => set.iter().next().map(Candidate::Alone),
        _ => Some(Candidate::Sum(set)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(round: usize, candidate: Candidate, rate: u64) -> PassOutcome {
        let spec =
            PassSpec { round, load: Load::Sequential, candidate, region_index: 0, region_count: 1 };
        let mut latency = super::super::pass::histogram();
        for us in 1..=1000 {
            latency.saturating_record(us * 1000);
        }
        let pass = CompletedPass {
            spec,
            bytes: rate << 21,
            time: Duration::from_secs(2),
            latency,
            reader_cpu: Duration::from_millis(100),
            daemon_cpu: None,
            is_cut_short: false,
            fio_rate: Some(rate as f64 * 2.0),
            parts: Vec::new(),
        };
        PassOutcome { spec, result: Ok(pass) }
    }

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(Spread::from_values([]), None);
        assert_eq!(Spread::from_values([3.0]), Some(Spread { min: 3.0, median: 3.0, max: 3.0 }));
        let four = Spread::from_values([4.0, 1.0, 2.0, 8.0]);
        assert_eq!(four, Some(Spread { min: 1.0, median: 3.0, max: 8.0 }));
    }

    #[test]
    fn ratios_compare_passes_of_one_round() {
        let one = ReplicaId::new(0);
        let two = ReplicaId::new(1);
        let both = ReplicaSet::first(2);
        let first = ReplicaSet::first(1);
        let mut outcomes = Vec::new();
        // In the second round, every candidate is half as fast as in the first.
        for (round, scale) in [(0, 2), (1, 1)] {
            outcomes.push(pass(round, Candidate::Alone(one), 100 * scale));
            outcomes.push(pass(round, Candidate::Alone(two), 50 * scale));
            outcomes.push(pass(round, Candidate::Sum(both), 150 * scale));
            outcomes.push(pass(round, Candidate::Fanfs(first), 80 * scale));
            outcomes.push(pass(round, Candidate::Fanfs(both), 120 * scale));
        }
        let rows = result_rows(&outcomes, 4, |id| format!("r{}", id.index() + 1));
        let fanfs = &rows[4];
        assert_eq!((fanfs.kind, fanfs.replicas.len(), fanfs.readers), ("fanfs", 2, 1));
        assert_eq!(fanfs.of_sum, Some(Spread { min: 0.8, median: 0.8, max: 0.8 }));
        assert_eq!(fanfs.of_fastest, Some(Spread { min: 1.2, median: 1.2, max: 1.2 }));
        assert_eq!(fanfs.of_fio.map(|s| s.median), Some(0.5));
        assert_eq!(fanfs.mib_per_second.map(|s| (s.min, s.max)), Some((120.0, 240.0)));
        // With one replica, the sum is that replica alone.
        assert_eq!(rows[3].of_sum.map(|s| s.median), Some(0.8));
        assert_eq!(rows[2].readers, 2);
        assert!(rows[0].of_sum.is_none() && rows[2].of_sum.is_none());
        let latency = fanfs.latency_ms.as_ref().unwrap();
        assert!((499.0..502.0).contains(&latency.p50), "{latency:?}");
        assert!((989.0..992.0).contains(&latency.p99), "{latency:?}");
        assert!(latency.quantiles.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1));
    }

    #[test]
    fn a_failed_pass_is_reported_and_the_others_count() {
        let set = ReplicaSet::first(1);
        let mut outcomes = vec![pass(0, Candidate::Fanfs(set), 10)];
        let spec = PassSpec { round: 1, ..outcomes[0].spec };
        let unresponsive = PassError::Unresponsive { reader: "r1".to_owned() };
        outcomes.push(PassOutcome { spec, result: Err(unresponsive) });
        let rows = result_rows(&outcomes, 4, |_| String::new());
        assert_eq!(rows[0].failures, ["round 2: r1: skipped because it hung in an earlier pass"]);
        assert_eq!(rows[0].mib_per_second.map(|s| s.median), Some(10.0));
        assert_eq!(rows[0].of_sum, None);
    }

    #[test]
    fn rates_are_computed_between_samples() {
        let names = ["a".to_owned(), "b".to_owned()];
        let second = Duration::from_secs(1);
        let sample = |time, mib: u64, replicas: [u64; 2]| CounterSample {
            time,
            bytes: mib << 20,
            replica_bytes: replicas.map(|mib| mib << 20).to_vec(),
        };
        let samples = [
            sample(Duration::ZERO, 0, [5, 7]),
            sample(second, 3, [6, 10]),
            sample(second * 3, 7, [8, 10]),
        ];
        let lines = RateTimeline::from_samples(1, &names, &samples);
        assert_eq!(lines.seconds, [1.0, 3.0]);
        assert_eq!(lines.reader, [3.0, 2.0]);
        assert_eq!(lines.replicas[0].mib_per_second, [1.0, 1.0]);
        assert_eq!(lines.replicas[1].mib_per_second, [3.0, 0.0]);
    }
}
