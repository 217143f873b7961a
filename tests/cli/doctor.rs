//! `fanfs doctor` on real replicas: healthy, slow, on a shared device, or hung.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::Value;

use crate::machine::attempts;
use crate::needs;
use crate::room::Room;

const MIB: u64 = 1 << 20;

/// For replicas that all answer.
const PATIENCE: [&str; 2] = ["--deadline", "1min"];

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| code < 2), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The findings' ids and severities.
fn found(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|one| (text(&one["id"]), text(&one["severity"]))).collect()
}

/// As [`found`], without latencies, which a busy machine distorts.
fn rates(report: &Value) -> Vec<(String, String)> {
    found(report).into_iter().filter(|(id, _)| id != "measure.latency").collect()
}

fn is_found(report: &Value, id: &str) -> bool {
    found(report).iter().any(|(found, _)| found == id)
}

#[test]
fn plain_directories_have_no_problems() {
    let room = Room::new();
    let args = [&["doctor", "tree"][..], &PATIENCE].concat();
    let output = room.fanfs(&args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("replica access"), "{text}");
    assert!(text.ends_with("\nOK, no problems found\n"), "{text}");
    assert!(!text.contains("rsize") && !text.contains("\x1b["), "{text}");
}

#[test]
fn the_json_output_has_the_documented_shape() {
    let room = Room::new();
    // Another test may have a dead mount of a volume "v".
    let volume = fs::read_to_string(room.path("v.toml")).unwrap();
    fs::write(room.path("v.toml"), volume.replace("name = \"v\"", "name = \"shape\"")).unwrap();
    let args = [&["doctor", "v.toml", "--json"][..], &PATIENCE].concat();
    let report = json(&room.fanfs(&args).output().unwrap());
    assert_eq!(report["format"], 1);
    // Two paths that lead to one directory.
    assert_eq!(report["state"], "bad");
    assert_eq!(found(&report)[0], ("replica.device".to_owned(), "bad".to_owned()));
    let finding = report["findings"][0].as_object().unwrap();
    let keys: BTreeSet<&str> = finding.keys().map(String::as_str).collect();
    let wanted = ["cost", "id", "remedy", "replicas", "severity", "text"];
    assert_eq!(keys, BTreeSet::from(wanted));
    assert_eq!(finding["cost"], 0.5);
    assert_eq!(report["facts"]["volume"], "shape");
    assert_eq!(report["facts"]["replicas"][1]["state"], "ok");
    assert_eq!(report["facts"]["measured"], Value::Null);
    let check = report["checks"][0].as_object().unwrap();
    let keys: BTreeSet<&str> = check.keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["id", "note", "replicas", "state", "title"]));
    let documented = include_str!("../../docs/DOCTOR.md");
    for check in report["checks"].as_array().unwrap() {
        let id = check["id"].as_str().unwrap();
        assert!(documented.contains(&format!("| `{id}` |")), "{id} is not in docs/DOCTOR.md");
    }
}

#[test]
fn a_bad_finding_sets_the_exit_status_and_has_a_fix() {
    let room = Room::new();
    let args = [&["doctor", "tree", "nowhere"][..], &PATIENCE].concat();
    let output = room.fanfs(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("bad     replica access") && text.contains("nowhere"), "{text}");
    assert!(text.contains("\n  problem:  replica nowhere does not exist\n"), "{text}");
    assert!(text.contains("\n  evidence: ") && text.contains("\n  fix:      mkdir -p"), "{text}");
}

#[test]
fn wrong_usage_is_refused() {
    let room = Room::new();
    for (line, what) in [
        ("doctor", "required arguments"),
        ("doctor none.toml", "cannot be read"),
        ("doctor genmes", "no volume genmes in /etc/fanfs, and no directory of that name here"),
        ("doctor v.toml tree", "use it alone, or list directories"),
        ("doctor tree tree", "is listed twice"),
        ("doctor tree/../tree", "contains `..`"),
        ("doctor tree --file hello", "--measure"),
        ("doctor tree --measure --seconds 0", "from 0.1 to 600"),
        ("doctor tree --measure --file ../x", "is not a path in the replicas"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let output = room.fanfs(&args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.starts_with("fanfs: ") && said.contains(what), "{line}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_small_file_proves_nothing() {
    let room = Room::new();
    fs::create_dir(room.path("more")).unwrap();
    fs::write(room.path("more/hello"), "hello\n").unwrap();
    // Each step ends with the file.
    let args = ["doctor", "tree", "more", "--measure", "--seconds", "60", "--json"];
    let report = json(&room.fanfs(&args).output().unwrap());
    assert!(!is_found(&report, "measure.together") && !is_found(&report, "measure.replica"));
    let states = report["checks"].as_array().unwrap().iter();
    let state = states.clone().find(|check| check["id"] == "measure.together").unwrap();
    assert_eq!(state["state"], "unknown");
    assert!(state["note"].as_str().unwrap().contains("--file"));
}

#[test]
fn a_sparse_file_is_not_sampled() {
    attempts(measure_beside_a_sparse_file);
}

fn measure_beside_a_sparse_file() {
    let room = Room::new();
    fs::write(room.path("tree/data"), vec![7; 16 << 20]).unwrap();
    let sparse = fs::File::create(room.path("tree/sparse")).unwrap();
    sparse.set_len(64 << 30).unwrap();
    let args = ["doctor", "tree", "--measure", "--seconds", "0.2", "--json"];
    let report = json(&room.fanfs(&args).output().unwrap());
    assert_eq!(report["facts"]["measured"]["file"], "data");
    assert_eq!(report["facts"]["measured"]["size"], 16 * MIB);
    let args = ["bench", "v.toml", "--json", "--seconds", "1", "--rounds", "1", "--readers", "1"];
    let small = ["--block", "64KiB", "--random-block", "4KiB", "--deadline", "1min"];
    let output = room.fanfs(&[&args[..], &small].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["file"], &report["file_bytes"]), (&"data".into(), &(16 * MIB).into()));
}

/// Whether `path` is its own mount.
fn is_mounted(path: &Path) -> bool {
    let table = crate::room::mount_table();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// A FUSE file system whose daemon the test can stop.
struct Hanging {
    daemon: Child,
    at: PathBuf,
}

impl Hanging {
    fn over(tree: &Path, at: PathBuf) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        let mut command = Command::new("bindfs");
        command.args(["-f", "--no-allow-other"]).arg(tree).arg(&at);
        if !needs::program("bindfs") {
            return None;
        }
        let daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let hanging = Self { daemon, at };
        let until = Instant::now() + Duration::from_secs(60);
        while !is_mounted(&hanging.at) {
            assert!(Instant::now() < until, "bindfs did not mount");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(hanging)
    }

    fn stop(&self, room: &Room) {
        room.stop(Pid::from_child(&self.daemon));
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
fn a_hung_replica_is_bad_and_does_not_hang_doctor() {
    attempts(diagnose_a_hung_replica);
}

fn diagnose_a_hung_replica() {
    let room = Room::new();
    let Some(hanging) = Hanging::over(&room.path("tree"), room.path("hung")) else { return };
    hanging.stop(&room);
    // A single argument may also be a volume's name; here it is a path.
    for paths in [&["tree", "hung"][..], &["hung"]] {
        let started = Instant::now();
        let more = ["--deadline", "1s", "--measure", "--json"];
        let mut doctor = room
            .fanfs(&[&["doctor"], paths, &more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The test must not hang either.
        while doctor.try_wait().unwrap().is_none() {
            let hangs = started.elapsed() > Duration::from_secs(60);
            if hangs {
                let _ = doctor.kill();
                drop(hanging);
                panic!("doctor hangs");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = doctor.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let report = json(&output);
        assert_eq!(report["facts"]["replicas"][paths.len() - 1]["state"], "silent");
        let first = &report["findings"][0];
        assert_eq!((&first["id"], &first["severity"]), (&"replica.answers".into(), &"bad".into()));
        assert_eq!(first["replicas"], serde_json::json!(["hung"]));
    }
}

/// ext4 on loop devices in tmpfs, under the block layer's throttle.
struct Throttled {
    room: Room,
    images: tempfile::TempDir,
    group: PathBuf,
    mounts: Vec<PathBuf>,
}

impl Throttled {
    /// `None` without root or the controller.
    fn new(count: usize, file: u64) -> Option<Self> {
        let v1 = Path::new("/sys/fs/cgroup/blkio");
        if !needs::root() || !needs::machine(v1.is_dir(), "blkio of cgroup version 1") {
            return None;
        }
        let room = Room::new();
        let images = tempfile::tempdir_in("/dev/shm").unwrap();
        let group = v1.join(format!(
            "fanfs-doctor-{}",
            images.path().display().to_string().replace('/', "-")
        ));
        fs::create_dir(&group).unwrap();
        let mut throttled = Self { room, images, group, mounts: Vec::new() };
        for i in 1..=count {
            let image = throttled.images.path().join(format!("{i}.img"));
            fs::File::create(&image).unwrap().set_len((file + 32) * MIB).unwrap();
            let at = throttled.room.path(&format!("r{i}"));
            fs::create_dir(&at).unwrap();
            let run = |program: &str, args: &[&std::ffi::OsStr]| {
                let status = Command::new(program).args(args).stdout(Stdio::null()).status();
                assert!(status.unwrap().success(), "{program}");
            };
            run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), "-m0".as_ref(), image.as_ref()]);
            run("mount", &["-oloop,noatime".as_ref(), image.as_ref(), at.as_ref()]);
            throttled.mounts.push(at.clone());
            let block = vec![i as u8; MIB as usize];
            let mut data = fs::File::create(at.join("data")).unwrap();
            for _ in 0..file {
                std::io::Write::write_all(&mut data, &block).unwrap();
            }
            data.sync_all().unwrap();
        }
        Some(throttled)
    }

    fn limit(&self, replica: usize, mib: u64) {
        let dev = fs::metadata(&self.mounts[replica]).unwrap().dev();
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        let line = format!("{major}:{minor} {}", mib * MIB);
        fs::write(self.group.join("blkio.throttle.read_bps_device"), line).unwrap();
    }

    /// Runs doctor in the throttled cgroup.
    fn doctor(&self, paths: &[&str]) -> Value {
        let fanfs = self.room.fanfs(&[] as &[&str]);
        let mut command = Command::new("bash");
        command
            .args(["-c", "echo $$ >\"$0/cgroup.procs\"; exec \"$@\""])
            .arg(&self.group)
            .arg(fanfs.get_program())
            .arg("doctor")
            .args(paths)
            .args(["--measure", "--file", "data", "--seconds", "1.5", "--json"])
            .current_dir(self.room.path(""));
        json(&command.output().unwrap())
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        for i in 0..self.mounts.len() {
            self.limit(i, 0);
            let _ = Command::new("umount").arg("-l").arg(&self.mounts[i]).status();
        }
        let _ = fs::remove_dir(&self.group);
    }
}

#[test]
fn a_slow_node_is_identified() {
    attempts(|| {
        let Some(nodes) = Throttled::new(3, 192) else { return };
        (0..3).for_each(|i| nodes.limit(i, 20));
        let report = nodes.doctor(&["r1", "r2", "r3"]);
        assert_eq!(rates(&report), [], "{:#}", report["facts"]["measured"]);
        let gain = report["gain"].as_f64().unwrap();
        assert!((2.2..3.6).contains(&gain), "{gain}");

        nodes.limit(1, 4);
        let report = nodes.doctor(&["r1", "r2", "r3"]);
        let slow = ("measure.replica".to_owned(), "bad".to_owned());
        assert_eq!(rates(&report), [slow], "{:#}", report["findings"]);
        assert_eq!(report["findings"][0]["replicas"], serde_json::json!(["r2"]));
    });
}

#[test]
fn replicas_that_share_a_device_gain_nothing() {
    attempts(|| {
        let Some(mut nodes) = Throttled::new(1, 192) else { return };
        nodes.limit(0, 30);
        for name in ["b1", "b2"] {
            let at = nodes.room.path(name);
            fs::create_dir(&at).unwrap();
            let bind = Command::new("mount").arg("--bind").arg(&nodes.mounts[0]).arg(&at).status();
            assert!(bind.unwrap().success());
            nodes.mounts.push(at);
        }
        let report = nodes.doctor(&["r1", "b1", "b2"]);
        assert!(is_found(&report, "replica.device"), "{:#}", report["findings"]);
        let findings = report["findings"].as_array().unwrap();
        let shared = findings.iter().find(|f| f["id"] == "measure.together");
        let shared = shared.unwrap_or_else(|| panic!("{report:#}"));
        assert_eq!(shared["severity"], "bad");
        assert!(shared["text"].as_str().unwrap().contains("hardly faster"), "{shared}");
        assert!(report["gain"].as_f64().unwrap() < 1.2);
    });
}
