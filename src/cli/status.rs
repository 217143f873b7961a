//! `fanfs status`.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::mount_lookup::{self, MountedVolumes, StatusError, UnansweredMount};
use super::{CommandResult, Failure, print_result, printable, to_json, volume};
use crate::format::{format_bytes, format_count, format_micros};
use crate::replicas::health::{HealthReason, HealthState};
use crate::status::{KeeperState, ReplicaStatus, Status};
use crate::volume::shell_word;

/// Arguments of `fanfs status`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  fanfs status                   this user's volumes
  fanfs status /genomes --json
  fanfs status --check           for monitoring: quiet and 0 where all is well

A mount whose daemon has died is listed with the command that helps.

Exit status: 0 done; 1 a daemon has died or does not answer, or with --check a replica is out of
service or a keeper has died; 2 wrong usage.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    /// [default: all of this user's volumes]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: Option<PathBuf>,
    /// Print JSON: one object with VOLUME, else an array
    #[arg(long)]
    json: bool,
    /// For monitoring: print one line and fail where a replica is out of service, a keeper has died
    /// or a daemon does not answer; print nothing where all is well
    #[arg(long, conflicts_with = "json")]
    check: bool,
}

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
    let (others, own): (Vec<_>, Vec<_>) =
        unanswered.into_iter().partition(UnansweredMount::has_other_owner);
    let is_failed = !own.is_empty();
    match (&args.volume, args.json) {
        (Some(_), true) => print_result(&to_json(&answers[0])?),
        (None, true) => {
            let answers = answers.into_iter().map(|status| MountReport::Answers(Box::new(status)));
            let own = own.into_iter().map(MountReport::Unanswered);
            print_result(&to_json(&answers.chain(own).collect::<Vec<_>>())?)
        }
        (_, false) => {
            let mut text: String = answers.iter().map(render_volume).collect();
            if answers.is_empty() && own.is_empty() {
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

/// What `--json` prints of a mount.
#[derive(Serialize)]
#[serde(untagged)]
enum MountReport {
    Answers(Box<Status>),
    Unanswered(UnansweredMount),
}

/// One line about what is not well, for monitoring; nothing where all is well.
fn check_health(mounted: &MountedVolumes) -> CommandResult {
    let mut wrong: Vec<String> = Vec::new();
    for status in &mounted.answers {
        let point = printable(&status.mount_point.to_string_lossy());
        if let Some(warning) = keeper_warning(status) {
            wrong.push(format!("{} at {point}: {warning}", status.volume));
        }
        for replica in status.replicas.iter().filter(|replica| is_out_of_service(replica)) {
            let why = replica.absence.as_deref().or(reason_text(replica.health_reason));
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let volume = &status.volume;
            let name = &replica.name;
            let health = health_label(replica.health);
            wrong.push(format!("{volume} at {point}: replica {name} is {health}{why}"));
        }
    }
    let own = mounted.unanswered.iter().filter(|mount| !mount.has_other_owner());
    wrong.extend(own.map(UnansweredMount::text));
    if wrong.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    print_result(&format!("{}\n", wrong.join("; ")))?;
    Ok(ExitCode::FAILURE)
}

/// Whether nothing is asked of it but to prove itself.
fn is_out_of_service(replica: &ReplicaStatus) -> bool {
    !matches!(replica.health, HealthState::Healthy | HealthState::Suspect)
}

/// One volume's state for people.
fn render_volume(status: &Status) -> String {
    let mut text = String::new();
    let up = humantime::format_duration(Duration::from_secs(status.uptime_s));
    line!(
        text,
        "{} at {} ({}), pid {}, up {up}",
        status.volume,
        printable(&status.mount_point.to_string_lossy()),
        printable(&status.source.to_string_lossy()),
        status.pid
    );
    render_replica_table(&mut text, &status.replicas);
    for replica in &status.replicas {
        render_warning(&mut text, replica);
        render_hung_objects(&mut text, replica);
    }
    render_totals(&mut text, status);
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

fn render_replica_table(text: &mut String, replicas: &[ReplicaStatus]) {
    line!(
        text,
        "  {:<14} {:<8} {:>10} {:>12} {:>12} {:>11} {:>9} {:>9} {:>7} {:>6} {:>5}",
        "replica",
        "health",
        "bytes",
        "now /s",
        "expected /s",
        "in flight",
        "p50",
        "p99",
        "errors",
        "late",
        "busy"
    );
    for replica in replicas {
        line!(
            text,
            "  {:<14} {:<8} {:>10} {:>12} {:>12} {:>11} {:>9} {:>9} {:>7} {:>6} {:>5}",
            replica.name,
            health_label(replica.health),
            format_bytes(replica.counters.bytes),
            format_bytes(replica.counters.bytes_per_second),
            format_bytes(replica.rate),
            format_bytes(replica.in_flight),
            format_micros(replica.counters.read_latency.p50_us),
            format_micros(replica.counters.read_latency.p99_us),
            replica.counters.errors,
            replica.counters.late,
            replica.busy_threads,
        );
    }
}

/// What the volume has done since its mount, and what it holds now.
fn render_totals(text: &mut String, status: &Status) {
    let c = &status.counters;
    let g = &status.gauges;
    line!(
        text,
        "  delivered {} in {} reads ({} from memory, {} failed; p50 {}, p99 {}); {} metadata calls ({} failed over)",
        format_bytes(c.bytes_delivered),
        c.reads,
        c.buffer_hits,
        c.read_errors,
        format_micros(c.read_latency.p50_us),
        format_micros(c.read_latency.p99_us),
        c.metadata,
        c.metadata_failovers
    );
    line!(
        text,
        "  retries {}, hedges {} ({} won), wasted {}; buffers {} of {} in use, {} kept; {} open, {} inodes, {} requests waiting",
        c.retries,
        c.hedges,
        c.hedges_won,
        format_bytes(c.bytes_wasted),
        format_bytes(g.buffer_used),
        format_bytes(g.buffer_budget),
        format_bytes(g.buffer_idle),
        g.handles,
        g.inodes,
        g.requests
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

/// Objects that calls on a replica hang on.
fn render_hung_objects(text: &mut String, replica: &ReplicaStatus) {
    for hung in &replica.hung {
        let path = if hung.path.is_empty() { "/" } else { &hung.path };
        let lasts = humantime::format_duration(Duration::from_secs(hung.lasts_s));
        line!(
            text,
            "  warning: {}: calls about {} hang for {lasts}, and hold {}",
            replica.name,
            printable(path),
            format_count(hung.threads as u64, "thread")
        );
    }
    let more = replica.hung_objects.saturating_sub(replica.hung.len());
    if more > 0 {
        let more = format_count(more as u64, "more object");
        line!(text, "  warning: {}: calls about {more} hang", replica.name);
    }
}

/// What is wrong with a replica, if anything is.
fn render_warning(text: &mut String, replica: &ReplicaStatus) {
    if let Some(why) = &replica.absence {
        line!(text, "  warning: {why}; it joins when it is well");
        return;
    }
    let Some(why) = reason_text(replica.health_reason) else { return };
    let lasts = humantime::format_duration(Duration::from_secs(replica.health_s));
    let _ = write!(text, "  warning: {}: {why}, {lasts} ago", replica.name);
    if replica.stuck_threads > 0 {
        let _ = write!(text, "; {} stuck", format_count(replica.stuck_threads as u64, "thread"));
    }
    line!(text, "");
}

/// A replica's state in a word.
fn health_label(state: HealthState) -> &'static str {
    match state {
        HealthState::Healthy => "healthy",
        HealthState::Suspect => "suspect",
        HealthState::Ejected => "ejected",
        HealthState::Probing => "probing",
        HealthState::Absent => "absent",
    }
}

/// Why a replica is in its state, unless all is well.
fn reason_text(reason: HealthReason) -> Option<&'static str> {
    Some(match reason {
        HealthReason::Started | HealthReason::Delivered | HealthReason::Quiet => return None,
        HealthReason::Failed => "a call failed",
        HealthReason::Late => "it was late",
        HealthReason::Failures => "too many calls failed",
        HealthReason::Stalled => "it delivered nothing while others did",
        HealthReason::Deadline => "a read took longer than attempt_deadline",
        HealthReason::Slow => "it delivers less than a twentieth of what the best does",
        HealthReason::Proved => "it is tried again",
        HealthReason::Gone => "its mount has gone; it is looked for in its place",
    })
}

/// Whether the copies' bytes are the same, as far as that was looked at.
fn render_content_check(text: &mut String, status: &Status) {
    let c = &status.counters;
    if c.compared == 0 {
        return;
    }
    line!(text, "  content: {} compared while reading", format_count(c.compared, "block"));
    for replica in status.replicas.iter().filter(|replica| replica.counters.differing > 0) {
        let files = format_count(replica.counters.differing, "file");
        line!(text, "  warning: {} is kept off {files}: its bytes are others", replica.name);
    }
    if c.outvoted > 0 {
        let files = format_count(c.outvoted, "file");
        line!(
            text,
            "  warning: about {files} two replicas agree against the one that decides; see `fanfs verify`"
        );
    }
}

/// The files that the kernel reads by itself, and the obstacles to that.
fn render_passthrough(text: &mut String, status: &Status) {
    let p = &status.passthrough;
    if p.wanted {
        let opens = format_count(p.opens, "open");
        let files = format_count(p.files as u64, "file");
        line!(text, "  passthrough: {opens}, {files} open now");
        for why in &p.obstacles {
            line!(text, "  warning: no passthrough: {why}");
        }
    }
}

/// Where chunks are, as far as a provider says so.
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
    if p.asking > 0 {
        let _ = write!(text, ", {} being asked", p.asking);
    }
    if p.disbelieved > 0 {
        let _ = write!(text, ", {} not believed", p.disbelieved);
    }
    if known > 0 {
        let percent = 100.0 * local as f64 / known as f64;
        let _ = write!(text, "; {percent:.0} % of {} read locally", format_bytes(known));
    }
    line!(text, "");
    if let Some(error) = &p.failing {
        line!(text, "  warning: placement fails: {error}");
    }
    if !p.unmatched.is_empty() {
        let names = p.unmatched.join(", ");
        line!(text, "  warning: no replica is on {names}; `aliases` can tie them together");
    }
}

/// The pinned subtrees, and whether another replica is quicker.
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
        if let Some((name, time)) = rule.quicker.as_ref().and_then(|name| Some((name, time(name)?)))
        {
            let _ = write!(text, "; {name} is quicker ({})", format_micros(time));
        }
        line!(text, "");
    }
}
