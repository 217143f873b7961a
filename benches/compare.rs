//! fanfs against what a user would mount instead, over the same replicas in one
//! run: `cargo bench --bench compare -- --help`.
//!
//! [`run`] goes through the candidates in [`candidate`] round after round, each
//! pass one of the [`load`]s; [`report`] and [`plot`] show medians and ratios
//! within a round. [`null`] is the floor: a FUSE server that does nothing.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser as _;

#[path = "compare/candidate.rs"]
mod candidate;
#[path = "compare/daemon.rs"]
mod daemon;
#[path = "compare/load.rs"]
mod load;
#[path = "compare/null.rs"]
mod null;
#[path = "compare/options.rs"]
mod options;
#[path = "compare/plot.rs"]
mod plot;
#[path = "compare/report.rs"]
mod report;
#[path = "compare/room.rs"]
mod room;
#[path = "compare/run.rs"]
mod run;
#[path = "compare/scaling.rs"]
mod scaling;

use options::Options;

/// The reason why it cannot continue, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failure(String);

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.to_string())
    }
}

/// Compare fanfs with what a user would mount instead
///
/// Makes replicas in memory, mounts every candidate over them (fanfs with each cache policy,
/// mergerfs, bindfs, a FUSE server that does nothing) and reads through each in turn, round
/// after round, with fio. Prints Markdown tables of medians; a ratio is the median of ratios
/// within one round. `CPU s/GiB` is processor time, of the daemon and of daemon and reader
/// together; percentiles are of one read; `peak` is the daemon's resident memory.
///
/// Needs root, fio, and memory for the replicas. Programs that are not installed (mergerfs, bindfs)
/// and settings that a build of fanfs does not know are left out with a note. Without root or fio
/// it prints a note and exits with 0, so that a plain `cargo bench` continues.
#[derive(clap::Parser)]
#[command(
    name = "compare",
    bin_name = "cargo bench --bench compare --",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        cargo bench --bench compare\n  \
        cargo bench --bench compare -- --loads seq --replicas 1 --only null,mergerfs,fanfs\n  \
        cargo bench --bench compare -- --loads seq --only null-direct,fanfs-direct,old-direct \\\n      \
        --also old=/path/to/another/fanfs\n  \
        cargo bench --bench compare -- null /mnt/null --cache kernel"
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
    /// What cargo adds
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    Null(null::Args),
}

fn main() -> ExitCode {
    // `cargo test --benches` passes no argument at all, `cargo bench` at least one.
    if std::env::args_os().len() == 1 {
        return ExitCode::SUCCESS;
    }
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Null(args)) => null::run(args),
        None => compare(&args.options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("compare: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<(), Failure> {
    let mut candidates = candidate::all(options);
    if options.list {
        candidates.iter().for_each(|candidate| println!("{}", candidate.name));
        return Ok(());
    }
    if let Some(word) = options.only.iter().find(|word| !candidates.iter().any(|c| c.is(word))) {
        return Err(Failure(format!("no candidate is called {word}; --list shows their names")));
    }
    if let Some(lacking) = lacking() {
        println!("compare: {lacking}; nothing is measured");
        return Ok(());
    }
    watch_signals()?;
    let mut notes = Vec::new();
    {
        let probe = room::Room::new(0, 0, 0)?;
        candidates.retain(|candidate| {
            let fits = options.wants(candidate);
            let usable = if fits { candidate.check(&probe) } else { Ok(()) };
            if let Err(reason) = &usable {
                notes.push(format!("{} is left out: {reason}.", candidate.name));
            }
            fits && usable.is_ok()
        });
    }
    notes.iter().for_each(|note| eprintln!("{note}"));
    if candidates.is_empty() {
        return Err(Failure("no candidate is left; --list shows their names".to_owned()));
    }
    let (mut passes, mut lines) = (Vec::new(), Vec::new());
    let measured = options
        .replicas
        .iter()
        .try_for_each(|count| run::over(*count, &candidates, options, &mut passes, &mut notes))
        .and_then(|()| scaling::run(&candidates, options, &mut lines));
    // An interrupted comparison also shows the passes that it has completed.
    if measured.is_ok() || !passes.is_empty() || !lines.is_empty() {
        write_all(options, &candidates, &passes, &lines, &notes)?;
    }
    measured
}

/// The results, in every output format.
fn write_all(
    options: &Options,
    candidates: &[candidate::Candidate],
    passes: &[load::Pass],
    lines: &[load::Pass],
    notes: &[String],
) -> Result<(), Failure> {
    std::fs::create_dir_all(&options.out)?;
    let groups = report::groups(candidates, passes);
    let mut parts: Vec<String> = groups.iter().map(report::Group::to_markdown).collect();
    if !groups.is_empty() {
        plot::bars(&groups, &options.out.join("compare.svg"))?;
    }
    if !lines.is_empty() {
        parts.push(scaling::to_markdown(lines));
        plot::lines(&scaling::lines(lines), &options.out.join("scaling.svg"))?;
    }
    parts.extend(notes.iter().map(|note| format!("{note}\n")));
    let text = parts.join("\n");
    std::fs::write(options.out.join("compare.md"), &text)?;
    println!("{text}");
    if let Some(path) = &options.json {
        let all: Vec<&load::Pass> = passes.iter().chain(lines).collect();
        let text = serde_json::to_string_pretty(&all).map_err(|e| Failure(e.to_string()))?;
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// A requirement of the comparison that is missing here.
fn lacking() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, to mount a tmpfs and the file systems to compare");
    }
    match std::process::Command::new("fio").arg("--version").output() {
        Ok(_) => None,
        Err(_) => Some("needs fio (package fio)"),
    }
}

/// Set once the comparison must end.
static STOP: AtomicBool = AtomicBool::new(false);

/// Lets Ctrl-C and SIGTERM end the comparison between two passes, after all mounts and daemons are
/// cleaned up.
fn watch_signals() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                STOP.store(true, Ordering::Relaxed);
            }
        });
    });
    Ok(())
}

fn interrupted() -> Result<(), Failure> {
    if STOP.load(Ordering::Relaxed) { Err(Failure("interrupted".to_owned())) } else { Ok(()) }
}

/// "2GiB" in bytes.
fn size_of(text: &str) -> Result<u64, String> {
    text.parse::<bytesize::ByteSize>().map(|size| size.0)
}
