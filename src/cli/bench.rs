//! `fanfs bench`: measures fanfs on the user's own replicas.

#[cfg(feature = "plots")]
mod report_file;

use std::cell::RefCell;
use std::io::IsTerminal;
#[cfg(not(feature = "plots"))]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::cancellation::{self, Cancellation, print_message};
use super::output_width::output_width;
use super::{CommandResult, Failure, print_result, to_json, verify, volume};
use crate::bench::progress::ProgressWatcher;
use crate::bench::runner;
use crate::bench::{ALIGNMENT, BenchError, BenchOptions, Report, table};
use crate::config::units::{Size, Time};
use crate::config::{self, Config};
use crate::format::to_mib;
#[cfg(feature = "plots")]
use report_file::ReportFile;

/// Arguments of `fanfs bench`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs bench reads one file through each replica alone, through all replicas at once, and through \
fanfs over 1, 2, .. of them, mounted during the run. There are three loads: one sequential reader, \
several random readers, and several sequential readers. Each round does every pass once, in \
another order and in other regions of the file than the round before. docs/BENCH.md explains each \
figure.

fanfs bench changes nothing on a replica, except with --make. If a replica does not answer within \
--deadline, the rest of the run does without it.

Examples:
  fanfs bench genomes --quick                   a first look, 20 seconds
  fanfs bench genomes --report bench.html       three minutes, with plots
  fanfs bench genomes --file hg38/chr1.fa --run-fio

Exit status: 0 done; 1 a pass or a replica failed, or nothing could be measured; 2 wrong usage or \
configuration; 130 interrupted.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    volume: PathBuf,
    /// The file to read: relative to the volume's root, or a path below its mount point or a
    /// replica [default: the one with the most data among the first 20,000 entries]
    #[arg(long, conflicts_with = "make")]
    file: Option<PathBuf>,
    /// Create a file of this size on the write replica, and remove it at the end
    #[arg(long, value_name = "SIZE")]
    make: Option<Size>,
    /// The longest duration of a pass, seconds [default: 3]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// The number of rounds; figures are medians of them [default: 3]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: Option<u8>,
    /// One round of passes of 1 s: about 20 seconds for three replicas
    #[arg(long)]
    quick: bool,
    /// The request size of a sequential reader
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    block: Size,
    /// The request size of a random reader
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    random_block: Size,
    /// The number of readers of the random and the parallel load [default: 4, or one for each
    /// replica if there are more]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    readers: Option<u16>,
    /// Selects the random blocks
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// The longest wait for one call on a replica
    #[arg(long, value_name = "TIME", default_value = "10s")]
    deadline: Time,
    /// Write an HTML report with plots
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write a fio job for each pass, and a script that runs all of them
    #[arg(long, value_name = "DIR")]
    fio: Option<PathBuf>,
    /// Also run these fio jobs, and show their results next to fanfs's own
    #[arg(long)]
    run_fio: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

const MAX_BLOCK: u64 = 64 << 20;

pub(super) fn run(args: &Args, audience: &Cancellation) -> CommandResult {
    let config = config::load(&volume::config_file(&args.volume)?).map_err(Failure::usage)?;
    crate::daemon::check_placement(&config).map_err(Failure::usage)?;
    let settings = settings(args, &config)?;
    // A report that cannot be written is an error now, not after minutes.
    let place = args.report.as_deref().map(ReportFile::prepare).transpose()?;
    let terminal = ProgressDisplay::new(audience, &settings);
    let report = runner::run(&config, &settings, &terminal);
    terminal.clear();
    let report = match report {
        Ok(report) => report,
        Err(BenchError::Usage(why)) => return Err(Failure::Usage(why)),
        Err(BenchError::Failed(why)) => return Err(Failure::Failed(why)),
        Err(BenchError::Interrupted) => {
            return Ok(ExitCode::from(cancellation::INTERRUPTED_STATUS));
        }
    };
    // The figures first: writing the report may still fail.
    print_result(&if args.json { to_json(&report)? } else { text(&report) })?;
    if let Some(place) = place {
        place.write(&report)?;
    }
    Ok(ExitCode::from(u8::from(report.failed)))
}

fn text(report: &Report) -> String {
    table::render_text(report, output_width())
}

/// A build without plots cannot write a report.
#[cfg(not(feature = "plots"))]
enum ReportFile {}

#[cfg(not(feature = "plots"))]
impl ReportFile {
    fn prepare(_: &Path) -> Result<Self, Failure> {
        Err(Failure::not_built("--report", "plots"))
    }

    fn write(self, _: &Report) -> Result<(), Failure> {
        match self {}
    }
}

fn settings(args: &Args, config: &Config) -> Result<BenchOptions, Failure> {
    for (name, Size(size)) in [("block", args.block), ("random-block", args.random_block)] {
        if size == 0 || size > MAX_BLOCK || !size.is_multiple_of(ALIGNMENT) {
            let what = "must be a multiple of 4KiB, and at most 64MiB";
            return Err(Failure::usage(format!("--{name} {what}")));
        }
    }
    if args.run_fio && !has_fio() {
        return Err(Failure::usage("--run-fio needs fio, which is not in $PATH; install it"));
    }
    let default_seconds = if args.quick { 1 } else { 3 };
    let default_rounds = if args.quick { 1 } else { 3 };
    let file = args.file.as_deref().map(|path| verify::path_in_volume(config, path)).transpose()?;
    Ok(BenchOptions {
        block_size: args.block.0,
        random_block_size: args.random_block.0,
        readers: args.readers.map_or(config.replicas.len().max(4), usize::from),
        rounds: args.rounds.map_or(default_rounds, usize::from),
        pass_duration: Duration::from_secs(args.seconds.unwrap_or(default_seconds).into()),
        deadline: args.deadline.0.max(Duration::from_millis(100)),
        seed: args.seed,
        file,
        scratch_file_size: args.make.map(|size| size.0),
        fio_dir: args.fio.clone(),
        run_fio: args.run_fio,
    })
}

fn has_fio() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join("fio").is_file())
}

/// The progress bar, and the source of interruptions.
struct ProgressDisplay<'a> {
    audience: &'a Cancellation,
    pass: Duration,
    bar: ProgressBar,
    /// The pass that the bar currently shows.
    shown_pass: RefCell<Option<usize>>,
}

impl<'a> ProgressDisplay<'a> {
    fn new(audience: &'a Cancellation, settings: &BenchOptions) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        } else {
            ProgressBar::hidden()
        };
        Self { audience, pass: settings.pass_duration, bar, shown_pass: RefCell::default() }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The bar's resolution: steps in one pass.
const STEPS_PER_PASS: u64 = 1000;

impl ProgressWatcher for ProgressDisplay<'_> {
    fn on_plan(&self, passes: usize, expected: Duration) {
        self.bar.suspend(|| {
            let pass = self.pass.as_secs();
            let total = expected.as_secs_f64();
            print_message(&format!(
                "fanfs bench: {passes} passes of at most {pass} s each, about {total:.0} s in total"
            ));
        });
        self.bar.set_length(passes as u64 * STEPS_PER_PASS);
        self.bar.set_position(0);
    }

    fn on_file_progress(&self, written: u64, size: u64) {
        self.bar.set_length(size);
        self.bar.set_position(written);
        self.bar.set_message("creating the file");
    }

    fn on_pass_progress(&self, number: usize, what: &str, time: Duration, bytes: u64) {
        let part = time.as_secs_f64() / self.pass.as_secs_f64();
        self.bar.set_position(
            number as u64 * STEPS_PER_PASS + (part.min(1.0) * STEPS_PER_PASS as f64) as u64,
        );
        if self.shown_pass.replace(Some(number)) != Some(number) || bytes > 0 {
            let rate = to_mib(bytes) / time.as_secs_f64().max(1e-3);
            self.bar.set_message(format!("{what}: {rate:.0} MiB/s"));
        }
    }

    fn is_interrupted(&self) -> bool {
        self.audience.is_canceled()
    }
}
