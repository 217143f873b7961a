//! The processes of a mount.
//!
//! `fanfs mount` runs in several roles: as a command that launches a daemon and waits for it,
//! as a daemon, or as a supervisor. A daemon may also continue the mount of another one.
//! [`ProcessRole`] names the role, and [`DaemonProcess::run`] carries it out.

mod error;
mod launch;

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::admission::survey_replicas;
use super::dead_mount::DeadMount;
use super::fd_channel::FdChannel;
use super::handover::successor::refuse_handover;
use super::mount::Mount;
use super::mount_point::is_automounted;
use super::passthrough_check::passthrough_findings;
use super::required_capabilities::drop_privileges;
use super::respawn::{ChildRole, RespawnCommand};
use super::serve::{EventSources, StopSignals, serve_until_end};
use super::supervisor::client::{DeadDaemon, StartMode, SupervisorClient};
use super::supervisor::supervise;
use super::systemd;
use super::volume_core::check_placement;
use super::volume_setup::{MountOverrides, VolumeSetup};
use crate::backend::with_daemon_credentials;
use crate::config::{Config, ConfigError, LogConfig};
use crate::control;
use crate::launcher;
use crate::telemetry::log::{self, LogFile};
use launch::{launch_daemon, report_ready, report_start, start_new_session};

pub use error::ProcessError;
pub use launch::LaunchError;

/// The role of a process of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// The command: launches a daemon and waits until its mount answers.
    Command,
    /// A daemon that stays in the foreground.
    Foreground,
    /// A daemon that the command has launched.
    Launched,
    /// Keeps the mount of supervised daemons, in the foreground.
    ForegroundSupervisor,
    /// The same, launched by the command.
    LaunchedSupervisor,
    /// A daemon that a supervisor has started.
    Supervised,
    /// A daemon that another daemon has started to hand its mount over.
    Successor,
}

impl ProcessRole {
    /// The role of a process that another process started as `child`, or that a user started.
    /// `has_keeper` says whether the mount has a keeper.
    pub fn new(child: Option<ChildRole>, is_foreground: bool, has_keeper: bool) -> Self {
        match child {
            Some(ChildRole::Successor) => Self::Successor,
            Some(ChildRole::Supervised) => Self::Supervised,
            Some(ChildRole::Launched) if has_keeper => Self::LaunchedSupervisor,
            Some(ChildRole::Launched) => Self::Launched,
            None if !is_foreground => Self::Command,
            None if has_keeper => Self::ForegroundSupervisor,
            None => Self::Foreground,
        }
    }

    /// Whether a user or the service manager started the process, not another process of the
    /// mount.
    pub fn is_first_process(self) -> bool {
        matches!(self, Self::Command | Self::Foreground | Self::ForegroundSupervisor)
    }
}

/// A process of a mount, as its arguments describe it.
pub struct DaemonProcess {
    /// Its role.
    pub role: ProcessRole,
    /// The mount point as the arguments have it.
    pub mount_point: PathBuf,
    /// How the mount's other processes are started.
    pub respawn: RespawnCommand,
    /// Settings from the mount's options.
    pub overrides: MountOverrides,
    /// The log file, if the arguments name one. By default daemons log to a file in the
    /// run-time directory, and processes in the foreground to standard error.
    pub log: Option<PathBuf>,
    /// Whether the mount's processes stay in the foreground.
    pub is_foreground: bool,
}

/// A running mount, and the signals received since before it was mounted.
struct StartedMount {
    mount: Mount,
    signals: StopSignals,
}

impl DaemonProcess {
    /// Runs the process to its end. `config` is the volume's configuration.
    ///
    /// # Errors
    /// [`ProcessError`], unless the process has reported it to the waiting command.
    pub fn run(self, config: Result<Config, ConfigError>) -> Result<ExitCode, ProcessError> {
        match self.role {
            ProcessRole::Command => {
                config?;
                launch_daemon(&self.respawn, self.open_standard_error()?)?;
                Ok(ExitCode::SUCCESS)
            }
            ProcessRole::Foreground => self.run_foreground(config?),
            ProcessRole::ForegroundSupervisor => {
                let config = config?;
                init_log(self.open_requested_log()?, &config.log);
                self.supervise(|| {})
            }
            ProcessRole::Launched | ProcessRole::LaunchedSupervisor => self.run_launched(config?),
            ProcessRole::Supervised => self.run_supervised(config),
            ProcessRole::Successor => self.run_successor(config),
        }
    }

    fn run_foreground(&self, config: Config) -> Result<ExitCode, ProcessError> {
        init_log(self.open_requested_log()?, &config.log);
        let mount = match systemd::take_stored_device() {
            Some(device) => self.recover_or_replace(config, device)?,
            None => self.start_mount(config, None)?,
        };
        self.serve(mount, None, || {})
    }

    /// The other side of [`launch_daemon`].
    fn run_launched(&self, config: Config) -> Result<ExitCode, ProcessError> {
        // Only this process group may mount on an automount, so the process stays in it until
        // then.
        let is_automounted = is_automounted(&self.respawn.mount_point);
        if !is_automounted {
            start_new_session();
        }
        init_log(self.open_daemon_log(), &config.log);
        let on_ready = || {
            if is_automounted {
                start_new_session();
            }
            report_ready();
        };
        let done = match self.role {
            ProcessRole::LaunchedSupervisor => self.supervise(on_ready),
            _ => {
                let mount = self.start_mount(config, None);
                mount.and_then(|mount| self.serve(mount, None, on_ready))
            }
        };
        done.or_else(|error| {
            // For the command, if it still waits.
            report_start(&error.line());
            Ok(ExitCode::from(error.exit_status()))
        })
    }

    /// Mounts, recovers or replaces the mount, as the keeper that started this process
    /// requests.
    fn run_supervised(
        &self,
        config: Result<Config, ConfigError>,
    ) -> Result<ExitCode, ProcessError> {
        self.init_child_log(&config)?;
        let (supervisor, mode) = SupervisorClient::from_stdin().map_err(ProcessError::NoParent)?;
        let begun = config.map_err(ProcessError::from).and_then(|config| match mode {
            StartMode::Mount => self.start_mount(config, None),
            StartMode::Recover(dead) => self.recover_mount(config, dead),
            StartMode::ReplaceDead(dead) => self.start_mount(config, Some(dead)),
        });
        match begun {
            // The keeper's session may be that of a process that mounts an automount; leave it.
            Ok(mount) => self.serve(mount, Some(supervisor), start_new_session),
            Err(error) => {
                supervisor.report_failure(error.line(), error.is_usage());
                Err(error)
            }
        }
    }

    /// Takes the mount over from the daemon that started this process.
    fn run_successor(&self, config: Result<Config, ConfigError>) -> Result<ExitCode, ProcessError> {
        self.init_child_log(&config)?;
        let link = FdChannel::from_stdin().map_err(ProcessError::NoParent)?;
        let prepare = || {
            let config = config?;
            self.prepare_process(&config)?;
            check_placement(&config)?;
            Ok(config)
        };
        let config =
            prepare().inspect_err(|error: &ProcessError| refuse_handover(&link, &error.line()))?;
        let setup = self.setup(config, &self.mount_point);
        let signals = StopSignals::listen()?;
        let mount = Mount::take_over(&link, setup)?;
        drop(link);
        let at = mount.mount_point().display().to_string();
        let started = StartedMount { mount, signals };
        self.serve(started, None, || tracing::info!(%at, "this daemon serves the mount now"))
    }

    /// Keeps the mount of a daemon that this process starts. Calls `on_ready` when the volume
    /// is mounted.
    fn supervise(&self, on_ready: impl FnOnce()) -> Result<ExitCode, ProcessError> {
        supervise(self.respawn.clone(), on_ready)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Reports that the mount answers, and serves it to its end. Calls `on_ready` in
    /// between.
    fn serve(
        &self,
        started: StartedMount,
        supervisor: Option<SupervisorClient>,
        on_ready: impl FnOnce(),
    ) -> Result<ExitCode, ProcessError> {
        let StartedMount { mut mount, signals } = started;
        let sources = EventSources::new(signals, &mount);
        mount.announce_ready(supervisor, self.respawn.clone());
        on_ready();
        serve_until_end(mount, sources)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Mounts the volume, in place of a `dead` mount if there is one.
    fn start_mount(
        &self,
        config: Config,
        dead: Option<DeadMount>,
    ) -> Result<StartedMount, ProcessError> {
        self.prepare_process(&config)?;
        self.mount_surveyed(config, dead, None)
    }

    /// The same for a process that is prepared and may already receive `signals`.
    fn mount_surveyed(
        &self,
        config: Config,
        dead: Option<DeadMount>,
        signals: Option<StopSignals>,
    ) -> Result<StartedMount, ProcessError> {
        check_placement(&config)?;
        let survey = survey_replicas(&config, &self.respawn.mount_point)?;
        for finding in passthrough_findings(&config, &survey) {
            tracing::warn!("{}", finding.text);
        }
        let name = config.volume.name.clone();
        let silent = survey.timed_out();
        let signals = signals.map_or_else(StopSignals::listen, Ok)?;
        let mount = match dead {
            Some(dead) => Mount::replace_dead(dead, self.setup(config, &self.mount_point), silent)?,
            None => Mount::start_from_config(config, silent, &self.mount_point, &self.overrides)?,
        };
        tracing::info!(volume = %name, at = %mount.mount_point().display(), "mounted");
        Ok(StartedMount { mount, signals })
    }

    /// Continues a mount whose daemon was killed, or replaces the mount if that fails.
    fn recover_or_replace(
        &self,
        config: Config,
        device: OwnedFd,
    ) -> Result<StartedMount, ProcessError> {
        // systemd starts this process only after the earlier daemon has ended.
        let dead = DeadDaemon { device, earlier_daemons: Vec::new() };
        self.prepare_process(&config)?;
        // A signal that arrives during a failed recovery applies to the mount that replaces it.
        let signals = StopSignals::listen()?;
        let setup = self.setup(config.clone(), &self.respawn.mount_point);
        match Mount::recover(dead, setup).map_err(ProcessError::from) {
            Ok(mount) => Ok(StartedMount { mount, signals }),
            Err(error) => {
                tracing::error!(
                    why = error.line(),
                    "the mount cannot be continued and is replaced; open files are lost"
                );
                systemd::clear_fd_store();
                let dead = DeadMount::abort_at(&self.respawn.mount_point);
                self.mount_surveyed(config, dead, Some(signals))
            }
        }
    }

    fn recover_mount(
        &self,
        config: Config,
        dead: DeadDaemon,
    ) -> Result<StartedMount, ProcessError> {
        self.prepare_process(&config)?;
        let setup = self.setup(config, &self.respawn.mount_point);
        let signals = StopSignals::listen()?;
        Ok(StartedMount { mount: Mount::recover(dead, setup)?, signals })
    }

    fn setup(&self, config: Config, mount_point: &Path) -> VolumeSetup {
        VolumeSetup::new(config, mount_point, &self.overrides)
    }

    /// Must be called before there is a second thread: privileges are per thread.
    fn prepare_process(&self, config: &Config) -> Result<(), ProcessError> {
        drop_privileges(config, &self.overrides).map_err(ProcessError::Privileges)?;
        launcher::fork_launcher().map_err(ProcessError::Launcher)
    }

    /// Opens the log of a process that another process of the mount started. If the
    /// configuration cannot be read, the log has default settings and the error is reported as
    /// usual.
    fn init_child_log(&self, config: &Result<Config, ConfigError>) -> Result<(), ProcessError> {
        let file = match self.is_foreground {
            true => self.open_requested_log()?,
            false => self.open_daemon_log(),
        };
        match config {
            Ok(config) => init_log(file, &config.log),
            Err(_) => init_log(file, &LogConfig::default()),
        }
        Ok(())
    }

    /// The path of a daemon's log.
    fn log_path(&self) -> Result<PathBuf, ProcessError> {
        if let Some(path) = &self.log {
            return Ok(path.clone());
        }
        control::make_runtime_dir().map_err(|error| ProcessError::RuntimeDir { error })?;
        Ok(control::log_path(&self.respawn.mount_point))
    }

    /// The log of a process that stays in the foreground, if one is asked for.
    fn open_requested_log(&self) -> Result<Option<LogFile>, ProcessError> {
        let Some(path) = &self.log else { return Ok(None) };
        let error = |error| ProcessError::LogFile { path: path.clone(), error };
        LogFile::open(path, false).map(Some).map_err(error)
    }

    /// The log of a daemon, opened by its path: the standard error that the daemon inherited
    /// may be a file that was rotated away. The daemon keeps using that one if the log cannot
    /// be opened.
    fn open_daemon_log(&self) -> Option<LogFile> {
        LogFile::open(&self.log_path().ok()?, true).ok()
    }

    /// The log, for use as the standard error of a launched daemon.
    fn open_standard_error(&self) -> Result<File, ProcessError> {
        let path = self.log_path()?;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        file.map_err(|error| ProcessError::LogFile { path, error })
    }
}

fn init_log(file: Option<LogFile>, config: &LogConfig) {
    log::init(file, config, |work| with_daemon_credentials(|_| work()).is_ok());
}
