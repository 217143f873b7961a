//! Small files, which their opens read.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Read;
use std::time::{Duration, Instant};

use fanfs::backend::{Fault, FaultOp, FaultRule};
use fanfs::volume::ByteRange;
use rustix::io::Errno;

use crate::recorder::Call;
use crate::rig::{Rig, Setup, bytes, mount, tree};

const SIZE: usize = 5000;

const IMMUTABLE: &str = "immutable = true\n";

/// More keys of `[volume]`.
const VOLUMES: [&str; 2] = ["", IMMUTABLE];

/// A volume to which the tests add files, beneath the mount.
struct Growing {
    rig: Rig,
    files: Cell<usize>,
}

impl Growing {
    fn new(keys: &'static str) -> Self {
        Self::over(3, keys)
    }

    fn over(replicas: usize, keys: &'static str) -> Self {
        let setup = Setup { volume: keys, replicas, ..Setup::default() };
        Self { rig: mount(tree(), &setup), files: Cell::default() }
    }

    /// Adds a file; its name.
    fn add(&self) -> String {
        let number = self.files.replace(self.files.get() + 1);
        let name = format!("added{number}");
        fs::write(self.rig.source(0, &name), content(number)).unwrap();
        name
    }

    /// Adds a file and reads it. Returns whether its open did: the kernel did not ask for it then.
    fn read_another(&self) -> bool {
        let number = self.files.get();
        let before = self.rig.status().counters.reads;
        let name = self.add();
        assert!(fs::read(self.rig.at(name)).unwrap() == content(number), "file {number}");
        self.rig.status().counters.reads == before
    }

    /// Adds a file and reads it twice. Returns the calls of the second time if the first open read
    /// the file.
    fn read_another_twice(&self) -> Option<Vec<Call>> {
        let number = self.files.get();
        let is_by_open = self.read_another();
        self.rig.record();
        assert!(fs::read(self.rig.at(format!("added{number}"))).unwrap() == content(number));
        let calls = self.rig.recorded().concat();
        is_by_open.then_some(calls)
    }

    /// Reads files until the replicas are known to be quick.
    fn warm_up(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.read_another() {
            assert!(Instant::now() < until, "no open reads a file");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Repeats `is_read_by_open` with quick replicas. A busy machine can make a replica seem slow.
    fn until(&self, what: &str, is_read_by_open: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !is_read_by_open() {
            assert!(Instant::now() < until, "{what}");
            self.rig.scripts.iter().for_each(|script| script.heal());
            self.warm_up();
        }
    }

    fn fail_on(&self, replicas: &[usize], rule: FaultRule) {
        for &replica in replicas {
            self.rig.scripts[replica].add(rule);
        }
    }
}

fn content(number: usize) -> Vec<u8> {
    bytes(SIZE, number as u64)
}

#[test]
fn a_small_file_is_read_by_its_open() {
    VOLUMES.into_iter().for_each(is_read_by_its_open);
}

fn is_read_by_its_open(keys: &'static str) {
    let volume = Growing::new(keys);
    let rig = &volume.rig;
    volume.warm_up();
    let whole = Call::Read(ByteRange::at(0, SIZE as u64));
    volume.until("one open and one read in all", || {
        let number = volume.files.get();
        let name = volume.add();
        rig.record();
        let is_right = fs::read(rig.at(&name)).unwrap() == content(number);
        assert!(is_right, "file {number}");
        let calls = rig.recorded().concat();
        let count = |call: &Call| calls.iter().filter(|one| *one == call).count();
        count(&Call::Open) == 1 && count(&whole) == 1
    });
    // Each byte was fetched once, and delivered once.
    let asked = (volume.files.get() * SIZE) as u64;
    let status = rig.status();
    assert_eq!(status.counters.bytes_delivered, asked);
    assert!(status.counters.reads < volume.files.get() as u64);
    rig.expect_quiet();
}

/// The kernel has the pages: a second open asks for the version only.
#[test]
fn a_second_open_does_not_read() {
    let volume = Growing::new("");
    volume.warm_up();
    volume.until("no second read", || {
        let is_check = |call: &Call| matches!(call, Call::Open | Call::Close(_));
        volume.read_another_twice().is_some_and(|calls| calls.iter().all(is_check))
    });
}

/// The kernel gets attributes of the newer version after the pages of the older one, or the open
/// makes it drop them.
#[test]
fn a_file_changed_after_its_open_is_read_again() {
    let volume = Growing::new("");
    volume.warm_up();
    volume.until("an open reads the file", || {
        let number = volume.files.get();
        let is_by_open = volume.read_another();
        let name = format!("added{number}");
        let newer = bytes(SIZE + 1, number as u64);
        fs::write(volume.rig.source(0, &name), &newer).unwrap();
        assert!(fs::read(volume.rig.at(&name)).unwrap() == newer, "file {number}");
        is_by_open
    });
    volume.rig.expect_quiet();
}

/// The open succeeds, and the kernel asks for the bytes.
#[test]
fn a_failed_read_does_not_fail_the_open() {
    VOLUMES.into_iter().for_each(opens_despite_failed_reads);
}

fn opens_despite_failed_reads(keys: &'static str) {
    let volume = Growing::new(keys);
    volume.warm_up();
    let broken = FaultRule::always(FaultOp::Read, Fault::Errno(Errno::IO));
    for short in [broken, FaultRule::always(FaultOp::Read, Fault::ShortRead(100))] {
        volume.fail_on(&[0, 1, 2], FaultRule { count: 1, ..short });
        (0..6).for_each(|_| _ = volume.read_another());
        volume.rig.scripts.iter().for_each(|script| script.heal());
        volume.warm_up();
    }
    volume.rig.expect_quiet();
}

/// The read in the open hangs on one replica and fails on another: the third has the file.
#[test]
fn a_read_that_hangs_in_an_open_is_hedged() {
    VOLUMES.into_iter().for_each(hedges_hung_reads);
}

fn hedges_hung_reads(keys: &'static str) {
    let volume = Growing::new(keys);
    volume.warm_up();
    let hung = FaultRule::always(FaultOp::Read, Fault::Hang);
    let broken = FaultRule::always(FaultOp::Read, Fault::Errno(Errno::IO));
    for [first, second] in [[0, 1], [1, 2], [2, 0]] {
        volume.fail_on(&[first], hung);
        volume.fail_on(&[second], broken);
        (0..4).for_each(|_| _ = volume.read_another());
        volume.rig.scripts.iter().for_each(|script| script.heal());
    }
    volume.rig.expect_quiet();
}

/// The open does not wait for the read.
#[test]
fn an_open_succeeds_while_all_reads_hang() {
    for replicas in [1, 3] {
        VOLUMES.into_iter().for_each(|keys| opens_while_reads_hang(replicas, keys));
    }
}

fn opens_while_reads_hang(replicas: usize, keys: &'static str) {
    let volume = Growing::over(replicas, keys);
    volume.warm_up();
    let hung = FaultRule { count: 1, ..FaultRule::always(FaultOp::Read, Fault::Hang) };
    volume.until("a read of an open hangs", || {
        volume.rig.scripts.iter().for_each(|script| script.add(hung));
        let number = volume.files.get();
        let mut file = File::open(volume.rig.at(volume.add())).unwrap();
        let is_hung = volume.rig.scripts.iter().any(|script| script.is_exhausted());
        volume.rig.scripts.iter().for_each(|script| script.heal());
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert!(bytes == content(number), "file {number}");
        is_hung
    });
    volume.rig.expect_quiet();
}

/// Its first open asks one replica, which also reads; later opens ask none.
#[test]
fn the_first_open_of_a_small_immutable_file_reads_it() {
    let volume = Growing::new(IMMUTABLE);
    volume.warm_up();
    volume.until("only the first open asks", || {
        let is_close = |call: &Call| matches!(call, Call::Close(_));
        volume.read_another_twice().is_some_and(|calls| calls.iter().all(is_close))
    });
}

/// As quickly as others: nothing but the handle has it open.
#[test]
fn a_file_that_its_open_read_is_closed_by_a_session_thread() {
    let volume = Growing::new("");
    volume.warm_up();
    volume.until("a session thread closes the file", || {
        volume.rig.record();
        let is_by_open = volume.read_another();
        let closers = || -> Vec<String> {
            let calls = volume.rig.recorded().concat().into_iter();
            calls
                .filter_map(|call| if let Call::Close(by) = call { Some(by) } else { None })
                .collect()
        };
        volume.rig.eventually("the file is closed", |_| !closers().is_empty());
        is_by_open && closers().iter().all(|thread| !thread.starts_with("r:"))
    });
}
