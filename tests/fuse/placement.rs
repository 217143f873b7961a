//! Chunks on nodes: which replicas serve reads once the provider has answered, and that no read
//! waits for a provider that does not answer.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use fanfs::status::Status;
use fanfs::volume::ByteRange;
use rustix::io::Errno;
use tempfile::TempDir;

use crate::machine::attempts;
use crate::processes::daemon_starts;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;
const READ: &str = "segment_size = \"512KiB\"";

/// A tree with the file `f`.
fn with_file(len: usize) -> (TempDir, Vec<u8>) {
    let room = tree();
    let content = bytes(len, 11);
    fs::write(root(&room).join("f"), &content).unwrap();
    (room, content)
}

/// `[placement]` by a table of these CSV lines.
fn table(room: &TempDir, lines: &str, more: &str) -> String {
    let file = room.path().join("table.csv");
    write_table(&file, lines);
    format!("[placement]\nprovider = \"table\"\nfile = \"{}\"\n{more}\n", file.display())
}

fn write_table(file: &Path, lines: &str) {
    fs::write(file, format!("path,start,end,nodes\n{lines}\n")).unwrap();
}

/// `[placement]` by a program: a line of shell.
fn exec(line: &str) -> String {
    format!("[placement]\nprovider = \"exec\"\ncommand = [\"sh\", \"-c\", '''{line}''']\n")
}

fn read_on(file: &File, content: &[u8], range: std::ops::Range<usize>) {
    let mut buf = vec![0; MIB];
    let mut at = range.start;
    while at < range.end {
        let n = file.read_at(&mut buf[..MIB.min(range.end - at)], at as u64).unwrap();
        assert!(n > 0 && buf[..n] == content[at..at + n], "wrong bytes at {at}");
        at += n;
    }
}

/// Reads `f` from end to start, so that there is no readahead and every piece finds all replicas
/// free.
fn read_backwards(rig: &Rig, content: &[u8], range: std::ops::Range<usize>) {
    let file = File::open(rig.at("f")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let mut at = range.end;
    while at > range.start {
        at -= MIB / 2;
        let mut buf = vec![0; MIB / 2];
        file.read_exact_at(&mut buf, at as u64).unwrap();
        assert!(buf == content[at..at + MIB / 2], "wrong bytes at {at}");
    }
}

/// Makes the locator ask the provider about `f`, and waits for its answer.
fn answered(rig: &Rig) {
    File::open(rig.at("f")).unwrap().read_at(&mut [0], 0).unwrap();
    rig.eventually("the provider has answered", |status| status.placement.answers > 0);
}

/// MiB delivered by each replica.
fn shares(status: &Status) -> [f64; 3] {
    [0, 1, 2].map(|i| status.replicas[i].counters.bytes as f64 / MIB as f64)
}

fn gained(after: &Status, before: &Status) -> [f64; 3] {
    let (after, before) = (shares(after), shares(before));
    [0, 1, 2].map(|i| after[i] - before[i])
}

/// MiB read where the chunks are, and elsewhere.
fn by_locality(status: &Status) -> (f64, f64) {
    let sum = |of: fn(&fanfs::status::ReplicaStatus) -> u64| {
        status.replicas.iter().map(of).sum::<u64>() as f64 / MIB as f64
    };
    (sum(|r| r.counters.bytes_local), sum(|r| r.counters.bytes_remote))
}

#[test]
fn interleaved_chunks_are_read_from_their_nodes() {
    attempts(|| {
        const CHUNK: usize = 4 * MIB;
        let (room, content) = with_file(96 * MIB);
        let chunks = content.len() / CHUNK;
        let lines: String = (0..chunks)
            .map(|i| format!("/f,{}MiB,{}MiB,r{}\n", 4 * i, 4 * i + 4, i % 3 + 1))
            .collect();
        let more = table(&room, &lines, "");
        let rig = mount(room, &Setup { read: READ, more, rates: [60; 3], ..Setup::default() });
        for (i, script) in (0..chunks).flat_map(|i| [(i, i + 1), (i, i + 2)]) {
            // A gateway takes longer to fetch from another node.
            let within = Some(ByteRange::at((i * CHUNK) as u64, CHUNK as u64));
            let slowly = Fault::Delay(Duration::from_millis(30));
            rig.scripts[script % 3]
                .add(FaultRule { within, ..FaultRule::always(FaultOp::Read, slowly) });
        }
        answered(&rig);
        let file = File::open(rig.at("f")).unwrap();
        // Until the window spans chunks of all nodes, reading from other replicas is sooner.
        read_on(&file, &content, 0..32 * MIB);
        let before = by_locality(&rig.status());
        read_on(&file, &content, 32 * MIB..content.len());
        let status = rig.status();
        let after = by_locality(&status);
        let (local, remote) = (after.0 - before.0, after.1 - before.1);
        println!("{before:?}, then {local} MiB local, {remote} remote: {:?}", shares(&status));
        // 0.97 on an idle processor, a third if placement has no effect.
        assert!(local / (local + remote) >= 0.75, "{local} MiB local, {remote} remote");
        assert!(after.0 + after.1 > 90.0, "placement was not known: {after:?}");
        assert_eq!(status.placement.provider, "table");
        assert_eq!(status.counters.read_errors, 0);
        drop(file);
        rig.expect_quiet();
    });
}

#[test]
fn chunks_are_read_elsewhere_if_that_is_sooner() {
    attempts(|| {
        let (room, content) = with_file(40 * MIB);
        let more = table(&room, "/f,,,r3", "");
        let read = "segment_size = \"512KiB\"\nthreads_per_replica = 4";
        let rig = mount(room, &Setup { read, more, rates: [60; 3], ..Setup::default() });
        // A gateway takes longer to fetch from another node; without that, the load of the machine
        // decides which replica is sooner.
        let delay = |ms| {
            for script in &rig.scripts[..2] {
                script.replace(FaultRule::always(
                    FaultOp::Read,
                    Fault::Delay(Duration::from_millis(ms)),
                ));
            }
        };
        delay(150);
        answered(&rig);
        let before = rig.status();
        read_backwards(&rig, &content, 32 * MIB..40 * MIB);
        let one_by_one = gained(&rig.status(), &before);
        // No replica is sooner than the holder, as long as that is free.
        assert!(one_by_one[2] >= 6.0, "{one_by_one:?}");
        // Now about 38 MiB/s, one read at a time.
        delay(5);
        let before = rig.status();
        read_on(&File::open(rig.at("f")).unwrap(), &content, 0..32 * MIB);
        let status = rig.status();
        let at_once = gained(&status, &before);
        println!("one by one {one_by_one:?}, at once {at_once:?}");
        assert!(at_once[2] >= 8.0, "{at_once:?}");
        assert!(at_once[0] + at_once[1] > 1.0, "no other replica helps: {at_once:?}");
        for i in [0, 1] {
            assert_eq!(status.replicas[i].counters.bytes_local, 0, "r{}", i + 1);
        }
        assert_eq!(status.replicas[2].counters.bytes_remote, 0);
    });
}

#[test]
fn a_hung_provider_delays_neither_reads_nor_unmount() {
    let (room, content) = with_file(8 * MIB);
    let mark = room.path().join("asked");
    let line = format!("echo $$ > {}; exec sleep 600", mark.display());
    let more = exec(&line) + "timeout = \"60s\"\n";
    let rig = mount(room, &Setup { more, ..Setup::default() });
    let starting = daemon_starts();
    let started = Instant::now();
    let file = File::open(rig.at("f")).unwrap();
    read_on(&file, &content, 0..MIB);
    let took = started.elapsed();
    assert!(took < PATIENCE, "the first read took {took:?}");
    let pid = || fs::read_to_string(&mark).ok()?.trim().parse::<u32>().ok();
    rig.eventually("it is asked", |status| status.placement.pending == 1 && pid().is_some());
    drop(starting);
    read_on(&file, &content, MIB..content.len());
    let status = rig.status();
    assert_eq!((status.placement.pending, status.placement.answers), (1, 0));
    assert_eq!(by_locality(&status), (0.0, 0.0), "unknown placement is not counted");
    drop(file);
    let program = format!("/proc/{}/cmdline", pid().unwrap());
    let took = rig.end();
    assert!(took < PATIENCE, "the unmount took {took:?}");
    // Not even a zombie's command line remains.
    let until = Instant::now() + PATIENCE;
    while fs::read(&program).is_ok_and(|words| !words.is_empty()) {
        assert!(Instant::now() < until, "the program goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_failing_provider_is_counted_and_reads_continue() {
    for (line, expected) in [
        ("echo the cluster is away >&2; exit 3", "the cluster is away"),
        ("echo {\"chunks\":", "line "),
        ("echo '[[0, 100, \"r1\"]]'", "expected a JSON object"),
    ] {
        let (room, content) = with_file(8 * MIB);
        let rig = mount(room, &Setup { more: exec(line), ..Setup::default() });
        let starting = daemon_starts();
        read_on(&File::open(rig.at("f")).unwrap(), &content, 0..content.len());
        let failed = |s: &Status| s.placement.failures > 0 && s.placement.pending == 0;
        let status = rig.eventually(expected, failed);
        drop(starting);
        assert_eq!(status.counters.read_errors, 0);
        let failing = status.placement.failing.unwrap();
        assert!(failing.contains(expected), "{failing}");
        assert_eq!(status.placement.answers, 0);
    }
}

#[test]
fn unmatched_node_names_are_shown_and_aliases_match_them() {
    attempts(|| {
        for keys in [&[][..], &["", "aliases = [\"storage2\"]", ""][..]] {
            let (room, content) = with_file(8 * MIB);
            let more = table(&room, "/f,,,storage2.example.com:5660 elsewhere", "");
            let rig = mount(room, &Setup { more, keys, ..Setup::default() });
            answered(&rig);
            // Clearly worse, whatever the load of the machine.
            for script in [&rig.scripts[0], &rig.scripts[2]] {
                script
                    .add(FaultRule::always(FaultOp::Read, Fault::Delay(Duration::from_millis(50))));
            }
            let before = rig.status();
            read_backwards(&rig, &content, MIB..8 * MIB);
            let status = rig.status();
            let unmatched = &status.placement.unmatched;
            if keys.is_empty() {
                assert_eq!(*unmatched, ["storage2.example.com:5660", "elsewhere"]);
                assert_eq!(by_locality(&status).0, 0.0);
            } else {
                assert_eq!(*unmatched, ["elsewhere"]);
                let [_, r2, _] = gained(&status, &before);
                assert!(r2 >= 5.5, "{:?}", shares(&status));
                assert!(by_locality(&status).0 >= 5.5);
            }
        }
    });
}

#[test]
fn a_changed_table_takes_effect() {
    attempts(|| {
        let (room, content) = with_file(24 * MIB);
        let file = room.path().join("table.csv");
        let more = table(&room, "/f,,,r3", "ttl = \"1s\"");
        let rig = mount(room, &Setup { read: READ, more, rates: [60; 3], ..Setup::default() });
        answered(&rig);
        // Clearly worse, whatever the load of the machine.
        for script in &rig.scripts[..2] {
            script.add(FaultRule::always(FaultOp::Read, Fault::Delay(Duration::from_millis(150))));
        }
        let before = rig.status();
        read_backwards(&rig, &content, 16 * MIB..24 * MIB);
        let first = gained(&rig.status(), &before);
        assert!(first[2] >= 6.5, "{first:?}");
        rig.scripts[..2].iter().for_each(|script| script.heal());
        write_table(&file, "/f,,,r1 unknown");
        let answers = rig.status().placement.answers;
        std::thread::sleep(Duration::from_millis(1100));
        // The read that finds the answer outdated still follows it.
        File::open(rig.at("f")).unwrap().read_at(&mut [0], 2 * MIB as u64).unwrap();
        rig.eventually("it is asked again", |status| status.placement.answers > answers);
        let before = rig.status();
        read_on(&File::open(rig.at("f")).unwrap(), &content, 3 * MIB..16 * MIB);
        let status = rig.status();
        let local = [0, 1, 2].map(|i| {
            let of = |status: &Status| status.replicas[i].counters.bytes_local as usize / MIB;
            of(&status) - of(&before)
        });
        println!("{first:?}, then local {local:?} of {:?}", gained(&status, &before));
        assert!(local[0] >= 2 && local[1] + local[2] == 0, "{local:?}");
    });
}

/// The metadata calls that each replica has answered.
fn calls(status: &Status) -> [u64; 3] {
    [0, 1, 2].map(|i| status.replicas[i].counters.metadata)
}

#[test]
fn a_pinned_subtree_is_read_from_its_healthy_replica() {
    attempts(|| {
        let room = tree();
        let content = bytes(2 * MIB, 3);
        for dir in (0..8).map(|i| format!("a/d{i}")).chain((0..24).map(|i| format!("b{i}"))) {
            fs::create_dir_all(root(&room).join(&dir)).unwrap();
            fs::write(root(&room).join(&dir).join("f"), &content).unwrap();
        }
        let more = "[[affinity]]\npath = \"/a/**\"\nreplica = \"r2\"\n".to_owned();
        let rig = mount(room, &Setup { more, ..Setup::default() });
        // So long that a busy processor makes no difference.
        for script in &rig.scripts {
            for op in [FaultOp::Metadata, FaultOp::Open] {
                script.add(FaultRule::always(op, Fault::Delay(Duration::from_millis(5))));
            }
        }
        let visit = |dir: &str| {
            let names: Vec<_> = fs::read_dir(rig.at(dir)).unwrap().collect();
            assert_eq!(names.len(), 1, "{dir}");
            assert!(fs::read(rig.at(dir).join("f")).unwrap() == content, "{dir}");
        };
        let before = rig.status();
        for i in 0..24 {
            visit(&format!("b{i}"));
        }
        let status = rig.status();
        let spread = [0, 1, 2].map(|i| calls(&status)[i] - calls(&before)[i]);
        // A replica with unlucky delays counts as slow for a while.
        assert!(spread.iter().filter(|calls| **calls >= 8).count() >= 2, "{spread:?}");

        let before = rig.status();
        for i in 0..4 {
            visit(&format!("a/d{i}"));
        }
        let status = rig.status();
        // Except for a segment that is late and hedged to another replica.
        let data = gained(&status, &before);
        assert!(data[1] >= 6.0 && data[0] + data[2] <= 2.0, "{data:?}");
        let [r1, r2, r3] = [0, 1, 2].map(|i| calls(&status)[i] - calls(&before)[i]);
        // One call in 64 checks whether another replica is faster.
        assert!(r2 >= 12 && r1 + r3 <= 1 + r2 / 16, "metadata: {r1} {r2} {r3}");
        let [rule] = &status.affinities[..] else { panic!("{:?}", status.affinities) };
        assert_eq!((&*rule.path, &rule.replicas[..]), ("/a/**", &["r2".to_owned()][..]));
        assert!(rule.calls >= 12 && rule.times_us[1] > 0, "{rule:?}");

        rig.scripts[1].replace(FaultRule::always(FaultOp::Any, Fault::Errno(Errno::IO)));
        for i in 4..8 {
            visit(&format!("a/d{i}"));
        }
        let failed = rig.status();
        assert_eq!(failed.counters.read_errors, 0);
        assert_eq!(gained(&failed, &status)[1], 0.0);
    });
}

#[test]
fn a_falsely_local_replica_is_not_trusted() {
    attempts(|| {
        // The first part is on r1; the second is not, and r1 delivers it slowly; the provider says
        // that the third is on r1, which delivers it as slowly.
        let (room, content) = with_file(80 * MIB);
        let more = table(&room, "/f,,16MiB,r1\n/f,16MiB,48MiB,r2\n/f,48MiB,,r1", "");
        // No readahead into the third part while the second is read.
        let read = "segment_size = \"512KiB\"\nthreads_per_replica = 3\nreadahead_max = \"8MiB\"";
        let rig = mount(room, &Setup { read, more, rates: [100, 10, 10], ..Setup::default() });
        answered(&rig);
        // One thread reads it: 12.5 MiB/s.
        let slowly = Fault::Delay(Duration::from_millis(40));
        let within = Some(ByteRange::new(16 * MIB as u64, 80 * MIB as u64));
        rig.scripts[0].add(FaultRule { within, ..FaultRule::always(FaultOp::Read, slowly) });
        let file = File::open(rig.at("f")).unwrap();
        read_on(&file, &content, 0..38 * MIB);
        let known = rig.status();
        println!(
            "local {:?}, remote {:?}",
            known.replicas[0].estimated_bandwidth_local,
            known.replicas[0].estimated_bandwidth_remote
        );
        assert_eq!(known.placement.contradicted, 0);
        read_on(&file, &content, 38 * MIB..80 * MIB);
        let status = rig.eventually("it is not believed", |s| s.placement.contradicted >= 1);
        assert!(status.placement.answers >= 2, "the provider was not asked again");
    });
}
