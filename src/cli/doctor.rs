//! `fanfs doctor`: what holds reads back, in the order of what it costs.
//!
//! Exit status: 0 where nothing is red, 1 where something is, 2 for usage.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::AnsiColor;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::volume::{self, VolumeArg};
use super::volume_name::CONFIG_DIR;
use super::{CommandResult, Failure, absolute, color, print_result, to_json};
use crate::config::units::Time;
use crate::config::{self, Config};
use crate::doctor::checks::{PERSIST_HINT, measured_gain};
use crate::doctor::{
    CheckReport, CheckResult, CheckStatus, DEFAULT_SECONDS, DoctorFacts, DoctorOptions, Finding,
    MeasureOptions, examine, run_checks,
};
use crate::format::format_mib_rate;
use crate::survey::DEFAULT_LIMIT;

/// Arguments of `fanfs doctor`.
#[derive(clap::Args)]
#[command(after_help = "\
Looked at are the mounts (rsize, version, soft, attribute caches, shared connections), what the
kernel has counted of their calls and packets, path MTU, links and buffers, clocks, and what
FUSE and this machine allow. With --measure the replicas are read: each alone, then all at once,
which shows a slow one, and what they share. Every finding says what mends it; docs/DOCTOR.md
lists all checks.

Examples:
  fanfs doctor genomes
  fanfs doctor /mnt/n1 /mnt/n2 /mnt/n3 --measure
  fanfs doctor genomes --measure --file hg38/chr1.fa --json

Nothing is changed. As root it sees more: echoes of the path's MTU need it.

Exit status: 0 nothing is bad, 1 something is, 2 wrong usage or configuration.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted; or the
    /// directories of replicas
    #[arg(required = true, value_name = "VOLUME | PATH", value_hint = clap::ValueHint::AnyPath)]
    what: Vec<PathBuf>,
    /// Read the replicas, each alone and all at once
    #[arg(long)]
    measure: bool,
    /// The file to read, from the replicas' roots or below the volume's mount point [default: the
    /// one with the most data that is found soon]
    #[arg(long, value_name = "FILE", requires = "measure")]
    file: Option<PathBuf>,
    /// How long each step of the measurement takes, seconds
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_SECONDS, requires = "measure", value_parser = seconds)]
    seconds: f64,
    /// How long a replica may take to answer [default: 5s]
    #[arg(long, value_name = "TIME")]
    deadline: Option<Time>,
    /// Make a file on each replica, and take it away, to see its server's clock
    #[arg(long)]
    write: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("must be a number from 0.1 to 600")]
struct SecondsOutOfRange;

/// From a tenth of a second to ten minutes.
fn seconds(text: &str) -> Result<f64, SecondsOutOfRange> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=600.0).contains(seconds));
    seconds.ok_or(SecondsOutOfRange)
}

/// What `fanfs doctor --json` prints; docs/DOCTOR.md says what changes and what does not.
#[derive(Serialize)]
struct DoctorReport<'a> {
    /// Of this shape; raised where something goes or means another thing.
    format: u32,
    /// The worst of all rows.
    state: CheckStatus,
    checks: &'a [CheckResult],
    findings: &'a [Finding],
    /// Together over the best alone; null where it was not measured.
    gain: Option<f64>,
    facts: &'a DoctorFacts,
}

/// Of the JSON's shape.
const JSON_FORMAT: u32 = 1;

pub(super) fn run(args: &Args) -> CommandResult {
    let DoctorTarget { config, is_volume } = resolve_target(&args.what)?;
    let measure = args.measure.then(|| {
        let file = args.file.as_deref().map(|file| path_in_replicas(&config, file)).transpose()?;
        Ok::<_, Failure>(MeasureOptions {
            file,
            step_duration: Duration::from_secs_f64(args.seconds),
        })
    });
    let options = DoctorOptions {
        is_volume,
        unsupervised: match is_volume {
            true => super::mount_lookup::unsupervised_mounts(&config.volume.name),
            false => Vec::new(),
        },
        timeout: args.deadline.map_or(DEFAULT_LIMIT, |time| time.0),
        is_write_allowed: args.write,
        measure: measure.transpose()?,
    };
    let bar = progress_spinner();
    let facts = examine(&config, &options, &|what| bar.set_message(what.to_owned()));
    bar.finish_and_clear();
    let CheckReport { rows, findings } = run_checks(&facts);
    let state = rows.iter().map(|row| row.state).max().unwrap_or(CheckStatus::Ok);
    let text = if args.json {
        to_json(&DoctorReport {
            format: JSON_FORMAT,
            state,
            checks: &rows,
            findings: &findings,
            gain: measured_gain(&facts),
            facts: &facts,
        })?
    } else {
        let in_color = color::is_enabled();
        render_checks(&rows, in_color)
            + &render_rates(&facts)
            + &render_findings(&findings, in_color)
    };
    print_result(&text)?;
    Ok(ExitCode::from(u8::from(state == CheckStatus::Bad)))
}

/// What is examined.
struct DoctorTarget {
    config: Config,
    /// Whether it is a volume's own configuration, not one made of paths.
    is_volume: bool,
}

/// The volume, or one made of the paths, with the defaults.
fn resolve_target(what: &[PathBuf]) -> Result<DoctorTarget, Failure> {
    if let [one] = what {
        let is_toml = one.extension().is_some_and(|extension| extension == "toml");
        match volume::resolve(one)? {
            VolumeArg::Unknown(_, false)
                if !is_toml && !one.as_os_str().as_encoded_bytes().contains(&b'/') =>
            {
                return Err(Failure::usage(format!(
                    "no volume {} in {}, and no directory of that name here",
                    one.display(),
                    CONFIG_DIR
                )));
            }
            // What does not answer is a mount.
            VolumeArg::Unknown(..) if !is_toml => {}
            found => {
                let file = volume::config_file_of(found, one)?;
                let config = config::load(&file).map_err(Failure::usage)?;
                return Ok(DoctorTarget { config, is_volume: true });
            }
        }
    }
    let config = config_of_paths(what)?;
    Ok(DoctorTarget { config, is_volume: false })
}

/// A volume over these directories.
fn config_of_paths(what: &[PathBuf]) -> Result<Config, Failure> {
    let mut text = "[volume]\nname = \"doctor\"\nmode = \"shared\"\n".to_owned();
    let mut seen = BTreeSet::new();
    for path in what {
        let refuse = |what: &str| Err(Failure::usage(format!("{} {what}", path.display())));
        if path.extension().is_some_and(|extension| extension == "toml") {
            return refuse("is one volume's file; give that alone, or paths");
        }
        let shown = absolute(path);
        let Some(shown) = shown.to_str() else { return refuse("is not UTF-8") };
        if shown.split('/').any(|part| part == "..") {
            return refuse("has `..` in it; write the directory it leads to");
        }
        // As mount points are written; `/` itself is one.
        let shown = Some(shown.trim_end_matches('/')).filter(|s| !s.is_empty()).unwrap_or("/");
        if !seen.insert(shown.to_owned()) {
            return refuse("is there twice");
        }
        let quoted = toml::Value::String(shown.to_owned());
        let _ = write!(text, "[[replica]]\npath = {quoted}\nrequire_mount = false\n");
        let _ = writeln!(text, "name = {}", toml::Value::String(replica_name(shown, what)));
    }
    config::parse(&text, Path::new("PATH")).map_err(Failure::usage)
}

/// What a path is called in the table: its last part, unless another has the same
/// or it is no replica's name.
fn replica_name(path: &str, all: &[PathBuf]) -> String {
    let last = path.rsplit('/').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let same = all.iter().filter(|other| other.file_name() == Some(last.as_ref())).count();
    if same == 1 && last.len() < 64 && last.chars().all(plain) {
        return last.to_owned();
    }
    let at = all.iter().position(|other| absolute(other).starts_with(path)).unwrap_or_default();
    format!("r{}", at + 1)
}

/// The file as it is called from the replicas' roots.
fn path_in_replicas(config: &Config, file: &Path) -> Result<PathBuf, Failure> {
    let below = config.replicas.iter().find_map(|replica| file.strip_prefix(&replica.path).ok());
    let mounted = volume::path_below_mount(&config.volume.name, file);
    let file =
        below.or(mounted.as_deref()).unwrap_or_else(|| file.strip_prefix("/").unwrap_or(file));
    let plain = file.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if !plain || file.as_os_str().is_empty() {
        let what = "is not a path in the replicas; write it from their roots, without ..";
        return Err(Failure::usage(format!("{} {what}", file.display())));
    }
    Ok(file.to_owned())
}

fn progress_spinner() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {wide_msg}");
    let bar = ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// The status as a word, padded, in its color.
fn status_word(status: CheckStatus, in_color: bool) -> String {
    let color = match status {
        CheckStatus::Ok => AnsiColor::Green,
        CheckStatus::Unknown => AnsiColor::BrightBlack,
        CheckStatus::Warn => AnsiColor::Yellow,
        CheckStatus::Bad => AnsiColor::Red,
    };
    color::paint(&format!("{:<8}", status.as_str()), color, in_color)
}

fn render_checks(rows: &[CheckResult], in_color: bool) -> String {
    let width = rows.iter().map(|row| row.title.len()).max().unwrap_or_default();
    let mut text = String::new();
    for row in rows {
        let more = row.note.clone().unwrap_or_else(|| row.replicas.join(", "));
        let line = format!("{}{:<width$}  {more}", status_word(row.state, in_color), row.title);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The rates, for people.
fn render_rates(facts: &DoctorFacts) -> String {
    let Some(measured) = facts.measured.as_ref().filter(|measured| measured.failed.is_none())
    else {
        return String::new();
    };
    let rate = |rate: Option<f64>| match rate {
        Some(rate) => format!("{:>14}", format_mib_rate(rate)),
        None => format!("{:>14}", "-"),
    };
    let width = facts.replicas.iter().map(|r| r.name.len()).max().unwrap_or(0).max(8);
    let mut text = format!("\nread: {}\n", measured.file);
    for (replica, sample) in facts.replicas.iter().zip(&measured.alone) {
        let late = sample.latency_ms.map(|ms| format!("  4 KiB in {ms:.2} ms")).unwrap_or_default();
        let cached =
            if sample.direct || sample.bytes == 0 { "" } else { "  through the page cache" };
        let _ = writeln!(text, "  {:<width$}{}{late}{cached}", replica.name, rate(sample.rate));
    }
    let _ = writeln!(text, "  {:<width$}{}", "together", rate(measured.together.rate));
    if let Some(gain) = measured_gain(facts).filter(|_| facts.replicas.len() > 1) {
        let _ = writeln!(text, "fanfs can give about {gain:.1} x of the best replica.");
    }
    text
}

fn render_findings(findings: &[Finding], in_color: bool) -> String {
    if findings.is_empty() {
        return "\nNothing holds reads back.\n".to_owned();
    }
    let mut text = String::new();
    let mut shown = BTreeSet::new();
    for finding in findings {
        let mut remedy = finding.remedy.clone();
        for line in finding.mounts.iter().filter(|line| !shown.insert(*line)) {
            remedy = remedy.replace(line, "the mount command above").replace(PERSIST_HINT, "");
        }
        let cost = match finding.cost {
            0.0 => String::new(),
            cost => format!("  about {:.0} % of the rate", (cost * 100.0).max(1.0)),
        };
        let _ = write!(
            text,
            "\n{}{}{cost}\n  why:  {}\n  mend: {remedy}\n",
            status_word(finding.severity, in_color),
            finding.id,
            finding.text,
        );
    }
    text
}
