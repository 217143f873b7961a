//! The errors of a mount's processes.

use std::io;
use std::path::PathBuf;

use super::launch::LaunchError;
use crate::config::{ConfigError, Escaped};
use crate::control;
use crate::daemon::error::{AdmissionError, StartError};
use crate::daemon::serve::ServeError;
use crate::daemon::supervisor::SupervisorError;

/// Why a process of a mount has failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The volume's configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The volume cannot be mounted, or its mount cannot be continued.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The process needs another one's orders on standard input, and there is none.
    #[error(transparent)]
    NoParent(io::Error),
    /// The kernel does not let the process give up privileges.
    #[error("the daemon cannot give up privileges: {0}")]
    Privileges(io::Error),
    /// The process that starts programs cannot be forked.
    #[error("cannot fork the process that starts programs: {0}")]
    Launcher(io::Error),
    /// The log cannot be opened.
    #[error("cannot open log file {}: {error}", .path.display())]
    LogFile {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The run-time directory cannot be made.
    #[error("run-time directory {}: {error}", control::runtime_dir().display())]
    RuntimeDir {
        /// The cause.
        error: io::Error,
    },
    /// The daemon could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The mount cannot be kept.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The mount cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl From<AdmissionError> for ProcessError {
    fn from(error: AdmissionError) -> Self {
        Self::Start(error.into())
    }
}

impl ProcessError {
    /// Whether usage or configuration is wrong.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) | Self::Start(StartError::Placement { .. }) => true,
            Self::Launch(LaunchError::Failed { usage, .. })
            | Self::Supervisor(SupervisorError::Failed { usage, .. }) => *usage,
            _ => false,
        }
    }

    /// The exit status of the process.
    pub(super) fn exit_status(&self) -> u8 {
        if self.is_usage() { 2 } else { 1 }
    }

    /// Its text on one line, for another process.
    pub(super) fn line(&self) -> String {
        let text = self.to_string();
        let text = text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        Escaped(&text).to_string()
    }
}
