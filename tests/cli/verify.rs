//! `fanfs verify`: it finds all differences and no others, and a run resumes where the last one
//! stopped.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::machine::timed;
use crate::room::Room;

const MIB: usize = 1 << 20;

/// A room with copies of a tree: r1, r2, ...
struct Copies {
    room: Room,
    count: usize,
}

impl Copies {
    fn new(count: usize) -> Self {
        let room = Room::new();
        let mut text = "[volume]\nname = \"copies\"\nmode = \"copies\"\n".to_owned();
        for i in 1..=count {
            let path = room.path(&format!("r{i}"));
            fs::create_dir(&path).unwrap();
            let path = path.display();
            text.push_str(&format!("[[replica]]\npath = \"{path}\"\nrequire_mount = false\n"));
        }
        fs::write(room.path("c.toml"), text).unwrap();
        Self { room, count }
    }

    fn at(&self, replica: usize, path: impl AsRef<Path>) -> PathBuf {
        self.room.path(&format!("r{replica}")).join(path)
    }

    /// The same file on all, with the same time.
    fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        for replica in 1..=self.count {
            let at = self.at(replica, &path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, bytes).unwrap();
            self.set_time(replica, &path, 1_000_000);
        }
    }

    fn set_time(&self, replica: usize, path: impl AsRef<Path>, seconds: u64) {
        let file = File::options().write(true).open(self.at(replica, path)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    /// Changes one byte on one replica, but not the time.
    fn flip(&self, replica: usize, path: &str, at: u64) {
        let file = File::options().read(true).write(true).open(self.at(replica, path)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
        self.set_time(replica, path, 1_000_000);
    }

    fn verify(&self, args: &[&str]) -> Output {
        let args = [&["verify", "c.toml"], args].concat();
        self.room.fanfs(&args).output().unwrap()
    }

    fn spawn(&self, args: &[&str]) -> Child {
        let args = [&["verify", "c.toml"], args].concat();
        let mut command = self.room.fanfs(&args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Status and lines of standard output, without the summary.
    fn lines(&self, args: &[&str]) -> (Option<i32>, Vec<String>) {
        let output = self.verify(args);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert!(lines.pop().unwrap().starts_with("copies: "), "{text}");
        (output.status.code(), lines)
    }

    /// Status and the JSON object.
    fn json(&self, args: &[&str]) -> (Option<i32>, Value) {
        json(&self.verify(&[args, &["--json"]].concat()))
    }
}

fn json(output: &Output) -> (Option<i32>, Value) {
    let value = serde_json::from_slice(&output.stdout);
    (output.status.code(), value.unwrap_or_else(|e| panic!("{e}: {output:?}")))
}

fn lines(expected: &[&str]) -> Vec<String> {
    expected.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn equal_copies_show_no_difference() {
    let copies = Copies::new(3);
    copies.write("a/b/c", b"content");
    copies.write("empty", b"");
    copies.write("large", &vec![1; 3 * MIB + 17]);
    for replica in 1..=3 {
        symlink("/nowhere", copies.at(replica, "a/link")).unwrap();
    }
    for args in [&["--full"][..], &[], &["--full", "--jobs", "1"], &["a"], &["large"]] {
        assert_eq!(copies.lines(args), (Some(0), vec![]), "{args:?}");
    }
    let (status, report) = copies.json(&["--full"]);
    assert_eq!(status, Some(0));
    assert_eq!(report["totals"]["files"], 3);
    // The root, two directories, three files and a link.
    assert_eq!(report["totals"]["objects"], 7);
    assert_eq!(report["totals"]["bytes"], 7 + 3 * MIB + 17);
    assert_eq!(report["totals"]["bytes_read"], 3 * (7 + 3 * MIB + 17));
}

#[test]
fn one_differing_byte_is_located_exactly() {
    let copies = Copies::new(3);
    copies.write("d/f", &vec![7; 5 * MIB]);
    copies.flip(3, "d/f", 2_345_678);
    let expected = lines(&["d/f: bytes 2345678..2345679 differ: r1 = r2, r3 differs"]);
    for path in ["/", ".", "d", "d/f", "/d/f", "./d//f"] {
        assert_eq!(copies.lines(&["--full", path]), (Some(3), expected.clone()), "{path}");
    }
    let below = copies.at(2, "d/f");
    assert_eq!(copies.lines(&["--full", below.to_str().unwrap()]), (Some(3), expected));
    let (_, report) = copies.json(&["--full"]);
    let range = &report["differences"][0]["ranges"][0];
    assert_eq!((&range["start"], &range["end"]), (&2_345_678.into(), &2_345_679.into()));
    assert_eq!(range["groups"], serde_json::json!([["r1", "r2"], ["r3"]]));
}

#[test]
fn two_differing_copies_have_no_majority() {
    let copies = Copies::new(2);
    copies.write("f", &[0; 1000]);
    copies.flip(1, "f", 0);
    copies.flip(2, "f", 999);
    let expected =
        ["f: bytes 0..1 differ: r1, r2 differ", "f: bytes 999..1000 differ: r1, r2 differ"];
    assert_eq!(copies.lines(&[]), (Some(3), lines(&expected)));
}

#[test]
fn names_types_attributes_and_targets_are_compared() {
    let copies = Copies::new(3);
    for name in ["gone", "longer", "later", "moded", "owned", "typed", "same"] {
        copies.write(name, b"content");
    }
    copies.write("tree/in/it", b"content");
    for replica in 1..=3 {
        symlink(if replica == 2 { "b" } else { "a" }, copies.at(replica, "link")).unwrap();
    }
    fs::remove_file(copies.at(2, "gone")).unwrap();
    fs::write(copies.at(3, "longer"), "content and more").unwrap();
    copies.set_time(3, "longer", 1_000_000);
    copies.set_time(1, "later", 1_000_001);
    fs::set_permissions(copies.at(2, "moded"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(copies.at(1, "moded"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(copies.at(3, "moded"), fs::Permissions::from_mode(0o644)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(copies.at(3, "owned"), Some(4321), Some(1234)).unwrap();
    }
    fs::remove_file(copies.at(2, "typed")).unwrap();
    fs::create_dir(copies.at(2, "typed")).unwrap();
    fs::remove_dir_all(copies.at(3, "tree/in")).unwrap();
    let expected = lines(&[
        "gone: missing on r2, present on r1, r3",
        "later: mtime differs: 1970-01-12T13:46:40.000000000Z on r2 = r3, 1970-01-12T13:46:41.000000000Z on r1",
        "link: target differs: a on r1 = r3, b on r2",
        "longer: size differs: 7 on r1 = r2, 16 on r3",
        "moded: mode differs: 0644 on r1 = r3, 0600 on r2",
        "owned: owner differs: 0:0 on r1 = r2, 4321:1234 on r3",
        "typed: type differs: file on r1 = r3, directory on r2",
        "tree/in: missing on r3, present on r1, r2",
    ]);
    // Only root can change a file's owner.
    let expected: Vec<_> =
        expected.into_iter().filter(|line| is_root || !line.contains("owner differs")).collect();
    assert_eq!(copies.lines(&[]), (Some(3), expected.clone()));
    assert_eq!(copies.lines(&["--full"]), (Some(3), expected.clone()));
    let left: Vec<_> = expected.into_iter().filter(|line| !line.contains("mode differs")).collect();
    let left: Vec<_> = left.into_iter().filter(|line| !line.contains("mtime differs")).collect();
    assert_eq!(copies.lines(&["--ignore", "mode,mtime"]), (Some(3), left));
    let (_, report) = copies.json(&["later"]);
    assert_eq!(report["differences"][0]["kind"], "mtime");
    assert_eq!(report["totals"]["files"], 1, "contents are compared whatever the time");
}

#[test]
fn paths_of_one_file_system_also_compare_inode_numbers() {
    let room = Room::new();
    fs::create_dir(room.path("copy")).unwrap();
    fs::write(room.path("tree/file"), "x").unwrap();
    let output = room.fanfs(&["verify", "v.toml", "--full"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (one, other) = (room.path("tree"), room.path("other"));
    fs::copy(one.join("hello"), other.join("hello")).unwrap();
    let text = fs::read_to_string(room.path("v.toml")).unwrap();
    let text = text.replace(&*room.path("tree2").to_string_lossy(), &other.to_string_lossy());
    fs::write(room.path("w.toml"), text).unwrap();
    let output = room.fanfs(&["verify", "w.toml", "hello", "--json"]).output().unwrap();
    let (status, report) = json(&output);
    assert_eq!(status, Some(3), "{report}");
    let differences = report["differences"].as_array().unwrap();
    assert!(differences.iter().any(|one| one["kind"] == "inode"), "{report}");
    assert!(differences.iter().all(|one| one["kind"] != "content"), "{report}");
}

#[test]
fn a_sample_has_the_end_blocks_and_seeded_others() {
    let copies = Copies::new(2);
    let size = 64 * MIB;
    for name in ["first", "last", "middle"] {
        copies.write(name, &vec![9; size]);
    }
    copies.flip(2, "first", 0);
    copies.flip(2, "last", size as u64 - 1);
    copies.flip(2, "middle", size as u64 / 2);
    let (status, found) = copies.lines(&["--sample", "0%"]);
    assert_eq!(status, Some(3));
    assert_eq!(
        found,
        [
            "first: bytes 0..1 differ: r1, r2 differ",
            "last: bytes 67108863..67108864 differ: r1, r2 differ",
        ]
    );
    let (_, report) = copies.json(&["--sample", "0%"]);
    assert_eq!(report["totals"]["bytes"], 3 * 2 * MIB);
    // The same seed reads the same blocks; some seed finds the one in the middle.
    let sampled =
        |seed: u64| copies.json(&["middle", "--sample", "20%", "--seed", &seed.to_string()]);
    let reports: Vec<_> = (0..16).map(sampled).collect();
    assert!(reports.iter().any(|(status, _)| *status == Some(3)), "never found");
    assert!(reports.iter().any(|(status, _)| *status == Some(0)), "found with every seed");
    for (seed, (status, report)) in reports.iter().enumerate().take(4) {
        assert_eq!(report["seed"], seed);
        let (again, same) = sampled(seed as u64);
        assert_eq!((again, &same["totals"]), (*status, &report["totals"]));
    }
}

#[test]
fn links_are_compared_and_not_followed() {
    let copies = Copies::new(2);
    let outside = copies.room.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "x").unwrap();
    copies.write("d/f", b"x");
    for replica in 1..=2 {
        symlink(&outside, copies.at(replica, "out")).unwrap();
        symlink("../../outside/secret", copies.at(replica, "d/up")).unwrap();
    }
    let (status, report) = copies.json(&["--full"]);
    assert_eq!((status, &report["totals"]["files"]), (Some(0), &1.into()), "{report}");
    // No link is followed, wherever it leads.
    let output = copies.verify(&["out/secret"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("not compared on r1, r2"));
}

#[test]
fn names_may_be_any_bytes() {
    let copies = Copies::new(2);
    let raw = OsStr::from_bytes(b"not utf-8 \xff\xfe");
    copies.write(raw, b"content");
    copies.write("two\nlines \\ and \u{1b}[31m", b"content");
    fs::write(copies.at(2, raw), b"cxntent").unwrap();
    copies.set_time(2, raw, 1_000_000);
    fs::remove_file(copies.at(1, "two\nlines \\ and \u{1b}[31m")).unwrap();
    let expected = lines(&[
        "not utf-8 \\xff\\xfe: bytes 1..2 differ: r1, r2 differ",
        "two\\nlines \\\\ and \\u{1b}[31m: missing on r1, present on r2",
    ]);
    assert_eq!(copies.lines(&[]), (Some(3), expected));
    let (_, report) = copies.json(&[]);
    assert_eq!(report["differences"][0]["path"], serde_json::json!(raw.as_bytes()));
    assert_eq!(report["differences"][1]["path"], "two\nlines \\ and \u{1b}[31m");
}

#[test]
fn the_rate_limit_is_kept() {
    let copies = Copies::new(2);
    copies.write("f", &vec![1; 8 * MIB]);
    let began = Instant::now();
    let (status, report) = copies.json(&["--full", "--rate", "8MiB/s"]);
    // 16 MiB of both, of which the first block of each is not delayed.
    assert!(began.elapsed() > Duration::from_millis(1700), "{:?}", began.elapsed());
    assert_eq!((status, &report["totals"]["bytes_read"]), (Some(0), &(16 * MIB).into()));
}

/// Files that take about ten seconds at the rate of [`SLOWLY`].
fn slow() -> Copies {
    let copies = Copies::new(2);
    for i in 0..40 {
        copies.write(format!("d{}/f{i}", i % 3), &vec![i as u8; MIB / 4]);
    }
    copies.write("large", &vec![1; 10 * MIB]);
    copies.flip(2, "d0/f0", 77);
    copies.flip(2, "large", 10 * MIB as u64 - 1);
    copies
}

const SLOWLY: &[&str] = &["--full", "--rate", "4MiB/s", "--state", "kept", "--json"];
const ON: &[&str] = &["--full", "--state", "kept"];

/// The part that an interrupted and an uninterrupted run have in common.
fn expect_whole(copies: &Copies, status: Option<i32>, report: &Value) {
    let (whole_status, whole) = copies.json(&["--full"]);
    assert_eq!((status, whole_status), (Some(3), Some(3)));
    assert_eq!(report["differences"], whole["differences"]);
    assert_eq!(whole["differences"].as_array().unwrap().len(), 2);
    for key in ["objects", "files", "bytes", "differences", "not_compared"] {
        assert_eq!(report["totals"][key], whole["totals"][key], "{key}");
    }
}

#[test]
fn an_interrupted_run_is_resumed() {
    for signal in [Signal::INT, Signal::TERM] {
        let copies = slow();
        let child = copies.spawn(SLOWLY);
        let io = format!("/proc/{}/io", child.id());
        copies.room.eventually("it has read a part", || {
            let text = fs::read_to_string(&io).unwrap_or_default();
            let read = text.lines().find_map(|line| line.strip_prefix("rchar: "));
            read.is_some_and(|read| read.parse::<usize>().unwrap() > 10 * MIB)
        });
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let (status, report) = json(&output);
        assert_eq!((status, &report["interrupted"]), (Some(130), &true.into()));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("run it again with --state kept to resume"), "{said}");
        let first = report["totals"]["bytes"].as_u64().unwrap();
        assert!(first > MIB as u64 && first < 19 * MIB as u64, "{first}");
        // Another command is a different run.
        let other = copies.verify(&["--state", "kept"]);
        assert_eq!(other.status.code(), Some(2));
        let said = String::from_utf8(other.stderr).unwrap();
        assert!(said.contains("state kept: of a run with coverage full, and this"), "{said}");
        let (status, report) = copies.json(ON);
        expect_whole(&copies, status, &report);
        assert_eq!(report["before"]["bytes"], first);
        // Nothing is read twice, and no finding is forgotten.
        let read = report["totals"]["bytes_read"].as_u64().unwrap();
        assert!(read <= (2 * 20 + 4) * MIB as u64, "{read}");
        assert!(!copies.room.path("kept").exists(), "the state of a run that has ended");
    }
}

#[test]
fn a_killed_run_loses_only_seconds() {
    let copies = slow();
    let mut child = copies.spawn(SLOWLY);
    let bytes = || {
        let state: Value =
            serde_json::from_slice(&fs::read(copies.room.path("kept")).ok()?).ok()?;
        let found = state["found"]["totals"]["bytes"].as_u64()?;
        Some(found + state["ahead"].as_array()?.len() as u64)
    };
    copies.room.eventually("some work is in the state", || bytes().is_some_and(|bytes| bytes > 0));
    child.kill().unwrap();
    child.wait().unwrap();
    let (status, report) = copies.json(ON);
    assert!(report["before"]["bytes"].as_u64().unwrap() > 0, "{report}");
    expect_whole(&copies, status, &report);
}

#[test]
fn an_absent_or_hung_replica_is_left_out() {
    let copies = Copies::new(3);
    copies.write("f", b"content");
    fs::remove_dir_all(copies.at(2, "")).unwrap();
    let (status, report) = copies.json(&[]);
    assert_eq!((status, &report["totals"]["files"]), (Some(1), &1.into()), "{report}");
    assert_eq!(report["left_out"][0]["replica"], "r2");
    fs::write(copies.at(3, "f"), b"contend").unwrap();
    copies.set_time(3, "f", 1_000_000);
    assert_eq!(copies.json(&[]).0, Some(3), "a difference counts for more");

    // A file system with a hung server: one of ours, stopped.
    let room = &copies.room;
    room.expect(&["mount", "v.toml", "mnt"]);
    let text = fs::read_to_string(room.path("c.toml")).unwrap();
    let (gone, hung) = (room.path("r2"), room.path("mnt"));
    let text = text.replace(&*gone.to_string_lossy(), &hung.to_string_lossy());
    fs::write(room.path("c.toml"), text).unwrap();
    fs::copy(copies.at(1, "f"), copies.at(3, "f")).unwrap();
    copies.set_time(3, "f", 1_000_000);
    let daemon = room.first_process();
    room.stop(daemon);
    let ((status, report), took) = timed(|| copies.json(&[]));
    kill_process(daemon, Signal::CONT).unwrap();
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!((status, &report["totals"]["files"]), (Some(1), &1.into()), "{report}");
    let why = report["left_out"][0]["why"].as_str().unwrap();
    assert!(why.contains("did not answer"), "{why}");
    room.expect(&["umount", "mnt"]);
    room.expect_gone();

    fs::remove_dir(hung).unwrap();
    fs::remove_dir_all(copies.at(3, "")).unwrap();
    let output = copies.verify(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("fewer than two replicas"));
}

#[test]
fn verify_errors_are_reported() {
    let copies = Copies::new(2);
    copies.write("f", b"x");
    fs::write(copies.room.path("no-state"), "hello").unwrap();
    for (args, status, expected) in [
        (&["nope"][..], 2, "fanfs: nope: no replica has this path"),
        (&["../f"], 2, "is not a path in the volume"),
        (&["--sample", "1"], 2, "has no unit; give one, such as \"1%\""),
        (&["--sample", "1%", "--full"], 2, "cannot be used with"),
        (&["--ignore", "size"], 2, "only mtime, ctime, inode, mode and owner"),
        (&["--jobs", "0"], 2, "0 is not in 1..=64"),
        (&["--state", "no-state"], 2, "state no-state: not a state of fanfs verify"),
        (&["--state", "nowhere/state"], 1, "No such file or directory"),
    ] {
        let output = copies.verify(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{args:?}: {said}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let one = "[volume]\nname = \"v\"\nmode = \"copies\"\n[[replica]]\npath = \"/tmp\"\n";
    fs::write(copies.room.path("c.toml"), one).unwrap();
    let output = copies.verify(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has one replica"));
    let help = copies.room.expect(&["verify", "--help"]).stdout;
    assert!(String::from_utf8(help).unwrap().contains("Exit status: 0 no difference, 3 some"));
}
