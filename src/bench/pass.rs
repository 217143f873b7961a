//! One pass: readers that start together, read for a limited time, and are waited for only for a
//! limited time.
//!
//! Each reader is a thread that reads one block after another with pread(2). The pass never joins a
//! reader: it abandons one that is stuck in a hung replica. The pass ends for all readers when its
//! time is over, or as soon as one reader reaches the end of its part. Otherwise the last of
//! several readers would be measured alone.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::ALIGNMENT;
use super::permutation::BlockPermutation;
use super::plan::FilePart;
use super::target_file::aligned;
use crate::raw_replica::{RawFile, RawMode, RawReplica};
use crate::volume::ReplicaId;

/// What one reader does.
pub(super) struct ReaderJob {
    /// A replica, or a mount of fanfs.
    pub(super) tree: RawReplica,
    /// Relative to its root.
    pub(super) file: PathBuf,
    /// The replica that it reads from; `None` through fanfs.
    pub(super) replica: Option<ReplicaId>,
    pub(super) mode: RawMode,
    pub(super) part: FilePart,
    pub(super) block_size: u64,
    /// The seed of a random order; `None` reads from front to back.
    pub(super) shuffle_seed: Option<u64>,
}

/// What the readers of a pass did.
pub(super) struct PassResult {
    pub(super) bytes: u64,
    /// From the common start to the end of the last reader's last read.
    pub(super) time: Duration,
    /// The latency of each read, microseconds.
    pub(super) latency: Histogram<u64>,
    /// CPU time of the readers, and of the connections to exports that they read directly.
    pub(super) reader_cpu: Duration,
    /// CPU time of all other threads of this process except the one that watches the pass.
    pub(super) other_cpu: Duration,
    /// Whether the pass ended because a reader reached the end of its part.
    pub(super) is_cut_short: bool,
}

/// Why a pass has no figures.
#[derive(Debug)]
pub(super) enum PassFailure {
    Interrupted,
    /// A reader failed.
    Failed {
        replica: Option<ReplicaId>,
        error: ReaderError,
    },
    /// A call did not return.
    Hung {
        replica: Option<ReplicaId>,
    },
}

/// Why a reader has no figures.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// Its thread could not be started.
    #[error(transparent)]
    Thread(io::Error),
    /// The file cannot be opened.
    #[error("cannot open the file: {0}")]
    Open(io::Error),
    /// The file cannot be read there.
    #[error("cannot read at offset {offset}: {error}")]
    Read {
        /// The offset of the block's first byte.
        offset: u64,
        /// The system's error.
        error: io::Error,
    },
    /// Its thread ended without a message.
    #[error("a reader panicked; this is a bug in fanfs")]
    Panicked,
}

impl ReaderError {
    /// Whether the replica did not answer in time.
    pub(super) fn is_timeout(&self) -> bool {
        match self {
            Self::Open(error) | Self::Read { error, .. } => error.kind() == io::ErrorKind::TimedOut,
            Self::Thread(_) | Self::Panicked => false,
        }
    }
}

/// A histogram of read latencies: 1 microsecond to one hour, exact to one part in a thousand.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds are valid")
}

/// State that all readers of a pass share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    is_cut_short: AtomicBool,
    bytes: AtomicU64,
}

struct ReaderResult {
    latency: Histogram<u64>,
    ended: Instant,
    cpu: Duration,
}

enum ReaderMessage {
    Ready,
    Done(Box<ReaderResult>),
    Failed(ReaderError),
}

/// A message, with the number of the reader that sent it.
struct NumberedMessage {
    number: usize,
    message: ReaderMessage,
}

/// How often `watch` is called.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Carries out a pass. `watch` gets the time since the start and the bytes read so far, and returns
/// whether to continue.
pub(super) fn run_readers(
    jobs: Vec<ReaderJob>,
    duration: Duration,
    deadline: Duration,
    mut watch: impl FnMut(Duration, u64) -> bool,
) -> Result<PassResult, PassFailure> {
    let replicas: Vec<Option<ReplicaId>> = jobs.iter().map(|job| job.replica).collect();
    let are_exports = jobs.iter().any(|job| job.tree.is_export());
    let shared = Arc::new(Shared::default());
    let (messages, received) = channel();
    let mut starters = Vec::new();
    for (number, job) in jobs.into_iter().enumerate() {
        let replica = job.replica;
        let (starter, start) = sync_channel(1);
        let messages = messages.clone();
        let shared = Arc::clone(&shared);
        let reader = ReaderThread { number, job, duration, shared, start, messages };
        let thread = std::thread::Builder::new().name("bench-reader".to_owned());
        let spawned = thread.spawn(move || reader.run()).map_err(ReaderError::Thread);
        spawned.map_err(|error| PassFailure::Failed { replica, error })?;
        starters.push(starter);
    }
    drop(messages);
    let readers = ReaderThreads { replicas, shared: Arc::clone(&shared), messages: received };
    readers.wait_for_all(
        Instant::now() + deadline,
        |_| watch(Duration::ZERO, 0),
        |message| matches!(message, ReaderMessage::Ready).then_some(()),
    )?;
    let cpu_before = cpu_time_of_others();
    let started = Instant::now();
    for starter in &starters {
        let _ = starter.send(started);
    }
    let watch = |bytes| watch(started.elapsed(), bytes);
    let done =
        readers.wait_for_all(started + duration + deadline, watch, |message| match message {
            ReaderMessage::Done(done) => Some(*done),
            _ => None,
        })?;
    let all_cpu = cpu_time_of_others().saturating_sub(cpu_before);
    let mut latency = histogram();
    for one in &done {
        latency += &one.latency;
    }
    let ended = done.iter().map(|one| one.ended).max().unwrap_or(started);
    let threads_cpu: Duration = done.iter().map(|one| one.cpu).sum();
    let other_cpu = all_cpu.saturating_sub(threads_cpu);
    // Each server's connections have a thread of their own.
    let reader_cpu = if are_exports { threads_cpu + other_cpu } else { threads_cpu };
    Ok(PassResult {
        bytes: shared.bytes.load(Ordering::Relaxed),
        time: ended - started,
        latency,
        reader_cpu,
        other_cpu,
        is_cut_short: shared.is_cut_short.load(Ordering::Relaxed),
    })
}

/// The readers of a pass, as the watching thread sees them.
struct ReaderThreads {
    replicas: Vec<Option<ReplicaId>>,
    shared: Arc<Shared>,
    messages: Receiver<NumberedMessage>,
}

impl ReaderThreads {
    /// Waits until each reader has sent a message that `wanted` accepts.
    fn wait_for_all<T>(
        &self,
        until: Instant,
        mut watch: impl FnMut(u64) -> bool,
        wanted: impl Fn(ReaderMessage) -> Option<T>,
    ) -> Result<Vec<T>, PassFailure> {
        let mut missing: Vec<usize> = (0..self.replicas.len()).collect();
        let mut got = Vec::new();
        let end = |failure: PassFailure| {
            self.shared.stop.store(true, Ordering::Relaxed);
            Err(failure)
        };
        let fail = |number: usize, error: ReaderError| {
            end(PassFailure::Failed { replica: self.replicas[number], error })
        };
        while let Some(first) = missing.first() {
            match self.messages.recv_timeout(WATCH_INTERVAL) {
                Ok(NumberedMessage { number, message: ReaderMessage::Failed(error) }) => {
                    return fail(number, error);
                }
                Ok(NumberedMessage { number, message }) => {
                    missing.retain(|missing| *missing != number);
                    got.extend(wanted(message));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return fail(*first, ReaderError::Panicked),
            }
            if !watch(self.shared.bytes.load(Ordering::Relaxed)) {
                return end(PassFailure::Interrupted);
            }
            if let Some(first) = missing.first().filter(|_| Instant::now() > until) {
                return end(PassFailure::Hung { replica: self.replicas[*first] });
            }
        }
        Ok(got)
    }
}

/// A reader, on its own thread.
struct ReaderThread {
    /// Its index among the readers of the pass.
    number: usize,
    job: ReaderJob,
    /// How long it reads at most.
    duration: Duration,
    shared: Arc<Shared>,
    /// Delivers the common start time.
    start: Receiver<Instant>,
    messages: Sender<NumberedMessage>,
}

impl ReaderThread {
    fn run(self) {
        match self.prepare().and_then(|file| self.read_part(&file)) {
            Ok(Some(result)) => self.send(ReaderMessage::Done(Box::new(result))),
            // The pass ended before this reader started.
            Ok(None) => {}
            Err(error) => self.send(ReaderMessage::Failed(error)),
        }
    }

    fn send(&self, message: ReaderMessage) {
        let _ = self.messages.send(NumberedMessage { number: self.number, message });
    }

    fn prepare(&self) -> Result<RawFile, ReaderError> {
        let ReaderJob { tree, file, mode, .. } = &self.job;
        let file = tree.open_file(file, *mode).map_err(ReaderError::Open)?;
        if *mode == RawMode::Cached {
            // A read from this machine's page cache would not measure the replica.
            let _ = file.drop_page_cache(0, None);
        }
        Ok(file)
    }

    /// Waits for the start, then reads until the end of the part or of the time.
    fn read_part(&self, file: &RawFile) -> Result<Option<ReaderResult>, ReaderError> {
        let job = &self.job;
        let mut memory = vec![0; (job.block_size + ALIGNMENT) as usize];
        let memory = aligned(&mut memory);
        self.send(ReaderMessage::Ready);
        let Ok(started) = self.start.recv() else { return Ok(None) };
        let cpu_before = cpu_time(ClockId::ThreadCPUTime);
        let mut result = ReaderResult { latency: histogram(), ended: started, cpu: Duration::ZERO };
        let blocks = job.part.len / job.block_size;
        let shuffle = job.shuffle_seed.map(|seed| BlockPermutation::new(blocks, seed));
        let mut index = 0;
        while !self.shared.stop.load(Ordering::Relaxed)
            && result.ended.duration_since(started) < self.duration
        {
            let block = shuffle.as_ref().map_or((index < blocks).then_some(index), |s| s.at(index));
            let Some(block) = block else {
                self.shared.is_cut_short.store(true, Ordering::Relaxed);
                self.shared.stop.store(true, Ordering::Relaxed);
                break;
            };
            let offset = job.part.offset + block * job.block_size;
            let began = Instant::now();
            let read = file.read_exact_at(memory, offset);
            result.ended = Instant::now();
            read.map_err(|error| ReaderError::Read { offset, error })?;
            let took = result.ended.duration_since(began).as_micros() as u64;
            result.latency.saturating_record(took.max(1));
            self.shared.bytes.fetch_add(job.block_size, Ordering::Relaxed);
            index += 1;
        }
        result.cpu = cpu_time(ClockId::ThreadCPUTime).saturating_sub(cpu_before);
        Ok(Some(result))
    }
}

/// That of all threads of this process but the calling one.
fn cpu_time_of_others() -> Duration {
    cpu_time(ClockId::ProcessCPUTime).saturating_sub(cpu_time(ClockId::ThreadCPUTime))
}

fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{DirBackend, Fault, FaultInjector, FaultOp, FaultRule, FaultScript};

    const MIB: u64 = 1 << 20;

    fn job(path: PathBuf, part: FilePart, shuffled: Option<u64>) -> ReaderJob {
        let replica = Some(ReplicaId::new(1));
        let tree = RawReplica::Directory(path.parent().unwrap().to_owned());
        ReaderJob {
            tree,
            file: path.file_name().unwrap().into(),
            replica,
            mode: RawMode::Cached,
            part,
            block_size: 65536,
            shuffle_seed: shuffled,
        }
    }

    #[test]
    fn each_part_is_read_exactly_to_its_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 * MIB).unwrap();
        for shuffled in [None, Some(3)] {
            let part = FilePart { offset: MIB, len: 2 * MIB };
            let jobs = vec![job(file.path().to_owned(), part, shuffled)];
            let minute = Duration::from_secs(60);
            let taken = run_readers(jobs, minute, minute, |_, _| true).unwrap();
            assert_eq!(taken.bytes, 2 * MIB);
            assert_eq!(taken.latency.len(), 32);
            assert!(taken.is_cut_short && taken.time < minute);
        }
    }

    #[test]
    fn failures_and_hangs_name_their_replica() {
        let room = tempfile::tempdir().unwrap();
        let short = room.path().join("short");
        std::fs::write(&short, [1; 100_000]).unwrap();
        let part = FilePart { offset: 0, len: MIB };
        let second = Duration::from_secs(1);
        let lost = |path: PathBuf, go: bool| {
            run_readers(vec![job(path, part, None)], second, second / 4, |_, _| go).err().unwrap()
        };
        let one = Some(ReplicaId::new(1));
        assert!(matches!(lost(short, true), PassFailure::Failed { replica, .. } if replica == one));
        let nowhere = room.path().join("nowhere");
        assert!(
            matches!(lost(nowhere, true), PassFailure::Failed { replica, .. } if replica == one)
        );
        let script = Arc::new(FaultScript::default());
        script.add(FaultRule::always(FaultOp::Open, Fault::Hang));
        let hung = DirBackend::open(room.path()).unwrap();
        let hung = Arc::new(FaultInjector::new(hung, Arc::clone(&script)));
        let hang = |go: bool| {
            let tree = RawReplica::Export { backend: hung.clone(), location: "hung".to_owned() };
            let job = ReaderJob { tree, ..job(room.path().join("short"), part, None) };
            run_readers(vec![job], second, second / 4, |_, _| go).err().unwrap()
        };
        assert!(matches!(hang(true), PassFailure::Hung { replica } if replica == one));
        assert!(matches!(hang(false), PassFailure::Interrupted));
        script.heal();
    }
}
