//! A slow replica that makes progress causes no deadline errors, and hung calls end.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use rustix::io::Errno;

use crate::machine::{attempts, timed};
use crate::processes::no_start;
use crate::rig::{Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

/// A part takes a quarter of a second at the slow replica's rate, 1 MiB/s.
const PART: usize = MIB / 4;

/// All parts take four times the deadline.
const PARTS: usize = 32;

/// The slow replica delivers a part eight times within the deadline.
const IMPATIENT: &str = "cache = \"direct\"\nreadahead_max = \"0B\"\ndeadline = \"2s\"\n\
                         attempt_deadline = \"1s\"\nthreads_per_replica = 4";

fn slow(write: bool, rest: &'static str) -> (Rig, Vec<u8>) {
    let room = tree();
    let content = bytes(PARTS * PART, 71);
    fs::write(root(&room).join("f"), &content).unwrap();
    for i in 0..PARTS {
        fs::write(root(&room).join(format!("f{i}")), "x").unwrap();
    }
    let setup =
        Setup { replicas: 1, rates: [1; 3], write, read: IMPATIENT, rest, ..Setup::default() };
    (mount(room, &setup), content)
}

/// Makes one call for each part at once; none of them can end within the deadline.
fn at_once(call: impl Fn(usize) + Sync) {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for i in 0..PARTS {
            let call = &call;
            scope.spawn(move || call(i));
        }
    });
    assert!(started.elapsed() > Duration::from_secs(3), "it was not slow: {:?}", started.elapsed());
}

#[test]
fn readers_in_a_long_queue_get_their_bytes() {
    attempts(|| {
        let (rig, content) = slow(false, "");
        let file = File::open(rig.at("f")).unwrap();
        at_once(|i| {
            let mut part = vec![0; PART];
            file.read_exact_at(&mut part, (i * PART) as u64).unwrap();
            assert!(part == content[i * PART..][..PART], "wrong bytes");
        });
        drop(file);
        rig.expect_quiet();
    });
}

/// One request of the kernel has sixteen segments, each of them half a second away.
#[test]
fn one_long_read_gets_its_bytes() {
    attempts(|| {
        let (rig, content) = slow(false, "segment_size = \"64KiB\"");
        let file = File::open(rig.at("f")).unwrap();
        let slow = Fault::Delay(Duration::from_millis(500));
        rig.scripts[0].add(FaultRule::always(FaultOp::Read, slow));
        let (started, mut bytes) = (Instant::now(), vec![0; MIB]);
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == content[..MIB], "wrong bytes");
        assert!(
            started.elapsed() > Duration::from_secs(3),
            "it was not slow: {:?}",
            started.elapsed()
        );
        rig.scripts[0].heal();
        drop(file);
        rig.expect_quiet();
    });
}

#[test]
fn lookups_in_a_long_queue_get_their_answers() {
    attempts(|| {
        let (rig, _) = slow(false, "");
        let slow = Fault::Delay(Duration::from_millis(500));
        rig.scripts[0].add(FaultRule::always(FaultOp::Metadata, slow));
        at_once(|i| assert_eq!(fs::metadata(rig.at(format!("f{i}"))).unwrap().len(), 1));
        rig.expect_quiet();
    });
}

/// Each in a file of its own: the kernel sends writes of one file one after the other.
#[test]
fn changes_in_a_long_queue_are_made() {
    attempts(|| {
        let (rig, content) = slow(true, "[write]\ndeadline = \"2s\"\nlag = \"0s\"");
        at_once(|i| {
            let file = File::options().write(true).open(rig.at(format!("f{i}"))).unwrap();
            file.write_all_at(&content[i * PART..][..PART], 0).unwrap();
        });
        for i in 0..PARTS {
            let written = fs::read(rig.source(0, format!("f{i}"))).unwrap();
            assert!(written == content[i * PART..][..PART], "wrong bytes");
        }
        rig.expect_quiet();
    });
}

/// Progress of other calls is not progress of the hung one.
#[test]
fn a_hung_call_ends_at_its_deadline_beside_served_ones() {
    attempts(|| {
        let (rig, content) =
            slow(true, "[write]\ndeadline = \"2s\"\nlag = \"0s\"\n[fuse]\nattribute_ttl = \"0s\"");
        // The flush of a copy of a hung file would be another hung call.
        let _alone = no_start();
        let (hung, well) = (File::open(rig.at("f0")).unwrap(), File::open(rig.at("f")).unwrap());
        let (mut written, late) = (Vec::new(), Some(Errno::TIMEDOUT));
        for i in 1..3 {
            written.push(File::options().write(true).open(rig.at(format!("f{i}"))).unwrap());
        }
        for name in ["f0", "f1", "f2", "f3"] {
            rig.scripts[0].add(FaultRule::always(FaultOp::Any, Fault::Hang).beneath(name));
        }
        let over = AtomicBool::new(false);
        let calls: [&(dyn Fn() -> std::io::Result<usize> + Sync); 3] =
            [&|| hung.read_at(&mut [0; 100], 0), &|| written[0].write_at(b"y", 0), &|| {
                fs::metadata(rig.at("f3")).map(|_| 0)
            }];
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let (well, content, over) = (&well, &content, &over);
                scope.spawn(move || {
                    let mut part = vec![0; PART / 4];
                    for i in
                        (reader..).map(|i| i % PARTS).take_while(|_| !over.load(Ordering::Relaxed))
                    {
                        well.read_exact_at(&mut part, (i * PART) as u64).unwrap();
                        assert!(part == content[i * PART..][..PART / 4], "wrong bytes");
                    }
                });
            }
            let ended = calls.map(|call| {
                scope.spawn(move || {
                    let (ended, took) = timed(call);
                    (ended.err().and_then(|error| Errno::from_io_error(&error)), took)
                })
            });
            let ended = ended.map(|call| call.join().unwrap());
            over.store(true, Ordering::Relaxed);
            for (error, took) in ended {
                assert_eq!(error, late, "{took:?}");
                assert!(took < Duration::from_secs(10), "{took:?}");
            }
        });
        rig.scripts[0].heal();
    });
}
