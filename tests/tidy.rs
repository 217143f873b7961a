//! The project's rules that a compiler does not check: which room imports which, which modules are
//! pure, the size of files and functions, and the types of errors.

#[path = "tidy/import_circles.rs"]
mod import_circles;
#[path = "tidy/limits.rs"]
mod limits;
#[allow(dead_code, reason = "tests here need less than others")]
mod needs;
#[path = "tidy/sources.rs"]
mod sources;
#[path = "tidy/words.rs"]
mod words;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use sources::texts as sources;

/// The code without comments and without the tests at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let line = |line: &str| line.split("//").next().unwrap().to_owned();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn room(path: &str) -> &str {
    path.split(['/', '.']).next().unwrap()
}

/// What each room may import, besides itself.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("main", &[]),
    ("lib", &[]),
    (
        "cli",
        &[
            "bench",
            "daemon",
            "fuse",
            "control",
            "explain",
            "simulate",
            "verify",
            "doctor",
            "format",
            "replicas",
            "backend",
            "config",
            "status",
            "survey",
            "mount_table",
            "nfs",
            "timeout",
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
            "replicas",
            "buffer",
            "placement",
            "scheduler",
            "backend",
            "config",
            "status",
            "survey",
            "mount_table",
            "volume",
            "telemetry",
            "capabilities",
        ],
    ),
    ("control", &["explain", "fs", "read", "status", "owned_path", "volume"]),
    ("status", &["fs", "read", "placement", "replicas", "volume", "telemetry"]),
    ("fuse", &["fs", "buffer", "backend", "volume", "capabilities"]),
    (
        "fs",
        &[
            "sync",
            "owned_path",
            "read",
            "replicas",
            "buffer",
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
        &[
            "sync",
            "replicas",
            "placement",
            "scheduler",
            "buffer",
            "backend",
            "config",
            "volume",
            "telemetry",
        ],
    ),
    ("replicas", &["sync", "placement", "backend", "volume", "telemetry"]),
    ("placement", &["config", "mount_table", "volume"]),
    ("bench", &["daemon", "raw_replica", "config", "survey", "timeout", "volume", "format"]),
    ("explain", &["simulate", "placement", "volume", "format"]),
    ("simulate", &["read", "replicas", "placement", "scheduler", "config", "volume", "telemetry"]),
    (
        "doctor",
        &["raw_replica", "config", "survey", "mount_table", "nfs", "timeout", "volume", "format"],
    ),
    ("verify", &["backend", "config", "volume"]),
    ("raw_replica", &["daemon", "backend", "config", "survey", "timeout"]),
    ("scheduler", &["replicas", "volume"]),
    ("buffer", &["sync", "capabilities", "memory_headroom"]),
    (
        "backend",
        &["survey", "mount_table", "nfs", "volume", "telemetry", "capabilities", "memory_headroom"],
    ),
    ("config", &["survey", "nfs", "volume"]),
    ("survey", &["mount_table", "nfs", "timeout", "volume"]),
    ("mount_table", &["timeout", "volume"]),
    ("timeout", &[]),
    ("volume", &[]),
    ("format", &[]),
    ("sync", &[]),
    ("telemetry", &["config", "volume"]),
    ("metrics", &["status", "replicas", "config", "owned_path", "telemetry"]),
    ("capabilities", &[]),
    ("memory_headroom", &[]),
    ("owned_path", &[]),
    ("launcher", &[]),
    ("nfs", &[]),
];

/// The rooms that each room imports, each with a file that does.
fn room_imports() -> BTreeMap<String, BTreeMap<String, String>> {
    let mut imports: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (path, text) in sources() {
        let own = room(&path).to_owned();
        for part in code(&text).split("crate::").skip(1) {
            // A braced list of rooms has an empty name, which no row allows.
            let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
            let other: String = part.chars().take_while(is_name).collect();
            if other != own {
                imports.entry(own.clone()).or_default().insert(other, path.clone());
            }
        }
        imports.entry(own).or_default();
    }
    imports
}

#[test]
fn imports_run_one_way() {
    for (own, others) in room_imports() {
        let (_, allowed) = MAY_IMPORT
            .iter()
            .find(|(name, _)| *name == own)
            .unwrap_or_else(|| panic!("src/{own}: a room that tests/tidy.rs does not know"));
        for (other, path) in others {
            assert!(allowed.contains(&&*other), "src/{path} imports crate::{other}");
        }
    }
}

#[test]
fn no_room_imports_more_than_allowed() {
    let imports = room_imports();
    for (own, allowed) in MAY_IMPORT {
        let unused: Vec<_> =
            allowed.iter().filter(|other| !imports[*own].contains_key(**other)).collect();
        assert!(unused.is_empty(), "src/{own} does not import {unused:?}");
    }
}

#[test]
fn only_fuse_imports_fuser() {
    for (path, text) in sources() {
        let knows = code(&text).contains("fuser::");
        assert!(!knows || room(&path) == "fuse", "src/{path} uses fuser");
    }
}

#[test]
fn pure_modules_do_no_io_and_read_no_clock() {
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
        matches!(room(path), "scheduler" | "simulate" | "explain" | "volume" | "format")
            || path.starts_with("doctor/checks")
            || matches!(
                path,
                "replicas/health.rs"
                    | "replicas/health_board.rs"
                    | "replicas/lateness.rs"
                    | "replicas/metadata_order.rs"
                    | "replicas/request_deadline.rs"
            )
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

/// The wall clock jumps. Its times are only shown, or compared with one another (a table's time of
/// modification). Durations and time limits use `Instant`.
#[test]
fn no_timeout_uses_the_wall_clock() {
    let may = [
        "fuse/convert.rs",
        "fuse/adapter/filesystem.rs",
        "placement/table.rs",
        "verify/attributes.rs",
    ];
    // The first compares this machine's clock with servers', the second dates a report, and the
    // third makes timestamps.
    let tells_the_time = ["doctor/clock.rs", "bench/host.rs", "telemetry/wall_clock.rs"];
    let mut seen = 0;
    for (path, text) in sources() {
        if path.ends_with("/tests.rs") || tells_the_time.contains(&&*path) {
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
        // A file near 400 lines may contain a second noun; tests and documentation count half.
        let lines = code(&text).lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines <= 450, "src/{path} has {lines} lines of code");
    }
}

#[test]
fn every_unsafe_block_has_a_safety_comment() {
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

/// `println!` and `eprintln!` panic if the terminal is gone: `cli::cancellation` writes.
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

/// The places, in a message of a test that fails.
fn report(places: impl Iterator<Item = String>) -> String {
    places.map(|place| format!("\n  src/{place}")).collect()
}

/// Functions are short and have few parameters, no tuple stands for several values, and an
/// error is a type.
#[test]
fn functions_and_errors_keep_to_the_limits() {
    let violations = limits::violations(&sources::parse(&sources()));
    let places = violations
        .iter()
        .map(|found| format!("{}:{}: {}: {}", found.file, found.line, found.limit, found.what));
    assert!(violations.is_empty(), "{}", report(places));
}

/// Modules of one parent do not import each other in circles.
#[test]
fn there_are_no_import_circles() {
    let imports = import_circles::circular_imports(&sources::parse(&sources()));
    let places = imports.iter().map(|(import, place)| format!("{place}: {import}"));
    assert!(imports.is_empty(), "{}", report(places));
}

/// A process is not stopped yet when the signal was sent.
#[test]
fn tests_stop_processes_in_one_way() {
    let tests = sources::texts_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    let mut stops = 0;
    for (path, text) in tests.into_iter().filter(|(path, _)| path != "tidy.rs") {
        let code = code(&text).replace(char::is_whitespace, "");
        stops += code.matches("Signal::STOP").count();
        let is_direct = |call: &str| call.split(';').next().unwrap().contains("Signal::STOP");
        let is_direct = code.split("kill_process(").skip(1).any(is_direct);
        assert!(!is_direct, "tests/{path} stops a process; use crate::signals");
    }
    assert!(stops > 10, "tests stop processes in another way");
}

/// In a process with mounts, tests start programs and end mounts only through
/// tests/processes.rs.
#[test]
fn mount_tests_start_programs_and_unmount_in_one_way() {
    let tests = sources::texts_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    let on_mounts = |path: &str| {
        matches!(path, "check.rs" | "model.rs" | "fuse.rs" | "posix.rs")
            || path.starts_with("fuse/")
            || path.starts_with("posix/")
    };
    let checked: Vec<_> = tests.into_iter().filter(|(path, _)| on_mounts(path)).collect();
    assert!(checked.len() > 30, "the tests have moved");
    for (path, text) in checked {
        let code = code(&text).replace(char::is_whitespace, "");
        // `process::Command`, `process::{Child, Command}`, `process::CommandExt`
        let starts = code.split("process::").skip(1).any(|used| match used.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap().contains("Command"),
            None => used.starts_with("Command"),
        });
        assert!(!starts, "tests/{path} starts a program; use crate::processes::Command");
        assert!(!code.contains(".stop()"), "tests/{path} ends a mount; use processes::stop");
    }
}

/// Tests map files only by tests/mapped.rs: a process that maps a file of its own mount may wait
/// for itself.
#[test]
fn tests_map_files_in_another_process() {
    let tests = sources::texts_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    assert!(tests.len() > 100, "the tests have moved");
    for (path, text) in tests {
        let is_exempt = matches!(path.as_str(), "mapped.rs" | "tidy.rs");
        let code = code(&text);
        let maps = ["rustix::mm", "libc::mmap"].iter().any(|call| code.contains(call));
        assert!(is_exempt || !maps, "tests/{path} maps a file; use crate::mapped::Mapper");
    }
}

#[test]
fn words_that_plain_english_avoids_do_not_occur() {
    let violations = words::violations(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// `.ci/english` lists them.
#[test]
fn constructions_that_plain_english_avoids_do_not_occur() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_checkout = root.join(".git").exists();
    if !needs::machine(is_checkout, "a git repository")
        || !needs::program("python3")
        || !needs::program("git")
    {
        return;
    }
    let output = Command::new("python3").arg(root.join(".ci/english")).arg("--check").output();
    let output = output.unwrap();
    let found = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{found}{error}");
}

/// A mount point may have any bytes, and any program may mount one: text that must be UTF-8 makes
/// the outcome of a test depend on it.
#[test]
fn mount_tables_are_read_as_bytes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dirs = ["src", "crates", "tests", "benches"];
    let texts = dirs.iter().flat_map(|dir| sources::texts_below(&root.join(dir)));
    for (path, text) in texts.filter(|(path, _)| path != "tidy.rs") {
        for table in ["mountinfo", "/proc/mounts", "/proc/self/mounts"] {
            let is_text = |line: &str| line.contains("read_to_string") && line.contains(table);
            assert!(!text.lines().any(is_text), "{path}: {table} may hold any bytes");
        }
    }
}

/// CI builds the fuzz targets with the oldest Rust. This checks fanfs only if the crates are those
/// of its own lock file.
#[test]
fn the_fuzz_targets_use_the_crates_of_fanfs() {
    let locked = |file: &str| -> BTreeMap<String, Vec<String>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let lock: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for package in lock["package"].as_array().unwrap() {
            let text = |key: &str| package[key].as_str().unwrap().to_owned();
            versions.entry(text("name")).or_default().push(text("version"));
        }
        versions
    };
    let own = locked("Cargo.lock");
    for (name, versions) in locked("fuzz/Cargo.lock") {
        let own = own.get(&name).unwrap_or(&versions);
        let differs = versions.iter().any(|version| !own.contains(version));
        assert!(
            !differs,
            "{name} {versions:?} in fuzz/Cargo.lock, {own:?} in Cargo.lock: copy Cargo.lock to \
             fuzz/Cargo.lock and run fuzz/build"
        );
    }
}
