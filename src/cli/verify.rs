//! `fanfs verify`: whether a volume's replicas hold the same.

use std::io::IsTerminal;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::cancellation::{self, Cancellation, print_message};
use super::{CommandResult, Failure, print_result, to_json, volume};
use crate::backend::{Backend, BackendError, DirBackend};
use crate::config::units::{Rate, Share, Time};
use crate::config::{self, Config, PageCache};
use crate::format::{format_bytes, format_count};
use crate::survey::{DEFAULT_LIMIT, Severity, survey};
use crate::verify::{
    Checkpoint, CheckpointError, ComparedReplica, Coverage, Difference, DifferenceKind,
    EscapedPath, ExclusionReason, NotCompared, Run, Totals, VerifyError, VerifyOptions,
};
use crate::volume::path_serde;

/// Arguments of `fanfs verify`.
#[derive(clap::Args)]
#[command(after_help = "\
Compared are, on all replicas, beside each other and not through the mount:
  - which names there are, and of what type;
  - of regular files size and modification time; in `shared` volumes inode number and change
    time as well; of symbolic links the target; of all owner, group and mode (see --ignore);
  - of regular files the contents: of each the first and the last block of 1 MiB, and 1 % of the
    others (--sample), or all of them (--full). Where blocks differ, the bytes that do are listed.
Symbolic links are not followed. Nothing is changed on a replica.

  fanfs verify /etc/fanfs/genomes.toml                       a look at everything
  fanfs verify /etc/fanfs/genomes.toml --full --state run1   every byte; run again to go on
  fanfs verify /etc/fanfs/genomes.toml hg38/chr1.fa --full   one file
  fanfs verify /etc/fanfs/genomes.toml --rate 50MiB/s --ignore owner,mode

A file that changes meanwhile is compared again, once. A replica that fails or hangs is waited for
as long as --deadline says; what could not be compared is listed, and is no difference.

Exit status: 0 no difference, 3 some difference; 1 no difference, but not everything could be
compared; 2 wrong usage or configuration; 130 interrupted.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// A file or directory, from the volume's root, or below its mount point or a replica's path
    /// [default: everything]
    path: Option<PathBuf>,
    /// The share of each file's blocks to compare besides the first and the last
    #[arg(long, value_name = "SHARE", default_value = "1%", conflicts_with = "full")]
    sample: Share,
    /// Compare every byte
    #[arg(long)]
    full: bool,
    /// Which blocks are looked at; the same number, the same blocks [default: at random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Keep in FILE how far it has come, and go on from there
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Most bytes a second to read, of all replicas together
    #[arg(long)]
    rate: Option<Rate>,
    /// Files to compare at a time, and blocks to read at a time from each replica
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// How long one call on a replica may take [default: the volume's `attempt_deadline`; to list
    /// a directory, `deadline`]
    #[arg(long, value_name = "TIME")]
    deadline: Option<Time>,
    /// Differences that are none: mtime, ctime, inode, mode, owner
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    ignore: Vec<DifferenceKind>,
    /// Compare extended attributes `user.*` as well
    #[arg(long)]
    xattrs: bool,
    /// Print one JSON object, at the end
    #[arg(long)]
    json: bool,
}

/// What `fanfs verify --json` prints. Paths that are not UTF-8 are arrays of bytes.
#[derive(Serialize)]
struct VerifyReport {
    volume: String,
    /// Relative to the volume's root; empty for all of it.
    #[serde(with = "path_serde")]
    path: PathBuf,
    coverage: String,
    seed: u64,
    replicas: Vec<String>,
    /// Whether it was interrupted: the rest is what was found until then.
    interrupted: bool,
    /// Earlier runs' part is in it.
    totals: Totals,
    /// What earlier runs had compared when this one began.
    before: Totals,
    /// Of this run.
    seconds: f64,
    differences: Vec<Difference>,
    not_compared: Vec<NotCompared>,
    left_out: Vec<ExcludedReplica>,
    absent: Vec<AbsentReplica>,
}

/// A replica that could not be looked at.
#[derive(Serialize)]
struct ExcludedReplica {
    replica: String,
    why: String,
}

/// A replica that stopped answering, and how many objects it was not asked for.
#[derive(Serialize)]
struct AbsentReplica {
    replica: String,
    objects: u64,
}

/// How often the state is written: so much work is lost when the run is killed.
const SAVE_INTERVAL: Duration = Duration::from_secs(3);

/// How often the terminal is brought up to date.
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

/// Waits for the end, shows how far it is, and keeps that. Returns whether the run
/// was interrupted.
fn watch_run(args: &Args, run: &Run, audience: &Cancellation) -> Result<bool, Failure> {
    let save = |path: &Path| run.checkpoint().save(path).map_err(Failure::failed);
    if let Some(path) = &args.state {
        // Now, and not after an hour, it is said that it cannot be written.
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
        // Interrupted so late that nothing is left to be done.
        was_interrupted &= !run.is_complete();
        if was_interrupted {
            save(path)?;
            let again = format!("run it again with --state {} to go on", path.display());
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
    /// How far an earlier run has come.
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
        print_message(&format!("fanfs: going on from {from}: {objects} objects are compared"));
    }
    Ok(VerifyPlan { options, state })
}

/// A seed that is easy to type.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) % 1_000_000_000
}

/// A path as the user gives it, relative to the volume's root.
pub(super) fn path_in_volume(config: &Config, path: &Path) -> Result<PathBuf, Failure> {
    let mounted = volume::path_below_mount(&config.volume.name, path);
    let below = config.replicas.iter().filter_map(|replica| path.strip_prefix(&replica.path).ok());
    // The shortest rest belongs to the innermost replica.
    let below = below.chain(mounted.as_deref()).min_by_key(|rest| rest.components().count());
    let path = below.unwrap_or(path);
    let parts =
        path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    let inside: PathBuf = parts.collect();
    if inside.components().any(|part| !matches!(part, Component::Normal(_))) {
        let what = "is not a path in the volume; write it from the volume's root, without ..";
        return Err(Failure::usage(format!("{} {what}", EscapedPath(path))));
    }
    Ok(inside)
}

/// The replicas as they can be looked at.
fn open_members(config: &Config, deadline: Duration) -> Vec<ComparedReplica> {
    let survey = survey(config.survey_request(None), DEFAULT_LIMIT);
    let findings = survey.findings();
    let member = |(id, replica): (_, &config::ReplicaConfig)| {
        // An error of this one, not one between them: that is for the comparison.
        let own = findings
            .iter()
            .find(|finding| finding.severity == Severity::Error && finding.replicas == [id]);
        let backend = match own {
            Some(finding) => Err(ExclusionReason::Unfit(finding.text.clone())),
            None => open_replica(replica, deadline).map_err(|why| ExclusionReason::NotOpened {
                replica: replica.name.clone(),
                reason: why.to_string(),
            }),
        };
        ComparedReplica { name: replica.name.clone(), backend, max_rate: replica.max_rate }
    };
    let ids = survey.replicas.ids();
    ids.zip(&config.replicas).map(member).collect()
}

/// Why a replica cannot be compared.
#[derive(Debug, thiserror::Error)]
enum OpenReplicaError {
    #[error("{0}")]
    Thread(std::io::Error),
    #[error("{}: {error}", .path.display())]
    Failed { path: PathBuf, error: BackendError },
    #[error("{} did not answer", .0.display())]
    TimedOut(PathBuf),
}

/// Opens a replica's root in a thread of its own: it may hang.
fn open_replica(
    replica: &config::ReplicaConfig,
    deadline: Duration,
) -> Result<Arc<dyn Backend>, OpenReplicaError> {
    let (answer, opened) = mpsc::channel();
    let path = replica.path.clone();
    let open = move || {
        let _ = answer.send(DirBackend::open(&path));
    };
    std::thread::Builder::new().spawn(open).map_err(OpenReplicaError::Thread)?;
    let path = replica.path.clone();
    let directory = match opened.recv_timeout(deadline) {
        Ok(Ok(directory)) => directory,
        Ok(Err(error)) => return Err(OpenReplicaError::Failed { path, error }),
        Err(_) => return Err(OpenReplicaError::TimedOut(path)),
    };
    Ok(Arc::new(match replica.page_cache {
        PageCache::Auto => directory,
        PageCache::Use => directory.with_direct_io(false),
        PageCache::Bypass => directory.with_direct_io(true),
    }))
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

/// How much was compared, on one line.
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

/// The report for people, without the `printed` differences that are there already.
fn render_report(report: &VerifyReport, printed: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let fresh = report.differences.iter().skip(printed);
    lines.extend(fresh.map(ToString::to_string));
    let more = report.totals.differences - report.differences.len() as u64;
    if more > 0 {
        lines.push(format!("and {} that are not listed", format_count(more, "difference")));
    }
    lines.extend(report.not_compared.iter().map(ToString::to_string));
    for AbsentReplica { replica, objects } in &report.absent {
        let objects = format_count(*objects, "object");
        lines.push(format!("{objects} not compared on {replica}: it does not answer"));
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
