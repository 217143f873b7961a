//! A foreign program that a test runs: found through PATH, with a time limit.

use std::path::Path;
use std::process::Output;

use crate::needs;
use crate::processes::Command;

/// Whether `program` and the tool that limits it are installed.
#[track_caller]
pub(crate) fn installed(program: &str) -> bool {
    needs::program(program) && needs::program("timeout")
}

/// `program`, in `dir`, killed with its children after this many seconds.
pub(crate) fn bounded(seconds: u32, program: &str, dir: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg("--kill-after=5").arg(seconds.to_string()).arg(program);
    command.current_dir(dir).env("LC_ALL", "C").env("TZ", "UTC");
    command
}

/// The output of `command`. Its failure fails the test.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", ended(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// How a program ended, and its last output.
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
