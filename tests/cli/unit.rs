//! Checks of the systemd unit that need no running systemd.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::needs;

/// Exposure by `systemd-analyze security`, tenths, that the unit may have; without its
/// sandbox it is 96.
const MOST_EXPOSED: &str = "55";

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/fanfs@.service")
}

fn settings() -> Vec<(String, String)> {
    let text = fs::read_to_string(unit()).unwrap();
    let pairs = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

fn analyze(args: &[&str]) -> Option<Output> {
    let is_there = needs::program("systemd-analyze");
    is_there.then(|| Command::new("systemd-analyze").args(args).arg(unit()).output().unwrap())
}

#[test]
fn systemd_understands_the_unit() {
    let Some(output) = analyze(&["verify", "--man=no"]) else { return };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // The unit is not at fault if fanfs is not installed here.
    let faults = said.lines().filter(|line| !line.contains("/usr/bin/fanfs is not executable"));
    let faults: Vec<_> = faults.filter(|line| line.contains("fanfs")).collect();
    assert!(faults.is_empty(), "{said}");
}

#[test]
fn the_unit_is_sandboxed() {
    let threshold = format!("--threshold={MOST_EXPOSED}");
    let Some(output) = analyze(&["security", "--offline=true", "--no-pager", &threshold]) else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", text.lines().last().unwrap_or_default());
}

#[test]
fn the_mount_of_the_unit_is_visible_to_all() {
    // Settings that give a service its own mount table, and so hide its mounts.
    let hiding = [
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "PrivateUsers",
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "ProtectProc",
        "ProcSubset",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "ExecPaths",
        "NoExecPaths",
        "BindPaths",
        "BindReadOnlyPaths",
        "TemporaryFileSystem",
        "RootDirectory",
        "RootImage",
        "MountFlags",
        "DynamicUser",
        "PrivateIPC",
    ];
    for (key, _) in settings() {
        assert!(!hiding.contains(&&*key), "{key}= hides the mount");
    }
}

#[test]
fn the_unit_allows_what_daemons_need() {
    let settings = settings();
    let of = |key: &str| -> BTreeSet<String> {
        let values = settings.iter().filter(|(name, _)| name == key);
        values.flat_map(|(_, value)| value.split_whitespace().map(str::to_owned)).collect()
    };
    // `daemon::required_capabilities`; tests/cli/privileges.rs shows that each is needed.
    let needed = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID \
                  SETPCAP SETUID SYS_ADMIN SYS_PTRACE SYS_RESOURCE";
    let needed = needed.split_whitespace().map(|name| format!("CAP_{name}")).collect();
    assert_eq!(of("CapabilityBoundingSet"), needed);
    assert!(of("DeviceAllow").contains("/dev/fuse"));
    assert!(of("RestrictAddressFamilies").contains("AF_UNIX"));
    assert!(of("SystemCallFilter").contains("@mount"));
}
