//! No replica answers: servers restart, or the network is down.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::io::Errno;

use crate::machine::attempts;
use crate::processes::Command;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const SIZE: usize = 256 << 10;

/// Silence of this length is more than two short deadlines.
const SILENCE: Duration = Duration::from_secs(4);

const SHORT: &str = "cache = \"direct\"\ndeadline = \"1500ms\"\nattempt_deadline = \"300ms\"";

fn rig(setup: &Setup) -> (Rig, Vec<u8>) {
    let room = tree();
    let content = bytes(SIZE, 61);
    for name in ["f", "g"] {
        fs::write(root(&room).join(name), &content).unwrap();
    }
    for dir in ["d", "e", "l"] {
        fs::create_dir(root(&room).join(dir)).unwrap();
    }
    fs::write(root(&room).join("d/x"), "x").unwrap();
    (mount(room, setup), content)
}

fn add(rig: &Rig, replica: usize, rule: FaultRule) {
    rig.scripts[replica].add(rule);
}

/// Nothing answers, not even the roots.
fn silence(rig: &Rig) {
    for replica in 0..rig.scripts.len() {
        add(rig, replica, FaultRule::always(FaultOp::Any, Fault::Hang));
    }
}

fn heal(rig: &Rig) {
    rig.scripts.iter().for_each(|script| script.heal());
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn a_silence_longer_than_the_deadline_fails_nothing() {
    attempts(|| {
        let write =
            "[write]\nreplica = \"r2\"\ndeadline = \"1500ms\"\n[fuse]\nattribute_ttl = \"0s\"";
        let setup = Setup { read: SHORT, write: true, rest: write, ..Setup::default() };
        let (rig, content) = rig(&setup);
        let (file, written) = (File::open(rig.at("f")).unwrap(), rig.at("written"));
        let known = File::options().create(true).append(true).open(&written).unwrap();
        silence(&rig);
        thread::scope(|scope| {
            let read = scope.spawn(|| {
                let mut buf = vec![0; SIZE];
                file.read_exact_at(&mut buf, 0).map(|()| buf)
            });
            let open = scope.spawn(|| fs::read(rig.at("g")));
            let name = scope.spawn(|| fs::metadata(rig.at("d/x")));
            let listing = scope.spawn(|| Ok(fs::read_dir(rig.at("l"))?.count()));
            let change = scope.spawn(|| fs::create_dir(rig.at("e/new")));
            let write = scope.spawn(|| std::io::Write::write_all(&mut &known, b"more"));
            thread::sleep(SILENCE);
            let ended = [
                read.is_finished(),
                open.is_finished(),
                name.is_finished(),
                listing.is_finished(),
                change.is_finished(),
                write.is_finished(),
            ];
            heal(&rig);
            assert_eq!(ended, [false; 6], "data, open, name, listing, change, write");
            assert!(read.join().unwrap().unwrap() == content, "wrong bytes");
            assert!(open.join().unwrap().unwrap() == content, "wrong bytes");
            assert_eq!(name.join().unwrap().unwrap().len(), 1);
            let listed: std::io::Result<usize> = listing.join().unwrap();
            assert_eq!(listed.unwrap(), 0);
            change.join().unwrap().unwrap();
            write.join().unwrap().unwrap();
        });
        drop((file, known));
        assert!(rig.source(2, "e/new").is_dir());
        assert_eq!(fs::read(rig.source(2, "written")).unwrap(), b"more", "it was made once");
        assert_eq!(rig.status().counters.read_errors, 0);
        rig.expect_quiet();
    });
}

#[test]
fn a_lasting_silence_ends_calls_at_the_longer_deadline() {
    attempts(|| {
        let read = "cache = \"direct\"\ndeadline = \"1500ms\"\ndeadline_all = \"3s\"\n\
                    attempt_deadline = \"200ms\"";
        let (rig, _) = rig(&Setup { read, ..Setup::default() });
        let file = File::open(rig.at("f")).unwrap();
        silence(&rig);
        let calls: [&(dyn Fn() -> Option<Errno> + Sync); 2] =
            [&|| errno(file.read_at(&mut [0; 100], 0)), &|| errno(fs::metadata(rig.at("d/x")))];
        thread::scope(|scope| {
            for call in calls {
                scope.spawn(move || {
                    let started = Instant::now();
                    assert_eq!(call(), Some(Errno::TIMEDOUT));
                    let took = started.elapsed();
                    assert!(took > Duration::from_millis(2900) && took < PATIENCE, "{took:?}");
                });
            }
        });
        heal(&rig);
        drop(file);
        rig.expect_quiet();
    });
}

/// Two replicas are silent. On the third only this file hangs.
#[test]
fn a_hung_file_times_out_though_other_replicas_are_silent() {
    attempts(|| {
        let (rig, _) = rig(&Setup { read: SHORT, ..Setup::default() });
        let file = File::open(rig.at("f")).unwrap();
        for replica in 1..3 {
            add(&rig, replica, FaultRule::always(FaultOp::Any, Fault::Hang));
        }
        add(&rig, 0, FaultRule::always(FaultOp::Read, Fault::Hang));
        add(&rig, 0, FaultRule::always(FaultOp::Metadata, Fault::Hang).beneath("g"));
        let started = Instant::now();
        let read = errno(file.read_at(&mut [0; 100], 0));
        let name = errno(fs::metadata(rig.at("g")));
        let took = started.elapsed();
        heal(&rig);
        assert_eq!([read, name], [Some(Errno::TIMEDOUT); 2]);
        assert!(took < PATIENCE, "{took:?}");
        drop(file);
        rig.expect_quiet();
    });
}

/// As when the mount is replaced: requests sent to the old one get no answer.
#[test]
fn requests_from_before_a_silence_are_resent_after_it() {
    attempts(|| {
        let read = "cache = \"direct\"\nreadahead_max = \"0B\"\ndeadline = \"4s\"\n\
                    attempt_deadline = \"300ms\"";
        let (rig, content) = rig(&Setup { read, ..Setup::default() });
        let file = File::open(rig.at("f")).unwrap();
        for replica in 0..3 {
            let once = |op| FaultRule { count: 1, ..FaultRule::always(op, Fault::Hang) };
            add(&rig, replica, once(FaultOp::Read));
            add(&rig, replica, once(FaultOp::Metadata).beneath("g"));
            let late = Fault::Delay(Duration::from_secs(3));
            add(&rig, replica, FaultRule::always(FaultOp::Metadata, late).beneath(""));
        }
        thread::scope(|scope| {
            let name = scope.spawn(|| fs::metadata(rig.at("g")));
            let mut buf = vec![0; 4096];
            let read = file.read_exact_at(&mut buf, 0);
            let name = name.join().unwrap();
            read.unwrap();
            assert_eq!(buf, content[..4096]);
            assert_eq!(name.unwrap().len(), SIZE as u64);
        });
        heal(&rig);
        drop(file);
        rig.expect_quiet();
    });
}

#[test]
fn a_killed_process_stops_waiting() {
    let read = "cache = \"direct\"\ndeadline = \"10min\"\nattempt_deadline = \"300ms\"";
    let (rig, _) = rig(&Setup { read, ..Setup::default() });
    let file = File::open(rig.at("f")).unwrap();
    silence(&rig);
    // Unlike cat(1), dd does not ask for attributes first.
    let mut reader = Command::new("dd");
    reader
        .arg("count=1")
        .stdin(file.try_clone().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut looker = Command::new("stat");
    looker.arg(rig.at("d/x")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut children = [reader.spawn().unwrap(), looker.spawn().unwrap()];
    drop((reader, looker));
    let waits =
        |status: &fanfs::status::Status| status.gauges.requests > 0 && status.gauges.calls > 0;
    rig.eventually("both wait", waits);
    for child in &mut children {
        child.kill().unwrap();
    }
    let until = Instant::now() + PATIENCE;
    let mut ended = [false; 2];
    while ended != [true; 2] && Instant::now() < until {
        for (ended, child) in ended.iter_mut().zip(&mut children) {
            *ended = *ended || child.try_wait().unwrap().is_some();
        }
        thread::sleep(Duration::from_millis(20));
    }
    heal(&rig);
    for child in &mut children {
        child.wait().unwrap();
    }
    assert_eq!(ended, [true; 2], "the reader, the one who looks");
    drop(file);
    rig.expect_quiet();
}

#[test]
fn an_unmount_ends_the_wait() {
    attempts(|| {
        let (rig, _) = rig(&Setup { read: SHORT, ..Setup::default() });
        let file = File::open(rig.at("f")).unwrap();
        silence(&rig);
        let scripts = rig.scripts.clone();
        let waiting = thread::spawn(move || file.read_at(&mut [0; 100], 0));
        rig.eventually("it waits", |status| status.gauges.requests > 0);
        let took = rig.end();
        let read = waiting.join().unwrap();
        scripts.iter().for_each(|script| script.heal());
        assert!(read.is_err() && took < PATIENCE, "{read:?}, {took:?}");
    });
}
