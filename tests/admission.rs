//! Replicas come into service in one way, in every kind of start and handover.
//!
//! A table combines each way in which a daemon begins to serve a mount with each state of
//! a replica. Program and mounts are real; each test has its own mount namespace.

#[path = "cli/room.rs"]
mod room;

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

const INSIDE: &str = "FANFS_TEST_ADMISSION_INSIDE";
const RAN: &str = "the test ran";

/// Runs `body` in a process and a mount namespace of its own. Where that is not permitted,
/// the test prints so and passes.
fn with_mounts(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        body();
        // A child without a test of that name succeeds as well; this line shows that it ran.
        println!("{RAN}");
        return;
    }
    let may_mount = Command::new("unshare").args(["-m", "true"]).status();
    let has_bindfs = Command::new("bindfs").arg("--version").output().is_ok();
    if !has_bindfs || !may_mount.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none() || has_bindfs, "bindfs is missing");
        eprintln!("skipped {test}: it needs bindfs and `unshare -m`");
        return;
    }
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} failed:\n{said}\n{errors}");
    assert!(said.contains(RAN), "{test} is not the test's name");
}
