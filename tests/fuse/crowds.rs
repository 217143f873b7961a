//! Many readers and open files with little memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread::{self, ScopedJoinHandle};

use fanfs::backend::{Fault, FaultOp, FaultRule};

use crate::rig::{Rig, Setup, bytes, mount, root, tree};

const MIB: usize = 1 << 20;
const KIB: usize = 1024;

/// Longer than any readahead window here.
const LEN: usize = 6 * MIB;

/// Files f0, f1, ... of about `len` bytes, all different.
fn many_files(count: usize, len: usize, setup: &Setup) -> Rig {
    let room = tree();
    for i in 0..count {
        fs::write(root(&room).join(format!("f{i}")), content(i, len)).unwrap();
    }
    mount(room, setup)
}

fn content(i: usize, len: usize) -> Vec<u8> {
    bytes(len + i, i as u64)
}

fn open(rig: &Rig, i: usize) -> File {
    File::open(rig.at(format!("f{i}"))).unwrap()
}

/// Reads `len` bytes of file `i`, as [`many_files`] made it, and compares them.
fn check(file: &File, i: usize, all: &[u8], at: usize, len: usize) {
    let len = len.min(all.len() - at);
    let mut got = vec![0; len];
    file.read_exact_at(&mut got, at as u64).unwrap();
    assert!(got == all[at..at + len], "file {i}, {len} bytes at {at}");
}

#[test]
fn many_files_at_once_never_exceed_the_budget() {
    let setup = Setup {
        read: "cache = \"direct\"\nsegment_size = \"256KiB\"",
        rest: "[memory]\nbudget = \"4MiB\"",
        ..Setup::default()
    };
    let rig = many_files(64, MIB, &setup);
    let rig = &rig;
    rig.within_budget(|| {
        thread::scope(|scope| {
            for i in 0..64 {
                scope.spawn(move || {
                    assert!(fs::read(rig.at(format!("f{i}"))).unwrap() == content(i, MIB), "{i}");
                });
            }
        });
    });
    rig.expect_quiet();
}

/// Each thread alternates among its files, so all of them are open and partly read at once.
#[test]
fn two_hundred_open_files_share_a_small_budget() {
    const FILES: usize = 200;
    const THREADS: usize = 16;
    const SMALL: usize = 300 * KIB;
    for read in ["cache = \"kernel\"", "cache = \"direct\""] {
        let setup = Setup { read, rest: "[memory]\nbudget = \"16MiB\"", ..Setup::default() };
        let rig = many_files(FILES, SMALL, &setup);
        let files: Vec<_> = (0..FILES).map(|i| (open(&rig, i), content(i, SMALL))).collect();
        rig.within_budget(|| {
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let files = &files;
                    scope.spawn(move || {
                        for at in (0..SMALL + FILES).step_by(40 * KIB) {
                            for i in (thread..FILES).step_by(THREADS) {
                                let (file, content) = &files[i];
                                check(file, i, content, at.min(content.len()), 40 * KIB);
                            }
                        }
                    });
                }
            });
        });
        assert_eq!(rig.status().counters.read_errors, 0, "{read}");
        drop(files);
        rig.expect_quiet();
    }
}

/// Starts reading `len` bytes at the start of each of these files, each once the one before is in
/// flight.
fn demand<'s>(
    rig: &'s Rig,
    scope: &'s thread::Scope<'s, '_>,
    files: std::ops::Range<usize>,
    len: usize,
) -> Vec<ScopedJoinHandle<'s, ()>> {
    let begin = |i| {
        let before = rig.status().gauges.requests;
        let reader = scope.spawn(move || check(&open(rig, i), i, &content(i, LEN), 0, len));
        rig.eventually("the read is under way", |status| status.gauges.requests > before);
        reader
    };
    files.map(begin).collect()
}

#[test]
fn waiting_readers_get_the_memory_of_unsent_segments() {
    let setup = Setup {
        replicas: 1,
        read: "cache = \"direct\"\nsegment_size = \"512KiB\"",
        rest: "[memory]\nbudget = \"8MiB\"",
        ..Setup::default()
    };
    let rig = many_files(7, LEN, &setup);
    rig.scripts[0].add(FaultRule::always(FaultOp::Read, Fault::Hang));
    thread::scope(|scope| {
        // Three readers and their windows use all memory of readahead; two more take the rest.
        let mut readers = demand(&rig, scope, 0..3, 512 * KIB);
        rig.eventually("the windows are open", |status| status.gauges.buffer_used == 7 << 20);
        readers.extend(demand(&rig, scope, 3..7, 512 * KIB));
        let status = rig.eventually("all are in the queue", |status| {
            status.gauges.segments_waiting + status.gauges.segments_in_flight == 16
        });
        rig.scripts[0].heal();
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(status.counters.budget_waits, 0, "{:?}", status.gauges);
    });
    rig.expect_quiet();
}

#[test]
fn partly_read_data_of_idle_readers_is_evicted() {
    let setup = Setup {
        read: "cache = \"direct\"",
        rest: "[memory]\nbudget = \"16MiB\"",
        ..Setup::default()
    };
    let rig = many_files(18, LEN, &setup);
    for script in &rig.scripts {
        let slow = Fault::Delay(std::time::Duration::from_millis(20));
        script.add(FaultRule::always(FaultOp::Read, slow));
    }
    let idle: Vec<_> = (0..14)
        .map(|i| {
            let (file, content) = (open(&rig, i), content(i, LEN));
            // The second read opens a window, and the third waits for what comes.
            for at in [0, 128, 256] {
                check(&file, i, &content, at * KIB, 128 * KIB);
            }
            file
        })
        .collect();
    let left = rig.eventually("nothing is under way", |status| {
        status.gauges.segments_waiting + status.gauges.segments_in_flight == 0
    });
    assert!(left.gauges.buffer_used > 12 << 20, "{:?}", left.gauges);
    for script in &rig.scripts {
        script.replace(FaultRule::always(FaultOp::Read, Fault::Hang));
    }
    thread::scope(|scope| {
        let readers = demand(&rig, scope, 14..18, MIB);
        let status = rig.status();
        rig.scripts.iter().for_each(|script| script.heal());
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(status.counters.budget_waits, 0, "{:?}", status.gauges);
    });
    drop(idle);
    rig.expect_quiet();
}

#[test]
fn overlapping_reads_work_with_little_memory() {
    // Other fetches leave gaps of any length in a read that waits for memory, and pages that two
    // readers want are requested while they arrive.
    const READERS: u64 = 24;
    for read in [
        "cache = \"direct\"\nsegment_size = \"256KiB\"",
        "cache = \"kernel\"\nsegment_size = \"256KiB\"",
    ] {
        let setup = Setup { read, rest: "[memory]\nbudget = \"4MiB\"", ..Setup::default() };
        let rig = many_files(5, 2 * MIB, &setup);
        let all: Vec<_> = (0..5).map(|i| content(i, 2 * MIB)).collect();
        let (rig, all) = (&rig, &all);
        for script in &rig.scripts {
            let late = Fault::Delay(std::time::Duration::from_millis(1));
            script.add(FaultRule::always(FaultOp::Read, late));
        }
        rig.within_budget(|| {
            thread::scope(|scope| {
                for reader in 0..READERS {
                    scope.spawn(move || {
                        // Every second one reads a file with fewer readers.
                        let i = if reader % 2 == 0 { 0 } else { 1 + reader as usize % 4 };
                        let (file, all) = (open(rig, i), &all[i]);
                        let mut x = reader + 1;
                        for _ in 0..200 {
                            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let at = (x >> 33) as usize % (2 * MIB - 512 * KIB);
                            let len = 1 + (x >> 12) as usize % (512 * KIB);
                            check(&file, i, all, at, len);
                        }
                    });
                }
            });
        });
        assert_eq!(rig.status().counters.read_errors, 0);
        rig.expect_quiet();
    }
}
