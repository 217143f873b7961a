//! A second replica fails while fanfs handles the failure of a first one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use fanfs::status::VolumeGauges;
use rustix::io::Errno;

use crate::machine::attempts;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

/// Two replicas of a file `f` of 24 MiB, both of which have it open.
fn two_replicas(keys: &str) -> (Rig, Vec<u8>) {
    let room = tree();
    let content = bytes(24 * MIB, 71);
    fs::write(root(&room).join("f"), &content).unwrap();
    let read = "cache = \"direct\"\nreadahead_max = \"0B\"";
    let setup = Setup { replicas: 2, read, more: keys.to_owned(), ..Setup::default() };
    let rig = mount(room, &setup);
    let file = File::open(rig.at("f")).unwrap();
    let until = Instant::now() + PATIENCE;
    while rig.status().replicas.iter().any(|replica| replica.counters.bytes == 0) {
        assert!(Instant::now() < until, "{:?}", rig.status().replicas);
        expect_block(&file, &content, 0);
    }
    (rig, content)
}

fn expect_block(file: &File, content: &[u8], number: usize) {
    let mut block = vec![0; MIB];
    file.read_exact_at(&mut block, (number * MIB) as u64).unwrap();
    assert!(block == content[number * MIB..][..MIB], "wrong bytes in block {number}");
}

/// The replica's next read fails.
fn fail_once(rig: &Rig, replica: usize) {
    let fails = FaultRule::always(FaultOp::Read, Fault::Errno(Errno::IO));
    rig.scripts[replica].replace(FaultRule { count: 1, ..fails });
}

fn hang(rig: &Rig, replica: usize) {
    rig.scripts[replica].replace(FaultRule::always(FaultOp::Read, Fault::Hang));
}

/// One replica fails once. The other one then hangs, with a read that began when no other replica
/// was to be asked.
#[test]
fn a_hung_read_moves_to_a_replica_that_failed_before() {
    let (rig, content) = two_replicas("");
    let file = File::open(rig.at("f")).unwrap();
    fail_once(&rig, 1);
    let until = Instant::now() + PATIENCE;
    while !rig.scripts[1].is_exhausted() {
        assert!(Instant::now() < until, "it was never asked");
        expect_block(&file, &content, 1);
    }
    hang(&rig, 0);
    for number in 2..6 {
        expect_block(&file, &content, number);
    }
    assert_eq!(rig.status().counters.read_errors, 0);
    rig.scripts.iter().for_each(|script| script.heal());
}

/// The same segment fails on one replica and hangs on the other.
#[test]
fn a_hung_read_is_tried_again_on_the_replica_that_failed_it() {
    let (rig, content) = two_replicas("");
    let file = File::open(rig.at("f")).unwrap();
    let until = Instant::now() + PATIENCE;
    let failed = |rig: &Rig| rig.status().replicas[1].counters.errors;
    let before = failed(&rig);
    while failed(&rig) == before {
        assert!(Instant::now() < until, "it was never asked");
        // Until replica 1 is asked first: its error comes once the other one hangs.
        fail_once(&rig, 1);
        hang(&rig, 0);
        expect_block(&file, &content, 3);
    }
    assert_eq!(rig.status().counters.read_errors, 0);
    rig.scripts.iter().for_each(|script| script.heal());
}

/// The replica that fails is asked while the other one hangs on the file already.
#[test]
fn a_read_that_fails_beside_a_hung_replica_is_tried_again() {
    let (rig, content) = two_replicas("");
    hang(&rig, 0);
    std::thread::scope(|scope| {
        let hung = || expect_block(&File::open(rig.at("f")).unwrap(), &content, 5);
        (0..4).for_each(|_| drop(scope.spawn(hung)));
    });
    let file = File::open(rig.at("f")).unwrap();
    for number in 6..12 {
        fail_once(&rig, 1);
        expect_block(&file, &content, number);
    }
    assert_eq!(rig.status().counters.read_errors, 0);
    rig.scripts.iter().for_each(|script| script.heal());
}

/// The budget is full of segments that were read and are kept for a second reader.
#[test]
fn a_hung_read_is_hedged_when_the_budget_is_full() {
    attempts(hang_reads_with_a_full_budget);
}

/// On a busy machine fewer segments may be kept.
fn hang_reads_with_a_full_budget() {
    let (rig, content) = two_replicas("[memory]\nbudget = \"16MiB\"");
    let files = [File::open(rig.at("f")).unwrap(), File::open(rig.at("f")).unwrap()];
    let is_full = |gauges: &VolumeGauges| gauges.buffer_used + (1 << 20) > gauges.buffer_budget;
    // Small buffers that are idle may take the room of the last segment, for a while.
    let until = Instant::now() + PATIENCE;
    while !is_full(&rig.status().gauges) && Instant::now() < until {
        // Backwards, so that nothing is read ahead.
        for number in (4..24).rev() {
            expect_block(&files[number % 2], &content, number);
        }
    }
    let gauges = rig.status().gauges;
    assert!(is_full(&gauges), "{gauges:?}");
    hang(&rig, 0);
    for number in (0..4).rev() {
        expect_block(&files[0], &content, number);
    }
    assert_eq!(rig.status().counters.read_errors, 0);
    rig.scripts.iter().for_each(|script| script.heal());
}

/// A replica with other bytes is excluded while it reads segments.
#[test]
fn late_bytes_of_an_excluded_replica_are_not_used() {
    let room = tree();
    let content = bytes(48 * MIB, 72);
    fs::write(root(&room).join("f"), &content).unwrap();
    let read = "cache = \"direct\"";
    let rig = mount(room, &Setup { copies: true, read, ..Setup::default() });
    let spoiled = rig.source(1, "f");
    let time = fs::metadata(&spoiled).unwrap().modified().unwrap();
    fs::write(&spoiled, bytes(48 * MIB, 73)).unwrap();
    File::options().write(true).open(&spoiled).unwrap().set_modified(time).unwrap();
    // So that it reads some segments when it is excluded, and none is late.
    let slowly = FaultRule::always(FaultOp::Read, Fault::Delay(Duration::from_millis(40)));
    rig.scripts.iter().for_each(|script| script.add(slowly));
    let is_excluded = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rig.eventually("it is excluded", |status| status.replicas[1].counters.differing == 1);
            is_excluded.store(true, Ordering::SeqCst);
        });
        let until = Instant::now() + PATIENCE;
        let mut after = 0;
        while after < 96 && Instant::now() < until {
            let file = File::open(rig.at("f")).unwrap();
            for number in 0..48 {
                let must_be_right = is_excluded.load(Ordering::SeqCst);
                let mut block = vec![0; MIB];
                file.read_exact_at(&mut block, (number * MIB) as u64).unwrap();
                let is_right = block == content[number * MIB..][..MIB];
                assert!(is_right || !must_be_right, "block {number} is the excluded replica's");
                after += usize::from(must_be_right);
            }
        }
        assert!(after > 0, "it was not excluded");
    });
    rig.expect_quiet();
}
