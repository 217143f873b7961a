//! Starting a daemon and waiting until its mount answers: both sides.
//!
//! The daemon is this program started once more, in a session of its own: it says on its
//! standard output how starting went, and the command passes that on as message and exit
//! status. Starting a fresh process instead of forking keeps threads and locks out of it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::process::Stdio;

use crate::daemon::respawn::{ChildRole, RespawnCommand, current_program};

/// What the daemon says when its mount answers.
const READY_MESSAGE: &str = "ready";

/// The exit status of a daemon whose usage or configuration is wrong.
const USAGE_STATUS: i32 = 2;

/// Why there is no daemon.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The program cannot be started.
    #[error("cannot start the daemon: {0}")]
    Spawn(io::Error),
    /// The daemon says why it has failed.
    #[error("{why}")]
    Failed {
        /// Its words.
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
        "" => "the daemon ended without a word; its log may say why".to_owned(),
        said => said.to_owned(),
    };
    let status = child.wait().ok().and_then(|status| status.code());
    Err(LaunchError::Failed { why, usage: status == Some(USAGE_STATUS) })
}

/// Says to the command that the mount answers.
pub(super) fn report_ready() {
    report_start(READY_MESSAGE);
}

/// Says how starting went to the command, if that still waits, and is on its own.
pub(super) fn report_start(said: &str) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{said}").and_then(|()| out.flush());
    // The command reads to the end of this: give it up, and the directory.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
    let _ = std::env::set_current_dir("/");
}

/// Is in a session and process group of its own: no terminal's, no shell's.
pub(super) fn start_new_session() {
    // A leader of its group, which this fails for, is on its own already.
    let _ = rustix::process::setsid();
}
