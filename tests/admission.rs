//! Replicas come into service in one way, whoever asks for it.
//!
//! A table: each way in which a daemon begins to serve a mount, times each state that a
//! replica may be in then. The mounts are real, in a mount namespace of each test's own,
//! and so is the program.

#[path = "cli/room.rs"]
mod room;

#[path = "admission/gone.rs"]
mod gone;
#[path = "admission/hung.rs"]
mod hung;
#[path = "admission/start.rs"]
mod start;
#[path = "admission/table.rs"]
mod table;
#[path = "admission/world.rs"]
mod world;

use std::process::Command;

const INSIDE: &str = "FANFS_TEST_ADMISSION_INSIDE";
const RAN: &str = "the test ran";

/// Runs `body` where it may mount, in a process and a mount namespace of its own. Where
/// that is not permitted the test says so and passes.
fn with_mounts(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        body();
        // A child that finds no test of that name succeeds as well.
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
