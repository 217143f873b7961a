//! Starting a daemon and waiting until its mount answers: both sides.
//!
//! The daemon is this program, started again in a session of its own. It reports the result of
//! its start on standard output, and the command passes that on as message and exit status. A
//! fresh process, unlike a fork, inherits no threads or locks.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::process::Stdio;

use crate::daemon::respawn::{ChildRole, RespawnCommand, current_program};

/// The daemon's message when its mount answers.
const READY_MESSAGE: &str = "ready";

/// The exit status of a daemon whose usage or configuration is wrong.
const USAGE_STATUS: i32 = 2;

/// Why no daemon was launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The program cannot be started.
    #[error("cannot start the daemon: {0}")]
    Spawn(io::Error),
    /// The daemon has failed and reports the reason.
    #[error("{why}")]
    Failed {
        /// Its message.
        why: String,
        /// Whether usage or configuration is wrong.
        usage: bool,
    },
}

/// Starts the daemon and waits until its mount answers or it has failed. Its standard error
/// goes to `log`.
///
/// # Errors
/// [`LaunchError`].
pub(super) fn launch_daemon(respawn: &RespawnCommand, log: File) -> Result<(), LaunchError> {
    let mut command = respawn.command(&current_program(), ChildRole::Launched);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(LaunchError::Spawn)?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut said);
    }
    let why = match said.trim() {
        READY_MESSAGE => return Ok(()),
        "" => "the daemon ended without an error message; its log may say why".to_owned(),
        said => said.to_owned(),
    };
    let status = child.wait().ok().and_then(|status| status.code());
    Err(LaunchError::Failed { why, usage: status == Some(USAGE_STATUS) })
}

/// Reports to the command that the mount answers.
pub(super) fn report_ready() {
    report_start(READY_MESSAGE);
}

/// Reports the result of the start to the command, if that still waits, and detaches from it.
pub(super) fn report_start(said: &str) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{said}").and_then(|()| out.flush());
    // The daemon keeps neither the pipe to the command nor the command's directory.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    let _ = std::env::set_current_dir("/");
}

/// Moves the process to a session and process group of its own, away from terminal and shell.
pub(super) fn start_new_session() {
    // This fails for the leader of a process group, which has its own group already.
    let _ = rustix::process::setsid();
}
