//! The commands, one file each, and the code that they share: it parses the arguments and
//! prints errors.
//!
//! *Invariant:* an error is one line on standard error that names the problem and its place.
//! The exit status is 2 for usage and configuration, 3 if `fanfs verify` found a difference,
//! and 1 for all other failures.

mod bench;
mod cancellation;
pub mod check;
mod color;
mod demo;
mod doctor;
mod explain;
mod generate;
mod init;
mod mount;
mod mount_exports;
mod mount_helper;
mod mount_lookup;
mod mount_options;
mod output_width;
mod reload;
mod simulate;
mod status;
mod top;
mod trace;
mod umount;
mod upgrade;
mod utab;
mod verify;
mod volume;
mod volume_name;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use cancellation::{CancelPolicy, Cancellation};

/// Mount N paths to the same data as one, and read at the sum of their bandwidth
#[derive(Parser)]
#[command(
    name = "fanfs",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Get started:
  fanfs demo                          see it work on its own replicas
  fanfs init /mnt/n1 /mnt/n2 --output /etc/fanfs/genomes.toml
  fanfs check genomes                 check the configuration and the replicas
  fanfs doctor genomes                find what slows reads down, and its fix
  fanfs mount genomes /genomes        genomes means /etc/fanfs/genomes.toml
  fanfs status /genomes               show what its replicas are doing
  fanfs top /genomes                  watch its replicas, files and readers
  fanfs explain /genomes/large.file   show its chunks, and the rate to expect
  fanfs trace /genomes                show each read, its segments and replicas
  fanfs reload /genomes               apply a changed configuration
  fanfs upgrade /genomes              switch to a newly installed fanfs
  fanfs umount /genomes               unmount it; wait for its daemon to end
  fanfs verify genomes                compare the replicas with each other
  fanfs bench genomes                 measure the replicas, and fanfs

In /etc/fstab:
  genomes  /genomes  fanfs  ro,allow_other,_netdev  0 0

Exit status: 0 done, 1 failed, 2 wrong usage or configuration, 3 the replicas differ.

fanfs.toml(5) and docs/CONFIGURATION.md describe a volume's configuration. $FANFS_LOG selects the \
log messages."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the configuration of a volume for existing mounts, or list such mounts
    Init(init::Args),
    /// Mount a volume, and return when the mount answers
    Mount(mount::Args),
    /// Unmount a volume, and wait for its daemon to end
    #[command(visible_alias = "unmount")]
    Umount(umount::Args),
    /// Apply a changed configuration to a mounted volume; open files stay open
    Reload(reload::Args),
    /// Switch a mounted volume to another fanfs program; open files stay open
    Upgrade(upgrade::Args),
    /// Check a volume's configuration and its replicas
    #[command(after_help = check::HELP)]
    Check {
        /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
        #[arg(value_hint = clap::ValueHint::AnyPath)]
        volume: PathBuf,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Find what slows reads down, the most costly problem first, and how to fix it
    Doctor(doctor::Args),
    /// Show what mounted volumes and their replicas are doing
    Status(status::Args),
    /// Watch the replicas, files and readers of a mounted volume
    Top(top::Args),
    /// Show where a file's chunks are, what rate to expect, and how to improve it
    Explain(explain::Args),
    /// Show each read: its segments, the replicas that served them, and its latency
    Trace(trace::Args),
    /// Compare a volume's replicas with each other, and list the differences
    Verify(verify::Args),
    /// Measure a volume's replicas alone, all at once, and through fanfs
    Bench(bench::Args),
    /// Simulate a cluster and its readers, and compare fanfs with simpler policies
    Simulate(simulate::Args),
    /// Create rate-limited replicas, and read a file through 1, 2 and all of them
    Demo(demo::Args),
    /// Write man pages, shell completions, the configuration's schema, systemd units
    Generate(generate::Args),
}

/// The exit statuses and their meanings. A status above 128 is 128 plus a signal's number.
const EXIT_STATUS: &[(u8, &str)] = &[
    (0, "done"),
    (1, "failed"),
    (2, "wrong usage or configuration"),
    (3, "the replicas differ"),
    (130, "interrupted"),
];

/// Why a command failed; it decides the exit status.
pub(crate) enum Failure {
    /// Wrong usage or configuration: exit status 2.
    Usage(String),
    /// Anything else: exit status 1.
    Failed(String),
}

impl Failure {
    fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }

    fn failed(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// The failure of `what`, which needs a cargo feature that this program was built without.
    #[cfg(not(all(feature = "top", feature = "plots")))]
    fn not_built(what: &str, feature: &str) -> Self {
        Self::Usage(format!(
            "{what} is not available: this fanfs was built without the cargo feature `{feature}`"
        ))
    }

    /// The text of the failure, on one line.
    fn text(&self) -> String {
        let (Self::Usage(text) | Self::Failed(text)) = self;
        printable(&text.lines().map(str::trim).collect::<Vec<_>>().join(" "))
    }

    fn exit_status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        }
    }
}

type CommandResult = Result<ExitCode, Failure>;

/// Runs the program with these arguments; the first one is the program's name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let outcome = match mount_helper::detect_helper_call(&args) {
        Some(helper) => helper.run(),
        None => match Cli::try_parse_from(args) {
            Ok(cli) => run(cli.command),
            Err(error) => usage_failure(&error),
        }
        .map_err(|failure| {
            let status = failure.exit_status();
            (failure, status)
        }),
    };
    outcome.unwrap_or_else(|(failure, status)| {
        cancellation::print_message(&format!("fanfs: {}", failure.text()));
        ExitCode::from(status)
    })
}

impl Command {
    /// How the command ends when its reader or its terminal is gone.
    fn cancel_policy(&self) -> CancelPolicy {
        match self {
            // These change something in bounded time, or are daemons.
            Self::Init(_)
            | Self::Mount(_)
            | Self::Umount(_)
            | Self::Reload(_)
            | Self::Upgrade(_)
            | Self::Generate(_) => CancelPolicy::Ignore,
            Self::Check { .. }
            | Self::Doctor(_)
            | Self::Status(_)
            | Self::Explain(_)
            | Self::Simulate(_) => CancelPolicy::ExitProcess,
            Self::Top(args) if args.is_live() => CancelPolicy::TerminalUi,
            Self::Top(_) => CancelPolicy::ExitProcess,
            Self::Trace(_) | Self::Verify(_) => CancelPolicy::Streaming,
            Self::Bench(_) | Self::Demo(_) => CancelPolicy::CleanUp,
        }
    }
}

fn run(command: Command) -> CommandResult {
    crate::control::check_runtime_dir().map_err(Failure::usage)?;
    let audience = Cancellation::watch(command.cancel_policy())
        .map_err(|e| Failure::failed(format!("cannot wait for signals: {e}")))?;
    match command {
        Command::Init(args) => init::run(&args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Check { volume, json } => {
            let file = volume::config_file(&volume)?;
            let config = crate::config::load(&file).map_err(Failure::usage)?;
            crate::daemon::check_placement(&config).map_err(Failure::usage)?;
            check::run(&config, json)
        }
        Command::Doctor(args) => doctor::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args, &audience),
        Command::Explain(args) => explain::run(&args),
        Command::Trace(args) => trace::run(&args, &audience),
        Command::Verify(args) => verify::run(&args, &audience),
        Command::Bench(args) => bench::run(&args, &audience),
        Command::Simulate(args) => simulate::run(&args),
        Command::Demo(args) => demo::run(&args, &audience),
        Command::Generate(args) => generate::run(&args),
    }
}

/// Puts an error of clap, which has several paragraphs, on one line.
fn usage_failure(error: &clap::Error) -> CommandResult {
    if !error.use_stderr()
        || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        let _ = error.print();
        return Ok(ExitCode::from(u8::from(error.use_stderr()) * 2));
    }
    let text = error.to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default().trim_start_matches("error: ");
    let mut line = first.split_whitespace().collect::<Vec<_>>().join(" ");
    for tip in paragraphs.filter_map(|p| p.trim().strip_prefix("tip: ")) {
        line.push_str("; ");
        line.push_str(tip.trim());
    }
    line.push_str("; see `fanfs --help`");
    Err(Failure::Usage(line))
}

/// Prints `text`, a command's result, to standard output. A reader that closes early
/// (`fanfs status | head`) is not a failure.
fn print_result(text: &str) -> CommandResult {
    cancellation::write_result(text).map_err(Failure::failed)?;
    Ok(ExitCode::SUCCESS)
}

/// `text` with its control characters escaped: the name of a file or a mount must not control
/// the terminal or break a line.
fn printable(text: &str) -> String {
    crate::config::Escaped(text).to_string()
}

/// `value` as indented JSON with a final newline.
fn to_json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let json = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    Ok(json + "\n")
}

/// Makes `path` absolute without touching the file system: a mount on the path may hang or be
/// dead.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn exit_statuses_match_the_help() {
        let of = |failure: Failure| failure.exit_status();
        let text = |status| EXIT_STATUS.iter().find(|(known, _)| *known == status).unwrap().1;
        assert_eq!(text(of(Failure::usage("x"))), "wrong usage or configuration");
        assert_eq!(text(of(Failure::failed("x"))), "failed");
        // The width of the terminal decides where its lines end.
        let help = Cli::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let few = EXIT_STATUS.iter().filter(|(status, _)| *status < 128);
        let few: Vec<_> = few.map(|(status, text)| format!("{status} {text}")).collect();
        assert!(help.contains(&format!("Exit status: {}.", few.join(", "))), "{help}");
    }

    #[test]
    fn names_in_errors_are_escaped_for_the_terminal() {
        let said = Failure::failed("a\nb: \x1b[2J\u{9b}1m: no such file\n").text();
        assert_eq!(said, "a b: \\u{1b}[2J\\u{9b}1m: no such file");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
