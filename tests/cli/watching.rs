//! `fanfs top` and `fanfs trace`, of a volume in use.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::machine::attempts;
use crate::room::Room;

/// A file of 8 MiB, read over and over until this is dropped, past the page cache.
struct Load {
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<u64>>,
}

impl Load {
    fn start(room: &Room) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, path) = (Arc::clone(&stop), room.path("mnt/large"));
        let reader = std::thread::spawn(move || {
            let file = File::open(path).unwrap();
            let (mut block, mut reads) = (vec![0; 1 << 20], 0);
            while !ended.load(Ordering::Relaxed) {
                file.read_exact_at(&mut block, (reads % 8) << 20).unwrap();
                reads += 1;
            }
            reads
        });
        Self { stop, reader: Some(reader) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let reads = self.reader.take().unwrap().join().unwrap();
        assert!(std::thread::panicking() || reads > 0);
    }
}

fn mounted() -> Room {
    let room = Room::new();
    room.volume("v.toml", "", "[read]\ncache = \"direct\"\n");
    fs::write(room.path("tree/large"), vec![7; 8 << 20]).unwrap();
    room.expect(&["mount", "v.toml", "mnt"]);
    room
}

fn unmount(room: &Room) {
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn top_shows_rates_files_and_readers_once() {
    attempts(show_rates_files_and_readers);
}

fn show_rates_files_and_readers() {
    let room = mounted();
    let load = Load::start(&room);
    let shown = room.expect(&["top", "mnt", "--once", "--interval", "1s"]);
    let shown = text(shown.stdout);
    for word in ["fanfs top  v at ", "REPLICA", "healthy", "FILES", "large", "READERS", "cli"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(!shown.contains('\x1b'), "{shown}");
    let view = room.expect(&["top", "mnt", "--json", "--interval", "1s"]).stdout;
    let view: Value = serde_json::from_slice(&view).unwrap();
    let number = |of: &str| view["total"][of].as_f64().unwrap();
    assert!(number("bytes_per_second") > 1e6, "{view}");
    // An unaligned read comes in two parts, and the sample may lie between them.
    let least = 0.9 * f64::from(1 << 19);
    assert!((least..=f64::from(1 << 20)).contains(&number("average_read_bytes")), "{view}");
    let shares: f64 =
        view["replicas"].as_array().unwrap().iter().map(|r| r["share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 0.01, "{view}");
    assert_eq!(view["files"][0]["path"], "large");
    assert_eq!(view["readers"][0]["pid"], std::process::id());
    drop(load);
    unmount(&room);
}

#[test]
fn top_reports_missing_volumes_and_bad_intervals() {
    let room = Room::new();
    let none = room.fanfs(&["top"]).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(text(none.stderr).contains("no volume of this user is mounted"));
    let other = room.fanfs(&["top", "/usr", "--once"]).output().unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert!(text(other.stderr).contains("mounted at /usr"));
    let never = room.fanfs(&["top", "--interval", "1ms"]).output().unwrap();
    assert_eq!(never.status.code(), Some(2));
}

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_trace_lists_each_read_and_can_be_simulated() {
    let room = mounted();
    let record = room.path("trace.jsonl");
    let load = Load::start(&room);
    let done = room.expect(&["trace", "mnt", "--output", "trace.jsonl", "--reads", "50"]);
    assert!(text(done.stderr).contains("app reads, "));
    drop(load);
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o600);
    let recorded = fs::read(&record).unwrap();
    let again = room.fanfs(&["trace", "mnt", "--output", "trace.jsonl"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(text(again.stderr).ends_with("exists; choose another file, or use --force\n"));
    assert_eq!(fs::read(&record).unwrap(), recorded, "and left it alone");
    let lines = lines(&record);
    assert_eq!(lines[0]["event"], "start");
    assert_eq!(lines[0]["replicas"].as_array().unwrap().len(), 2);
    let file = lines.iter().find(|line| line["event"] == "file").unwrap();
    assert_eq!((file["path"].as_str(), file["size"].as_u64()), (Some("/large"), Some(8 << 20)));
    let reads: Vec<_> = lines.iter().filter(|line| line["event"] == "read").collect();
    assert!(reads.len() >= 50, "{}", reads.len());
    let mut all = 0;
    for read in &reads {
        let parts = read["parts"].as_array().unwrap();
        let sum: u64 = parts.iter().map(|part| part["length"].as_u64().unwrap()).sum();
        assert_eq!(sum, read["length"].as_u64().unwrap(), "{read}");
        all += sum;
        assert!(parts.iter().all(|part| part["replica"].is_string()), "{read}");
        assert_eq!(read["file"], file["file"]);
    }
    assert!(lines.iter().any(|line| line["event"] == "segment" && line["end"] == "delivered"));

    fs::write(
        room.path("cluster.toml"),
        "policies = [\"fanfs\"]\n[cluster]\nnodes = 2\ndisk = \"100MB/s\"\n[file]\nsize = \"1GiB\"\n",
    )
    .unwrap();
    let outcome =
        room.expect(&["simulate", "cluster.toml", "--trace", "trace.jsonl", "--json"]).stdout;
    let outcome: Value = serde_json::from_slice(&outcome).unwrap();
    assert_eq!(outcome["reads"][0]["bytes"], all);
    unmount(&room);
}

fn tracing(room: &Room, more: &[&str]) -> Child {
    let args = [&["trace", "mnt", "--output", "trace.jsonl"], more].concat();
    let child = room.fanfs(&args).stderr(Stdio::piped()).spawn().unwrap();
    room.eventually("it records", || {
        fs::read(room.path("trace.jsonl")).is_ok_and(|text| text.starts_with(b"{\"event\":\"start"))
    });
    child
}

#[test]
fn a_trace_follows_the_next_daemon_and_ends_with_the_mount() {
    let room = mounted();
    let child = tracing(&room, &[]);
    fs::read(room.path("mnt/hello")).unwrap();
    room.expect(&["reload", "mnt"]);
    room.eventually("it records the next daemon", || {
        let text = fs::read_to_string(room.path("trace.jsonl")).unwrap();
        text.matches("\"event\":\"start\"").count() == 2
    });
    fs::read(room.path("mnt/large")).unwrap();
    for file in ["/hello", "/large"] {
        room.eventually(file, || {
            fs::read_to_string(room.path("trace.jsonl")).unwrap().contains(file)
        });
    }
    unmount(&room);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(text(output.stderr).contains("is no longer mounted"));
}

#[test]
fn ctrl_c_ends_a_trace_with_totals() {
    let room = mounted();
    let child = tracing(&room, &["--segments", "--duration", "10000000000000000000s"]);
    fs::read(room.path("mnt/large")).unwrap();
    room.eventually("the reads are there", || {
        fs::read_to_string(room.path("trace.jsonl")).unwrap().contains("\"read\"")
    });
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(text(output.stderr).contains("8.0 MiB"));
    unmount(&room);
}

/// Bytes after `word` in a trace's totals, for all replicas.
fn sum_of(said: &str, word: &str) -> u64 {
    let sizes = said.split(word).skip(1).map(|rest| {
        let mut words = rest.split([' ', ',', '\n']).filter(|word| !word.is_empty());
        let number: f64 = words.next().unwrap().parse().unwrap();
        let unit = match words.next().unwrap() {
            "B" => 1.0,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            other => panic!("{other}: {said}"),
        };
        (number * unit) as u64
    });
    sizes.sum()
}

#[test]
fn unread_readahead_is_in_memory_and_then_wasted() {
    attempts(trace_unread_readahead);
}

fn trace_unread_readahead() {
    let room = mounted();
    let record = || fs::read_to_string(room.path("trace.jsonl")).unwrap();
    let end = |child: Child| {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        text(output.stderr)
    };
    let child = tracing(&room, &[]);
    let file = File::open(room.path("mnt/large")).unwrap();
    file.read_exact_at(&mut vec![0; 1 << 20], 0).unwrap();
    room.eventually("readahead is here", || record().contains("\"ahead\":true"));
    let said = end(child);
    assert!(sum_of(&said, "in memory, not yet read: ") >= 1 << 20, "{said}");
    assert_eq!(sum_of(&said, "unused "), 0, "{said}");

    fs::remove_file(room.path("trace.jsonl")).unwrap();
    let child = tracing(&room, &[]);
    drop(file);
    let file = File::open(room.path("mnt/large")).unwrap();
    file.read_exact_at(&mut vec![0; 1 << 20], 0).unwrap();
    room.eventually("readahead is here", || record().contains("\"ahead\":true"));
    drop(file);
    room.eventually("it is dropped", || record().contains("\"event\":\"dropped\""));
    let said = end(child);
    assert!(sum_of(&said, "unused ") >= 1 << 20, "{said}");
    unmount(&room);
}

#[test]
fn an_unanswering_daemon_is_asked_a_few_times() {
    let room = Room::new();
    room.expect(&["mount", "v.toml", "mnt"]);
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sock");
    let mut run = fs::read_dir(room.path("run")).unwrap().map(|entry| entry.unwrap().path());
    let socket = run.find(is_socket).unwrap();
    unmount(&room);
    let silent = UnixListener::bind(socket).unwrap();
    // It receives the request, and hangs up.
    let hear = |stream: io::Result<UnixStream>| {
        let _ = BufReader::new(stream.unwrap()).read_line(&mut String::new());
    };
    std::thread::spawn(move || silent.incoming().for_each(hear));
    let traced = room.fanfs(&["trace", "mnt"]).output().unwrap();
    assert_eq!(traced.status.code(), Some(1));
    let said = text(traced.stderr);
    assert!(said.contains("sends no trace"), "{said}");
}
