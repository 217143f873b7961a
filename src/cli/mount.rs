//! `fanfs mount`: in the foreground, or as a daemon that is waited for until
//! the mount answers.
//!
//! The daemon is this program started once more with `--ready`, in a session of
//! its own: it says on its standard output how starting went, and the command
//! passes that on as message and exit status. Starting a fresh process instead
//! of forking keeps threads and locks out of it.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use super::mount_options::MountOptions;
use super::{Failure, Outcome, absolute, check};
use crate::config::{self, Config};
use crate::control;
use crate::daemon::{Mount, backends, check_placement};
use crate::telemetry;
use crate::volume::survey::{DEFAULT_LIMIT, Severity, survey};

/// Arguments of `fanfs mount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The volume's configuration file
    pub(super) volume: PathBuf,
    /// An empty directory to mount it on
    #[arg(value_name = "MOUNTPOINT")]
    pub(super) mount_point: PathBuf,
    /// Mount options, comma-separated, as in /etc/fstab: allow_other, noexec, suid, dev,
    /// log=FILE; ro, noauto, _netdev, x-systemd.* and other standard ones are accepted
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(super) options: Vec<String>,
    /// Stay in the foreground and log to standard error; SIGTERM and SIGINT unmount
    #[arg(long, short = 'f')]
    pub(super) foreground: bool,
    /// Log to this file [default: MOUNTPOINT's name with .log in the run-time directory]
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// Say on standard output how starting went, then detach
    #[arg(long, hide = true)]
    pub(super) ready: bool,
    /// Ignore options that are not known
    #[arg(long, hide = true)]
    pub(super) sloppy: bool,
}

/// What the daemon says when its mount answers.
const READY: &str = "ready";

pub(super) fn run(args: Args) -> Outcome {
    let options = MountOptions::parse(&args.options, args.sloppy)?;
    let config = config::load(&args.volume).map_err(Failure::usage)?;
    if args.ready {
        return daemon(&args, config, &options);
    }
    if args.foreground {
        telemetry::log::init(log_file(&args, &options, false)?);
        let mount = start(&args, config, &options)?;
        return serve(mount);
    }
    launch(&args, &options)
}

/// Starts the daemon and waits until its mount answers or it has failed.
fn launch(args: &Args, options: &MountOptions) -> Outcome {
    let program =
        std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find myself: {e}")))?;
    let log = log_file(args, options, true)?;
    let mut command = Command::new(program);
    command.arg("mount").arg("--ready");
    if args.sloppy {
        command.arg("--sloppy");
    }
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    command.arg("--").arg(absolute(&args.volume)).arg(absolute(&args.mount_point));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(log.map_or_else(Stdio::null, Stdio::from));
    let mut child =
        command.spawn().map_err(|e| Failure::failed(format!("cannot start the daemon: {e}")))?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut said);
    }
    if said.trim() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().ok().and_then(|status| status.code());
    let text = match said.trim() {
        "" => "the daemon ended without a word; its log may say why".to_owned(),
        said => said.to_owned(),
    };
    Err(if status == Some(2) { Failure::Usage(text) } else { Failure::Failed(text) })
}

/// The daemon's side of [`launch`].
fn daemon(args: &Args, config: Config, options: &MountOptions) -> Outcome {
    // Not a group leader, so this cannot fail but by being done already.
    let _ = rustix::process::setsid();
    telemetry::log::init(None);
    let started = start(args, config, options);
    let said = match &started {
        Ok(_) => READY.to_owned(),
        Err(failure) => failure.text(),
    };
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{said}").and_then(|()| out.flush());
    let mount = match started {
        Ok(mount) => mount,
        // Said already, to the one who waits for it.
        Err(failure) => return Ok(ExitCode::from(failure.status())),
    };
    // Whoever waits reads to the end of this: give it up, and the directory.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    let _ = std::env::set_current_dir("/");
    serve(mount)
}

fn start(args: &Args, config: Config, options: &MountOptions) -> Result<Mount, Failure> {
    check_placement(&config).map_err(Failure::usage)?;
    let question = check::question(&config, Some(&absolute(&args.mount_point)));
    let survey = survey(question, DEFAULT_LIMIT);
    for finding in survey.findings().into_iter().chain(check::passthrough(&config, &survey)) {
        match finding.severity {
            Severity::Error => return Err(Failure::failed(finding.text)),
            Severity::Warning => tracing::warn!("{}", finding.text),
        }
    }
    let backends = backends(&config).map_err(Failure::failed)?;
    let name = config.volume.name.clone();
    let mount = Mount::start(config, backends, &args.mount_point, &options.extra)
        .map_err(Failure::failed)?;
    tracing::info!(volume = %name, at = %mount.mount_point().display(), "mounted");
    Ok(mount)
}

/// Serves until somebody unmounts or a signal says to.
fn serve(mount: Mount) -> Outcome {
    let signals = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let signals = signals.map_err(|e| Failure::failed(format!("cannot wait for signals: {e}")))?;
    let signalled = signals.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // A terminal that closes is no reason to unmount a daemon's volume.
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok("SIGTERM"),
                _ = interrupt.recv() => return Ok("SIGINT"),
                _ = hangup.recv() => tracing::info!("SIGHUP ignored"),
                () = tokio::time::sleep(UNMOUNT_NOTICED) => {
                    if mount.is_over() {
                        return Ok("unmounted");
                    }
                }
            }
        }
    });
    let reason = signalled
        .map_err(|e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}")))?;
    tracing::info!(reason, "ending");
    mount.stop().map_err(Failure::failed)?;
    Ok(ExitCode::SUCCESS)
}

/// How soon the daemon ends after somebody else has unmounted.
const UNMOUNT_NOTICED: Duration = Duration::from_millis(100);

fn log_file(
    args: &Args,
    options: &MountOptions,
    daemon: bool,
) -> Result<Option<std::fs::File>, Failure> {
    let path = match args.log.as_ref().or(options.log.as_ref()) {
        Some(path) => path.clone(),
        None if daemon => {
            let made = control::make_runtime_dir();
            made.map_err(|e| {
                Failure::failed(format!("{}: {e}", control::runtime_dir().display()))
            })?;
            control::log_path(&absolute(&args.mount_point))
        }
        None => return Ok(None),
    };
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    file.map(Some).map_err(|e| Failure::failed(format!("log file {}: {e}", path.display())))
}
