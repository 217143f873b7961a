//! `fanfs simulate`: simulates the rates of a cluster under fanfs and under simpler policies.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::{CommandResult, Failure, print_result, to_json};
use crate::config;
use crate::simulate::scenario::{MetadataRun, ReaderTrace, Scenario, parse, parse_trace};
use crate::simulate::{self, PolicyKind, ReadPattern, metadata};
use crate::telemetry::trace;

/// Arguments of `fanfs simulate`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs simulate runs the daemon's planner and scheduler in simulated time, on the cluster and the \
readers that a scenario describes. It reads no replica. A scenario and a seed always give the same \
result.

Examples:
  fanfs simulate config/scenarios/mapr-r3.toml
  fanfs simulate config/scenarios/mapr-r3.toml --trace reads.jsonl")]
pub(super) struct Args {
    /// The scenario file; config/scenarios/ has examples, docs/PLACEMENT.md describes the keys
    scenario: PathBuf,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Replay the readers of a recording of `fanfs trace --output`, instead of the scenario's
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Use this seed instead of the scenario's
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Serialize)]
struct SimulationReport {
    reads: Vec<simulate::SimulationOutcome>,
    metadata: Vec<MetadataCalls>,
}

#[derive(Serialize)]
struct MetadataCalls {
    run: String,
    calls_per_second: f64,
    calls: Vec<u64>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut scenario = load_scenario(&args.scenario)?;
    if let Some(seed) = args.seed {
        scenario.workload.seed = seed;
    }
    if let Some(path) = &args.trace {
        load_replay(&mut scenario, path)?;
    }
    let mut report = SimulationReport { reads: Vec::new(), metadata: Vec::new() };
    // Any instant works: the simulation only measures from it.
    let epoch = Instant::now();
    if let Some(world) = &scenario.world {
        if scenario.runs_raw {
            let raw = scenario.raw_workload();
            let outcome = simulate::run(world, &raw, PolicyKind::RoundRobin, epoch);
            let policy = format!("raw, {} jobs", raw.readers.len());
            report.reads.push(simulate::SimulationOutcome { policy, ..outcome });
        }
        for policy in &scenario.policies {
            report.reads.push(simulate::run(world, &scenario.workload, *policy, epoch));
        }
    }
    for MetadataRun { name: run, workload: calls } in scenario.metadata {
        let answered = metadata::simulate_metadata(&calls);
        let calls_per_second = answered.calls_per_second;
        report.metadata.push(MetadataCalls {
            run,
            calls_per_second,
            calls: answered.calls_by_replica,
        });
    }
    print_result(&if args.json { to_json(&report)? } else { render_table(&report) })
}

fn path_failure(path: &Path, what: impl std::fmt::Display) -> Failure {
    Failure::usage(format!("{}: {what}", path.display()))
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let text = config::open(path).and_then(std::io::read_to_string);
    text.map_err(|error| path_failure(path, error))
}

fn load_replay(scenario: &mut Scenario, path: &Path) -> Result<(), Failure> {
    let recorded =
        trace::parse_replays(&read_text(path)?).map_err(|what| path_failure(path, what))?;
    if recorded.is_empty() {
        let what = "it contains no read that was answered; record it again while files are read";
        return Err(path_failure(path, what));
    }
    scenario.replay(&recorded).map_err(|what| path_failure(path, what))
}

fn load_scenario(path: &Path) -> Result<Scenario, Failure> {
    let mut scenario = parse(&read_text(path)?).map_err(|what| path_failure(path, what))?;
    for ReaderTrace { reader, file: trace } in std::mem::take(&mut scenario.traces) {
        // The path is relative to the scenario's directory, so that both can be moved together.
        let trace = path.parent().unwrap_or(Path::new("")).join(trace);
        let ranges = parse_trace(&read_text(&trace)?).map_err(|what| path_failure(&trace, what))?;
        scenario.workload.readers[reader].reads = ReadPattern::Trace(ranges);
    }
    Ok(scenario)
}

fn render_table(report: &SimulationReport) -> String {
    let mut text = String::new();
    if !report.reads.is_empty() {
        text.push_str(&format!(
            "  {:<16} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9} {:>9}  {}\n",
            "policy",
            "MB/s",
            "seconds",
            "local",
            "dup",
            "p50 ms",
            "p99 ms",
            "max ms",
            "share of each replica"
        ));
    }
    for outcome in &report.reads {
        let shares: Vec<String> = outcome
            .replicas
            .iter()
            .map(|replica| format!("{:.0}%", replica.share * 100.0))
            .collect();
        let ms = |us: u64| us as f64 / 1000.0;
        text.push_str(&format!(
            "  {:<16} {:>9.1} {:>9.1} {:>6.1}% {:>6.1}% {:>9.2} {:>9.2} {:>9.2}  {}{}\n",
            outcome.policy,
            outcome.bytes_per_second / 1e6,
            outcome.seconds,
            outcome.local * 100.0,
            outcome.wasted as f64 * 100.0 / outcome.bytes.max(1) as f64,
            ms(outcome.latency.p50_us),
            ms(outcome.latency.p99_us),
            ms(outcome.latency.max_us),
            if shares.len() > 16 { format!("{} replicas", shares.len()) } else { shares.join(" ") },
            if outcome.complete { "" } else { "  (cut off after a day)" },
        ));
    }
    if !report.metadata.is_empty() {
        text.push_str(&format!(
            "  {:<16} {:>12}  {}\n",
            "metadata", "calls/s", "calls of each replica"
        ));
    }
    for run in &report.metadata {
        let calls: Vec<String> = run.calls.iter().map(u64::to_string).collect();
        text.push_str(&format!(
            "  {:<16} {:>12.0}  {}\n",
            run.run,
            run.calls_per_second,
            calls.join(" ")
        ));
    }
    text
}
