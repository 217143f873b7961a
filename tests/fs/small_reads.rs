//! Small reads by the session's own threads: what becomes of one that is late, fails, or is wanted
//! twice.

use std::cell::Cell;
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fanfs::backend::{
    Backend, DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript, RequestContext,
};
use fanfs::config::CachePolicy;
use fanfs::fs::{Errno, FsResult, HandleId, ReadBytes, ReadCaller, ReadReply, SmallFileReads};
use fanfs::read::ReadGauges;
use fanfs::telemetry::counters::VolumeCountersSnapshot;
use fanfs::volume::{ByteRange, ReplicaId};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::machine::attempts;
use crate::{Volume, VolumeSetup, answer, ask_read, entry, open, volume_with_setup, waits_until};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

/// A reply that a test waits for.
pub(crate) struct Reply(pub(crate) Sender<FsResult<Vec<u8>>>);

impl ReadReply for Reply {
    fn send(self, answer: FsResult<ReadBytes<'_>>) {
        let _ = self.0.send(answer.map(|bytes| bytes.to_vec().unwrap()));
    }
}

// A delay of this machine may leave a small read to the scheduler. So tests that need one without
// a segment are tried several times.

/// A volume whose threads make small reads, with a file that is open.
struct Rig {
    volume: Volume,
    scripts: Vec<Arc<FaultScript>>,
    small_reads: Arc<SmallFileReads<Reply>>,
    handle: HandleId,
    _trees: Vec<TempDir>,
    _runtime: Runtime,
}

/// The bytes of a block.
fn block(number: u64) -> Vec<u8> {
    (0..BLOCK).map(|i| (number * 31 + i / 7) as u8).collect()
}

impl Rig {
    fn new(replicas: usize) -> Self {
        Self::with_setup(replicas, VolumeSetup::new(CachePolicy::Direct))
    }

    fn with_setup(replicas: usize, setup: VolumeSetup) -> Self {
        let runtime = Runtime::new().unwrap();
        let trees: Vec<TempDir> = (0..replicas).map(|_| tempfile::tempdir().unwrap()).collect();
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(block).collect();
        fs::write(trees[0].path().join("f"), bytes).unwrap();
        let first = trees[0].path().join("f");
        trees[1..].iter().for_each(|tree| fs::hard_link(&first, tree.path().join("f")).unwrap());
        let scripts: Vec<_> = trees.iter().map(|_| Arc::new(FaultScript::default())).collect();
        let backend = |(tree, script): (&TempDir, &Arc<FaultScript>)| -> Arc<dyn Backend> {
            let inner = DirBackend::open(tree.path()).unwrap();
            Arc::new(FaultInjector::new(inner, Arc::clone(script)))
        };
        let setup = VolumeSetup { inline_calls: 4, ..setup };
        let backends = trees.iter().zip(&scripts).map(backend).collect();
        let volume = volume_with_setup(backends, &setup, &runtime);
        let fs = &volume.fs;
        let ino = answer(fs.namespace.lookup(RequestContext::DAEMON, entry("f"))).ino;
        let handle = open(fs, ino).handle;
        let small_reads = Arc::new(fs.open_files.small_reads());
        let rig = Self { volume, scripts, small_reads, handle, _trees: trees, _runtime: runtime };
        // Each replica is measured, and the next tick publishes that.
        for number in (0..BLOCKS).step_by(3) {
            // On a busy machine a short deadline may end it.
            waits_until("a block is read", || match rig.read(number) {
                Ok(bytes) => bytes == block(number) || panic!("wrong bytes"),
                Err(error) => error != Errno::TIMEDOUT && panic!("{error:?}"),
            });
        }
        // A thread that has answered may still have its permits.
        rig.expect_quiet();
        waits_until("a small read that hung is answered", || {
            let answer = rig.start_hung(5);
            rig.heal();
            let answer = answer.recv().unwrap();
            let is_read = answer.as_ref().is_ok_and(|bytes| *bytes == block(5));
            assert!(is_read || answer == Err(Errno::TIMEDOUT), "{answer:?}");
            rig.expect_quiet();
            is_read
        });
        rig
    }

    /// Makes all reads hang, and starts one of a block, as a thread of the session, that needs no
    /// segment. Returns when it hangs.
    fn start_hung(&self, number: u64) -> Receiver<FsResult<Vec<u8>>> {
        let hung = Cell::new(None);
        waits_until("a small read is made without a segment", || {
            (0..self.scripts.len()).for_each(|id| self.hang(id));
            let answer = self.start(number);
            // A small read is adopted, as it is late. It may have been hedged, too.
            waits_until("a read hangs", || self.gauges().in_flight > 0);
            let is_small = self.gauges().adopted_reads == 1;
            if is_small {
                hung.set(Some(answer));
            } else {
                self.heal();
                let _ = answer.recv().unwrap();
                self.expect_quiet();
            }
            is_small
        });
        hung.take().unwrap()
    }

    /// Starts a read of a block, as a thread of the session.
    fn start(&self, number: u64) -> Receiver<FsResult<Vec<u8>>> {
        let (send, receive) = channel();
        let (fs, small_reads, handle) =
            (Arc::clone(&self.volume.fs), Arc::clone(&self.small_reads), self.handle);
        std::thread::spawn(move || {
            let caller = ReadCaller { process: 0, small_reads: Some(&small_reads) };
            let range = ByteRange::at(number * BLOCK, BLOCK);
            fs.open_files.read(handle, range, caller, Reply(send));
        });
        receive
    }

    fn read(&self, number: u64) -> FsResult<Vec<u8>> {
        self.start(number).recv().unwrap()
    }

    /// Makes all reads of replica `id` hang.
    fn hang(&self, id: usize) {
        self.scripts[id].add(FaultRule::always(FaultOp::Read, Fault::Hang));
    }

    fn heal(&self) {
        self.scripts.iter().for_each(|script| script.heal());
    }

    fn gauges(&self) -> ReadGauges {
        self.volume.reader.gauges()
    }

    /// Calls of session threads that are inside a replica.
    fn calls(&self) -> usize {
        self.volume.replicas.inline_permits().in_use()
    }

    /// Those for small reads.
    fn small_calls(&self) -> usize {
        let gauges = self.gauges();
        gauges.small_reads + gauges.adopted_reads
    }

    fn counters(&self) -> VolumeCountersSnapshot {
        self.volume.counters.snapshot()
    }

    /// Reads that the first replica has delivered.
    fn reads_of_first(&self) -> u64 {
        self.volume.replicas[ReplicaId::new(0)].counters.snapshot().reads
    }

    /// Nothing is in flight, and no memory is in use.
    fn expect_quiet(&self) {
        waits_until("something is left", || {
            let gauges = self.gauges();
            let left = (gauges.waiting, gauges.in_flight, gauges.requests, self.calls());
            left == (0, 0, 0, 0) && gauges.buffer_used == 0
        });
    }
}

#[test]
fn small_reads_deliver_the_files_bytes_and_count() {
    let rig = Rig::new(3);
    let before = rig.counters();
    for round in 0..4 {
        for number in (0..BLOCKS).map(|i| (i * 29 + round) % BLOCKS) {
            assert_eq!(rig.read(number), Ok(block(number)));
        }
    }
    let after = rig.counters();
    assert_eq!(after.reads - before.reads, 4 * BLOCKS);
    assert_eq!(after.bytes_delivered - before.bytes_delivered, 4 * BLOCKS * BLOCK);
    assert_eq!(after.read_latency.total() - before.read_latency.total(), 4 * BLOCKS);
    rig.expect_quiet();
}

#[test]
fn a_late_small_read_is_answered_by_another_replica() {
    attempts(|| {
        let rig = Rig::new(2);
        let before = rig.counters();
        rig.hang(0);
        rig.hang(1);
        // The thread is inside one replica; only the other one answers from now on.
        let answer = rig.start(7);
        waits_until("no read hangs", || rig.gauges().requests == 1);
        let is_inside = |id: ReplicaId| rig.volume.replicas[id].inline_calls() > 0;
        let hung = usize::from(is_inside(ReplicaId::new(1)));
        rig.scripts[1 - hung].heal();
        assert_eq!(answer.recv_timeout(Duration::from_secs(30)).unwrap(), Ok(block(7)));
        waits_until("the hedge counts", || rig.counters().hedges_won - before.hedges_won == 1);
        // The hung call returns; no reader waits for its bytes.
        rig.heal();
        rig.expect_quiet();
        let duplicate = || rig.counters().bytes_duplicate - before.bytes_duplicate;
        waits_until("the late bytes count", || duplicate() == BLOCK);
        assert_eq!(rig.read(8), Ok(block(8)));
    });
}

#[test]
fn a_late_small_read_delivers_if_no_other_replica_does() {
    let rig = Rig::new(1);
    let before = rig.counters();
    rig.hang(0);
    let answer = rig.start(9);
    waits_until("the read hangs", || rig.gauges().requests == 1);
    rig.heal();
    assert_eq!(answer.recv().unwrap(), Ok(block(9)));
    rig.expect_quiet();
    assert_eq!(rig.counters().bytes_duplicate, before.bytes_duplicate);
}

#[test]
fn a_small_read_in_flight_is_joined() {
    attempts(|| {
        let rig = Rig::new(1);
        let first = rig.start_hung(11);
        let read_before = rig.reads_of_first();
        // Three more want the same bytes, one as a part of more.
        let others = [rig.start(11), rig.start(11)];
        let (fs, handle) = (Arc::clone(&rig.volume.fs), rig.handle);
        let whole =
            std::thread::spawn(move || ask_read(&fs, handle, ByteRange::at(10 * BLOCK, 3 * BLOCK)));
        waits_until("all wait", || rig.gauges().requests == 4);
        rig.heal();
        for answer in [first].into_iter().chain(others) {
            assert_eq!(answer.recv().unwrap(), Ok(block(11)));
        }
        assert_eq!(whole.join().unwrap().unwrap(), [block(10), block(11), block(12)].concat());
        rig.expect_quiet();
        // Block 11 once, and the two parts around it.
        waits_until("each byte is read once", || rig.reads_of_first() - read_before >= 3);
        assert_eq!(rig.reads_of_first() - read_before, 3);
    });
}

#[test]
fn a_small_read_joins_a_segment_that_is_being_fetched() {
    let rig = Rig::new(1);
    let read_before = rig.reads_of_first();
    rig.hang(0);
    let (fs, handle) = (Arc::clone(&rig.volume.fs), rig.handle);
    let whole =
        std::thread::spawn(move || ask_read(&fs, handle, ByteRange::at(20 * BLOCK, 4 * BLOCK)));
    waits_until("the segment is being fetched", || rig.gauges().in_flight == 1);
    let small = rig.start(21);
    waits_until("both wait", || rig.gauges().requests == 2);
    rig.heal();
    assert_eq!(small.recv().unwrap(), Ok(block(21)));
    assert_eq!(whole.join().unwrap().unwrap(), (20..24).flat_map(block).collect::<Vec<u8>>());
    rig.expect_quiet();
    assert_eq!(rig.reads_of_first() - read_before, 1);
}

/// The segments of this volume have 64 KiB: a read of a quarter measures the replica's rate.
#[test]
fn a_read_that_measures_the_rate_is_not_small() {
    let rig = Rig::new(1);
    rig.hang(0);
    let (send, answer) = channel();
    let (fs, small_reads, handle) =
        (Arc::clone(&rig.volume.fs), Arc::clone(&rig.small_reads), rig.handle);
    std::thread::spawn(move || {
        let caller = ReadCaller { process: 0, small_reads: Some(&small_reads) };
        fs.open_files.read(handle, ByteRange::at(32 * BLOCK, 4 * BLOCK), caller, Reply(send));
    });
    // Its thread holds a slot until it is a request.
    waits_until("the read hangs", || rig.gauges().in_flight == 1 && rig.small_calls() == 0);
    rig.heal();
    assert_eq!(answer.recv().unwrap(), Ok((32..36).flat_map(block).collect()));
    rig.expect_quiet();
}

#[test]
fn a_failed_small_read_is_retried_elsewhere() {
    let rig = Rig::new(2);
    for script in &rig.scripts {
        script.add(FaultRule {
            count: 1,
            ..FaultRule::always(FaultOp::Read, Fault::Errno(rustix::io::Errno::IO))
        });
    }
    assert_eq!(rig.read(13), Ok(block(13)));
    rig.heal();
    rig.expect_quiet();
}

#[test]
fn a_stale_descriptor_is_opened_again() {
    let rig = Rig::new(1);
    let stale = Fault::Errno(rustix::io::Errno::STALE);
    rig.scripts[0].add(FaultRule { count: 1, ..FaultRule::always(FaultOp::Read, stale) });
    assert_eq!(rig.read(15), Ok(block(15)));
    assert!(rig.scripts[0].is_exhausted());
    rig.heal();
    rig.expect_quiet();
}

#[test]
fn short_reads_are_continued() {
    let rig = Rig::new(1);
    rig.scripts[0].add(FaultRule::always(FaultOp::Read, Fault::ShortRead(1000)));
    assert_eq!(rig.read(17), Ok(block(17)));
    rig.heal();
    rig.expect_quiet();
}

#[test]
fn a_hung_small_read_ends_at_its_deadline() {
    let deadline = Duration::from_secs(2);
    let setup = VolumeSetup { deadline, ..VolumeSetup::new(CachePolicy::Direct) };
    let rig = Rig::with_setup(1, setup);
    rig.hang(0);
    let began = Instant::now();
    assert_eq!(rig.read(19), Err(Errno::TIMEDOUT));
    assert!(began.elapsed() >= deadline);
    rig.heal();
    rig.expect_quiet();
    waits_until("it reads again", || rig.read(19) == Ok(block(19)));
}

#[test]
fn a_late_small_read_does_not_wait_for_memory() {
    attempts(|| {
        let budget = 128 << 10;
        let setup = VolumeSetup { budget, ..VolumeSetup::new(CachePolicy::Direct) };
        let rig = Rig::with_setup(1, setup);
        rig.hang(0);
        let fs = Arc::clone(&rig.volume.fs);
        let handle = rig.handle;
        let all = std::thread::spawn(move || ask_read(&fs, handle, ByteRange::at(0, budget)));
        waits_until("the budget is used up", || rig.gauges().buffer_used == budget);
        let small = rig.start(50);
        waits_until("the small read hangs", || rig.small_calls() == 1);
        // From now on it expires at its deadline, and may be hedged.
        waits_until("it becomes a request", || rig.gauges().adopted_reads == 1);
        assert_eq!(rig.gauges().buffer_used, budget + BLOCK);
        rig.heal();
        assert_eq!(small.recv().unwrap(), Ok(block(50)));
        assert_eq!(all.join().unwrap().unwrap(), (0..32).flat_map(block).collect::<Vec<u8>>());
        rig.expect_quiet();
    });
}

#[test]
fn the_stop_of_a_volume_ends_hung_small_reads() {
    attempts(|| {
        let rig = Rig::new(1);
        let answer = rig.start_hung(23);
        rig.volume.reader.stop();
        assert!(answer.recv().unwrap().is_err());
        rig.heal();
        rig.expect_quiet();
    });
}
