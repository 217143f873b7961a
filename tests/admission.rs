//! Replicas enter service in one way, in every kind of start and handover.
//!
//! A table combines each way in which a daemon begins to serve a mount with each state of
//! a replica. Program and mounts are real; each test has its own mount namespace.

mod bare;
mod change;
mod gone;
mod hung;
mod late;
mod start;
mod table;
mod world;

use std::process::Command;

use crate::needs;
use crate::room::in_a_process;

/// Runs `body` in a process and a mount namespace of its own. Where that is not permitted,
/// the test prints so and passes.
fn with_mounts(test: &str, body: impl FnOnce()) {
    let starts = |program| {
        let may_mount = Command::new("unshare").args(["-m", "true"]).status();
        let may_mount = may_mount.is_ok_and(|status| status.success());
        if !needs::program("bindfs") || !needs::machine(may_mount, "the right to `unshare -m`") {
            return None;
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "private"]).arg(program);
        Some(unshare)
    };
    in_a_process(&format!("admission::{test}"), starts, body);
}
