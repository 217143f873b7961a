//! Prints which tests of a `cargo test` were skipped or tried again, and why. Cargo runs test
//! binaries in the order of their names, so this one is the last.

#[allow(dead_code, reason = "the tests of other binaries are skipped by the rest")]
mod needs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

fn main() {
    let is_list = std::env::args().any(|argument| argument == "--list");
    if !is_list {
        let record = fs::read_to_string(needs::record()).unwrap_or_default();
        let notes = Notes::of(&record, started());
        print!("{}{}", shown_skipped(&notes.skipped), shown_repeated(&notes.repeated));
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

/// What `cargo test` noted: the tests by reason.
type Reasons<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// The notes of the run that began at `since`.
struct Notes<'a> {
    skipped: Reasons<'a>,
    repeated: Reasons<'a>,
}

impl<'a> Notes<'a> {
    fn of(record: &'a str, since: u64) -> Self {
        let boot = needs::boot();
        let boot = boot.split('\t').next().unwrap_or_default();
        let mut notes = Self { skipped: Reasons::new(), repeated: Reasons::new() };
        for line in record.lines() {
            let parts: Vec<&str> = line.split('\t').collect();
            let [id, time, kind, reason, test] = parts[..] else { continue };
            if id == boot && time.parse::<u64>().is_ok_and(|time| time >= since) {
                let reasons = match kind {
                    needs::REPEATED => &mut notes.repeated,
                    _ => &mut notes.skipped,
                };
                reasons.entry(reason).or_default().push(test);
            }
        }
        notes
    }
}

fn shown_skipped(reasons: &Reasons) -> String {
    let tests: BTreeSet<&str> = reasons.values().flatten().copied().collect();
    let mut text = match tests.len() {
        0 => "\nno test was skipped\n".to_owned(),
        1 => "\n1 test was skipped:\n".to_owned(),
        many => format!("\n{many} tests were skipped:\n"),
    };
    for (lack, tests) in reasons {
        let names: BTreeSet<&str> = tests.iter().copied().collect();
        let names: Vec<&str> = names.into_iter().collect();
        text.push_str(&format!("- {lack}: {}\n", names.join(", ")));
    }
    text
}

/// Each failed attempt has its own line: the test, and how late the machine was.
fn shown_repeated(reasons: &Reasons) -> String {
    let mut text = match reasons.values().map(Vec::len).sum::<usize>() {
        0 => "no test was tried again\n".to_owned(),
        1 => "1 attempt failed, and its test was tried again:\n".to_owned(),
        many => format!("{many} attempts failed, and their tests were tried again:\n"),
    };
    for (reason, tests) in reasons {
        for test in tests {
            text.push_str(&format!("- {test}: {reason}\n"));
        }
    }
    text
}
