//! A request to hand a mount over.

use std::path::PathBuf;

use tokio::sync::oneshot;

use super::handover_error::HandoverError;
use crate::control::HandoverReport;
use crate::daemon::respawn::current_program;

/// How to hand a mount over.
pub(in crate::daemon) struct HandoverRequest {
    /// The successor's program.
    pub(in crate::daemon) program: PathBuf,
    /// The volume's configuration file, if the successor uses another one.
    pub(in crate::daemon) volume: Option<PathBuf>,
    /// Whether to refuse a configuration that `fanfs mount` would refuse. If not, the
    /// mount is continued with the replicas that are well.
    pub(in crate::daemon) is_strict: bool,
    /// The receiver of the result.
    pub(in crate::daemon) reply: Option<oneshot::Sender<Result<HandoverReport, HandoverError>>>,
}

impl HandoverRequest {
    /// To continue with the same program, and the volume's file as it is now.
    pub(in crate::daemon) fn reload() -> Self {
        Self { program: current_program(), volume: None, is_strict: true, reply: None }
    }

    /// To continue with `program`.
    pub(in crate::daemon) fn upgrade(program: PathBuf) -> Self {
        Self { program, is_strict: false, ..Self::reload() }
    }

    /// Sends the result to the process that asked for the handover.
    pub(in crate::daemon) fn respond(self, result: Result<HandoverReport, HandoverError>) {
        match (self.reply, result) {
            (Some(reply), result) => drop(reply.send(result)),
            (None, Err(why)) => {
                tracing::warn!(%why, "the mount is not handed over to a new daemon")
            }
            (None, Ok(_)) => {}
        }
    }
}
