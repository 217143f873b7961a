//! The house rules that a compiler does not check: who imports whom, which
//! modules are pure, how large a file may be.

use std::fs;
use std::path::{Path, PathBuf};

/// Every source file with its path below `src/`.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    assert!(paths.len() > 30, "the sources have moved");
    paths.sort();
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The code without comments and without the tests at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let line = |line: &str| line.split("//").next().unwrap().to_owned();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn room(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap()
}

/// What each room may import, besides itself.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("main", &["cli"]),
    ("lib", &[]),
    (
        "cli",
        &[
            "bench",
            "daemon",
            "launcher",
            "fuse",
            "control",
            "explain",
            "simulate",
            "verify",
            "doctor",
            "format",
            "placement",
            "scheduler",
            "backend",
            "config",
            "volume",
            "telemetry",
        ],
    ),
    (
        "daemon",
        &[
            "launcher",
            "fuse",
            "control",
            "metrics",
            "explain",
            "fs",
            "read",
            "buffer",
            "placement",
            "scheduler",
            "backend",
            "config",
            "volume",
            "telemetry",
            "capabilities",
        ],
    ),
    (
        "control",
        &["explain", "fs", "read", "placement", "scheduler", "config", "volume", "telemetry"],
    ),
    ("fuse", &["fs", "buffer", "backend", "config", "volume", "telemetry", "capabilities"]),
    (
        "fs",
        &[
            "read",
            "buffer",
            "placement",
            "scheduler",
            "backend",
            "config",
            "volume",
            "telemetry",
            "capabilities",
        ],
    ),
    (
        "read",
        &["sync", "placement", "scheduler", "buffer", "backend", "config", "volume", "telemetry"],
    ),
    ("placement", &["config", "volume", "telemetry"]),
    ("bench", &["daemon", "config", "volume", "format"]),
    ("explain", &["simulate", "placement", "scheduler", "volume", "format"]),
    ("simulate", &["read", "placement", "scheduler", "config", "volume", "telemetry"]),
    ("doctor", &["config", "volume", "format"]),
    ("verify", &["backend", "config", "volume", "telemetry"]),
    ("scheduler", &["config", "volume", "telemetry"]),
    ("buffer", &["sync", "telemetry", "capabilities", "memory_headroom"]),
    ("backend", &["volume", "telemetry", "capabilities", "memory_headroom"]),
    ("config", &["volume"]),
    ("volume", &[]),
    ("format", &[]),
    ("sync", &[]),
    ("telemetry", &["config", "volume"]),
    ("metrics", &["control", "scheduler", "config", "telemetry"]),
    ("capabilities", &[]),
    ("memory_headroom", &[]),
    ("launcher", &[]),
];

#[test]
fn imports_run_one_way() {
    for (path, text) in sources() {
        let own = room(&path);
        let (_, allowed) = MAY_IMPORT
            .iter()
            .find(|(name, _)| *name == own)
            .unwrap_or_else(|| panic!("src/{path}: a room that tests/tidy.rs does not know"));
        for part in code(&text).split("crate::").skip(1) {
            let other: String =
                part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // A braced list of rooms could hide one: name them one by one.
            let fine = other == own || allowed.contains(&&*other);
            assert!(fine, "src/{path} imports crate::{other}");
        }
    }
}

#[test]
fn only_fuse_knows_fuser() {
    for (path, text) in sources() {
        let knows = code(&text).contains("fuser::");
        assert!(!knows || room(&path) == "fuse", "src/{path} uses fuser");
    }
}

#[test]
fn what_decides_does_no_io_and_reads_no_clock() {
    let forbidden = [
        "std::fs",
        "std::net",
        "std::thread",
        "std::process",
        "std::io",
        "tokio",
        "rustix",
        "parking_lot",
        "Instant::now",
        "SystemTime",
        ".elapsed()",
        "rand::",
        "async ",
        ".await",
        "std::env",
    ];
    let pure = |path: &str| {
        matches!(room(path), "scheduler" | "simulate" | "explain" | "format")
            || path.starts_with("doctor/checks")
            || path == "read/split.rs"
            || path == "read/readahead.rs"
            || matches!(path, "verify/diff_ranges.rs" | "verify/sample.rs" | "verify/throttle.rs")
    };
    let mut seen = 0;
    for (path, text) in sources().into_iter().filter(|(path, _)| pure(path)) {
        seen += 1;
        for word in forbidden {
            assert!(!code(&text).contains(word), "src/{path} uses {word}");
        }
    }
    assert!(seen >= 7, "the pure modules have moved");
}

/// The clock of the day jumps. It is shown, and compared with itself: a table's time of
/// modification. How long something took or may take is measured by `Instant`.
#[test]
fn nothing_waits_by_the_clock_of_the_day() {
    let may = ["fuse/convert.rs", "fuse/adapter.rs", "placement/table.rs", "verify/attributes.rs"];
    // It compares this machine's clock with servers'.
    let compares = "doctor/clock.rs";
    let mut seen = 0;
    for (path, text) in sources() {
        if path.ends_with("/tests.rs") || path == compares {
            continue;
        }
        let code = code(&text);
        if code.contains("SystemTime") || code.contains("UNIX_EPOCH") {
            seen += 1;
            assert!(may.contains(&&*path), "src/{path} uses the clock of the day");
        }
        assert!(!code.contains("SystemTime::now"), "src/{path} asks for the time of the day");
        assert!(!code.contains("ClockId::Realtime"), "src/{path} asks for the time of the day");
    }
    assert_eq!(seen, may.len(), "those that may have moved");
}

#[test]
fn rooms_are_named_after_nouns_and_files_stay_small() {
    for (path, text) in sources() {
        for name in ["mod.rs", "utils", "util.rs", "common", "helpers", "misc"] {
            assert!(!path.contains(name), "src/{path}");
        }
        // Near 400 lines a file is asked whether there is a second noun in it;
        // tests and documentation count half.
        let lines = code(&text).lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines <= 450, "src/{path} has {lines} lines of code");
    }
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    for (path, text) in sources() {
        let lines: Vec<_> = text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap();
            if code.contains("unsafe {") || code.contains("unsafe impl") {
                let before = &lines[i.saturating_sub(3)..i];
                assert!(before.iter().any(|l| l.contains("SAFETY:")), "src/{path}:{}", i + 1);
            }
        }
    }
}

/// `println!` and `eprintln!` panic where the terminal has gone: `cli::cancellation` writes.
#[test]
fn commands_do_not_panic_when_their_terminal_has_gone() {
    for (path, text) in sources() {
        let is_command = matches!(room(&path), "cli" | "bench" | "doctor" | "verify");
        if is_command && !path.ends_with("/tests.rs") {
            let prints = code(&text).contains("print!(") || code(&text).contains("println!(");
            assert!(!prints, "src/{path} prints; use say() or audience::tell()");
        }
    }
}
