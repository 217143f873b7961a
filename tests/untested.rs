//! Prints which tests of a `cargo test` were skipped, and why. Cargo runs test binaries in the
//! order of their names, so this one is the last.

#[allow(dead_code, reason = "the tests of other binaries are skipped by the rest")]
mod needs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn main() {
    let is_list = std::env::args().any(|argument| argument == "--list");
    if !is_list {
        print!("{}", shown(&fs::read_to_string(needs::record()).unwrap_or_default(), started()));
        // The next run starts with an empty list.
        let _ = fs::remove_file(needs::record());
    }
}

/// When cargo, this process's parent, was started, in the terms of [`needs::boot`]. Older
/// notes are of another run.
fn started() -> u64 {
    let parent = rustix::process::getppid().map_or(1, |pid| pid.as_raw_nonzero().get());
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    // The name, in parentheses, may have blanks; the 22nd field of all is the 20th after it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

fn shown(record: &str, since: u64) -> String {
    let boot = needs::boot();
    let boot = boot.split('\t').next().unwrap_or_default();
    let mut reasons: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in record.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let [id, time, lack, test] = parts[..] else { continue };
        if id == boot && time.parse::<u64>().is_ok_and(|time| time >= since) {
            reasons.entry(lack).or_default().insert(test);
        }
    }
    let tests: BTreeSet<&str> = reasons.values().flatten().copied().collect();
    let mut text = match tests.len() {
        0 => "\nno test was skipped\n".to_owned(),
        1 => "\n1 test was skipped:\n".to_owned(),
        many => format!("\n{many} tests were skipped:\n"),
    };
    for (lack, tests) in &reasons {
        let names: Vec<&str> = tests.iter().copied().collect();
        text.push_str(&format!("- {lack}: {}\n", names.join(", ")));
    }
    text
}
