//! `fanfs mount`: in the foreground, or as a daemon that is waited for until
//! the mount answers.
//!
//! The daemon is this program started once more with `--ready`, in a session of
//! its own: it says on its standard output how starting went, and the command
//! passes that on as message and exit status. Starting a fresh process instead
//! of forking keeps threads and locks out of it. The same program is started by a
//! keeper (`--kept`), and by a daemon that hands its mount over (`--successor`); these
//! tell it the rest by a socket on its standard input.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

use super::cancellation::print_message;
use super::mount_options::ParsedMountOptions;
use super::{CommandResult, Failure, absolute, check, utab, volume};
use crate::backend::with_daemon_credentials;
use crate::config::{self, Access, Config, ConfigError, LogConfig};
use crate::control;
use crate::daemon::{
    DeadMount, FdChannel, HandoverRequest, Mount, RespawnCommand, StartMode, SupervisorClient,
    SupervisorError, check_placement, drop_privileges, is_automounted, refuse_handover,
    self_command, supervise, survey_replicas, systemd,
};
use crate::launcher;
use crate::telemetry::{self, log::LogFile};

/// Arguments of `fanfs mount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The volume: its name in /etc/fanfs, its configuration file, or where it is mounted
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    pub(super) volume: PathBuf,
    /// An empty directory to mount it on
    #[arg(value_name = "MOUNTPOINT", value_hint = clap::ValueHint::DirPath)]
    pub(super) mount_point: PathBuf,
    /// Mount options, comma-separated, as in /etc/fstab: allow_other, noexec, suid, dev,
    /// keeper, log=FILE; ro, noauto, _netdev, x-systemd.* and other standard ones are accepted
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
    /// Started by a keeper, which says on standard input what to do
    #[arg(long, hide = true)]
    pub(super) kept: bool,
    /// Started by a daemon, which hands its mount over by standard input
    #[arg(long, hide = true)]
    pub(super) successor: bool,
    /// Called as mount(8)'s helper
    #[arg(skip)]
    pub(super) by_mount: bool,
}

/// What the daemon says when its mount answers.
const READY_MESSAGE: &str = "ready";

pub(super) fn run(mut args: Args) -> CommandResult {
    let mut options = ParsedMountOptions::parse(&args.options, args.sloppy)?;
    options.overrides.is_supervised = options.keeper || systemd::has_fd_store();
    if args.successor {
        return run_successor(&args, &options);
    }
    if args.kept {
        return run_supervised(&args, &options);
    }
    // mount(8)'s helper and the command that started this daemon have found the file.
    if !args.by_mount && !args.ready {
        args.volume = volume::config_file_to_mount(&args.volume)?;
    }
    let config = config::load(&args.volume).map_err(Failure::usage)?;
    if args.ready {
        return run_daemon(&args, config, &options);
    }
    if options.wants_write && config.volume.access == Access::ReadOnly {
        check_rw_contradiction(&args)?;
    }
    if args.foreground {
        init_log(open_log_file(&args, &options)?, &config.log);
        if options.keeper {
            return run_supervisor(&args, || {});
        }
        let mut mount = match systemd::take_stored_device() {
            Some(device) => recover_or_replace(&args, config, &options, device)?,
            None => start_mount(&args, config, &options, None)?,
        };
        let told = EventSources::listen(&mount)?;
        mount.announce_ready(None, respawn_command(&args));
        return serve_until_end(mount, told);
    }
    launch_daemon(&args, &options)
}

/// Handles `rw` for a read-only volume: mount(8) gets a warning, `fanfs mount` an error.
fn check_rw_contradiction(args: &Args) -> Result<(), Failure> {
    let file = args.volume.display();
    if args.by_mount {
        // mount(8) passes `rw` also by default, so the user may not have asked for it. Its
        // own warning about a write-protected device has the same words.
        print_message(&format!(
            "mount.fanfs: WARNING: {file} has [volume] access = \"ro\", mounted read-only"
        ));
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{file}: mount option `rw` contradicts [volume] access = \"ro\"; set access = \"rw\" there, or leave the option out"
    )))
}

/// How to start this program again for this mount.
fn respawn_command(args: &Args) -> RespawnCommand {
    let mut options: Vec<OsString> = Vec::new();
    if args.foreground {
        options.push("--foreground".into());
    }
    if args.sloppy {
        options.push("--sloppy".into());
    }
    for list in &args.options {
        options.extend(["-o".into(), list.into()]);
    }
    if let Some(log) = &args.log {
        options.extend(["--log".into(), absolute(log).into()]);
    }
    RespawnCommand {
        options,
        volume: absolute(&args.volume),
        mount_point: absolute(&args.mount_point),
    }
}

/// The volume of a process that another one has started for this mount, and its log.
/// A volume that cannot be read is told of as usual.
fn load_config_and_log(
    args: &Args,
    options: &ParsedMountOptions,
) -> Result<Result<Config, ConfigError>, Failure> {
    let file = match args.foreground {
        true => open_log_file(args, options)?,
        false => open_daemon_log(args, options),
    };
    let config = config::load(&args.volume);
    let log = config.as_ref().map_or_else(|_| LogConfig::default(), |config| config.log.clone());
    init_log(file, &log);
    Ok(config)
}

/// Takes the mount over from the daemon that has started this one.
fn run_successor(args: &Args, options: &ParsedMountOptions) -> CommandResult {
    let config = load_config_and_log(args, options)?;
    let link = FdChannel::from_stdin().map_err(Failure::failed)?;
    let prepared = || {
        let config = config.map_err(Failure::usage)?;
        prepare_process(&config, options)?;
        check_placement(&config).map_err(Failure::usage)?;
        Ok(config)
    };
    let config =
        prepared().inspect_err(|failure: &Failure| refuse_handover(&link, &failure.text()))?;
    let mut mount = Mount::take_over(&link, config, &args.mount_point, &options.overrides)
        .map_err(Failure::failed)?;
    drop(link);
    let told = EventSources::listen(&mount)?;
    mount.announce_ready(None, respawn_command(args));
    tracing::info!(at = %mount.mount_point().display(), "goes on with the mount");
    serve_until_end(mount, told)
}

/// Does what the keeper that has started this process says.
fn run_supervised(args: &Args, options: &ParsedMountOptions) -> CommandResult {
    let config = load_config_and_log(args, options)?;
    let (keeper, task) = SupervisorClient::from_stdin().map_err(Failure::failed)?;
    let begun = config.map_err(Failure::usage).and_then(|config| match task {
        StartMode::Mount => start_mount(args, config, options, None),
        StartMode::Recover(device, former) => recover_mount(args, config, options, device, former),
        StartMode::ReplaceDead(dead) => start_mount(args, config, options, Some(dead)),
    });
    match begun {
        Ok(mut mount) => {
            let told = EventSources::listen(&mount)?;
            mount.announce_ready(Some(keeper), respawn_command(args));
            // The keeper's, which may be that of whoever mounts an automount.
            start_new_session();
            serve_until_end(mount, told)
        }
        Err(failure) => {
            keeper.report_failure(failure.text(), matches!(failure, Failure::Usage(_)));
            Err(failure)
        }
    }
}

/// Goes on with a mount whose daemon was killed; replaces it where that cannot be done.
fn recover_or_replace(
    args: &Args,
    config: Config,
    options: &ParsedMountOptions,
    device: OwnedFd,
) -> Result<Mount, Failure> {
    // systemd has waited for the end of the daemon before.
    recover_mount(args, config.clone(), options, device, Vec::new()).or_else(|failure| {
        tracing::error!(why = failure.text(), "the mount is replaced; what was open is lost");
        systemd::clear_fd_store();
        start_mount(args, config, options, DeadMount::abort_at(&absolute(&args.mount_point)))
    })
}

fn recover_mount(
    args: &Args,
    config: Config,
    options: &ParsedMountOptions,
    device: OwnedFd,
    former: Vec<OwnedFd>,
) -> Result<Mount, Failure> {
    prepare_process(&config, options)?;
    let mount_point = absolute(&args.mount_point);
    Mount::recover((device, former), config, &mount_point, &options.overrides)
        .map_err(Failure::failed)
}

/// Keeps the mount of a daemon that is started from here.
fn run_supervisor(args: &Args, ready: impl FnOnce()) -> CommandResult {
    match supervise(respawn_command(args), ready) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(SupervisorError::Failed { why, usage: true }) => Err(Failure::Usage(why)),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Starts the daemon and waits until its mount answers or it has failed.
fn launch_daemon(args: &Args, options: &ParsedMountOptions) -> CommandResult {
    let program =
        std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find myself: {e}")))?;
    let open = |path: &PathBuf| {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        file.map_err(|e| Failure::failed(format!("log file {}: {e}", path.display())))
    };
    let log = log_path(args, options, true)?.as_ref().map(open).transpose()?;
    let mut command = self_command(&program);
    command.arg("mount").arg("--ready");
    if args.sloppy {
        command.arg("--sloppy");
    }
    for list in &args.options {
        command.arg("-o").arg(list);
    }
    // The daemon opens it again by its path, from another directory.
    if let Some(log) = args.log.as_ref().or(options.log.as_ref()) {
        command.arg("--log").arg(absolute(log));
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
    if said.trim() == READY_MESSAGE {
        if options.netdev && rustix::process::geteuid().is_root() {
            utab::add_netdev(&absolute(&args.mount_point));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.wait().ok().and_then(|status| status.code());
    let text = match said.trim() {
        "" => "the daemon ended without a word; its log may say why".to_owned(),
        said => said.to_owned(),
    };
    Err(if status == Some(2) { Failure::Usage(text) } else { Failure::Failed(text) })
}

/// The daemon's side of [`launch_daemon`].
fn run_daemon(args: &Args, config: Config, options: &ParsedMountOptions) -> CommandResult {
    // An automount lets only this process group mount, so there it is left afterwards.
    let is_automounted = is_automounted(&absolute(&args.mount_point));
    if !is_automounted {
        start_new_session();
    }
    init_log(open_daemon_log(args, options), &config.log);
    let is_done = || {
        if is_automounted {
            start_new_session();
        }
        report_start(READY_MESSAGE);
    };
    let done = if options.keeper {
        run_supervisor(args, is_done)
    } else {
        start_mount(args, config, options, None).and_then(|mut mount| {
            let told = EventSources::listen(&mount)?;
            mount.announce_ready(None, respawn_command(args));
            is_done();
            serve_until_end(mount, told)
        })
    };
    done.or_else(|failure| {
        // To the one who waits for it, if he still does.
        report_start(&failure.text());
        Ok(ExitCode::from(failure.exit_status()))
    })
}

/// Is in a session and process group of its own: no terminal's, no shell's.
fn start_new_session() {
    // A leader of its group, which this fails for, is on its own already.
    let _ = rustix::process::setsid();
}

/// Says how starting went, to whoever waits for it, and is on its own.
fn report_start(said: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{said}").and_then(|()| out.flush());
    // Whoever waits reads to the end of this: give it up, and the directory.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    let _ = std::env::set_current_dir("/");
}

/// To be done before there is a second thread: each has its own.
fn prepare_process(config: &Config, options: &ParsedMountOptions) -> Result<(), Failure> {
    drop_privileges(config, &options.overrides)
        .map_err(|e| Failure::failed(format!("cannot give up privileges: {e}")))?;
    launcher::fork_launcher()
        .map_err(|e| Failure::failed(format!("cannot fork what starts programs: {e}")))
}

/// Mounts, in the place of a `dead` mount if there is one.
fn start_mount(
    args: &Args,
    config: Config,
    options: &ParsedMountOptions,
    dead: Option<DeadMount>,
) -> Result<Mount, Failure> {
    prepare_process(&config, options)?;
    check_placement(&config).map_err(Failure::usage)?;
    let survey = survey_replicas(&config, &absolute(&args.mount_point)).map_err(Failure::failed)?;
    for finding in check::passthrough_findings(&config, &survey) {
        tracing::warn!("{}", finding.text);
    }
    let name = config.volume.name.clone();
    let (silent, at) = (survey.timed_out(), &args.mount_point);
    let mount = match dead {
        Some(dead) => Mount::replace_dead(dead, config, silent, at, &options.overrides),
        None => Mount::start_from_config(config, silent, at, &options.overrides),
    };
    let mount = mount.map_err(Failure::failed)?;
    tracing::info!(volume = %name, at = %mount.mount_point().display(), "mounted");
    Ok(mount)
}

/// What a mount is served until.
enum DaemonEvent {
    /// It is to end.
    Stop(&'static str),
    /// It is to be handed over.
    Handover(HandoverRequest),
}

/// The signals that end a daemon or have it reload, from when this is made on: before
/// anybody is told that it is ready, or one of them would leave the mount behind.
struct EventSources {
    runtime: tokio::runtime::Runtime,
    signals: [Signal; 3],
    handover_requests: tokio::sync::mpsc::UnboundedReceiver<HandoverRequest>,
}

impl EventSources {
    fn listen(mount: &Mount) -> Result<Self, Failure> {
        let listen = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let entered = runtime.enter();
            let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
            let [terminate, interrupt, hangup] = kinds.map(signal);
            let signals_of = [terminate?, interrupt?, hangup?];
            drop(entered);
            Ok(Self { runtime, signals: signals_of, handover_requests: mount.handover_requests() })
        };
        listen()
            .map_err(|e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}")))
    }
}

/// Serves until somebody unmounts, a signal says to, or another process does so.
fn serve_until_end(mount: Mount, told: EventSources) -> CommandResult {
    let EventSources { runtime: signals, signals: mut signals_of, handover_requests: mut orders } =
        told;
    let ended = Arc::new(Notify::new());
    if let Some(keeper) = mount.supervisor() {
        let end = Arc::clone(&ended);
        keeper.listen_for_stop(move || end.notify_one()).map_err(Failure::failed)?;
    }
    loop {
        match signals.block_on(next_event(&mount, &mut orders, &ended, &mut signals_of)) {
            DaemonEvent::Handover(mut order) => {
                let answer = mount.hand_over(&order);
                let is_over = answer.is_ok();
                order.respond(answer);
                if is_over {
                    telemetry::log::report_pending();
                    mount.exit_after_handover();
                }
            }
            DaemonEvent::Stop(reason) => {
                tracing::info!(reason, "ending");
                let stopped = mount.stop().map_err(Failure::failed);
                telemetry::log::report_pending();
                stopped?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// Waits for the next event; `told` by SIGTERM, SIGINT and SIGHUP.
async fn next_event(
    mount: &Mount,
    orders: &mut UnboundedReceiver<HandoverRequest>,
    ended: &Notify,
    [terminate, interrupt, hangup]: &mut [Signal; 3],
) -> DaemonEvent {
    loop {
        tokio::select! {
            _ = terminate.recv() => return DaemonEvent::Stop("SIGTERM"),
            _ = interrupt.recv() => return DaemonEvent::Stop("SIGINT"),
            _ = hangup.recv() => return DaemonEvent::Handover(HandoverRequest::reload()),
            () = ended.notified() => return DaemonEvent::Stop("the keeper says so"),
            Some(order) = orders.recv() => return DaemonEvent::Handover(order),
            () = tokio::time::sleep(UNMOUNT_POLL_INTERVAL) => {
                if mount.is_unmounted() {
                    return DaemonEvent::Stop("unmounted");
                }
            }
        }
    }
}

/// How soon the daemon ends after somebody else has unmounted.
const UNMOUNT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The path of the log that is asked for; without one, of a daemon's own.
fn log_path(
    args: &Args,
    options: &ParsedMountOptions,
    is_daemon: bool,
) -> Result<Option<PathBuf>, Failure> {
    match args.log.as_ref().or(options.log.as_ref()) {
        Some(path) => Ok(Some(path.clone())),
        None if is_daemon => {
            let made = control::make_runtime_dir();
            made.map_err(|e| {
                Failure::failed(format!("{}: {e}", control::runtime_dir().display()))
            })?;
            Ok(Some(control::log_path(&absolute(&args.mount_point))))
        }
        None => Ok(None),
    }
}

/// The log of a process that stays in the foreground, if one is asked for.
fn open_log_file(args: &Args, options: &ParsedMountOptions) -> Result<Option<LogFile>, Failure> {
    let Some(path) = log_path(args, options, false)? else { return Ok(None) };
    let file = LogFile::open(&path, false);
    file.map(Some).map_err(|e| Failure::failed(format!("log file {}: {e}", path.display())))
}

/// The log of a daemon, opened by its path: the standard error that the daemon has inherited
/// may be a file that was rotated away. It has to do where the log cannot be opened.
fn open_daemon_log(args: &Args, options: &ParsedMountOptions) -> Option<LogFile> {
    let path = log_path(args, options, true).ok()??;
    LogFile::open(&path, true).ok()
}

fn init_log(file: Option<LogFile>, log: &LogConfig) {
    telemetry::log::init(file, log, |work| with_daemon_credentials(|_| work()).is_ok());
}
