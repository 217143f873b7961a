//! Requirements of tests. A test that lacks one is skipped, and its name goes to [`record`], which
//! `tests/untested.rs` shows at the end of `cargo test`. So do tests that passed only when they were
//! tried again.
//!
//! CI has root's rights and every program, so a missing one fails the test there. Kernels and file
//! systems differ in CI as well.

use std::io::Write as _;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// How to install each program on a Debian machine.
const INSTALL: &[(&str, &str)] = &[
    ("bindfs", "apt-get install bindfs"),
    ("cargo", "see https://rustup.rs"),
    ("cp", "apt-get install coreutils"),
    ("faketime", "apt-get install faketime"),
    ("fio", "apt-get install fio"),
    ("fsx", "cargo install --locked fsx@0.3.2"),
    ("fusermount3", "apt-get install fuse3"),
    ("git", "apt-get install git"),
    ("groff", "apt-get install groff"),
    ("mkfs.ext4", "apt-get install e2fsprogs"),
    ("mount.fuse3", "apt-get install fuse3"),
    ("pjdfstest", "cargo install --locked pjdfstest@0.2.2"),
    ("promtool", "apt-get install prometheus"),
    ("python3", "apt-get install python3"),
    ("setfacl", "apt-get install acl"),
    ("sqlite3", "apt-get install sqlite3"),
    ("stress-ng", "apt-get install stress-ng"),
    ("systemd-analyze", "apt-get install systemd"),
    ("tar", "apt-get install tar"),
    ("timeout", "apt-get install coreutils"),
];

/// Whether this process has root's rights.
#[track_caller]
pub(crate) fn root() -> bool {
    has(rustix::process::geteuid().is_root(), true, "root's rights are needed")
}

/// Whether `name` is installed.
#[track_caller]
pub(crate) fn program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    // Users other than root do not have these in their PATH.
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let is_there = env::split_paths(&path).chain(more).any(|dir| dir.join(name).is_file());
    let (_, how) = INSTALL.iter().find(|(known, _)| *known == name).expect("a known program");
    has(is_there, true, &format!("{name} is not installed: {how}"))
}

/// Whether the kernel or the file system has `what`, as the caller `found`.
#[track_caller]
pub(crate) fn machine(found: bool, what: &str) -> bool {
    has(found, false, &format!("this machine lacks {what}"))
}

#[track_caller]
fn has(found: bool, is_in_ci: bool, lack: &str) -> bool {
    if !found {
        assert!(!is_in_ci || env::var_os("CI").is_none(), "{lack}");
        // Not captured: the captured output of passing tests is not shown.
        let _ = writeln!(std::io::stderr(), "skipped {}: {lack}", test());
        note(SKIPPED, lack);
    }
    found
}

/// Notes that an attempt of a test failed with `message`, and that the test is tried again.
#[track_caller]
pub(crate) fn repeated(message: &str, why: &str) {
    let first = message.lines().next().unwrap_or_default().replace('\t', " ");
    note(REPEATED, &format!("{first}; {why}"));
}

/// The name of the test that runs.
#[track_caller]
fn test() -> String {
    let thread = std::thread::current();
    // Without threads of their own (`--test-threads=1`) tests run in the main one.
    let place = Location::caller().to_string();
    thread.name().filter(|name| *name != "main").map_or(place, str::to_owned)
}

#[track_caller]
fn note(kind: &str, reason: &str) {
    let line = format!("{}\t{kind}\t{reason}\t{}\n", boot(), test());
    let file = fs::File::options().create(true).append(true).open(record());
    // A guest has no such directory.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The kinds of notes in [`record`].
pub(crate) const SKIPPED: &str = "skipped";
pub(crate) const REPEATED: &str = "repeated";

/// The file that lists the skipped tests and the failed attempts.
pub(crate) fn record() -> &'static Path {
    Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/notes"))
}

/// The current boot of the machine, and the time since it in clock ticks, the kernel's unit for a
/// process's start.
pub(crate) fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    let nanoseconds = time.tv_nsec as u64;
    let now = time.tv_sec as u64 * ticks + nanoseconds * ticks / 1_000_000_000;
    format!("{}\t{now}", id.trim())
}
