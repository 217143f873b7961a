//! The POSIX test suite pjdfstest, case by case.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::tool::{bounded, ended};

/// The result of one case, with the suite's reason if it gives one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Each case by its name.
pub(crate) type Outcomes = BTreeMap<String, Outcome>;

/// Cases that the suite skips on every FUSE mount, with the reason.
pub(crate) const SKIPPED_ON_FUSE: &[(&str, &str)] =
    &[("link::link_count_max", "glibc has no LINK_MAX for FUSE")];

/// All features of Linux. The nap is five ticks of a 250 Hz kernel and two of a 100 Hz one: no two
/// times on either side of it are equal.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Runs all cases in their own directory in `dir`. It takes a few seconds and needs root; without
/// root most cases that need other users are skipped.
pub(crate) fn run(dir: &Path) -> Outcomes {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("pjdfstest.toml");
    fs::write(&config, CONFIG).unwrap();
    let room = tempfile::Builder::new().prefix("p").tempdir_in(dir).unwrap();
    fs::set_permissions(room.path(), Permissions::from_mode(0o755)).unwrap();
    // A socket's path has at most 107 bytes. No symlink makes a long path short enough: the cases
    // with the longest path would then mean a longer one.
    let longest = room.path().as_os_str().len() + 55;
    assert!(longest <= 107, "{} is too long a path for sockets in it", dir.display());
    open_for_others(dir);

    let mut command = bounded(180, "pjdfstest", scratch.path());
    command.arg("-c").arg(&config).arg("-p").arg(room.path());
    if let Some(other) = elsewhere(dir) {
        command.arg("-s").arg(other);
    }
    let output = command.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut outcomes, total) = parsed(&text);
    // The suite's own status only says whether all cases passed.
    assert_eq!(Some(outcomes.len()), total, "pjdfstest did not end: {}", ended(&output));

    // Not a case of the suite: it must be able to remove its files.
    let left: Vec<_> = fs::read_dir(room.path()).unwrap().map(|e| e.unwrap().path()).collect();
    let cleared = match left.first() {
        None => Outcome::Passed,
        Some(path) => Outcome::Failed(format!("{} was left", path.display())),
    };
    outcomes.insert("(everything removed)".to_owned(), cleared);
    if let Err(error) = room.close() {
        println!("what pjdfstest left in {} cannot be removed: {error}", dir.display());
    }
    outcomes
}

/// The cases that pass in `first` and not in `second`.
pub(crate) fn lost(first: &Outcomes, second: &Outcomes) -> Vec<String> {
    let passes = |outcomes: &Outcomes, name: &str| outcomes.get(name) == Some(&Outcome::Passed);
    let lost = first.keys().filter(|name| passes(first, name) && !passes(second, name));
    lost.cloned().collect()
}

/// Prints how many cases of each column passed, failed and were skipped, and the names of cases
/// that failed or whose results differ.
pub(crate) fn print_table(columns: &[(&str, &Outcomes)]) {
    println!("{:60} {}", "", row(columns.iter().map(|(title, _)| (*title).to_owned())));
    for word in ["passed", "failed", "skipped"] {
        let count = |outcomes: &Outcomes| outcomes.values().filter(|o| o.word() == word).count();
        let counts = columns.iter().map(|(_, outcomes)| count(outcomes).to_string());
        println!("{word:60} {}", row(counts));
    }
    let names: BTreeSet<_> = columns.iter().flat_map(|(_, outcomes)| outcomes.keys()).collect();
    for name in names {
        let found: Vec<_> = columns.iter().map(|(_, outcomes)| outcomes.get(name)).collect();
        let word = |outcome: &Option<&Outcome>| outcome.map_or("absent", |o| o.word());
        let alike = found.iter().all(|outcome| word(outcome) == word(&found[0]));
        if !alike || word(&found[0]) == "failed" {
            println!("{name:60} {}", row(found.iter().map(|o| word(o).to_owned())));
            for reason in found.iter().flatten().filter_map(|outcome| outcome.reason()) {
                println!("    {reason}");
            }
        }
    }
}

impl Outcome {
    fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Skipped(_) => "skipped",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Failed(reason) | Self::Skipped(reason) => Some(reason),
        }
    }
}

fn row(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| format!("{cell:>12}")).collect()
}

/// The cases in the suite's output, and the number that it reports.
///
/// A line with a case's name ends in its result; indented lines below give the reason.
fn parsed(text: &str) -> (Outcomes, Option<usize>) {
    let (mut outcomes, mut total) = (Outcomes::new(), None);
    let mut last = String::new();
    for line in text.lines() {
        if let Some(summary) = line.strip_prefix("Summary: ") {
            total = summary.rsplit(' ').nth(1).and_then(|number| number.parse().ok());
        } else if line.starts_with(char::is_whitespace) {
            let before = outcomes.get_mut(&last);
            if let Some(Outcome::Failed(reason) | Outcome::Skipped(reason)) = before {
                let gap = if reason.is_empty() { "" } else { "; " };
                reason.push_str(&format!("{gap}{}", line.trim()));
            }
        } else if let Some((name, came_out)) = line.split_once(' ') {
            let outcome = match came_out.trim() {
                "ok" => Outcome::Passed,
                "FAILED" => Outcome::Failed(String::new()),
                "skipped" => Outcome::Skipped(String::new()),
                // A failure's reason may have several lines.
                _ => continue,
            };
            last = name.to_owned();
            let twice = outcomes.insert(last.clone(), outcome);
            assert_eq!(twice, None, "two cases are called {last}");
        }
    }
    (outcomes, total)
}

/// Lets other users into `dir`, by opening those of its parents that are temporary directories.
fn open_for_others(dir: &Path) {
    let dir = dir.canonicalize().unwrap();
    let temporary = std::env::temp_dir().canonicalize().unwrap();
    for part in dir.ancestors() {
        let mode = part.metadata().unwrap().mode() & 0o7777;
        if mode & 0o055 == 0o055 {
            continue;
        }
        let ours = part.starts_with(&temporary) && part != temporary;
        assert!(ours, "{} has mode {mode:o}: others have to get in", part.display());
        fs::set_permissions(part, Permissions::from_mode(mode | 0o755)).unwrap();
    }
}

/// A directory on another file system than `dir`'s.
fn elsewhere(dir: &Path) -> Option<PathBuf> {
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
    let others = ["/dev/shm", "/tmp", "/var/tmp"].map(PathBuf::from);
    others.into_iter().find(|path| device(path).is_some() && device(path) != device(dir))
}
