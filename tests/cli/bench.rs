//! `fanfs bench`: the figures agree with the replicas' known rates, all requested output exists
//! afterwards, and bench leaves nothing else behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::machine::attempts;
use crate::needs;
use crate::room::Room;

const MIB: u64 = 1 << 20;

/// The throttle of each replica, bytes a second.
const RATE: u64 = 10 * MIB;

/// Loop-mounted images under the block layer's throttle (cgroup version 1), with one
/// file in each.
struct Throttled {
    room: Room,
    group: PathBuf,
    count: usize,
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

impl Throttled {
    /// `None` where that is not possible.
    fn new(count: usize, rate: u64, size: u64) -> Option<Self> {
        let parent = Path::new("/sys/fs/cgroup/blkio");
        let is_v1 = ["blkio.throttle.read_bps_device", "cgroup.procs"];
        let is_v1 = is_v1.iter().any(|name| parent.join(name).exists());
        if !needs::root()
            || !needs::machine(is_v1, "blkio of cgroup version 1")
            || !needs::machine(Path::new("/dev/loop-control").exists(), "loop devices")
        {
            return None;
        }
        let group = parent.join(format!("fanfs-bench-test-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        let it = Self { room: Room::new(), group, count };
        let mut volume = "[volume]\nname = \"lab\"\nmode = \"copies\"\n".to_owned();
        // The throttle may let two segments of a replica through together. Of these, several
        // fit into an interval of the bench.
        volume.push_str("[read]\nsegment_size = \"256KiB\"\n");
        let data: Vec<u8> = (0..size / 8).flat_map(|word| word.to_le_bytes()).collect();
        for i in 1..=count {
            let (image, root) = (it.room.path(&format!("{i}.img")), it.root(i));
            fs::create_dir(&root).unwrap();
            let file = fs::File::create(&image).unwrap();
            file.set_len(size + size / 8 + 64 * MIB).unwrap();
            run("mkfs.ext4", &["-q", "-F", "-m", "0", image.to_str().unwrap()]);
            let paths = [image.to_str().unwrap(), root.to_str().unwrap()];
            run("mount", &["-o", "loop,noatime", paths[0], paths[1]]);
            fs::write(root.join("data"), &data).unwrap();
            let file = fs::File::options().write(true).open(root.join("data")).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
            file.sync_all().unwrap();
            let device = rustix::fs::stat(&root).unwrap().st_dev;
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            let limit = it.group.join("blkio.throttle.read_bps_device");
            fs::write(limit, format!("{major}:{minor} {rate}\n")).unwrap();
            volume.push_str(&format!("[[replica]]\npath = \"{}\"\n", root.display()));
        }
        fs::write(it.room.path("lab.toml"), volume).unwrap();
        Some(it)
    }

    fn root(&self, i: usize) -> PathBuf {
        self.room.path(&format!("r{i}"))
    }

    /// The program, in the throttled cgroup.
    fn fanfs(&self, args: &[&str]) -> Output {
        let program = env!("CARGO_BIN_EXE_fanfs");
        let shell = "echo $$ >\"$0/cgroup.procs\" && exec \"$@\"";
        let group = self.group.to_str().unwrap();
        let all = [&["-c", shell, group, program], args].concat();
        self.room.program(Path::new("sh"), &all).env("TMPDIR", self.tmp()).output().unwrap()
    }

    fn tmp(&self) -> PathBuf {
        self.room.path("mnt")
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        for i in 1..=self.count {
            let root = self.root(i);
            let unmounted = Command::new("umount").arg(&root).status();
            if !unmounted.is_ok_and(|status| status.success()) {
                let _ = Command::new("umount").arg("-l").arg(&root).status();
            }
        }
        let _ = fs::remove_dir(&self.group);
    }
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn row<'a>(report: &'a Value, load: &str, kind: &str, replicas: usize) -> &'a Value {
    let its = |row: &&Value| {
        let over = row["replicas"].as_array().unwrap().len();
        row["load"] == load && row["kind"] == kind && over == replicas
    };
    report["rows"].as_array().unwrap().iter().find(its).unwrap()
}

/// No file is left where the mounts were made.
fn expect_nothing_in(tmp: &Path) {
    let table = crate::room::mount_table();
    assert!(!table.contains(&format!("{}/fanfs-bench-", tmp.display())), "{table}");
    let left: Vec<_> = fs::read_dir(tmp).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// `benches/` measures the share of the sum that fanfs delivers: it depends on the machine.
#[test]
fn bench_rates_of_throttled_replicas_are_consistent() {
    attempts(|| {
        let Some(lab) = Throttled::new(3, RATE, 128 * MIB) else { return };
        let has_fio = Command::new("fio").arg("--version").output().is_ok();
        let mut args = vec![
            "bench",
            "lab.toml",
            "--seconds",
            "1",
            "--rounds",
            "1",
            "--json",
            "--report",
            "b.html",
            "--fio",
            "jobs",
            "--deadline",
            "1min",
        ];
        if has_fio {
            args.push("--run-fio");
        }
        let output = lab.fanfs(&args);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report = json(&output);
        assert_eq!((&report["file"], report["failed"].as_bool()), (&"data".into(), Some(false)));
        for load in ["sequential", "random", "parallel"] {
            expect_figures_that_agree(&report, load, has_fio);
        }
        assert!(
            row(&report, "sequential", "fanfs", 2)["daemon_cpu_per_gib"].as_f64().unwrap() > 0.0
        );
        let over_time = report["over_time"]["replicas"].as_array().unwrap();
        assert_eq!(over_time.len(), 3);
        for replica in over_time {
            let rates = replica["mib_per_second"].as_array().unwrap();
            assert!(
                rates.iter().any(|rate| rate.as_f64() > Some(0.0)),
                "{replica} delivers nothing"
            );
        }
        let deliver_at = |interval: usize| {
            let rate = |replica: &Value| replica["mib_per_second"][interval].as_f64();
            over_time.iter().all(|replica| rate(replica) > Some(0.0))
        };
        let intervals = report["over_time"]["seconds"].as_array().unwrap().len();
        assert!((0..intervals).any(deliver_at), "never all at once: {over_time:?}");
        for key in ["date", "host", "kernel"] {
            assert!(report[key].as_str().is_some_and(|text| !text.is_empty()), "{key}");
        }
        let page = fs::read_to_string(lab.room.path("b.html")).unwrap();
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(
            page.contains("x the best replica, ") && page.contains("% of the sum</h1>"),
            "{page}"
        );
        let job = fs::read_to_string(lab.room.path("jobs/sequential-alone-2.fio")).unwrap();
        assert!(job.contains(&format!("directory={}\n", lab.root(2).display())), "{job}");
        // 3 replicas, sums of 2 and 3, fanfs over 3; then twice 3, 1 and 1; and the script.
        assert_eq!(fs::read_dir(lab.room.path("jobs")).unwrap().count(), 6 + 5 + 5 + 1);
        expect_nothing_in(&lab.tmp());
    });
}

/// The figures of one round: each replica has its throttle's rate, and shares are computed from the
/// right totals.
fn expect_figures_that_agree(report: &Value, load: &str, has_fio: bool) {
    let median = |row: &Value, figure: &str| row[figure]["median"].as_f64().unwrap();
    let rate = |row: &Value| median(row, "mib_per_second");
    let is_near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
    let rows = report["rows"].as_array().unwrap();
    let alone: Vec<_> =
        rows.iter().filter(|row| row["load"] == load && row["kind"] == "alone").collect();
    assert_eq!(alone.len(), 3, "{load}");
    // The throttle lets a burst through at first.
    let most = 2.0 * RATE as f64 / MIB as f64;
    assert!(alone.iter().all(|row| rate(row) > 0.0 && rate(row) < most), "{load}: {alone:?}");
    let fastest = alone.iter().map(|row| rate(row)).fold(0.0, f64::max);
    let (fanfs, sum) = (row(report, load, "fanfs", 3), row(report, load, "sum", 3));
    assert!(rate(fanfs) < 3.0 * most, "{load}: {fanfs}");
    assert!(is_near(median(fanfs, "of_sum"), rate(fanfs) / rate(sum)), "{load}: {fanfs} {sum}");
    assert!(is_near(median(fanfs, "of_fastest"), rate(fanfs) / fastest), "{load}: {fanfs}");
    if has_fio && load == "sequential" {
        let of_fio = rate(alone[0]) / median(alone[0], "fio_mib_per_second");
        assert!(is_near(median(alone[0], "of_fio"), of_fio), "{load}: {}", alone[0]);
    }
}

/// Adds a deadline that a busy machine meets, if `args` has none.
fn bench(room: &Room, args: &[&str]) -> Command {
    let deadline = ["--deadline", "1min"];
    let deadline = if args.contains(&"--deadline") { &[][..] } else { &deadline };
    let mut command = room.fanfs(&[&["bench"], args, deadline].concat());
    command.env("TMPDIR", room.path("mnt"));
    command
}

const SHORT: [&str; 8] =
    ["--seconds", "1", "--rounds", "1", "--block", "64KiB", "--random-block", "4KiB"];

#[test]
fn a_scratch_file_is_made_and_removed_if_allowed() {
    let room = Room::new();
    room.volume("rw.toml", "", "");
    let text = fs::read_to_string(room.path("rw.toml")).unwrap();
    let text = text.replace("mode = \"shared\"\n", "mode = \"shared\"\naccess = \"rw\"\n");
    fs::write(room.path("rw.toml"), &text).unwrap();
    let args = [&["rw.toml", "--make", "16MiB", "--json"], &SHORT[..]].concat();
    let output = bench(&room, &args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report = json(&output);
    assert_eq!(report["made"], true);
    assert_eq!(report["file_bytes"], 16 * MIB);
    let names = || -> Vec<_> {
        fs::read_dir(room.path("tree")).unwrap().map(|e| e.unwrap().file_name()).collect()
    };
    assert_eq!(names(), ["hello"]);
    expect_nothing_in(&room.path("mnt"));

    // Also if it is interrupted while it makes or reads the file.
    for (size, signal) in [("64GiB", Signal::INT), ("16MiB", Signal::HUP)] {
        let args = [&["rw.toml", "--make", size, "--rounds", "50"], &SHORT[4..]].concat();
        // Under nohup(1) the tests ignore SIGHUP, and bench keeps that setting.
        let bench = [env!("CARGO_BIN_EXE_fanfs"), "bench", "--deadline", "1min"];
        let program = [&["--default-signal=HUP"], &bench[..]].concat();
        let mut child = room.program(Path::new("env"), &[program, args].concat());
        child.env("TMPDIR", room.path("mnt")).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        let mounted = || {
            let table = crate::room::mount_table();
            table.contains(&format!("{}/fanfs-bench-", room.path("mnt").display()))
        };
        room.eventually("it is at it", || names().len() == 2 && (size == "64GiB" || mounted()));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{size}");
        assert_eq!(names(), ["hello"], "{size}");
        expect_nothing_in(&room.path("mnt"));
    }
}

#[test]
fn results_survive_a_later_failure() {
    let room = Room::new();
    fs::write(room.path("tree/data"), vec![7; 16 << 20]).unwrap();
    // The script has to have this name.
    fs::create_dir_all(room.path("jobs/run")).unwrap();
    fs::write(room.path("old.html"), "old").unwrap();
    let args = ["v.toml", "--json", "--fio", "jobs", "--report", "old.html"];
    let output = bench(&room, &[&args[..], &SHORT[..]].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = json(&output);
    assert!(row(&report, "random", "fanfs", 2)["mib_per_second"]["median"].as_f64() > Some(0.0));
    let note = report["notes"].as_array().unwrap().last().unwrap().as_str().unwrap();
    assert!(note.contains("jobs/run: Is a directory"), "{note}");
    assert!(fs::read_to_string(room.path("old.html")).unwrap().contains("<svg"));

    fs::write(room.path("old.html"), "old").unwrap();
    let names = || fs::read_dir(room.path("")).unwrap().count();
    let before = names();
    for (more, status) in [
        (["--report", "old.html", "--file", "nowhere"], 1),
        (["--report", "new.html", "--file", "hello"], 2),
        (["--report", "old.html", "--fio", "a-file/jobs"], 2),
    ] {
        let output =
            bench(&room, &[&["v.toml"][..], &more[..], &SHORT[..]].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert_eq!(fs::read_to_string(room.path("old.html")).unwrap(), "old");
        assert_eq!(names(), before, "{more:?}");
    }
    expect_nothing_in(&room.path("mnt"));
}

#[test]
fn a_hung_or_incomplete_replica_is_left_out() {
    attempts(measure_without_a_hung_replica);
}

fn measure_without_a_hung_replica() {
    let room = Room::new();
    for tree in ["tree", "other"] {
        fs::write(room.path(tree).join("data"), vec![7; 16 << 20]).unwrap();
    }
    fs::remove_file(room.path("other/data")).unwrap();
    // A replica that hangs: a mount whose daemon is stopped.
    room.expect(&["mount", "v.toml", "mnt"]);
    let volume = format!(
        "[volume]\nname = \"h\"\nmode = \"copies\"\n[[replica]]\npath = \"{}\"\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n\
         [[replica]]\npath = \"{}\"\nrequire_mount = false\n",
        room.path("mnt").display(),
        room.path("tree").display(),
        room.path("other").display()
    );
    fs::write(room.path("h.toml"), volume).unwrap();
    let daemon = room.first_process();
    room.stop(daemon);
    let tmp = room.path("run");
    let args = [&["h.toml", "--file", "/data", "--deadline", "5s", "--json"], &SHORT[..]].concat();
    let output = bench(&room, &args).env("TMPDIR", &tmp).output();
    kill_process(daemon, Signal::CONT).unwrap();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = json(&output);
    assert_eq!(report["failed"], true);
    let why = |i: usize| report["replicas"][i]["failure"].as_str().unwrap_or("").to_owned();
    assert!(why(0).contains("did not answer within 5 s"), "{report}");
    assert_eq!(why(1), "");
    assert!(why(2).contains("No such file"), "{report}");
    assert!(row(&report, "random", "fanfs", 1)["mib_per_second"]["median"].as_f64() > Some(0.0));
    room.expect(&["umount", "mnt"]);
    room.expect_gone();
}

#[test]
fn impossible_measurements_are_reported() {
    let room = Room::new();
    fs::write(room.path("copies.toml"), {
        let text = fs::read_to_string(room.path("v.toml")).unwrap();
        text.replace("shared", "copies")
    })
    .unwrap();
    for (args, status, wanted) in [
        ("v.toml", 2, "bench needs a regular file of at least 128 MiB; in "),
        ("v.toml --file hello", 2, "hello is too small (0.0 MiB): 4 readers with"),
        ("v.toml --file nowhere", 1, "cannot read nowhere on any replica: r1: "),
        ("v.toml --file ../x", 2, "is not a path in the volume"),
        ("v.toml --block 1000B", 2, "--block must be a multiple of 4KiB"),
        ("v.toml --make 1GiB", 2, "the volume has access = \"ro\""),
        ("copies.toml --make 1GiB", 2, "fanfs does not write to a volume of `copies`"),
        ("v.toml --make 1GiB --file x", 2, "cannot be used with"),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        let output = bench(&room, &args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(wanted) && said.lines().count() == 1, "{args:?}: {said}");
    }
    expect_nothing_in(&room.path("mnt"));
}
