//! `fanfs verify`: checks whether a volume's replicas hold the same data.

use std::io::IsTerminal;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::cancellation::{self, Cancellation, print_message};
use super::{CommandResult, Failure, print_result, to_json, volume};
use crate::backend::Backend;
use crate::config::units::{Rate, Share, Time};
use crate::config::{self, Config};
use crate::daemon::{OpenReplicaError, open_replica};
use crate::format::{format_bytes, format_count};
use crate::survey::{DEFAULT_LIMIT, ReplicaLocation, Severity, survey};
use crate::verify::{
    Checkpoint, CheckpointError, ComparedReplica, Coverage, Difference, DifferenceKind,
    EscapedPath, ExclusionReason, NotCompared, Run, Totals, VerifyError, VerifyOptions,
};
use crate::volume::path_serde;

/// Arguments of `fanfs verify`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs verify reads the replicas directly, not through the mount, and compares:
  - the names of all files, and their types;
  - the size and modification time of regular files, in `shared` volumes also
    inode number and change time; the targets of symbolic links; owner, group
    and mode of everything (see --ignore);
  - the contents of regular files: the first and the last block of 1 MiB of
    each file, and 1 % of the other blocks (--sample), or all blocks (--full).
If blocks differ, it lists the ranges of bytes that differ. It does not follow symbolic links, and \
changes nothing on the replicas.

A file that changes during the comparison is compared once more. fanfs waits up to --deadline for \
a replica that fails or hangs. Objects that could not be compared are listed; they are not counted \
as differences.

Examples:
  fanfs verify genomes --full --state run1   every byte; run it again to resume
  fanfs verify genomes hg38/chr1.fa --full   one file
  fanfs verify genomes --rate 50MiB/s --ignore owner,mode

Exit status: 0 no difference, 3 some difference; 1 no difference, but some objects could not be \
compared; 2 wrong usage or configuration; 130 interrupted.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// The file or directory to compare: relative to the volume's root, or a path below its mount
    /// point or a replica [default: everything]
    path: Option<PathBuf>,
    /// The share of each file's blocks to compare, besides the first and the last
    #[arg(long, value_name = "SHARE", default_value = "1%", conflicts_with = "full")]
    sample: Share,
    /// Compare every byte
    #[arg(long)]
    full: bool,
    /// Selects the blocks of the sample; the same seed selects the same blocks [default: random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Save the progress in FILE, and resume from it
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Limit the rate of reading from all replicas together
    #[arg(long)]
    rate: Option<Rate>,
    /// Number of files to compare at a time, and of blocks to read from each replica at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// The longest wait for one call on a replica [default: the volume's `attempt_deadline`, and
    /// `deadline` to list a directory]
    #[arg(long, value_name = "TIME")]
    deadline: Option<Time>,
    /// Differences to ignore: mtime, ctime, inode, mode, owner
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    ignore: Vec<DifferenceKind>,
    /// Also compare the extended attributes `user.*`
    #[arg(long)]
    xattrs: bool,
    /// Print one JSON object, at the end
    #[arg(long)]
    json: bool,
}

/// The output of `fanfs verify --json`. A path that is not UTF-8 is an array of bytes.
#[derive(Serialize)]
struct VerifyReport {
    volume: String,
    /// Relative to the volume's root; empty for the whole volume.
    #[serde(with = "path_serde")]
    path: PathBuf,
    coverage: String,
    seed: u64,
    replicas: Vec<String>,
    /// Whether the run was interrupted: then the report covers only the part that was compared.
    interrupted: bool,
    /// Includes the earlier runs that this one resumed.
    totals: Totals,
    /// The totals of the earlier runs that this one resumed.
    before: Totals,
    /// The duration of this run alone.
    seconds: f64,
    differences: Vec<Difference>,
    not_compared: Vec<NotCompared>,
    left_out: Vec<ExcludedReplica>,
    absent: Vec<AbsentReplica>,
}

/// A replica that could not be compared at all.
#[derive(Serialize)]
struct ExcludedReplica {
    replica: String,
    why: String,
}

/// A replica that stopped answering, and the number of objects that were not compared on it.
#[derive(Serialize)]
struct AbsentReplica {
    replica: String,
    objects: u64,
}

/// The interval of saving the state: a run that is killed loses up to this much work.
const SAVE_INTERVAL: Duration = Duration::from_secs(3);

/// The interval of updates to the terminal.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(args: &Args, audience: &Cancellation) -> CommandResult {
    let file = volume::config_file(&args.volume)?;
    let config = config::load(&file).map_err(Failure::usage)?;
    if config.replicas.len() < 2 {
        let what = "has one replica; there is nothing to compare it with";
        return Err(Failure::usage(format!("{}: {what}", file.display())));
    }
    let names: Vec<String> = config.replicas.iter().map(|replica| replica.name.clone()).collect();
    let VerifyPlan { options, state } = plan_run(args, &config, &names)?;
    let before = state.as_ref().map(Checkpoint::totals).unwrap_or_default();
    let started = Instant::now();
    let run = Run::start(options.clone(), open_members(&config, options.deadline), state);
    let run = run.map_err(|error| match error {
        VerifyError::NoSuchPath(_) => Failure::usage(error),
        VerifyError::TooFewReplicas(_) | VerifyError::Thread(_) => Failure::failed(error),
    })?;
    let was_interrupted = watch_run(args, &run, audience)?;
    if !was_interrupted && !run.is_complete() {
        return Err(Failure::failed("a thread panicked; this is a bug in fanfs"));
    }
    let printed = run.differences(0).len();
    run.merge_out_of_order();
    let absent = run.absent_replicas().into_iter();
    let left_out = run.excluded_replicas().into_iter();
    let report = VerifyReport {
        volume: config.volume.name.clone(),
        path: options.path.clone(),
        coverage: options.coverage.to_string(),
        seed: options.seed,
        replicas: names,
        interrupted: was_interrupted,
        totals: run.totals(),
        before,
        seconds: started.elapsed().as_secs_f64(),
        differences: run.differences(0),
        not_compared: run.not_compared(0),
        left_out: left_out
            .map(|out| ExcludedReplica { replica: out.name, why: out.reason.to_string() })
            .collect(),
        absent: absent
            .map(|absent| AbsentReplica { replica: absent.name, objects: absent.objects })
            .collect(),
    };
    print_result(&if args.json { to_json(&report)? } else { render_report(&report, printed) })?;
    Ok(ExitCode::from(report.status()))
}

/// Waits for the end of the run, shows its progress and saves its state. Returns whether the run
/// was interrupted.
fn watch_run(args: &Args, run: &Run, audience: &Cancellation) -> Result<bool, Failure> {
    let save = |path: &Path| run.checkpoint().save(path).map_err(Failure::failed);
    if let Some(path) = &args.state {
        // A file that cannot be written is reported now, not after an hour.
        save(path)?;
    }
    let bar = progress_spinner();
    let mut printed = 0;
    let mut saved = Instant::now();
    let mut was_interrupted = false;
    loop {
        let is_over = run.wait(REFRESH_INTERVAL);
        bar.set_message(totals_line(&run.totals()));
        if !args.json {
            let fresh = run.differences(printed);
            printed += fresh.len();
            let lines: String = fresh.iter().map(|difference| format!("{difference}\n")).collect();
            if !lines.is_empty() {
                bar.suspend(|| print_result(&lines))?;
            }
        }
        if is_over {
            break;
        }
        if audience.is_canceled() && !was_interrupted {
            was_interrupted = true;
            run.stop();
        }
        if let Some(path) = args.state.as_ref().filter(|_| saved.elapsed() > SAVE_INTERVAL) {
            save(path)?;
            saved = Instant::now();
        }
    }
    bar.finish_and_clear();
    if let Some(path) = &args.state {
        // A run that was interrupted after its last object is complete.
        was_interrupted &= !run.is_complete();
        if was_interrupted {
            save(path)?;
            let again = format!("run it again with --state {} to resume", path.display());
            print_message(&format!("fanfs: interrupted; {again}"));
        } else if let Err(error) = std::fs::remove_file(path) {
            return Err(Failure::failed(format!("state {}: {error}", path.display())));
        }
    }
    Ok(was_interrupted)
}

/// A run of `fanfs verify`.
struct VerifyPlan {
    options: VerifyOptions,
    /// The saved progress of an earlier run.
    state: Option<Checkpoint>,
}

fn plan_run(args: &Args, config: &Config, names: &[String]) -> Result<VerifyPlan, Failure> {
    let refused = |error: CheckpointError| match error {
        CheckpointError::Io { .. } => Failure::failed(error),
        CheckpointError::Malformed { .. } | CheckpointError::OtherRun { .. } => {
            Failure::usage(error)
        }
    };
    let state = match &args.state {
        Some(path) => Checkpoint::load(path).map_err(refused)?,
        None => None,
    };
    let of_state = state.as_ref().map(Checkpoint::seed);
    let coverage = if args.full { Coverage::Full } else { Coverage::Sample(args.sample) };
    let options = VerifyOptions {
        volume: config.volume.name.clone(),
        mode: config.volume.mode,
        path: path_in_volume(config, args.path.as_deref().unwrap_or(Path::new("")))?,
        coverage,
        seed: args.seed.or(of_state).unwrap_or_else(random_seed),
        ignore: args.ignore.clone(),
        xattrs: args.xattrs,
        jobs: usize::from(args.jobs),
        rate: args.rate.map(|rate| rate.0),
        deadline: args.deadline.map_or(config.read.attempt_deadline, |time| time.0),
        list_deadline: args.deadline.map_or(config.read.deadline, |time| time.0),
    };
    if let (Some(path), Some(state)) = (&args.state, &state) {
        state.check_same_run(path, &options, names).map_err(refused)?;
        let objects = state.totals().objects;
        let from = path.display();
        print_message(&format!("fanfs: resuming from {from}: {objects} objects already compared"));
    }
    Ok(VerifyPlan { options, state })
}

/// A random seed, short enough to type.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) % 1_000_000_000
}

/// The path of a command line, made relative to the volume's root.
pub(super) fn path_in_volume(config: &Config, path: &Path) -> Result<PathBuf, Failure> {
    let mounted = volume::path_below_mount(&config.volume.name, path);
    let directories = config.replicas.iter().filter_map(|replica| replica.location.directory());
    let below = directories.filter_map(|directory| path.strip_prefix(directory).ok());
    // The shortest remainder belongs to the innermost replica.
    let below = below.chain(mounted.as_deref()).min_by_key(|rest| rest.components().count());
    let path = below.unwrap_or(path);
    let parts =
        path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    let inside: PathBuf = parts.collect();
    if inside.components().any(|part| !matches!(part, Component::Normal(_))) {
        let what = "is not a path in the volume; write it relative to its root, without ..";
        return Err(Failure::usage(format!("{} {what}", EscapedPath(path))));
    }
    Ok(inside)
}

/// Opens all replicas; one that cannot be opened is excluded with the reason.
fn open_members(config: &Config, deadline: Duration) -> Vec<ComparedReplica> {
    let survey = survey(config.survey_request(None), DEFAULT_LIMIT);
    let findings = survey.findings();
    let member = |(id, replica): (_, &config::ReplicaConfig)| {
        // Only errors of this replica alone: the comparison finds those between replicas.
        let own = findings
            .iter()
            .find(|finding| finding.severity == Severity::Error && finding.replicas == [id]);
        let backend = match own {
            Some(finding) => Err(ExclusionReason::Unfit(finding.text.clone())),
            None => {
                open_member(config, replica, deadline).map_err(|why| ExclusionReason::NotOpened {
                    replica: replica.name.clone(),
                    reason: why.to_string(),
                })
            }
        };
        ComparedReplica { name: replica.name.clone(), backend, max_rate: replica.max_rate }
    };
    let ids = survey.replicas.ids();
    ids.zip(&config.replicas).map(member).collect()
}

/// Why a replica cannot be compared.
#[derive(Debug, thiserror::Error)]
enum MemberError {
    #[error("{0}")]
    Thread(std::io::Error),
    #[error("{location}: {error}")]
    Failed { location: ReplicaLocation, error: OpenReplicaError },
    #[error("{0} did not answer")]
    TimedOut(ReplicaLocation),
}

/// Opens a replica in a thread of its own, because the replica may hang.
fn open_member(
    config: &Config,
    replica: &config::ReplicaConfig,
    deadline: Duration,
) -> Result<Arc<dyn Backend>, MemberError> {
    let (answer, opened) = mpsc::channel();
    let volume = config.clone();
    let own = replica.clone();
    let open = move || {
        let _ = answer.send(open_replica(&volume, &own));
    };
    std::thread::Builder::new().spawn(open).map_err(MemberError::Thread)?;
    let location = replica.location.clone();
    match opened.recv_timeout(deadline) {
        Ok(opened) => opened.map_err(|error| MemberError::Failed { location, error }),
        Err(_) => Err(MemberError::TimedOut(location)),
    }
}

fn progress_spinner() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {wide_msg}");
    let bar = ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(REFRESH_INTERVAL);
    bar
}

/// The totals on one line.
fn totals_line(totals: &Totals) -> String {
    format!(
        "{}, {}, {} compared, {} read, {}, {} not compared",
        format_count(totals.objects, "object"),
        format_count(totals.files, "file"),
        format_bytes(totals.bytes),
        format_bytes(totals.bytes_read),
        format_count(totals.differences, "difference"),
        totals.not_compared
    )
}

/// The report as text. It skips the first `printed` differences, which were printed before.
fn render_report(report: &VerifyReport, printed: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let fresh = report.differences.iter().skip(printed);
    lines.extend(fresh.map(ToString::to_string));
    let more = report.totals.differences - report.differences.len() as u64;
    if more > 0 {
        lines.push(format!("and {} not listed", format_count(more, "more difference")));
    }
    lines.extend(report.not_compared.iter().map(ToString::to_string));
    for AbsentReplica { replica, objects } in &report.absent {
        let objects = format_count(*objects, "object");
        lines.push(format!("{objects} not compared on {replica}: it stopped answering"));
    }
    let left_out = report.left_out.iter();
    lines.extend(
        left_out.map(|ExcludedReplica { replica, why }| format!("{replica} left out: {why}")),
    );
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    let VerifyReport { volume, coverage, seed, seconds, .. } = report;
    let seed = if coverage == "full" { String::new() } else { format!(", seed {seed}") };
    lines.push(format!(
        "{volume}: {} on {} ({coverage}{seed}): {} in {seconds:.1} s{interrupted}",
        EscapedPath(&report.path),
        report.replicas.join(", "),
        totals_line(&report.totals)
    ));
    lines.join("\n") + "\n"
}

impl VerifyReport {
    fn status(&self) -> u8 {
        let is_whole = self.totals.not_compared == 0 && self.left_out.is_empty();
        match self {
            _ if self.interrupted => cancellation::INTERRUPTED_STATUS,
            _ if self.totals.differences > 0 => 3,
            _ if !is_whole => 1,
            _ => 0,
        }
    }
}
