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

use super::audience::tell;
use super::mount_options::MountOptions;
use super::{Failure, Outcome, absolute, check, utab, volume};
use crate::backend::own;
use crate::config::{self, Access, Config, ConfigError, Log};
use crate::control;
use crate::daemon::{
    Again, Dead, Keeper, KeeperError, Link, Mount, Order, Task, check_placement, drop_privileges,
    is_automounted, itself, keep, look_around, refuse, service,
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
const READY: &str = "ready";

pub(super) fn run(mut args: Args) -> Outcome {
    let mut options = MountOptions::parse(&args.options, args.sloppy)?;
    options.extra.is_kept = options.keeper || service::keeps();
    if args.successor {
        return succeed(&args, &options);
    }
    if args.kept {
        return kept(&args, &options);
    }
    // mount(8)'s helper and the command that started this daemon have found the file.
    if !args.by_mount && !args.ready {
        args.volume = volume::file_to_mount(&args.volume)?;
    }
    let config = config::load(&args.volume).map_err(Failure::usage)?;
    if args.ready {
        return daemon(&args, config, &options);
    }
    if options.writes && config.volume.access == Access::ReadOnly {
        contradicted(&args)?;
    }
    if args.foreground {
        log_to(log_file(&args, &options)?, &config.log);
        if options.keeper {
            return keep_it(&args, || {});
        }
        let mut mount = match service::kept() {
            Some(device) => go_on(&args, config, &options, device)?,
            None => start(&args, config, &options, None)?,
        };
        let told = Told::begin(&mount)?;
        mount.is_ready(None, again(&args));
        return serve(mount, told);
    }
    launch(&args, &options)
}

/// Handles `rw` for a read-only volume: mount(8) gets a warning, `fanfs mount` an error.
fn contradicted(args: &Args) -> Result<(), Failure> {
    let file = args.volume.display();
    if args.by_mount {
        // mount(8) passes `rw` also by default, so the user may not have asked for it. Its
        // own warning about a write-protected device has the same words.
        tell(&format!(
            "mount.fanfs: WARNING: {file} has [volume] access = \"ro\", mounted read-only"
        ));
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{file}: mount option `rw` contradicts [volume] access = \"ro\"; set access = \"rw\" there, or leave the option out"
    )))
}

/// How to start this program again for this mount.
fn again(args: &Args) -> Again {
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
    Again { options, volume: absolute(&args.volume), mount_point: absolute(&args.mount_point) }
}

/// The volume of a process that another one has started for this mount, and its log.
/// A volume that cannot be read is told of as usual.
fn config_and_log(
    args: &Args,
    options: &MountOptions,
) -> Result<Result<Config, ConfigError>, Failure> {
    let file = match args.foreground {
        true => log_file(args, options)?,
        false => daemons_log(args, options),
    };
    let config = config::load(&args.volume);
    let log = config.as_ref().map_or_else(|_| Log::default(), |config| config.log.clone());
    log_to(file, &log);
    Ok(config)
}

/// Takes the mount over from the daemon that has started this one.
fn succeed(args: &Args, options: &MountOptions) -> Outcome {
    let config = config_and_log(args, options)?;
    let link = Link::stdin().map_err(Failure::failed)?;
    let prepared = || {
        let config = config.map_err(Failure::usage)?;
        give_up_privileges(&config, options)?;
        check_placement(&config).map_err(Failure::usage)?;
        Ok(config)
    };
    let config = prepared().inspect_err(|failure: &Failure| refuse(&link, &failure.text()))?;
    let mut mount = Mount::succeed(&link, config, &args.mount_point, &options.extra)
        .map_err(Failure::failed)?;
    drop(link);
    let told = Told::begin(&mount)?;
    mount.is_ready(None, again(args));
    tracing::info!(at = %mount.mount_point().display(), "goes on with the mount");
    serve(mount, told)
}

/// Does what the keeper that has started this process says.
fn kept(args: &Args, options: &MountOptions) -> Outcome {
    let config = config_and_log(args, options)?;
    let (keeper, task) = Keeper::hear().map_err(Failure::failed)?;
    let begun = config.map_err(Failure::usage).and_then(|config| match task {
        Task::Begin => start(args, config, options, None),
        Task::GoOn(device, former) => recover(args, config, options, device, former),
        Task::Replace(dead) => start(args, config, options, Some(dead)),
    });
    match begun {
        Ok(mut mount) => {
            let told = Told::begin(&mount)?;
            mount.is_ready(Some(keeper), again(args));
            // The keeper's, which may be that of whoever mounts an automount.
            leave_group();
            serve(mount, told)
        }
        Err(failure) => {
            keeper.failed(failure.text(), matches!(failure, Failure::Usage(_)));
            Err(failure)
        }
    }
}

/// Goes on with a mount whose daemon was killed; replaces it where that cannot be done.
fn go_on(
    args: &Args,
    config: Config,
    options: &MountOptions,
    device: OwnedFd,
) -> Result<Mount, Failure> {
    // systemd has waited for the end of the daemon before.
    recover(args, config.clone(), options, device, Vec::new()).or_else(|failure| {
        tracing::error!(why = failure.text(), "the mount is replaced; what was open is lost");
        service::keep_no_more();
        start(args, config, options, Dead::at(&absolute(&args.mount_point)))
    })
}

fn recover(
    args: &Args,
    config: Config,
    options: &MountOptions,
    device: OwnedFd,
    former: Vec<OwnedFd>,
) -> Result<Mount, Failure> {
    give_up_privileges(&config, options)?;
    let mount_point = absolute(&args.mount_point);
    Mount::recover((device, former), config, &mount_point, &options.extra).map_err(Failure::failed)
}

/// Keeps the mount of a daemon that is started from here.
fn keep_it(args: &Args, ready: impl FnOnce()) -> Outcome {
    match keep(again(args), ready) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(KeeperError::Failed { why, usage: true }) => Err(Failure::Usage(why)),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Starts the daemon and waits until its mount answers or it has failed.
fn launch(args: &Args, options: &MountOptions) -> Outcome {
    let program =
        std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find myself: {e}")))?;
    let open = |path: &PathBuf| {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        file.map_err(|e| Failure::failed(format!("log file {}: {e}", path.display())))
    };
    let log = log_path(args, options, true)?.as_ref().map(open).transpose()?;
    let mut command = itself(&program);
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
    if said.trim() == READY {
        if options.netdev && rustix::process::geteuid().is_root() {
            utab::note_network(&absolute(&args.mount_point));
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

/// The daemon's side of [`launch`].
fn daemon(args: &Args, config: Config, options: &MountOptions) -> Outcome {
    // An automount lets only this process group mount, so there it is left afterwards.
    let is_automounted = is_automounted(&absolute(&args.mount_point));
    if !is_automounted {
        leave_group();
    }
    log_to(daemons_log(args, options), &config.log);
    let is_done = || {
        if is_automounted {
            leave_group();
        }
        detach(READY);
    };
    let done = if options.keeper {
        keep_it(args, is_done)
    } else {
        start(args, config, options, None).and_then(|mut mount| {
            let told = Told::begin(&mount)?;
            mount.is_ready(None, again(args));
            is_done();
            serve(mount, told)
        })
    };
    done.or_else(|failure| {
        // To the one who waits for it, if he still does.
        detach(&failure.text());
        Ok(ExitCode::from(failure.status()))
    })
}

/// Is in a session and process group of its own: no terminal's, no shell's.
fn leave_group() {
    // A leader of its group, which this fails for, is on its own already.
    let _ = rustix::process::setsid();
}

/// Says how starting went, to whoever waits for it, and is on its own.
fn detach(said: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{said}").and_then(|()| out.flush());
    // Whoever waits reads to the end of this: give it up, and the directory.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    let _ = std::env::set_current_dir("/");
}

/// To be done before there is a second thread: each has its own.
fn give_up_privileges(config: &Config, options: &MountOptions) -> Result<(), Failure> {
    drop_privileges(config, &options.extra)
        .map_err(|e| Failure::failed(format!("cannot give up privileges: {e}")))?;
    launcher::prepare()
        .map_err(|e| Failure::failed(format!("cannot fork what starts programs: {e}")))
}

/// Mounts, in the place of a `dead` mount if there is one.
fn start(
    args: &Args,
    config: Config,
    options: &MountOptions,
    dead: Option<Dead>,
) -> Result<Mount, Failure> {
    give_up_privileges(&config, options)?;
    check_placement(&config).map_err(Failure::usage)?;
    let survey = look_around(&config, &absolute(&args.mount_point)).map_err(Failure::failed)?;
    for finding in check::passthrough(&config, &survey) {
        tracing::warn!("{}", finding.text);
    }
    let name = config.volume.name.clone();
    let (silent, at) = (survey.silent(), &args.mount_point);
    let mount = match dead {
        Some(dead) => Mount::replace(dead, config, silent, at, &options.extra),
        None => Mount::begin(config, silent, at, &options.extra),
    };
    let mount = mount.map_err(Failure::failed)?;
    tracing::info!(volume = %name, at = %mount.mount_point().display(), "mounted");
    Ok(mount)
}

/// What a mount is served until.
enum Event {
    /// It is to end.
    End(&'static str),
    /// It is to be handed over.
    Order(Order),
}

/// The signals that end a daemon or have it reload, from when this is made on: before
/// anybody is told that it is ready, or one of them would leave the mount behind.
struct Told {
    runtime: tokio::runtime::Runtime,
    signals_of: [Signal; 3],
    orders: tokio::sync::mpsc::UnboundedReceiver<Order>,
}

impl Told {
    fn begin(mount: &Mount) -> Result<Self, Failure> {
        let listen = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let entered = runtime.enter();
            let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
            let [terminate, interrupt, hangup] = kinds.map(signal);
            let signals_of = [terminate?, interrupt?, hangup?];
            drop(entered);
            Ok(Self { runtime, signals_of, orders: mount.orders() })
        };
        listen()
            .map_err(|e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}")))
    }
}

/// Serves until somebody unmounts, a signal says to, or another process does so.
fn serve(mount: Mount, told: Told) -> Outcome {
    let Told { runtime: signals, mut signals_of, mut orders } = told;
    let ended = Arc::new(Notify::new());
    if let Some(keeper) = mount.keeper() {
        let end = Arc::clone(&ended);
        keeper.listen(move || end.notify_one()).map_err(Failure::failed)?;
    }
    loop {
        match signals.block_on(wait(&mount, &mut orders, &ended, &mut signals_of)) {
            Event::Order(mut order) => {
                let answer = mount.hand_over(&order);
                let is_over = answer.is_ok();
                order.answer(answer);
                if is_over {
                    telemetry::log::finish();
                    mount.leave();
                }
            }
            Event::End(reason) => {
                tracing::info!(reason, "ending");
                let stopped = mount.stop().map_err(Failure::failed);
                telemetry::log::finish();
                stopped?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
}

/// Waits for the next event; `told` by SIGTERM, SIGINT and SIGHUP.
async fn wait(
    mount: &Mount,
    orders: &mut UnboundedReceiver<Order>,
    ended: &Notify,
    [terminate, interrupt, hangup]: &mut [Signal; 3],
) -> Event {
    loop {
        tokio::select! {
            _ = terminate.recv() => return Event::End("SIGTERM"),
            _ = interrupt.recv() => return Event::End("SIGINT"),
            _ = hangup.recv() => return Event::Order(Order::reload()),
            () = ended.notified() => return Event::End("the keeper says so"),
            Some(order) = orders.recv() => return Event::Order(order),
            () = tokio::time::sleep(UNMOUNT_NOTICED) => {
                if mount.is_over() {
                    return Event::End("unmounted");
                }
            }
        }
    }
}

/// How soon the daemon ends after somebody else has unmounted.
const UNMOUNT_NOTICED: Duration = Duration::from_millis(100);

/// The path of the log that is asked for; without one, of a daemon's own.
fn log_path(
    args: &Args,
    options: &MountOptions,
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
fn log_file(args: &Args, options: &MountOptions) -> Result<Option<LogFile>, Failure> {
    let Some(path) = log_path(args, options, false)? else { return Ok(None) };
    let file = LogFile::open(&path, false);
    file.map(Some).map_err(|e| Failure::failed(format!("log file {}: {e}", path.display())))
}

/// The log of a daemon, opened by its path: the standard error that the daemon has inherited
/// may be a file that was rotated away. It has to do where the log cannot be opened.
fn daemons_log(args: &Args, options: &MountOptions) -> Option<LogFile> {
    let path = log_path(args, options, true).ok()??;
    LogFile::open(&path, true).ok()
}

fn log_to(file: Option<LogFile>, log: &Log) {
    telemetry::log::init(file, log, |work| own(|_| work()).is_ok());
}
