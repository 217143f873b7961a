//! A foreign program that a test runs: found through PATH, bounded in time.

use std::path::Path;
use std::process::Output;

use crate::needs;
use crate::processes::Command;

/// Whether `program` and what bounds it are there.
#[track_caller]
pub(crate) fn installed(program: &str) -> bool {
    needs::program(program) && needs::program("timeout")
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
