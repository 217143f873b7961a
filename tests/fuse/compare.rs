//! Copies with equal size and time, but possibly different bytes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use fanfs::backend::{Fault, FaultOp, FaultRule};

use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

/// Three copies of a file `f`, read directly, so that every read reaches fanfs.
fn copies(content: &[u8], read: &'static str) -> Rig {
    let room = tree();
    fs::write(root(&room).join("f"), content).unwrap();
    let rig = mount(room, &Setup { copies: true, read, ..Setup::default() });
    // So that all replicas take part.
    for script in &rig.scripts {
        script.add(FaultRule::always(FaultOp::Read, Fault::Delay(Duration::from_millis(2))));
    }
    rig
}

/// Gives one copy other bytes, with the same time.
fn spoil(rig: &Rig, copy: usize, content: &[u8]) {
    let path = rig.source(copy, "f");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, content).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
}

/// Reads the file once; returns how many of its blocks had the bytes of `content`, and how many did
/// not.
fn read(rig: &Rig, content: &[u8]) -> (usize, usize) {
    let file = File::open(rig.at("f")).unwrap();
    let mut buf = vec![0; MIB];
    let (mut right, mut wrong) = (0, 0);
    for at in (0..content.len()).step_by(MIB) {
        let len = MIB.min(content.len() - at);
        file.read_exact_at(&mut buf[..len], at as u64).unwrap();
        *(if buf[..len] == content[at..at + len] { &mut right } else { &mut wrong }) += 1;
    }
    (right, wrong)
}

#[test]
fn a_copy_with_differing_bytes_is_excluded() {
    let (content, other) = (bytes(24 * MIB, 1), bytes(24 * MIB, 2));
    let rig = copies(&content, "cache = \"direct\"");
    spoil(&rig, 1, &other);
    read(&rig, &content);
    let status = rig.eventually("it is noticed", |s| s.replicas[1].counters.differing == 1);
    assert!(status.replicas[1].counters.disagreements > 0);
    assert_eq!(status.replicas[2].counters.differing, 0);
    assert_eq!(status.counters.outvoted, 0);
    rig.expect_quiet();
    let before = rig.status().replicas[1].counters.bytes;
    for _ in 0..3 {
        assert_eq!(read(&rig, &content), (24, 0), "also after another open");
    }
    let after = rig.status().replicas;
    assert_eq!(after[1].counters.bytes, before);
    assert!(after[2].counters.bytes > 0);
    assert_eq!(after[1].counters.differing, 1, "counted once");
    rig.expect_quiet();
}

#[test]
fn a_read_fails_if_only_excluded_copies_answer() {
    let (content, other) = (bytes(24 * MIB, 1), bytes(24 * MIB, 2));
    let rig = copies(&content, "cache = \"direct\"");
    spoil(&rig, 1, &other);
    read(&rig, &content);
    rig.eventually("it is noticed", |s| s.replicas[1].counters.differing == 1);
    rig.expect_quiet();
    let delivered = |rig: &Rig| rig.status().replicas[1].counters.bytes;
    let before = delivered(&rig);
    let file = File::open(rig.at("f")).unwrap();
    for script in [&rig.scripts[0], &rig.scripts[2]] {
        script.replace(FaultRule::always(FaultOp::Read, Fault::Errno(rustix::io::Errno::IO)));
    }
    let refused = file.read_exact_at(&mut vec![0; MIB], 12 * MIB as u64);
    assert!(refused.is_err(), "the other bytes");
    assert_eq!(delivered(&rig), before);
    rig.scripts.iter().for_each(|script| script.heal());
}

#[test]
fn a_repaired_copy_is_read_again() {
    let (content, other) = (bytes(12 * MIB, 1), bytes(12 * MIB, 2));
    let rig = copies(&content, "cache = \"direct\"");
    spoil(&rig, 1, &other);
    read(&rig, &content);
    rig.eventually("it is noticed", |s| s.replicas[1].counters.differing == 1);
    let later = std::time::SystemTime::now();
    for copy in 0..3 {
        fs::write(rig.source(copy, "f"), &content).unwrap();
        let file = File::options().write(true).open(rig.source(copy, "f")).unwrap();
        file.set_modified(later).unwrap();
    }
    let before = rig.status().replicas[1].counters.bytes;
    // For as long as the kernel may trust the old attributes.
    rig.eventually("it takes part again", |s| {
        read(&rig, &content);
        s.replicas[1].counters.bytes > before
    });
    assert_eq!(rig.status().replicas[1].counters.differing, 1);
}

#[test]
fn comparing_equal_copies_has_no_effect() {
    let content = bytes(24 * MIB, 1);
    let rig = copies(&content, "cache = \"direct\"\ncompare = \"50%\"");
    for _ in 0..3 {
        assert_eq!(read(&rig, &content), (24, 0));
    }
    rig.expect_quiet();
    let status = rig.eventually("something was compared", |s| s.counters.compared > 3);
    for replica in &status.replicas {
        assert_eq!((replica.counters.differing, replica.counters.disagreements), (0, 0));
        assert!(replica.counters.bytes > 0);
    }
}

#[test]
fn the_first_copy_decides_and_is_reported_as_outvoted() {
    let (content, other) = (bytes(24 * MIB, 1), bytes(24 * MIB, 2));
    let rig = copies(&content, "cache = \"direct\"");
    spoil(&rig, 0, &other);
    read(&rig, &other);
    let both = |s: &fanfs::status::Status| {
        s.replicas[1..].iter().all(|replica| replica.counters.differing == 1)
    };
    let status = rig.eventually("both are kept off", both);
    assert_eq!(status.replicas[0].counters.differing, 0);
    rig.eventually("it is counted", |s| s.counters.outvoted > 0);
    assert_eq!(read(&rig, &other), (24, 0));
    rig.expect_quiet();
}

/// The kernel has cached some of them before the copy was excluded.
#[test]
fn wrong_pages_are_dropped_by_the_next_open() {
    let (content, other) = (bytes(24 * MIB, 1), bytes(24 * MIB, 2));
    for _ in 0..10 {
        let rig = copies(&content, "cache = \"kernel\"");
        spoil(&rig, 1, &other);
        let (_, wrong) = read(&rig, &content);
        rig.expect_quiet();
        // Comparisons of a busy machine may be left out.
        if wrong > 0 && rig.status().replicas[1].counters.differing == 1 {
            return assert_eq!(read(&rig, &content), (24, 0));
        }
    }
    panic!("the copy was never read before it was excluded");
}

#[test]
fn no_comparison_happens_unless_configured() {
    let content = bytes(8 * MIB, 1);
    let rig = copies(&content, "cache = \"direct\"\ncompare = \"0%\"");
    spoil(&rig, 1, &bytes(8 * MIB, 2));
    for _ in 0..3 {
        read(&rig, &content);
    }
    rig.expect_quiet();
    let status = rig.status();
    assert_eq!((status.counters.compared, status.replicas[1].counters.differing), (0, 0));
}

#[test]
fn a_reader_does_not_wait_for_the_comparison() {
    let content = bytes(24 * MIB, 1);
    let rig = copies(&content, "cache = \"direct\"\ncompare = \"100%\"");
    // The deciding replica serves, and then hangs.
    assert_eq!(read(&rig, &content), (24, 0));
    rig.scripts[0].replace(FaultRule::always(FaultOp::Read, Fault::Hang));
    let began = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(read(&rig, &content), (24, 0));
    }
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    // At most four blocks of memory hang. Often enough even if the machine is busy.
    rig.within_budget(|| (0..20).for_each(|_| assert_eq!(read(&rig, &content), (24, 0))));
    rig.scripts[0].heal();
    rig.expect_quiet();
}
