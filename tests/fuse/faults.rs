//! Replicas that fail, are late, hang or differ.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use fanfs::volume::ByteRange;
use rustix::io::Errno;

use crate::machine::{attempts, timed};
use crate::rig::{PATIENCE, Rig, Setup, bytes, insist, mount, root, tree};

const MIB: usize = 1 << 20;

fn rig(len: usize, read: &'static str) -> (Rig, Vec<u8>) {
    let room = tree();
    let content = bytes(len, 5);
    fs::write(root(&room).join("f"), &content).unwrap();
    (mount(room, &Setup { read, ..Setup::default() }), content)
}

fn always(rig: &Rig, replica: usize, op: FaultOp, fault: Fault) {
    rig.scripts[replica].add(FaultRule::always(op, fault));
}

fn after(rig: &Rig, replica: usize, after: u64, fault: Fault) {
    rig.scripts[replica].add(FaultRule { after, ..FaultRule::always(FaultOp::Read, fault) });
}

/// Reads the whole file and returns the longest read(2)'s time.
fn read_all(rig: &Rig, content: &[u8]) -> Duration {
    let file = File::open(rig.at("f")).unwrap();
    let mut longest = Duration::ZERO;
    let mut buf = vec![0; MIB];
    let mut at = 0;
    while at < content.len() {
        let started = Instant::now();
        let n = file.read_at(&mut buf, at as u64).unwrap();
        longest = longest.max(started.elapsed());
        assert!(n > 0 && buf[..n] == content[at..at + n], "wrong bytes at {at}");
        at += n;
    }
    longest
}

#[test]
fn reads_succeed_if_one_replica_fails_every_read() {
    attempts(|| {
        let (rig, content) = rig(24 * MIB, "");
        always(&rig, 1, FaultOp::Read, Fault::Errno(Errno::IO));
        read_all(&rig, &content);
        let status = rig.status();
        assert!(status.replicas[1].counters.errors > 0, "it was never asked");
        assert_eq!(status.counters.read_errors, 0);
        rig.expect_quiet();
    });
}

#[test]
fn reads_succeed_if_one_replica_returns_short_reads() {
    let (rig, content) = rig(6 * MIB, "");
    always(&rig, 0, FaultOp::Read, Fault::ShortRead(1000));
    read_all(&rig, &content);
}

#[test]
fn reads_succeed_if_one_replica_hangs() {
    attempts(|| {
        let (rig, content) = rig(40 * MIB, "");
        for script in &rig.scripts {
            script.add(FaultRule {
                count: 12,
                ..FaultRule::always(FaultOp::Read, Fault::Delay(Duration::from_millis(3)))
            });
        }
        after(&rig, 2, 3, Fault::Hang);
        rig.scripts[2].heal();
        after(&rig, 2, 3, Fault::Hang);
        let longest = read_all(&rig, &content);
        // Below the deadline of 30 s; the margin depends on the machine.
        assert!(longest < PATIENCE, "{longest:?}");
        let status = rig.status();
        assert!(status.counters.hedges > 0, "nothing hung: {:?}", status.counters);
        assert_eq!(status.counters.read_errors, 0);
        rig.scripts[2].heal();
        rig.expect_quiet();
    });
}

#[test]
fn reads_succeed_if_one_replica_is_late() {
    let (rig, content) = rig(24 * MIB, "");
    let late = PATIENCE + Duration::from_secs(2);
    always(&rig, 0, FaultOp::Read, Fault::Delay(late));
    let longest = read_all(&rig, &content);
    assert!(longest < PATIENCE, "{longest:?}");
    rig.scripts[0].heal();
}

#[test]
fn if_all_replicas_fail_the_errno_is_theirs() {
    let (rig, _) = rig(2 * MIB, "");
    for errno in [Errno::IO, Errno::NOSPC, Errno::from_raw_os_error(512)] {
        for replica in 0..3 {
            rig.scripts[replica].replace(FaultRule::always(FaultOp::Read, Fault::Errno(errno)));
        }
        let error = fs::read(rig.at("f")).unwrap_err().raw_os_error().unwrap();
        let expected = if errno.raw_os_error() == 512 { Errno::IO } else { errno };
        assert_eq!(error, expected.raw_os_error());
    }
    for script in &rig.scripts {
        script.heal();
    }
    assert_eq!(fs::read(rig.at("f")).unwrap().len(), 2 * MIB, "it does not recover");
    rig.expect_quiet();
}

#[test]
fn if_all_replicas_hang_the_read_ends_at_its_deadline() {
    let (rig, _) = rig(2 * MIB, "deadline = \"1s\"\nattempt_deadline = \"300ms\"");
    let file = insist(|| File::open(rig.at("f")));
    for replica in 0..3 {
        always(&rig, replica, FaultOp::Read, Fault::Hang);
    }
    let started = Instant::now();
    let error = file.read_at(&mut [0; 100], 0).unwrap_err().raw_os_error().unwrap();
    let took = started.elapsed();
    assert_eq!(error, Errno::TIMEDOUT.raw_os_error());
    assert!(took > Duration::from_millis(900) && took < PATIENCE, "{took:?}");
    for script in &rig.scripts {
        script.heal();
    }
    // The kernel may ask for its page again before it gives up.
    assert_eq!(insist(|| file.read_at(&mut [0; 100], 0)), 100);
    drop(file);
    rig.expect_quiet();
}

#[test]
fn a_timed_out_read_fails_no_other_read_of_the_file() {
    attempts(|| {
        const PART: usize = 64 << 10;
        let read = "cache = \"direct\"\ndeadline = \"2s\"\nattempt_deadline = \"1s\"";
        let (rig, content) = rig(32 * MIB, read);
        let file = File::open(rig.at("f")).unwrap();
        let read = |at: usize| {
            let mut buf = vec![0; PART];
            file.read_exact_at(&mut buf, at as u64)?;
            assert!(buf == content[at..at + PART], "wrong bytes at {at}");
            std::io::Result::Ok(())
        };
        (0..2).for_each(|i| read(i * PART).unwrap());
        rig.eventually("something was fetched ahead", |status| {
            let gauges = &status.gauges;
            gauges.segments_waiting + gauges.segments_in_flight == 0 && gauges.buffer_used > 0
        });
        for script in &rig.scripts {
            let within = Some(ByteRange::at(28 * MIB as u64, MIB as u64));
            script.add(FaultRule { within, ..FaultRule::always(FaultOp::Read, Fault::Hang) });
        }
        let error = read(28 * MIB).unwrap_err();
        let in_memory = read(2 * PART);
        rig.scripts.iter().for_each(|script| script.heal());
        let elsewhere = read(20 * MIB);
        assert_eq!(error.raw_os_error(), Some(Errno::TIMEDOUT.raw_os_error()));
        assert!(in_memory.is_ok() && elsewhere.is_ok(), "{in_memory:?}, {elsewhere:?}");
        assert!(rig.status().counters.buffer_hits > 0, "nothing was read from memory");
        drop(file);
        rig.expect_quiet();
    });
}

#[test]
fn the_session_runs_while_small_reads_hang() {
    // More of them than there are session threads that could carry them out.
    const READERS: usize = 24;
    let room = tree();
    let content = bytes(READERS * 4096, 6);
    fs::write(root(&room).join("f"), &content).unwrap();
    for i in 0..50 {
        fs::write(root(&room).join(format!("new{i}")), "x").unwrap();
    }
    // Longer than all the looks below take on a busy machine.
    let read = "cache = \"direct\"\ndeadline = \"4min\"";
    let rig = mount(room, &Setup { read, ..Setup::default() });
    let file = File::open(rig.at("f")).unwrap();
    // The first read has the file opened there.
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
    for replica in 0..3 {
        always(&rig, replica, FaultOp::Read, Fault::Hang);
    }
    std::thread::scope(|scope| {
        let reader = |i: usize| {
            let (file, content) = (&file, &content[i * 4096..][..4096]);
            scope.spawn(move || {
                let mut buf = [0; 4096];
                file.read_exact_at(&mut buf, i as u64 * 4096).unwrap();
                assert_eq!(buf, content);
            })
        };
        let readers: Vec<_> = (0..READERS).map(reader).collect();
        // An assertion that failed here would wait for the readers.
        let are_inside = || {
            let replicas = rig.status().replicas;
            replicas.iter().map(|replica| replica.active_threads).sum::<usize>() >= 2
        };
        let until = Instant::now() + PATIENCE;
        while !are_inside() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let was_inside = are_inside();
        let looks: Vec<_> = (0..50).map(|i| fs::metadata(rig.at(format!("new{i}")))).collect();
        rig.scripts.iter().for_each(|script| script.heal());
        assert!(was_inside, "no reader is inside a replica");
        // If the session had waited for a read, that read would have ended at its deadline.
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        looks.into_iter().for_each(|look| assert_eq!(look.unwrap().len(), 1));
    });
    drop(file);
    rig.expect_quiet();
}

/// Replicas have answered recently, so session threads make the calls themselves.
#[test]
fn the_session_runs_while_metadata_calls_hang() {
    attempts(|| {
        // More callers than session threads. Their calls take all threads of the replicas before
        // the first one counts as stuck (2 s).
        const CALLERS: usize = 24;
        let room = tree();
        for dir in ["hung", "well"] {
            fs::create_dir(root(&room).join(dir)).unwrap();
            for i in 0..CALLERS {
                fs::write(root(&room).join(dir).join(i.to_string()), "x").unwrap();
            }
        }
        let read = "deadline = \"8s\"\ndeadline_all = \"8s\"\nattempt_deadline = \"300ms\"";
        let rest = "[fuse]\nattribute_ttl = \"0s\"";
        let rig = mount(room, &Setup { read, rest, ..Setup::default() });
        let path = |dir: &str, i: usize| rig.at(format!("{dir}/{i}"));
        let look = |dir: &str| {
            let len = |i| fs::metadata(path(dir, i)).unwrap().len();
            (0..CALLERS).for_each(|i| assert_eq!(len(i), 1));
        };
        look("hung");
        for script in &rig.scripts {
            script.add(FaultRule::always(FaultOp::Metadata, Fault::Hang).beneath("hung"));
        }
        std::thread::scope(|scope| {
            let caller = |i: usize| {
                let path = path("hung", i);
                scope.spawn(move || fs::metadata(path).unwrap_err().raw_os_error())
            };
            let callers: Vec<_> = (0..CALLERS).map(caller).collect();
            rig.eventually("calls are inside replicas", |status| {
                status.replicas.iter().map(|replica| replica.active_threads).sum::<usize>() >= 2
            });
            look("well");
            for caller in callers {
                assert_eq!(caller.join().unwrap(), Some(Errno::TIMEDOUT.raw_os_error()));
            }
        });
        rig.scripts.iter().for_each(|script| script.heal());
        // A lookup of a name that has just timed out fails at once.
        rig.eventually("the calls return", |_| fs::metadata(path("hung", 0)).is_ok());
        rig.expect_quiet();
    });
}

#[test]
fn reads_of_a_hung_replica_hold_no_memory() {
    const READERS: usize = 40;
    const APART: usize = 256 << 10;
    let room = tree();
    fs::write(root(&room).join("f"), bytes(READERS * APART, 8)).unwrap();
    let read = "cache = \"direct\"\nreadahead_max = \"0B\"\ndeadline = \"1s\"\n\
                attempt_deadline = \"300ms\"\nthreads_per_replica = 4";
    let rig = mount(room, &Setup { replicas: 2, read, ..Setup::default() });
    let file = insist(|| File::open(rig.at("f")));
    always(&rig, 0, FaultOp::Read, Fault::Errno(Errno::IO));
    always(&rig, 1, FaultOp::Read, Fault::Hang);
    std::thread::scope(|scope| {
        for i in 0..READERS {
            let file = &file;
            scope.spawn(move || file.read_at(&mut vec![0; APART], (i * APART) as u64).unwrap_err());
        }
    });
    // Only the read inside the hung replica stays.
    let inside = (4 + 4) * APART as u64;
    rig.eventually("nothing waits, and memory is given back", |status| {
        status.gauges.segments_waiting == 0 && status.gauges.buffer_used <= inside
    });
    drop(file);
    rig.scripts.iter().for_each(|script| script.heal());
    rig.expect_quiet();
}

#[test]
fn metadata_works_if_one_replica_hangs_or_fails() {
    for fault in [Fault::Hang, Fault::Errno(Errno::IO), Fault::Delay(Duration::from_secs(20))] {
        for replica in 0..3 {
            let room = tree();
            for i in 0..20 {
                fs::create_dir(root(&room).join(format!("d{i}"))).unwrap();
                fs::write(root(&room).join(format!("d{i}/f")), "x").unwrap();
            }
            let rig = mount(room, &Setup::default());
            always(&rig, replica, FaultOp::Any, fault);
            let ((), took) = timed(|| {
                for i in 0..20 {
                    assert_eq!(fs::read_dir(rig.at(format!("d{i}"))).unwrap().count(), 1);
                    assert_eq!(fs::read_to_string(rig.at(format!("d{i}/f"))).unwrap(), "x");
                }
            });
            assert!(took < PATIENCE, "replica {replica}, {fault:?}: {took:?}");
            rig.scripts[replica].heal();
        }
    }
}

#[test]
fn unanswered_metadata_calls_end_at_the_deadline() {
    let room = tree();
    let read = "deadline = \"1s\"\ndeadline_all = \"1s\"\nattempt_deadline = \"300ms\"";
    let rig = mount(room, &Setup { read, ..Setup::default() });
    for replica in 0..3 {
        always(&rig, replica, FaultOp::Any, Fault::Hang);
    }
    let started = Instant::now();
    let error = fs::metadata(rig.at("missing")).unwrap_err().raw_os_error().unwrap();
    let took = started.elapsed();
    assert_eq!(error, Errno::TIMEDOUT.raw_os_error());
    assert!(took > Duration::from_millis(900) && took < PATIENCE, "{took:?}");
}

#[test]
fn a_differing_copy_is_excluded_and_counted() {
    attempts(|| {
        let content = bytes(12 * MIB, 4);
        for damage in ["size", "mtime", "missing"] {
            let room = tree();
            fs::write(root(&room).join("f"), &content).unwrap();
            let rig = mount(room, &Setup { copies: true, ..Setup::default() });
            let copy = rig.source(1, "f");
            match damage {
                "size" => File::options()
                    .write(true)
                    .open(&copy)
                    .unwrap()
                    .set_len(5 * MIB as u64)
                    .unwrap(),
                "missing" => fs::remove_file(&copy).unwrap(),
                // Other content, later; same size.
                _ => fs::write(&copy, vec![0; content.len()]).unwrap(),
            }
            for script in &rig.scripts {
                script
                    .add(FaultRule::always(FaultOp::Read, Fault::Delay(Duration::from_millis(5))));
            }
            read_all(&rig, &content);
            let replicas = rig.status().replicas;
            assert_eq!(replicas[1].counters.bytes, 0, "{damage}");
            assert!(replicas[1].counters.disagreements > 0, "{damage}");
            assert!(replicas[2].counters.bytes > 0, "{damage}");
        }
    });
}
