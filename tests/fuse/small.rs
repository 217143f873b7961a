//! Small files and small reads: the replicas get exactly the requests that the application needs,
//! and none twice.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fanfs::backend::{Fault, FaultOp, FaultRule};
use fanfs::status::Status;
use fanfs::volume::ByteRange;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use crate::machine::{attempts, with_kept_pages};
use crate::recorder::Call;
use crate::rig::{Random, Rig, Setup, bytes, mount, root, tree};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const O_DIRECT: i32 = 0o40_000;

/// The kernel caches names and attributes for longer than a test runs.
const LONG_TTL: &str = "[fuse]\nattribute_ttl = \"60s\"";

const CACHES: [&str; 2] = ["cache = \"kernel\"", "cache = \"direct\""];

fn small_files(count: usize, setup: &Setup) -> (Rig, Vec<PathBuf>) {
    let room = tree();
    fs::create_dir(root(&room).join("d")).unwrap();
    let names: Vec<_> = (0..count).map(|i| PathBuf::from(format!("d/f{i}"))).collect();
    for (i, name) in names.iter().enumerate() {
        fs::write(root(&room).join(name), bytes(4096, i as u64)).unwrap();
    }
    (mount(room, setup), names)
}

/// In nearly all tries the replicas get the calls `expected` and no others: an occasional probe, or
/// a late replica on a busy machine, is no defect. Returns whether one replica did all of it, in as
/// many tries.
fn mostly(
    times: usize,
    mut act: impl FnMut(usize) -> Vec<Vec<Call>>,
    expected: &[Call],
) -> Result<(), String> {
    let tries: Vec<_> = (0..times).map(&mut act).collect();
    let has_all = |calls: &[Call]| expected.iter().all(|call| calls.contains(call));
    let is_all = |calls: &[Call]| calls.len() == expected.len() && has_all(calls);
    let others: Vec<_> = tries.iter().filter(|calls| !is_all(&calls.concat())).collect();
    assert!(others.len() <= times / 10, "{expected:?} was expected, there were {others:?}");
    let others: Vec<_> = tries.iter().filter(|calls| **calls != [expected]).collect();
    let few = others.len() <= times / 10;
    few.then_some(()).ok_or_else(|| format!("{expected:?} was expected, there were {others:?}"))
}

/// Each call of a replica takes this long from now on. Beside that, the delays of a busy machine
/// make no replica appear twice as slow as another.
fn take(rig: &Rig, time: Duration) {
    for script in &rig.scripts {
        script.add(FaultRule::always(FaultOp::Any, Fault::Delay(time)));
    }
}

/// The calls that `act` causes, with the replicas that got them.
fn asked(rig: &Rig, act: impl FnOnce()) -> Vec<Vec<Call>> {
    rig.record();
    act();
    let mut calls = rig.recorded();
    // A close is not awaited, so this may be the previous file's.
    calls.iter_mut().for_each(|calls| calls.retain(|call| !matches!(call, Call::Close(_))));
    calls.retain(|calls| !calls.is_empty());
    calls
}

/// Keeps the kernel from forgetting a name while this lives, even when caches are dropped. The file
/// is not opened.
fn known(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// A direct open, read and close of a file with an uncached name is a lookup, an open and a read;
/// with a cached name, an open and a read.
#[test]
fn a_small_file_costs_one_direct_open_and_read() {
    // A replica whose first lookups were late on a busy machine is avoided for a while, so one
    // replica does not get all calls; another mount may try again.
    const TRIES: usize = 5;
    for copies in [false, true] {
        for read in CACHES {
            let setup = Setup { copies, read, rest: LONG_TTL, ..Setup::default() };
            attempts(|| {
                let tries = (0..TRIES).map(|_| with_kept_pages(|| round_trips(&setup)));
                let failed: Vec<_> = tries.map_while(Result::err).collect();
                assert!(failed.len() < TRIES, "{failed:#?}");
            });
        }
    }
}

fn round_trips(setup: &Setup) -> Result<(), String> {
    let whole = Call::Read(ByteRange::at(0, 4096));
    let (rig, mut names) = small_files(120, setup);
    let _known = known(&rig.at("d"));
    take(&rig, Duration::from_millis(3));
    // The replicas' mean latencies are still those from before the delay. Until they have adapted,
    // replicas seem to differ, and a file is looked up on one and opened on another.
    names.split_off(60).iter().for_each(|name| drop(fs::read(rig.at(name)).unwrap()));
    let get = |i: usize| {
        asked(&rig, || {
            let content = fs::read(rig.at(&names[i])).unwrap();
            assert!(content == bytes(4096, i as u64));
        })
    };
    mostly(30, get, &[Call::Stat, Call::Open, whole.clone()])?;
    // From here on the names are cached, as after a listing.
    let _known: Vec<OwnedFd> = names.iter().map(|name| known(&rig.at(name))).collect();
    mostly(30, |i| get(30 + i), &[Call::Open, whole.clone()])?;
    let again: &[Call] = match setup.read {
        "cache = \"kernel\"" => &[Call::Open],
        _ => &[Call::Open, whole],
    };
    mostly(60, get, again)
}

/// Eight readers of one directory: its files are looked up, opened and read
/// through all replicas, each file through one.
#[test]
fn the_files_of_one_directory_are_spread_over_the_replicas() {
    attempts(|| {
        let setup = Setup { rest: LONG_TTL, ..Setup::default() };
        let (rig, names) = small_files(240, &setup);
        fs::metadata(rig.at("d")).unwrap();
        take(&rig, Duration::from_millis(5));
        rig.record();
        std::thread::scope(|scope| {
            for part in names.chunks(30) {
                let rig = &rig;
                scope.spawn(move || {
                    part.iter().for_each(|name| drop(fs::read(rig.at(name)).unwrap()))
                });
            }
        });
        for calls in rig.recorded() {
            let count =
                |kind: &dyn Fn(&Call) -> bool| calls.iter().filter(|call| kind(call)).count();
            let counts = [
                count(&|call| *call == Call::Stat),
                count(&|call| *call == Call::Open),
                count(&|call| matches!(call, Call::Read(_))),
            ];
            // A third of 240, with a margin for chance.
            assert!(
                counts.iter().all(|n| (20..=160).contains(n)),
                "stats, opens, reads: {counts:?}"
            );
        }
    });
}

/// A close waits for the server on NFSv4. A FUSE thread waits only for a replica that is quick, as in
/// other calls.
#[test]
fn files_of_slow_replicas_are_closed_by_their_own_threads() {
    for read in CACHES {
        let (rig, mut names) = small_files(60, &Setup { read, ..Setup::default() });
        let is_of_session = |thread: &str| thread.starts_with("fuser-");
        let quick = names.split_off(30);
        rig.eventually("session threads close files", |_| {
            let closers = closers(&rig, &quick);
            for (thread, own) in &closers {
                assert!(thread == own || is_of_session(thread), "{thread} closed a file of {own}");
            }
            closers.iter().any(|(thread, _)| is_of_session(thread))
        });
        take(&rig, Duration::from_millis(3));
        // Until the mean latencies have adapted, the replicas still count as quick.
        names.split_off(15).iter().for_each(|name| assert!(rig.at(name).is_file()));
        for (thread, own) in closers(&rig, &names) {
            assert_eq!(thread, own);
        }
    }
}

/// Reads the files. Returns the thread that closed each of them, and the name of its replica's
/// threads.
fn closers(rig: &Rig, names: &[PathBuf]) -> Vec<(String, String)> {
    rig.record();
    names.iter().for_each(|name| drop(fs::read(rig.at(name)).unwrap()));
    rig.expect_quiet();
    rig.eventually("all files are closed", |_| {
        let calls = rig.recorded().into_iter().flatten();
        let (opened, closed) = calls.fold((0, 0), |(opened, closed), call| match call {
            Call::Open => (opened + 1, closed),
            Call::Close(_) => (opened, closed + 1),
            _ => (opened, closed),
        });
        opened >= names.len() && closed == opened
    });
    let mut closers = Vec::new();
    for (i, calls) in rig.recorded().into_iter().enumerate() {
        for call in calls {
            if let Call::Close(thread) = call {
                closers.push((thread, format!("r:r{}", i + 1)));
            }
        }
    }
    closers
}

/// A file of zeros, which takes no space.
fn sparse(size: u64, read: &'static str, rest: &'static str) -> Rig {
    let room = tree();
    File::create(root(&room).join("data")).unwrap().set_len(size).unwrap();
    mount(room, &Setup { read, rest, ..Setup::default() })
}

/// Waits until all readahead has been fetched or abandoned.
fn until_idle(rig: &Rig) -> Status {
    rig.eventually("nothing is in flight", |status| {
        status.gauges.segments_in_flight + status.gauges.segments_waiting == 0
    })
}

/// Reads `take` bytes of every `stride`, in blocks, and calls `between` after each stride. It leaves
/// out the file's start, where fanfs reads ahead further: the more, the faster the replicas are.
/// Returns the bytes that the kernel requested and that the replicas delivered, as fractions of the
/// rest.
fn skip(
    rig: &Rig,
    size: u64,
    (take, stride, block): (u64, u64, u64),
    between: impl Fn(&Rig),
) -> (f64, f64) {
    let file = File::open(rig.at("data")).unwrap();
    let mut buf = vec![0; block as usize];
    for start in (stride..size).step_by(stride as usize) {
        for at in (start..start + take).step_by(block as usize) {
            file.read_exact_at(&mut buf, at).unwrap();
        }
        between(rig);
    }
    let status = until_idle(rig);
    let part = |bytes: u64| bytes as f64 / (size - stride) as f64;
    (part(status.counters.bytes_delivered), part(rig.delivered()))
}

/// Bytes read, bytes skipped, and the size of the blocks.
const SKIPS: [(u64, u64, u64); 6] = [
    (MIB, 2 * MIB, MIB),
    (MIB, 2 * MIB, 128 * KIB),
    (MIB, 2 * MIB, 4 * KIB),
    (64 * KIB, 128 * KIB, 64 * KIB),
    (64 * KIB, 128 * KIB, 16 * KIB),
    (64 * KIB, 128 * KIB, 4 * KIB),
];

const SKIPPED: u64 = 128 * MIB;

#[test]
fn a_reader_of_half_a_file_fetches_half_of_it() {
    let kernel = "cache = \"kernel\"";
    let exact = "[fuse]\nkernel_readahead = \"0B\"";
    let whole_parts = SKIPS.iter().filter(|(take, _, block)| take == block);
    let cases = (SKIPS.iter().map(|skip| ("cache = \"direct\"", "", skip)))
        // The kernel does not enlarge a single read.
        .chain(whole_parts.map(|skip| (kernel, "", skip)))
        // Without its readahead it enlarges nothing.
        .chain(SKIPS.iter().map(|skip| (kernel, exact, skip)));
    for (read, rest, &pattern) in cases {
        let rig = sparse(SKIPPED, read, rest);
        let (asked, got) = skip(&rig, SKIPPED, pattern, |_| ());
        assert!(got <= 0.55, "{got} of the file, asked for {asked}; {pattern:?} {read} {rest}");
    }
}

/// The kernel's own readahead requests more than is read. fanfs's readahead adds little to that.
///
/// One thread takes all requests: with several, one may overtake another and look like a new run. And
/// no readahead is abandoned before it is fetched. So the bound does not depend on the machine's
/// load.
///
/// How much the kernel requests of long runs of 4 KiB depends on how fast it is answered, so these
/// are left to a test of `read::readahead`.
#[test]
fn kernel_readahead_is_not_extended() {
    let steady = SKIPS.iter().filter(|(take, _, block)| take / block <= 16);
    for &pattern in steady {
        let rig = sparse(SKIPPED / 4, "cache = \"kernel\"", "[fuse]\nthreads = 1");
        let (asked, got) = skip(&rig, SKIPPED / 4, pattern, |rig| drop(until_idle(rig)));
        assert!(got <= asked * 1.3, "asked for {asked}, read {got}: {pattern:?}");
    }
}

#[test]
fn random_reads_request_exactly_the_read_bytes() {
    for read in CACHES {
        for flags in [0, O_DIRECT] {
            let size = 4096 * MIB;
            let rig = sparse(size, read, "");
            let path = rig.at("data");
            let wanted = Mutex::new(Vec::new());
            rig.record();
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    let (path, wanted) = (&path, &wanted);
                    scope.spawn(move || {
                        let file =
                            OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
                        let mut random = Random(thread + 1);
                        let mut buf = vec![0; 8192];
                        let start = buf.as_ptr().align_offset(4096);
                        for _ in 0..250 {
                            let at = random.below(size / 4096) * 4096;
                            file.read_exact_at(&mut buf[start..start + 4096], at).unwrap();
                            wanted.lock().push(ByteRange::at(at, 4096));
                        }
                    });
                }
            });
            let asked = rig.recorded().into_iter().flatten().filter_map(|call| match call {
                Call::Read(range) => Some(range),
                _ => None,
            });
            let wanted = wanted.into_inner();
            let (exact, others): (Vec<_>, Vec<_>) = asked.partition(|r| wanted.contains(r));
            assert!(exact.len() <= 2000 * 105 / 100, "{} reads for 2000", exact.len());
            assert!(others.len() <= 20, "{read} {flags}: {others:?}");
            let delivered = rig.delivered();
            assert!(delivered <= 2000 * 4096 * 105 / 100, "{delivered} bytes, {read} {flags}");
        }
    }
}
