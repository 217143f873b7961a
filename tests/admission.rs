//! Replicas come into service in one way, in every kind of start and handover.
//!
//! A table combines each way in which a daemon begins to serve a mount with each state of
//! a replica. Program and mounts are real; each test has its own mount namespace.

#[path = "cli/room.rs"]
mod room;

#[path = "admission/bare.rs"]
mod bare;
#[path = "admission/change.rs"]
mod change;
#[path = "admission/gone.rs"]
mod gone;
#[path = "admission/hung.rs"]
mod hung;
#[path = "admission/late.rs"]
mod late;
#[path = "admission/start.rs"]
mod start;
#[path = "admission/table.rs"]
mod table;
#[path = "admission/world.rs"]
mod world;

use std::process::Command;

/// Runs `body` in a process and a mount namespace of its own. Where that is not permitted,
/// the test prints so and passes.
fn with_mounts(test: &str, body: impl FnOnce()) {
    let starts = |program| {
        let may_mount = Command::new("unshare").args(["-m", "true"]).status();
        let has_bindfs = Command::new("bindfs").arg("--version").output().is_ok();
        if !has_bindfs || !may_mount.is_ok_and(|status| status.success()) {
            assert!(std::env::var_os("CI").is_none() || has_bindfs, "bindfs is missing");
            eprintln!("skipped {test}: it needs bindfs and `unshare -m`");
            return None;
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "--propagation", "private"]).arg(program);
        Some(unshare)
    };
    room::in_a_process(test, starts, body);
}
