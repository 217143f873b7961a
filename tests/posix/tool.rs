//! A foreign program that a test runs: found through PATH, bounded in time.

use std::env;
use std::path::Path;
use std::process::{Command, Output};

/// How each program gets onto a Debian machine.
const INSTALL: &[(&str, &str)] = &[
    ("cargo", "see https://rustup.rs"),
    ("cp", "apt-get install coreutils"),
    ("fio", "apt-get install fio"),
    ("fsx", "cargo install --locked fsx@0.3.2"),
    ("git", "apt-get install git"),
    ("pjdfstest", "cargo install --locked pjdfstest@0.2.2"),
    ("sqlite3", "apt-get install sqlite3"),
    ("stress-ng", "apt-get install stress-ng"),
    ("tar", "apt-get install tar"),
    ("timeout", "apt-get install coreutils"),
];

/// Whether `program` and what bounds it are there. Without them a test is
/// skipped, but not in CI, where everything has to be installed.
pub(crate) fn installed(program: &str) -> bool {
    for name in [program, "timeout"] {
        let path = env::var_os("PATH").unwrap_or_default();
        if env::split_paths(&path).any(|dir| dir.join(name).is_file()) {
            continue;
        }
        let (_, how) = INSTALL.iter().find(|(known, _)| *known == name).unwrap();
        assert!(env::var_os("CI").is_none(), "{name} is not installed: {how}");
        println!("skipped: {name} is not installed: {how}");
        return false;
    }
    true
}

/// `program`, in `dir`, and killed with its children after so many seconds.
pub(crate) fn bounded(seconds: u32, program: &str, dir: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg(seconds.to_string()).arg(program);
    command.current_dir(dir).env("LC_ALL", "C").env("TZ", "UTC");
    command
}

/// What `command` wrote to its output. That it fails is a failure of the test.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", ended(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How a program ended, and the last that it had to say.
pub(crate) fn ended(output: &Output) -> String {
    let how = match output.status.code() {
        Some(124 | 137) => "ran out of time".to_owned(),
        _ => output.status.to_string(),
    };
    format!("{how}\n{}\n{}", tail(&output.stdout), tail(&output.stderr))
}

fn tail(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
