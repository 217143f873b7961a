//! A read and a write of one file exclude each other: no reply is half of one write.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};

use crate::machine::attempts;
use crate::recorder::Call;
use crate::rig::{PATIENCE, Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;

/// One request, whatever the alignment of its memory.
const HALF: usize = MIB / 2;

/// Time in which a wrong call would happen.
const A_WHILE: Duration = Duration::from_millis(200);

/// Three replicas, the second one the write replica, and a file that is read direct.
fn rig() -> Rig {
    let room = tree();
    fs::write(root(&room).join("f"), bytes(2 * MIB, 1)).unwrap();
    let rest = "cache = \"direct\"\n[write]\nreplica = \"r2\"\n";
    mount(room, &Setup { write: true, rest, ..Setup::default() })
}

fn asked(rig: &Rig, replica: usize, is_it: fn(&Call) -> bool) -> usize {
    rig.recorded()[replica].iter().filter(|call| is_it(call)).count()
}

fn is_read(call: &Call) -> bool {
    matches!(call, Call::Read(_))
}

fn is_write(call: &Call) -> bool {
    matches!(call, Call::Write(_))
}

/// Waits until the replicas have been asked for it.
fn eventually(holds: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it never came to this");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn hang(rig: &Rig, replica: usize, op: FaultOp) {
    rig.scripts[replica].add(FaultRule { count: 1, ..FaultRule::always(op, Fault::Hang) });
}

#[test]
fn a_read_waits_for_a_write_in_flight() {
    let rig = rig();
    let reader = File::open(rig.at("f")).unwrap();
    let writer = File::options().write(true).open(rig.at("f")).unwrap();
    let new = bytes(HALF, 2);
    hang(&rig, 1, FaultOp::Write);
    rig.record();
    std::thread::scope(|scope| {
        let write = scope.spawn(|| writer.write_all_at(&new, 0).unwrap());
        eventually(|| asked(&rig, 1, is_write) == 1);
        let read = scope.spawn(|| {
            let mut got = vec![0; HALF];
            reader.read_exact_at(&mut got, 0).unwrap();
            got
        });
        std::thread::sleep(A_WHILE);
        let reads = (0..3).map(|replica| asked(&rig, replica, is_read)).sum::<usize>();
        let waits = !read.is_finished();
        rig.scripts[1].heal();
        assert!(reads == 0 && waits, "{reads} reads beside the write");
        assert!(read.join().unwrap() == new, "not the written bytes");
        write.join().unwrap();
    });
    drop((reader, writer));
    rig.expect_quiet();
}

#[test]
fn a_write_waits_for_a_read_in_flight() {
    let rig = rig();
    let reader = File::open(rig.at("f")).unwrap();
    let writer = File::options().write(true).open(rig.at("f")).unwrap();
    let old = bytes(2 * MIB, 1);
    hang(&rig, 1, FaultOp::Read);
    rig.record();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut got = vec![0; HALF];
            reader.read_exact_at(&mut got, 0).unwrap();
            got
        });
        eventually(|| asked(&rig, 1, is_read) == 1);
        let write = scope.spawn(|| writer.write_all_at(&bytes(HALF, 2), 0).unwrap());
        std::thread::sleep(A_WHILE);
        let writes = asked(&rig, 1, is_write);
        rig.scripts[1].heal();
        assert_eq!(writes, 0, "it is written beside the read");
        assert!(read.join().unwrap() == old[..HALF], "not the bytes before");
        write.join().unwrap();
    });
    drop((reader, writer));
    rig.expect_quiet();
}

#[test]
fn an_abandoned_write_beside_a_read_never_starts() {
    attempts(|| {
        let room = tree();
        fs::write(root(&room).join("f"), bytes(2 * MIB, 1)).unwrap();
        let rest = "cache = \"direct\"\n[write]\nreplica = \"r2\"\ndeadline = \"1500ms\"\n";
        let rig = mount(room, &Setup { write: true, rest, ..Setup::default() });
        let reader = File::open(rig.at("f")).unwrap();
        let writer = File::options().write(true).open(rig.at("f")).unwrap();
        hang(&rig, 1, FaultOp::Read);
        rig.record();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| reader.read_exact_at(&mut vec![0; HALF], 0).unwrap());
            eventually(|| asked(&rig, 1, is_read) == 1);
            let refused = writer.write_all_at(&bytes(HALF, 2), 0).map_err(|error| error.kind());
            rig.scripts[1].heal();
            read.join().unwrap();
            assert_eq!(refused, Err(std::io::ErrorKind::TimedOut));
        });
        drop((reader, writer));
        rig.expect_quiet();
        assert_eq!(asked(&rig, 1, is_write), 0, "it was begun");
        assert!(fs::read(rig.source(1, "f")).unwrap() == bytes(2 * MIB, 1));
    });
}

/// The read started before the file had a writer. One of its segments arrived before the write, the
/// other one after it.
#[test]
fn a_read_overtaken_by_a_write_is_not_torn() {
    let room = tree();
    fs::write(root(&room).join("f"), bytes(MIB, 1)).unwrap();
    let read = "cache = \"direct\"\nsegment_size = \"64KiB\"\nreadahead_max = \"0B\"";
    // The segments that have arrived are copies, not pages of the replica.
    let rest = "[fuse]\nsplice = false\n";
    let rig = mount(room, &Setup { replicas: 1, write: true, read, rest, ..Setup::default() });
    let reader = File::open(rig.at("f")).unwrap();
    let half = MIB as u64 / 2;
    let late = Some(fanfs::volume::ByteRange::at(half, half));
    rig.scripts[0].add(FaultRule { within: late, ..FaultRule::always(FaultOp::Read, Fault::Hang) });
    rig.record();
    let new = bytes(MIB, 2);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut got = vec![0; MIB];
            let n = reader.read_at(&mut got, 0).unwrap();
            got.truncate(n);
            got
        });
        eventually(|| asked(&rig, 0, is_read) >= 8);
        let writer = File::options().write(true).open(rig.at("f")).unwrap();
        writer.write_all_at(&new, 0).unwrap();
        rig.scripts[0].heal();
        let got = read.join().unwrap();
        let old = bytes(MIB, 1);
        assert!(got == new[..got.len()] || got == old[..got.len()], "a part of each");
    });
    drop(reader);
    rig.expect_quiet();
}
