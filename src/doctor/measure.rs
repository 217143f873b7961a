//! Measures the replicas' rates: each alone, then all at once, past the page cache.
//!
//! The input is the replicas; the output is a [`MeasuredRates`]. All replicas must have the
//! same file. It is read in segments, several at a time. Each replica alone reads its own part of
//! the first half. All together read the second half; each takes the next segment when it is free,
//! as in fanfs. No part is read twice, so a shared cache (a server's) does not replace a disk.
//!
//! *Invariant:* a step ends at its time limit. Threads that hang in a replica are abandoned, and
//! their later deliveries do not count.

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::facts::{MeasuredRates, RateMeasurement};
use super::machine::SystemRoot;
use crate::raw_replica::{RawFile, RawMode, RawReplica, UnopenedReplica};
use crate::timeout::run_with_timeout;

/// The time limit of a step. In 3 s, 10 Gbit/s deliver 3.5 GiB, and a slow 10 MiB/s 30 segments. A
/// mean over 30 segments is good to a few percent.
pub const DEFAULT_SECONDS: f64 = 3.0;

/// One read, bytes: fanfs's default segment.
const SEGMENT_BYTES: u64 = 1 << 20;

/// Reads in flight on each replica: the least that fanfs's scheduler keeps in flight.
const IN_FLIGHT: usize = 4;

/// A shorter step gives no rate, because the file was too small. A slow replica's few bytes in a
/// longer time do.
const MIN_RATE_DURATION: Duration = Duration::from_millis(100);

/// A replica with reads in flight has stalled if its last segment is longer ago than this, and
/// longer ago than the time before it. The silent time then counts. A single late segment does not.
const STALL_TIMEOUT: Duration = Duration::from_millis(500);

/// The number of small reads whose median is a replica's latency; `LATENCY_TIMEOUT` limits the time
/// of all.
const LATENCY_READS: u64 = 16;
const LATENCY_TIMEOUT: Duration = Duration::from_secs(2);

/// The time limit of the search for a file.
const FILE_SEARCH_TIMEOUT: Duration = Duration::from_secs(3);

/// The alignment of O_DIRECT buffers, bytes; see benches/results/replica-reads.md.
const DIRECT_IO_ALIGN: usize = 4096;

/// How to measure.
#[derive(Clone, Debug)]
pub struct MeasureOptions {
    /// The file, relative to the replicas' roots. `None` takes the file with the most data that is
    /// found.
    pub file: Option<PathBuf>,
    /// The time limit of each step.
    pub step_duration: Duration,
}

/// Measures the replicas that are `Some`; calls `say` with each step's name.
pub(super) fn measure(
    replicas: &[Option<Result<RawReplica, UnopenedReplica>>],
    options: &MeasureOptions,
    tree: &SystemRoot,
    say: &dyn Fn(&str),
) -> MeasuredRates {
    let seconds = options.step_duration.as_secs_f64();
    let failed =
        |why: String| MeasuredRates { failed: Some(why), seconds, ..MeasuredRates::default() };
    let opened = || replicas.iter().flatten();
    let Some(first) = opened().find_map(|replica| replica.as_ref().ok()) else {
        let why = opened().find_map(|replica| replica.as_ref().err());
        return failed(why.map_or("no replica answers".to_owned(), UnopenedReplica::to_string));
    };
    say("looking for a test file");
    let search = |replica: &RawReplica| match &options.file {
        Some(file) => regular_file(replica, file),
        None => find_file(replica),
    };
    let found = opened().filter_map(|replica| replica.as_ref().ok()).find_map(search);
    let Some(TestFile { path: file, size }) = found else {
        let what = options.file.as_ref().map_or_else(
            || format!("no file found in {first}"),
            |file| format!("{} is not a file in {first}", file.display()),
        );
        return failed(format!("{what}; name one with --file"));
    };
    let place =
        |replica: &RawReplica| MeasuredFile { replica: replica.clone(), path: file.clone() };
    let places = replicas.iter().map(|replica| replica.as_ref()?.as_ref().ok().map(place));
    let places: Vec<Option<MeasuredFile>> = places.collect();
    let plan = SegmentPlan::new(size / SEGMENT_BYTES, places.len());
    let mut alone = Vec::new();
    for (i, place) in places.iter().enumerate() {
        let Some(place) = place else {
            alone.push(unmeasured(replicas[i].as_ref()));
            continue;
        };
        say(&format!("reading {place} alone"));
        let latency = measure_latency(place, plan.alone_segments(i));
        let mut step = MeasureStep::run(&[place], plan.alone_segments(i), options.step_duration);
        alone.push(RateMeasurement { latency_ms: latency, ..step.remove(0) });
    }
    say("reading all replicas at once");
    let healthy: Vec<&MeasuredFile> = places
        .iter()
        .zip(&alone)
        .filter(|(_, sample)| !sample.silent && sample.error.is_none())
        .filter_map(|(place, _)| place.as_ref())
        .collect();
    let before = tree.processor_ticks();
    let each = MeasureStep::run(&healthy, plan.shared_segments(), options.step_duration);
    let idle = before
        .zip(tree.processor_ticks())
        .and_then(|(before, after)| after.idle_share_since(before));
    let file = file.to_string_lossy().into_owned();
    MeasuredRates { file, size, seconds, alone, together: sum_rates(&each), idle, failed: None }
}

/// The figures of a replica that is not read.
fn unmeasured(replica: Option<&Result<RawReplica, UnopenedReplica>>) -> RateMeasurement {
    let why = replica.and_then(|replica| replica.as_ref().err());
    RateMeasurement { error: why.map(|why| why.to_string()), ..RateMeasurement::default() }
}

/// The sum of the rates of replicas that read at the same time.
fn sum_rates(each: &[RateMeasurement]) -> RateMeasurement {
    let bytes = each.iter().map(|sample| sample.bytes).sum();
    let seconds = each.iter().map(|sample| sample.seconds).fold(0.0, f64::max);
    RateMeasurement {
        bytes,
        seconds,
        // Each rate covers the time until the replica's last segment. Segments in flight at the end
        // count neither alone nor here.
        rate: each.iter().filter_map(|sample| sample.rate).reduce(|a, b| a + b),
        direct: each.iter().all(|sample| sample.direct),
        error: each.iter().find_map(|sample| sample.error.clone()),
        ..RateMeasurement::default()
    }
}

fn rate_if_long_enough(bytes: u64, seconds: f64) -> Option<f64> {
    (bytes > 0 && seconds >= MIN_RATE_DURATION.as_secs_f64()).then(|| bytes as f64 / seconds)
}

/// The segments that each step reads; no segment is read twice.
#[derive(Clone, Copy)]
struct SegmentPlan {
    segment_count: u64,
    replica_count: u64,
}

impl SegmentPlan {
    fn new(segments: u64, replicas: usize) -> Self {
        Self { segment_count: segments, replica_count: replicas as u64 }
    }

    fn alone_segments(self, replica: usize) -> std::ops::Range<u64> {
        let each = self.segment_count / 2 / self.replica_count;
        let start = replica as u64 * each;
        start..start + each
    }

    fn shared_segments(self) -> std::ops::Range<u64> {
        self.segment_count / 2..self.segment_count
    }
}

/// State that the threads of a step share.
struct MeasureStep {
    next_segment: AtomicU64,
    end_segment: u64,
    stop: AtomicBool,
    started_at: Instant,
}

/// One replica's progress in a step.
#[derive(Default)]
struct StepProgress {
    bytes: AtomicU64,
    /// The time from the start to the arrival of the last segment, nanoseconds.
    last_segment_ns: AtomicU64,
    working_threads: AtomicUsize,
    is_direct: AtomicBool,
    error: Mutex<Option<String>>,
}

impl MeasureStep {
    /// Reads segments of the files at `places` until the segments or the time run out.
    fn run(
        places: &[&MeasuredFile],
        segments: std::ops::Range<u64>,
        time: Duration,
    ) -> Vec<RateMeasurement> {
        let step = Arc::new(MeasureStep {
            next_segment: AtomicU64::new(segments.start),
            end_segment: segments.end,
            stop: AtomicBool::new(false),
            started_at: Instant::now(),
        });
        let parts: Vec<Arc<StepProgress>> = places.iter().map(|_| Arc::default()).collect();
        for (place, part) in places.iter().zip(&parts) {
            for _ in 0..IN_FLIGHT {
                let step = Arc::clone(&step);
                let part = Arc::clone(part);
                let place = (*place).clone();
                part.working_threads.fetch_add(1, Relaxed);
                let counted = Arc::clone(&part);
                let work = move || {
                    if let Err(error) = step.read_segments(&place, &part) {
                        part.error.lock().expect("no panic").get_or_insert(error.to_string());
                    }
                    part.working_threads.fetch_sub(1, Relaxed);
                };
                if std::thread::Builder::new().name("measure".into()).spawn(work).is_err() {
                    counted.working_threads.fetch_sub(1, Relaxed);
                }
            }
        }
        let busy = || parts.iter().any(|part| part.working_threads.load(Relaxed) > 0);
        while step.started_at.elapsed() < time && busy() && !step.is_exhausted(places.len()) {
            std::thread::sleep(Duration::from_millis(2));
        }
        step.stop.store(true, Relaxed);
        let elapsed = step.started_at.elapsed();
        let samples = parts.iter().map(|part| part.measurement(elapsed)).collect();
        // Reads still in flight would disturb the next step.
        let until = Instant::now() + time.min(Duration::from_secs(2));
        while busy() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        samples
    }

    /// Whether all segments are assigned. With several replicas the step then ends, because
    /// otherwise it would wait only for the slowest.
    fn is_exhausted(&self, replicas: usize) -> bool {
        replicas > 1 && self.next_segment.load(Relaxed) >= self.end_segment
    }

    fn read_segments(&self, place: &MeasuredFile, part: &StepProgress) -> io::Result<()> {
        let mut file = SegmentFile::open(place)?;
        while !self.stop.load(Relaxed) {
            let segment = self.next_segment.fetch_add(1, Relaxed);
            if segment >= self.end_segment {
                break;
            }
            let n = file.read(segment * SEGMENT_BYTES)?;
            if n == 0 {
                return Err(io::Error::other("the file is shorter on this replica"));
            }
            part.is_direct.store(file.is_direct, Relaxed);
            if !self.stop.load(Relaxed) {
                part.bytes.fetch_add(n as u64, Relaxed);
                part.last_segment_ns
                    .fetch_max(self.started_at.elapsed().as_nanos() as u64, Relaxed);
            }
        }
        Ok(())
    }
}

/// The time over which a rate is computed: until the last segment, unless the replica stalled.
fn rate_duration(last: Duration, elapsed: Duration, is_working: bool) -> Duration {
    let late = elapsed.saturating_sub(last);
    if is_working && late > last && late > STALL_TIMEOUT { elapsed } else { last }
}

impl StepProgress {
    /// The result, if the step took `elapsed`.
    fn measurement(&self, elapsed: Duration) -> RateMeasurement {
        let bytes = self.bytes.load(Relaxed);
        let last = Duration::from_nanos(self.last_segment_ns.load(Relaxed));
        let seconds =
            rate_duration(last, elapsed, self.working_threads.load(Relaxed) > 0).as_secs_f64();
        let error = self.error.lock().expect("no panic").clone();
        RateMeasurement {
            bytes,
            seconds,
            rate: rate_if_long_enough(bytes, seconds),
            latency_ms: None,
            direct: self.is_direct.load(Relaxed),
            silent: bytes == 0 && error.is_none() && self.working_threads.load(Relaxed) > 0,
            error,
        }
    }
}

/// A file that is read past the page cache, if its filesystem supports that.
struct SegmentFile {
    file: RawFile,
    is_direct: bool,
    place: MeasuredFile,
    buffer: Vec<u8>,
}

/// The file on one replica.
#[derive(Clone)]
struct MeasuredFile {
    replica: RawReplica,
    /// Relative to the replica's root.
    path: PathBuf,
}

impl std::fmt::Display for MeasuredFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.replica.path_of(&self.path).display().fmt(f)
    }
}

impl MeasuredFile {
    fn open(&self, mode: RawMode) -> io::Result<RawFile> {
        self.replica.open_file(&self.path, mode)
    }
}

impl SegmentFile {
    fn open(place: &MeasuredFile) -> io::Result<Self> {
        let buffer = vec![0; SEGMENT_BYTES as usize + DIRECT_IO_ALIGN];
        let place = place.clone();
        match place.open(RawMode::Direct) {
            Ok(file) => Ok(Self { file, is_direct: true, place, buffer }),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Ok(Self { file: place.open(RawMode::Cached)?, is_direct: false, place, buffer })
            }
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, at: u64) -> io::Result<usize> {
        let shift = self.buffer.as_ptr().align_offset(DIRECT_IO_ALIGN);
        let range = shift..shift + SEGMENT_BYTES as usize;
        if self.is_direct {
            match self.file.read_at(&mut self.buffer[range.clone()], at) {
                // Some filesystems accept O_DIRECT at open and reject it here.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.file = self.place.open(RawMode::Cached)?;
                    self.is_direct = false;
                }
                read => return read,
            }
        }
        let length = NonZeroU64::new(SEGMENT_BYTES);
        let _ = self.file.drop_page_cache(at, length);
        let read = self.file.read_at(&mut self.buffer[range], at);
        let _ = self.file.drop_page_cache(at, length);
        read
    }
}

/// The median latency of small reads spread over the segments, ms.
fn measure_latency(place: &MeasuredFile, segments: std::ops::Range<u64>) -> Option<f64> {
    let place = place.clone();
    let times = run_with_timeout(LATENCY_TIMEOUT, move || {
        let mut times = Vec::new();
        let Ok(mut file) = SegmentFile::open(&place) else { return times };
        let count = segments.end - segments.start;
        let until = Instant::now() + LATENCY_TIMEOUT * 9 / 10;
        for i in 0..LATENCY_READS.min(count) {
            let at = (segments.start + i * count / LATENCY_READS.min(count)) * SEGMENT_BYTES;
            let started = Instant::now();
            if Instant::now() > until || file.read_small(at).is_err() {
                break;
            }
            times.push(started.elapsed());
        }
        times
    });
    let mut times = times?;
    times.sort_unstable();
    times.get(times.len() / 2).map(|time| time.as_secs_f64() * 1e3)
}

impl SegmentFile {
    fn read_small(&mut self, at: u64) -> io::Result<usize> {
        let shift = self.buffer.as_ptr().align_offset(DIRECT_IO_ALIGN);
        if !self.is_direct {
            let _ = self.file.drop_page_cache(at, NonZeroU64::new(SEGMENT_BYTES));
        }
        self.file.read_at(&mut self.buffer[shift..shift + DIRECT_IO_ALIGN], at)
    }
}

/// The file to read.
struct TestFile {
    /// Relative to the replicas' roots.
    path: PathBuf,
    /// Bytes.
    size: u64,
}

fn regular_file(replica: &RawReplica, file: &Path) -> Option<TestFile> {
    let replica = replica.clone();
    let path = file.to_owned();
    let size = move || match &replica {
        // A user may name a file by a symbolic link.
        RawReplica::Directory(root) => {
            let stat = std::fs::metadata(root.join(&path))?;
            Ok(stat.is_file().then_some(stat.len()))
        }
        RawReplica::Export { .. } => replica.file_size(&path),
    };
    let found = run_with_timeout(FILE_SEARCH_TIMEOUT, size)?.ok()?;
    found.map(|size| TestFile { path: file.to_owned(), size })
}

/// The file with the most data.
fn find_file(replica: &RawReplica) -> Option<TestFile> {
    let best = replica.find_sample(FILE_SEARCH_TIMEOUT, Duration::ZERO).best?;
    Some(TestFile { path: best.path, size: best.size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::unnecessary_wraps, reason = "it is one of several")]
    fn opened(root: &Path) -> Option<Result<RawReplica, UnopenedReplica>> {
        Some(Ok(RawReplica::Directory(root.to_owned())))
    }

    #[test]
    fn no_segment_is_read_twice() {
        for (segments, replicas) in [(0, 1), (5, 3), (600, 3), (601, 64)] {
            let plan = SegmentPlan::new(segments, replicas);
            let mut seen = std::collections::BTreeSet::new();
            let steps =
                (0..replicas).map(|i| plan.alone_segments(i)).chain([plan.shared_segments()]);
            for segment in steps.flatten() {
                assert!(segment < segments && seen.insert(segment), "{segment} of {segments}");
            }
        }
    }

    #[test]
    fn a_file_is_found_and_read() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("d")).expect("a directory");
        std::fs::write(dir.path().join("small"), "x").expect("written");
        std::fs::write(dir.path().join("d/large"), vec![7; 40 << 20]).expect("written");
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("link")).expect("a link");
        let root = || opened(dir.path());
        let roots = [root(), None, root()];
        let options = MeasureOptions { file: None, step_duration: Duration::from_secs(5) };
        let measured = measure(&roots, &options, &SystemRoot::at(Path::new("/")), &|_| {});
        assert_eq!((measured.file.as_str(), measured.size), ("d/large", 40 << 20));
        assert_eq!(measured.failed, None);
        // Alone, each replica reads a third of the first half. Together, they read as much of the
        // second half as they complete in time.
        let bytes: Vec<u64> = measured.alone.iter().map(|sample| sample.bytes >> 20).collect();
        assert_eq!(bytes, [6, 0, 6]);
        assert!(measured.alone[0].latency_ms.is_some());
        assert!(measured.together.bytes > 0 && measured.together.bytes <= 20 << 20);
        assert_eq!(measured.together.error, None);
    }

    #[test]
    fn a_shorter_copy_is_reported() {
        let [whole, short] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        std::fs::write(whole.path().join("data"), vec![7; 40 << 20]).expect("written");
        std::fs::write(short.path().join("data"), vec![7; 2 << 20]).expect("written");
        let roots = [&whole, &short].map(|root| opened(root.path()));
        let options = MeasureOptions { file: None, step_duration: Duration::from_secs(5) };
        let measured = measure(&roots, &options, &SystemRoot::at(Path::new("/")), &|_| {});
        assert_eq!(measured.alone[0].error, None);
        assert_eq!(measured.alone[1].error.as_deref(), Some("the file is shorter on this replica"));
    }

    #[test]
    fn links_are_followed_and_other_objects_are_reported() {
        let [whole, odd] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        std::fs::write(whole.path().join("data"), vec![7; 8 << 20]).expect("written");
        std::os::unix::fs::symlink("data", whole.path().join("link")).expect("a link");
        let fifo = odd.path().join("link");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, fifo, kind, rustix::fs::Mode::RUSR, 0).expect("made");
        let roots = [&whole, &odd].map(|root| opened(root.path()));
        let options =
            MeasureOptions { file: Some("link".into()), step_duration: Duration::from_secs(5) };
        let measured = measure(&roots, &options, &SystemRoot::at(Path::new("/")), &|_| {});
        assert_eq!((measured.failed, measured.size), (None, 8 << 20));
        assert_eq!(measured.alone[0].error, None);
        assert!(measured.alone[1].error.is_some() && !measured.alone[1].silent);
    }

    #[test]
    fn a_replica_that_cannot_be_opened_is_named_with_the_reason() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("data"), vec![7; 8 << 20]).expect("written");
        let late = || Some(Err(UnopenedReplica::TimedOut(Duration::from_secs(3))));
        let options = MeasureOptions { file: None, step_duration: Duration::from_secs(5) };
        let tree = SystemRoot::at(Path::new("/"));
        let measured = measure(&[late(), opened(dir.path())], &options, &tree, &|_| {});
        let why = "did not answer within 3 s";
        assert_eq!(measured.alone[0].error.as_deref(), Some(why));
        assert!(measured.alone[1].bytes > 0);
        assert_eq!(measure(&[late()], &options, &tree, &|_| {}).failed.as_deref(), Some(why));
    }

    #[test]
    fn a_replica_that_stops_delivering_is_slow() {
        let ms = Duration::from_millis;
        // The last segment arrives 50 ms after the start; then none for the rest of 3 s.
        assert_eq!(rate_duration(ms(50), ms(3000), true), ms(3000));
        assert_eq!(rate_duration(ms(50), ms(3000), false), ms(50), "the end of the file");
        assert_eq!(rate_duration(ms(2900), ms(3000), true), ms(2900));
        // A slow replica: one segment per second.
        assert_eq!(rate_duration(ms(2000), ms(3000), true), ms(2000));
        assert_eq!(rate_duration(ms(100), ms(500), true), ms(100), "a short step");
    }

    #[test]
    fn a_missing_file_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let roots = [opened(dir.path())];
        let step = Duration::from_millis(50);
        let tree = SystemRoot::at(Path::new("/"));
        let why = |file| {
            measure(&roots, &MeasureOptions { file, step_duration: step }, &tree, &|_| {}).failed
        };
        assert!(why(None).expect("nothing there").contains("no file found"));
        assert!(why(Some("gone".into())).expect("nothing there").contains("gone is not a file"));
        let none =
            measure(&[None], &MeasureOptions { file: None, step_duration: step }, &tree, &|_| {});
        assert_eq!(none.failed.as_deref(), Some("no replica answers"));
    }

    #[test]
    fn the_measurement_does_not_wait_for_a_hung_replica() {
        let started = Instant::now();
        let (keep, never) = std::sync::mpsc::channel::<()>();
        assert_eq!(run_with_timeout(Duration::from_millis(50), move || never.recv().is_ok()), None);
        assert!(started.elapsed() < Duration::from_secs(30));
        drop(keep);
    }
}
