//! `fanfs status`: the state of mounted volumes, for people, for programs and for monitoring.

mod warnings;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::mount_lookup::{self, MountedVolumes, StatusError, UnansweredMount, in_parallel};
use super::{CommandResult, Failure, print_result, printable, to_json, volume};
use crate::format::{format_bytes, format_count, format_micros, format_percent, to_mib};
use crate::status::{KeeperState, ReplicaStatus, Status};
use crate::telemetry::counters::VolumeCountersSnapshot;
use crate::telemetry::histogram::HistogramSnapshot;
use crate::volume::shell_word;
use warnings::health_label;

/// Arguments of `fanfs status`.
#[derive(clap::Args)]
#[command(after_help = "\
Rates, and the latencies beside them, cover one second, in which the command waits.

Examples:
  fanfs status                   this user's volumes
  fanfs status /genomes --json
  fanfs status --check           for monitoring: exit status 0 if all is well

A mount whose daemon has died is listed with the command that repairs it.

Exit status: 0 success; 1 a daemon has died or does not answer, or with --check a replica is out \
of service or a keeper has died; 2 wrong usage.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    /// [default: all of this user's volumes]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: Option<PathBuf>,
    /// Print JSON: one object if VOLUME is named, else an array
    #[arg(long)]
    json: bool,
    /// For monitoring: print one line and fail if a replica is out of service, a keeper has died or
    /// a daemon does not answer; print nothing if all is well
    #[arg(long, conflicts_with = "json")]
    check: bool,
}

/// The time that the rates in the text cover.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Adds a line to a `String`, which cannot fail.
macro_rules! line {
    ($text:ident, $($arg:tt)*) => {{
        let _ = writeln!($text, $($arg)*);
    }};
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mounted = match &args.volume {
        Some(volume) => match mount_lookup::query_mount_status(&volume::mount_point(volume)?) {
            Ok(status) => MountedVolumes { answers: vec![status], unanswered: Vec::new() },
            Err(StatusError::Unanswered(mount)) if args.json => {
                print_result(&to_json(&mount)?)?;
                return Ok(ExitCode::FAILURE);
            }
            Err(trouble) if args.check => {
                let failure = Failure::from(trouble);
                print_result(&format!("{}\n", failure.text()))?;
                return Ok(ExitCode::FAILURE);
            }
            Err(trouble) => return Err(trouble.into()),
        },
        None => mount_lookup::list_volumes().map_err(Failure::failed)?,
    };
    if args.check {
        return check_health(&mounted);
    }
    let MountedVolumes { answers, unanswered } = mounted;
    let (others, mut own): (Vec<_>, Vec<_>) =
        unanswered.into_iter().partition(UnansweredMount::has_other_owner);
    let mut is_failed = !own.is_empty();
    match (&args.volume, args.json) {
        (Some(_), true) => print_result(&to_json(&answers[0])?),
        (None, true) => {
            let answers = answers.into_iter().map(|status| MountReport::Answers(Box::new(status)));
            let own = own.into_iter().map(MountReport::Unanswered);
            print_result(&to_json(&answers.chain(own).collect::<Vec<_>>())?)
        }
        (_, false) => {
            let again = sample_again(answers);
            own.extend(again.unanswered);
            is_failed = again.is_failed || !own.is_empty();
            let mut text: String = again.sampled.iter().map(render_volume).collect();
            again.notes.iter().for_each(|note| line!(text, "{note}"));
            if text.is_empty() && own.is_empty() {
                text.push_str(match others.is_empty() {
                    true => "no volume is mounted\n",
                    false => "no volume of this user is mounted\n",
                });
            }
            for mount in own.iter().chain(&others) {
                line!(text, "{}", mount.text());
            }
            print_result(&text)
        }
    }?;
    Ok(ExitCode::from(u8::from(is_failed)))
}

/// The JSON of one mount.
#[derive(Serialize)]
#[serde(untagged)]
enum MountReport {
    Answers(Box<Status>),
    Unanswered(UnansweredMount),
}

/// Prints all problems on one line, for monitoring; prints nothing if there are none.
fn check_health(mounted: &MountedVolumes) -> CommandResult {
    let mut wrong: Vec<String> = Vec::new();
    for status in &mounted.answers {
        let point = printable(&status.mount_point.to_string_lossy());
        if let Some(warning) = keeper_warning(status) {
            wrong.push(format!("{} at {point}: {warning}", status.volume));
        }
        let failures = warnings::service_failures(status);
        wrong.extend(failures.iter().map(|text| format!("{} at {point}: {text}", status.volume)));
    }
    let own = mounted.unanswered.iter().filter(|mount| !mount.has_other_owner());
    wrong.extend(own.map(UnansweredMount::text));
    if wrong.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    print_result(&format!("{}\n", wrong.join("; ")))?;
    Ok(ExitCode::FAILURE)
}

/// Two answers of a daemon, [`SAMPLE_INTERVAL`] apart: rates and the latencies beside them cover
/// the time between them.
struct Sampled {
    before: Status,
    now: Status,
}

impl Sampled {
    /// The time between the answers, seconds; `None` if another daemon has followed.
    fn seconds(&self) -> Option<f64> {
        let took = self.now.uptime_s() - self.before.uptime_s();
        (self.before.pid == self.now.pid && took > 0.0).then_some(took)
    }

    /// The title of the values of the interval.
    fn title(&self) -> String {
        self.seconds().map_or_else(|| "now".to_owned(), |took| format!("last {took:.1} s"))
    }
}

/// The volumes after the second sample.
#[derive(Default)]
struct SampledVolumes {
    sampled: Vec<Sampled>,
    /// Those whose daemons no longer answer.
    unanswered: Vec<UnansweredMount>,
    /// A line for each other volume that cannot be sampled again.
    notes: Vec<String>,
    /// Whether a note reports a failure.
    is_failed: bool,
}

/// Samples the volumes a second time, all at once: each request may take up to its timeout.
fn sample_again(answers: Vec<Status>) -> SampledVolumes {
    if !answers.is_empty() {
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    let query = |before: &Status| mount_lookup::query_mount_status(&before.mount_point);
    let second = in_parallel(&answers, query);
    let mut all = SampledVolumes::default();
    for (before, now) in answers.into_iter().zip(second) {
        match now {
            Ok(now) => all.sampled.push(Sampled { before, now }),
            Err(StatusError::Unanswered(mount)) => all.unanswered.push(mount),
            Err(StatusError::Failed(_))
                if mount_lookup::find_mount(&before.mount_point).is_none() =>
            {
                let point = printable(&before.mount_point.to_string_lossy());
                all.notes.push(format!("{} at {point}: it was unmounted just now", before.volume));
            }
            Err(StatusError::Failed(failure)) => {
                all.notes.push(failure.text());
                all.is_failed = true;
            }
        }
    }
    all
}

/// One volume's state as text, at most 80 columns wide but for names and messages.
fn render_volume(sampled: &Sampled) -> String {
    let status = &sampled.now;
    let mut text = String::new();
    let up = Duration::from_secs(status.time_s.seconds_since(status.start_time_s));
    line!(
        text,
        "{} at {} ({}), pid {}, up {}",
        status.volume,
        printable(&status.mount_point.to_string_lossy()),
        printable(&status.source.to_string_lossy()),
        status.pid,
        humantime::format_duration(up)
    );
    render_current_table(&mut text, sampled);
    render_total_table(&mut text, &status.replicas);
    for warning in warnings::replica_warnings(status) {
        line!(text, "  warning: {warning}");
    }
    render_totals(&mut text, sampled);
    if let Some(warning) = keeper_warning(status) {
        line!(text, "  warning: {warning}");
    }
    render_content_check(&mut text, status);
    render_passthrough(&mut text, status);
    render_placement(&mut text, status);
    render_affinities(&mut text, status);
    render_lost_log_lines(&mut text, status);
    text
}

/// The width of the replicas' names.
fn name_width(replicas: &[ReplicaStatus], title: &str) -> usize {
    let names = replicas.iter().map(|replica| replica.name.chars().count());
    names.max().unwrap_or(0).max(title.len())
}

/// "98.2", "1.3 ms", "4.1 ms": a rate in MiB/s, and the median and the 99 % quantile in the same
/// time; "-" for those that are unknown.
fn interval_cells(bytes: u64, times: &HistogramSnapshot, seconds: Option<f64>) -> [String; 3] {
    let Some(seconds) = seconds else {
        return [UNKNOWN, UNKNOWN, UNKNOWN].map(str::to_owned);
    };
    let rate = format!("{:.1}", to_mib((bytes as f64 / seconds) as u64));
    [rate, quantile_cell(times, 0.5), quantile_cell(times, 0.99)]
}

/// Stands for a value that is unknown, such as the latency of no reads.
const UNKNOWN: &str = "-";

/// "1.3 ms", or "-" without any read.
fn quantile_cell(times: &HistogramSnapshot, part: f64) -> String {
    match times.total() {
        0 => UNKNOWN.to_owned(),
        _ => format_micros(times.quantile_us(part)),
    }
}

/// The present state of the replicas.
fn render_current_table(text: &mut String, sampled: &Sampled) {
    let title = sampled.title();
    let replicas = &sampled.now.replicas;
    let width = name_width(replicas, &title);
    let mut row = |name: &str, cells: [&str; 7]| {
        let [health, rate, p50, p99, estimate, flight, threads] = cells;
        line!(
            text,
            "  {name:<width$} {health:<8} {rate:>8} {p50:>8} {p99:>8} {estimate:>8} {flight:>10} \
             {threads:>11}"
        );
    };
    row("", ["", "read", "", "", "est. bw", "in-flight/", "active/hung"]);
    row(&title, ["health", "MiB/s", "p50", "p99", "MiB/s", "limit MiB", "threads"]);
    for replica in replicas {
        let was = sampled.before.replicas.iter().find(|was| was.name == replica.name);
        let counters = &replica.counters;
        let old = was.map_or_else(|| counters.clone(), |was| was.counters.clone());
        let [rate, p50, p99] = interval_cells(
            counters.bytes.saturating_sub(old.bytes),
            &counters.read_latency.since(&old.read_latency),
            sampled.seconds(),
        );
        let flight =
            format!("{:.1}/{:.1}", to_mib(replica.in_flight), to_mib(replica.in_flight_limit));
        let threads = format!("{}/{}", replica.active_threads, replica.hung_threads);
        let estimate = replica
            .estimated_bandwidth_local
            .map_or(UNKNOWN.to_owned(), |estimate| format!("{:.1}", to_mib(estimate)));
        let health = health_label(replica.health);
        row(&replica.name, [health, &rate, &p50, &p99, &estimate, &flight, &threads]);
    }
}

/// The totals of the replicas.
fn render_total_table(text: &mut String, replicas: &[ReplicaStatus]) {
    let title = "since mount";
    let width = name_width(replicas, title);
    let mut row = |name: &str, cells: [&str; 6]| {
        let [read, reads, p50, p99, errors, slow] = cells;
        line!(
            text,
            "  {name:<width$} {read:>10} {reads:>9} {p50:>8} {p99:>8} {errors:>8} {slow:>8}"
        );
    };
    row(title, ["read", "reads", "p50", "p99", "errors", "slow"]);
    for replica in replicas {
        let c = &replica.counters;
        let cells = [
            format_bytes(c.bytes),
            c.reads.to_string(),
            quantile_cell(&c.read_latency, 0.5),
            quantile_cell(&c.read_latency, 0.99),
            c.errors.to_string(),
            c.slow.to_string(),
        ];
        row(&replica.name, cells.each_ref().map(String::as_str));
    }
}

/// The activity of the volume in the interval and since mount, and its current values.
fn render_totals(text: &mut String, sampled: &Sampled) {
    let Sampled { before, now } = sampled;
    let c = &now.counters;
    let g = &now.gauges;
    let [rate, p50, p99] = interval_cells(
        c.bytes_delivered.saturating_sub(before.counters.bytes_delivered),
        &c.read_latency.since(&before.counters.read_latency),
        sampled.seconds(),
    );
    let title = sampled.title();
    line!(text, "  app read, {title}: {rate} MiB/s, p50 {p50}, p99 {p99}");
    line!(
        text,
        "  app read since mount: {} in {}, {}, {}",
        format_bytes(c.bytes_delivered),
        format_count(c.reads, "read"),
        format_count(c.buffer_hits, "readahead hit"),
        format_count(c.read_errors, "error")
    );
    render_changes(text, c);
    line!(
        text,
        "  since mount: {} ({} answered first), {} duplicate reads",
        format_count(c.hedges, "hedged read"),
        c.hedges_won,
        format_bytes(c.bytes_duplicate)
    );
    line!(
        text,
        "  since mount: {} retried, {}, {}",
        format_count(c.retries, "segment"),
        format_count(c.metadata, "metadata call"),
        format_count(c.metadata_failovers, "failover")
    );
    line!(
        text,
        "  queue: {}, {}, {}",
        format_count(g.requests as u64, "app read"),
        format_count(g.calls as u64, "metadata call"),
        format_count(g.segments_waiting as u64, "segment")
    );
    line!(
        text,
        "  buffers: {} of {}, {} pooled; {}, {}",
        format_bytes(g.buffer_used),
        format_bytes(g.buffer_budget),
        format_bytes(g.buffer_idle),
        format_count(g.handles as u64, "open handle"),
        format_count(g.inodes as u64, "inode")
    );
}

/// Writes and other changes since mount, if there are any.
fn render_changes(text: &mut String, c: &VolumeCountersSnapshot) {
    if c.writes + c.write_errors + c.changes == 0 {
        return;
    }
    line!(
        text,
        "  app write since mount: {} in {}, {}; {}",
        format_bytes(c.bytes_written),
        format_count(c.writes, "write"),
        format_count(c.write_errors, "error"),
        format_count(c.changes, "other change")
    );
}

/// Log lines that could not be written.
fn render_lost_log_lines(text: &mut String, status: &Status) {
    if status.log.lines_lost > 0 {
        let lines = format_count(status.log.lines_lost, "log line");
        let error = status.log.error.as_deref().unwrap_or("unknown error");
        line!(text, "  warning: {lines} could not be written: {}", printable(error));
    }
}

/// A warning if the keeper has died. No daemon can start another keeper.
fn keeper_warning(status: &Status) -> Option<String> {
    let point = shell_word(&status.mount_point.to_string_lossy());
    (status.keeper == Some(KeeperState::Gone)).then(|| {
        format!(
            "the keeper has died: if the daemon dies, the mount is lost; fanfs umount {point}, \
             then mount it again with -o keeper"
        )
    })
}

/// The result of the comparisons of copies while reading.
fn render_content_check(text: &mut String, status: &Status) {
    let c = &status.counters;
    if c.compared == 0 {
        return;
    }
    line!(text, "  content check: {} compared while reading", format_count(c.compared, "block"));
    if let Some(warning) = warnings::differing_warning(&status.replicas) {
        line!(text, "  warning: {warning}");
    }
    if c.outvoted > 0 {
        let blocks = format_count(c.outvoted, "block");
        line!(
            text,
            "  warning: in {blocks} two replicas agree and the deciding replica differs; \
             run `fanfs verify`"
        );
    }
}

/// The files that the kernel reads directly from one replica, and why others cannot be.
fn render_passthrough(text: &mut String, status: &Status) {
    let p = &status.passthrough;
    if p.wanted {
        let opens = format_count(p.opens, "open");
        let files = format_count(p.files as u64, "file");
        line!(text, "  passthrough: {opens} since mount, {files} open");
        for why in &p.obstacles {
            line!(text, "  warning: no passthrough: {why}");
        }
    }
}

/// The state of placement.
fn render_placement(text: &mut String, status: &Status) {
    let p = &status.placement;
    if p.provider == "none" {
        return;
    }
    let sum = |of: fn(&ReplicaStatus) -> u64| status.replicas.iter().map(of).sum::<u64>();
    let local = sum(|replica| replica.counters.bytes_local);
    let known = local + sum(|replica| replica.counters.bytes_remote);
    let _ = write!(text, "  placement: {}, {}", p.provider, format_count(p.files as u64, "file"));
    if p.provider != "learned" {
        let answers = format_count(p.answers, "answer");
        let failures = format_count(p.failures, "failure");
        let _ = write!(text, ", {answers}, {failures}");
    }
    if p.pending > 0 {
        let _ = write!(text, ", {} pending", p.pending);
    }
    if p.contradicted > 0 {
        let _ = write!(text, ", {} contradicted by timing", p.contradicted);
    }
    if known > 0 {
        let percent = format_percent(local as f64 / known as f64);
        let _ = write!(text, "; {percent} of {} read locally", format_bytes(known));
    }
    line!(text, "");
    if let Some(error) = &p.failing {
        line!(text, "  warning: placement query failed: {error}");
    }
    if !p.unmatched.is_empty() {
        let names = p.unmatched.join(", ");
        line!(text, "  warning: no replica is on {}; see `aliases`", printable(&names));
    }
}

/// The affinity rules, each with a faster replica if there is one.
fn render_affinities(text: &mut String, status: &Status) {
    for rule in &status.affinities {
        let time = |name: &String| {
            let index = status.replicas.iter().position(|replica| replica.name == *name)?;
            rule.times_us.get(index).copied().filter(|time| *time > 0)
        };
        let names = rule.replicas.join(", ");
        let _ = write!(
            text,
            "  affinity {} -> {names}: {}",
            rule.path,
            format_count(rule.calls, "call")
        );
        if let Some(time) = rule.replicas.iter().filter_map(time).min() {
            let _ = write!(text, ", {}", format_micros(time));
        }
        if let Some((name, time)) = rule.faster.as_ref().and_then(|name| Some((name, time(name)?)))
        {
            let _ = write!(text, "; {name} is faster ({})", format_micros(time));
        }
        line!(text, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::sample;
    use crate::telemetry::wall_clock::Timestamp;

    #[test]
    fn a_step_of_the_clock_does_not_change_the_interval() {
        let before = sample::status(["n1"]);
        let mut now = sample::status(["n1"]);
        let day_later =
            |at: Timestamp, more: f64| Timestamp::from_unix(at.unix_s() + 86_400.0 + more);
        now.time_s = day_later(now.time_s, 1.0);
        now.start_time_s = day_later(now.start_time_s, 0.0);
        now.replicas[0].counters.bytes = 5 << 20;
        let mut sampled = Sampled { before, now };
        let text = render_volume(&sampled);
        assert!(
            text.contains("  last 1.0 s health ") && text.contains(" healthy       5.0 "),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        sampled.now.pid += 1;
        let text = render_volume(&sampled);
        assert!(text.contains("  now") && text.contains(" healthy         - "), "{text}");
    }
}
