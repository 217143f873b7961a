//! `fanfs doctor`: finds what slows reads down, the most costly problem first.
//!
//! Exit status: 0 if no check is bad, 1 if one is, 2 for usage.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anstyle::AnsiColor;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::mount_exports::ExportList;
use super::output_width::{output_width, wrap_indented};
use super::volume::{self, VolumeArg};
use super::volume_name::CONFIG_DIR;
use super::{CommandResult, Failure, absolute, color, print_result, printable, to_json};
use crate::config::units::Time;
use crate::config::{self, Config};
use crate::doctor::checks::{PERSIST_HINT, measured_gain};
use crate::doctor::{
    CheckReport, CheckResult, CheckStatus, DEFAULT_SECONDS, DoctorFacts, DoctorOptions,
    ExportCallStats, Finding, MeasureOptions, PlacementFacts, examine, run_checks,
};
use crate::format::{format_bytes, format_mib_rate, format_percent};
use crate::status::Status;
use crate::survey::DEFAULT_LIMIT;

/// Arguments of `fanfs doctor`.
#[derive(clap::Args)]
#[command(after_help = "\
fanfs doctor checks the mounts (rsize, version, soft, attribute caches, shared connections), the \
kernel's counters of their calls and packets, path MTU, links, buffers and clocks, and the limits \
of FUSE and of this machine. With --measure it also reads the replicas, each alone and then all at \
once, which shows slow replicas and bottlenecks that replicas share. Each finding comes with its \
fix; docs/DOCTOR.md lists all checks.

fanfs doctor changes nothing, except with --write. Some checks need root, such as the test of the \
path MTU with ICMP echoes.

Examples:
  fanfs doctor genomes --measure                      also measure the replicas
  fanfs doctor /mnt/n1 /mnt/n2 /mnt/n3 --measure      without a configuration
  fanfs doctor nfs://gw1,gw2,gw3/data --measure       without a mount
  fanfs doctor genomes --measure --file hg38/chr1.fa --json

Exit status: 0 no check is bad, warnings are allowed; 1 a check is bad; 2 wrong usage or \
configuration.")]
pub(super) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted; or the
    /// replicas' directories; or servers with one export, nfs://SERVER,SERVER/EXPORT
    #[arg(required = true, value_name = "VOLUME | PATH | EXPORT", value_hint = clap::ValueHint::AnyPath)]
    what: Vec<PathBuf>,
    /// Also read the replicas, each alone and then all at once
    #[arg(long)]
    measure: bool,
    /// The file to read: relative to the replicas' roots, or a path below the volume's mount point
    /// or a replica [default: the one with the most data among those found quickly]
    #[arg(long, value_name = "FILE", requires = "measure")]
    file: Option<PathBuf>,
    /// The duration of each step of the measurement, seconds
    #[arg(long, value_name = "NUMBER", default_value_t = DEFAULT_SECONDS, requires = "measure", value_parser = seconds)]
    seconds: f64,
    /// The longest wait for a replica's answer [default: 5s]
    #[arg(long, value_name = "TIME")]
    deadline: Option<Time>,
    /// Create and remove a file on each replica, to read its server's clock
    #[arg(long)]
    write: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("must be a number from 0.1 to 600")]
struct SecondsOutOfRange;

/// Parses `--seconds`: 0.1 to 600.
fn seconds(text: &str) -> Result<f64, SecondsOutOfRange> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=600.0).contains(seconds));
    seconds.ok_or(SecondsOutOfRange)
}

/// The output of `fanfs doctor --json`; docs/DOCTOR.md says which parts are stable.
#[derive(Serialize)]
struct DoctorReport<'a> {
    /// The version of this format; it rises if a field is removed or changes its meaning.
    format: u32,
    /// The worst status of all checks.
    state: CheckStatus,
    checks: &'a [CheckResult],
    findings: &'a [Finding],
    /// The rate of all replicas together divided by that of the fastest alone; null if it was not
    /// measured.
    gain: Option<f64>,
    facts: &'a DoctorFacts,
}

/// The current version of the JSON format.
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
        export_calls: match is_volume {
            true => export_calls(&config.volume.name),
            false => BTreeMap::new(),
        },
        placement: is_volume.then(|| placement_facts(&config.volume.name)).flatten(),
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
        let width = output_width();
        render_checks(&rows, in_color, width)
            + &render_rates(&facts)
            + &render_findings(&findings, in_color, width)
    };
    print_result(&text)?;
    Ok(ExitCode::from(u8::from(state == CheckStatus::Bad)))
}

/// The calls to exports that the volume's daemons have counted, by the replicas' names.
fn export_calls(volume: &str) -> BTreeMap<String, ExportCallStats> {
    let mut calls: BTreeMap<String, ExportCallStats> = BTreeMap::new();
    let statuses = super::mount_lookup::statuses_of_volume(volume);
    for replica in statuses.iter().flat_map(|status| &status.replicas) {
        for counted in &replica.connections {
            let sum = calls.entry(replica.name.clone()).or_default();
            sum.calls += counted.calls;
            sum.resends += counted.resent;
            sum.connects += counted.connected;
            sum.late_replies += counted.discarded;
        }
    }
    calls
}

/// What the daemon of the volume's first mount knows of the placement.
fn placement_facts(volume: &str) -> Option<PlacementFacts> {
    let statuses = super::mount_lookup::statuses_of_volume(volume);
    let has_provider =
        |status: &&Status| !["none", "learned"].contains(&&*status.placement.provider);
    let status = statuses.iter().find(has_provider)?;
    let placement = status.placement.clone();
    Some(PlacementFacts {
        provider: placement.provider,
        located: placement.located,
        answer_ms: placement.answer_ms,
        failing: placement.failing,
        unmatched: placement.unmatched,
        unnamed: placement.unnamed,
        notes: placement.notes,
    })
}

/// The replicas to examine.
struct DoctorTarget {
    config: Config,
    /// Whether this is a volume's own configuration, not one made from paths.
    is_volume: bool,
}

/// The volume, or a volume over the given paths with default settings.
fn resolve_target(what: &[PathBuf]) -> Result<DoctorTarget, Failure> {
    if let [one] = what {
        if let Some(exports) = ExportList::parse(one) {
            let config = config::parse(&exports?.to_config(), one).map_err(Failure::usage)?;
            return Ok(DoctorTarget { config, is_volume: false });
        }
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
            // A path that does not answer is a mount that hangs: a replica's directory.
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

/// The configuration of a volume over these directories.
fn config_of_paths(what: &[PathBuf]) -> Result<Config, Failure> {
    let mut text = "[volume]\nname = \"doctor\"\nmode = \"shared\"\n".to_owned();
    let mut seen = BTreeSet::new();
    for path in what {
        let refuse = |what: &str| Err(Failure::usage(format!("{} {what}", path.display())));
        if path.extension().is_some_and(|extension| extension == "toml") {
            return refuse("is a configuration file; use it alone, or list directories");
        }
        let shown = absolute(path);
        let Some(shown) = shown.to_str() else { return refuse("is not UTF-8") };
        if shown.split('/').any(|part| part == "..") {
            return refuse("contains `..`; write the path without it");
        }
        // Mount points have no slash at the end, except `/` itself.
        let shown = Some(shown.trim_end_matches('/')).filter(|s| !s.is_empty()).unwrap_or("/");
        if !seen.insert(shown.to_owned()) {
            return refuse("is listed twice");
        }
        let quoted = toml::Value::String(shown.to_owned());
        let _ = write!(text, "[[replica]]\npath = {quoted}\nrequire_mount = false\n");
        let _ = writeln!(text, "name = {}", toml::Value::String(replica_name(shown, what)));
    }
    config::parse(&text, Path::new("PATH")).map_err(Failure::usage)
}

/// The name of a path's replica in the table: its last component, unless another path has the
/// same one or it is not valid as a replica's name.
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

/// The file's path relative to the replicas' roots.
fn path_in_replicas(config: &Config, file: &Path) -> Result<PathBuf, Failure> {
    let directories = config.replicas.iter().filter_map(|replica| replica.location.directory());
    let below = directories.filter_map(|directory| file.strip_prefix(directory).ok()).next();
    let mounted = volume::path_below_mount(&config.volume.name, file);
    let file =
        below.or(mounted.as_deref()).unwrap_or_else(|| file.strip_prefix("/").unwrap_or(file));
    let plain = file.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if !plain || file.as_os_str().is_empty() {
        let what = "is not a path in the replicas; write it relative to their roots, without ..";
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

/// The width of a status, and of a finding's label.
const STATUS_WIDTH: usize = 8;
const LABEL_WIDTH: usize = 12;

/// The status as a padded word in its color.
fn status_word(status: CheckStatus, in_color: bool) -> String {
    let color = match status {
        CheckStatus::Ok => AnsiColor::Green,
        CheckStatus::Unknown => AnsiColor::BrightBlack,
        CheckStatus::Warn => AnsiColor::Yellow,
        CheckStatus::Bad => AnsiColor::Red,
    };
    color::paint(&format!("{:<STATUS_WIDTH$}", status.as_str()), color, in_color)
}

fn render_checks(rows: &[CheckResult], in_color: bool, width: usize) -> String {
    let titles = rows.iter().map(|row| row.title.len()).max().unwrap_or_default();
    let mut text = String::new();
    for row in rows {
        let more = row.note.clone().unwrap_or_else(|| row.replicas.join(", "));
        let more = wrap_indented(&printable(&more), STATUS_WIDTH + titles + 2, width);
        let line = format!("{}{:<titles$}  {more}", status_word(row.state, in_color), row.title);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The measured rates, as text.
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
    let size = format_bytes(measured.size);
    let file = printable(&measured.file);
    let mut text = format!("\nread rates, measured with {file} ({size}):\n");
    for (replica, sample) in facts.replicas.iter().zip(&measured.alone) {
        let latency = sample.latency_ms.map(|ms| format!("  4 KiB latency {ms:.2} ms"));
        let latency = latency.unwrap_or_default();
        let cached =
            if sample.direct || sample.bytes == 0 { "" } else { "  (through the page cache)" };
        let _ = writeln!(text, "  {:<width$}{}{latency}{cached}", replica.name, rate(sample.rate));
    }
    let _ = writeln!(text, "  {:<width$}{}", "together", rate(measured.together.rate));
    if let Some(gain) = measured_gain(facts).filter(|_| facts.replicas.len() > 1) {
        let _ = writeln!(text, "speedup: {gain:.1}x the fastest replica");
    }
    text
}

fn render_findings(findings: &[Finding], in_color: bool, width: usize) -> String {
    if findings.is_empty() {
        return "\nOK, no problems found\n".to_owned();
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
            cost => format!("  costs about {} of the read rate", format_percent(cost.max(0.01))),
        };
        let _ = write!(
            text,
            "\n{}{}\n  problem:  {}\n  evidence: {}\n  fix:      {}\n",
            status_word(finding.severity, in_color),
            wrap_indented(&format!("{}{cost}", finding.id), STATUS_WIDTH, width),
            wrap_indented(&printable(&finding.text.problem), LABEL_WIDTH, width),
            wrap_indented(&printable(&finding.text.evidence), LABEL_WIDTH, width),
            render_remedy(&remedy, &finding.mounts, width),
        );
    }
    text
}

/// Stands for a blank at which a line must not end. Printable text has no such character.
const HARD_BLANK: &str = "\0";

/// The fix. Each of the `commands` in it stays on one line, because a shell would run the first
/// line of a copied command alone.
fn render_remedy(remedy: &str, commands: &[String], width: usize) -> String {
    let mut text = printable(remedy);
    for command in commands {
        let command = printable(command);
        text = text.replace(&command, &command.replace(' ', HARD_BLANK));
    }
    wrap_indented(&text, LABEL_WIDTH, width).replace(HARD_BLANK, " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::FindingText;

    fn unreadable(evidence: &str) -> Finding {
        let text = FindingText {
            problem: "replica n1 cannot read the test file".to_owned(),
            evidence: evidence.to_owned(),
        };
        Finding {
            id: "measure.replica",
            severity: CheckStatus::Bad,
            replicas: Vec::new(),
            cost: 0.0,
            text,
            remedy: String::new(),
            mounts: Vec::new(),
        }
    }

    #[test]
    fn file_names_cannot_control_the_terminal() {
        let shown = render_findings(&[unreadable("reading a\x1b[2J failed: EIO")], false, 100);
        assert!(shown.contains(r"reading a\u{1b}[2J failed"), "{shown:?}");
    }

    #[test]
    fn findings_are_wrapped_but_not_their_mount_commands() {
        let command = "umount /mnt/n1 && mount -t nfs -o vers=4.2,rsize=1048576 a:/ /mnt/n1";
        let finding = Finding {
            cost: 0.3,
            remedy: format!("{command}; grep /mnt/n1 /proc/mounts{PERSIST_HINT}"),
            mounts: vec![command.to_owned()],
            ..unreadable("the file was there a moment ago, and now it is not")
        };
        let expected = format!(
            "
bad     measure.replica  costs about 30%
        of the read rate
  problem:  replica n1 cannot read the
            test file
  evidence: the file was there a moment
            ago, and now it is not
  fix:      {command};
            grep /mnt/n1 /proc/mounts
            (unmount the volume first,
            with fanfs umount; put the
            same options in /etc/fstab
            or the .mount unit)
"
        );
        assert_eq!(render_findings(&[finding], false, 40), expected);
    }
}
