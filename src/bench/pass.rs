//! One pass: readers that begin together, read for so long, and are waited for only so
//! long.
//!
//! Each reader is a thread that reads one block after the other with pread(2) and is
//! never waited for by joining it: one that is inside a replica that hangs is left
//! there. The pass ends for all when its time is over, or as soon as one has read its
//! part to the end; otherwise the last of several would be measured alone.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use std::os::unix::fs::FileExt;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::ALIGNMENT;
use super::permutation::BlockPermutation;
use super::plan::FilePart;
use super::target_file::{aligned, open};
use crate::volume::ReplicaId;

/// What one reader does.
pub(super) struct ReaderJob {
    pub(super) path: PathBuf,
    /// Which replica it reads from; none through fanfs.
    pub(super) replica: Option<ReplicaId>,
    pub(super) is_direct: bool,
    pub(super) part: FilePart,
    pub(super) block_size: u64,
    /// In random order, of this seed.
    pub(super) shuffle_seed: Option<u64>,
}

/// What the readers of a pass did.
pub(super) struct PassResult {
    pub(super) bytes: u64,
    /// From the begin of all to the end of the last one's last read.
    pub(super) time: Duration,
    /// Of each read, microseconds.
    pub(super) latency: Histogram<u64>,
    /// Processor time of the readers.
    pub(super) reader_cpu: Duration,
    /// Processor time of all else in this process but who watches.
    pub(super) other_cpu: Duration,
    /// Whether it ended because a part was read to its end.
    pub(super) is_cut_short: bool,
}

/// Why a pass has no figures.
#[derive(Debug)]
pub(super) enum PassFailure {
    Interrupted,
    /// A read failed.
    Failed {
        replica: Option<ReplicaId>,
        why: String,
    },
    /// A call did not come back.
    Hung {
        replica: Option<ReplicaId>,
    },
}

/// A histogram of what reads take: microseconds up to an hour, to a thousandth.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("constant bounds are valid")
}

/// What all readers of a pass share.
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
    Failed(String),
}

/// How often who watches is told.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Carries out a pass. `watch` is told the time since its begin and the bytes read, and
/// says whether to go on.
pub(super) fn run_readers(
    jobs: Vec<ReaderJob>,
    pass: Duration,
    deadline: Duration,
    mut watch: impl FnMut(Duration, u64) -> bool,
) -> Result<PassResult, PassFailure> {
    let replicas: Vec<Option<ReplicaId>> = jobs.iter().map(|job| job.replica).collect();
    let shared = Arc::new(Shared::default());
    let (say, said) = channel();
    let mut go = Vec::new();
    for (number, job) in jobs.into_iter().enumerate() {
        let replica = job.replica;
        let (start, started) = sync_channel(1);
        let (say, shared) = (say.clone(), Arc::clone(&shared));
        let thread = move || run_reader(number, &job, pass, &shared, &started, &say);
        let spawned = std::thread::Builder::new().name("bench-reader".to_owned()).spawn(thread);
        spawned.map_err(|error| PassFailure::Failed { replica, why: error.to_string() })?;
        go.push(start);
    }
    drop(say);
    let crew = ReaderThreads { replicas, shared: Arc::clone(&shared), messages: said };
    crew.wait_for_all(
        Instant::now() + deadline,
        |_| watch(Duration::ZERO, 0),
        |said| matches!(said, ReaderMessage::Ready).then_some(()),
    )?;
    let (all, own) = (cpu_time(ClockId::ProcessCPUTime), cpu_time(ClockId::ThreadCPUTime));
    let started = Instant::now();
    for start in &go {
        let _ = start.send(started);
    }
    let going = |bytes| watch(started.elapsed(), bytes);
    let done = crew.wait_for_all(started + pass + deadline, going, |said| match said {
        ReaderMessage::Done(done) => Some(*done),
        _ => None,
    })?;
    let all = cpu_time(ClockId::ProcessCPUTime).saturating_sub(all);
    let own = cpu_time(ClockId::ThreadCPUTime).saturating_sub(own);
    let mut latency = histogram();
    for one in &done {
        latency += &one.latency;
    }
    let ended = done.iter().map(|one| one.ended).max().unwrap_or(started);
    let reader_cpu = done.iter().map(|one| one.cpu).sum();
    Ok(PassResult {
        bytes: shared.bytes.load(Ordering::Relaxed),
        time: ended - started,
        latency,
        reader_cpu,
        other_cpu: all.saturating_sub(own).saturating_sub(reader_cpu),
        is_cut_short: shared.is_cut_short.load(Ordering::Relaxed),
    })
}

/// The readers, as who waits for them sees them.
struct ReaderThreads {
    replicas: Vec<Option<ReplicaId>>,
    shared: Arc<Shared>,
    messages: Receiver<(usize, ReaderMessage)>,
}

impl ReaderThreads {
    /// Waits until each has said what `wanted` takes.
    fn wait_for_all<T>(
        &self,
        until: Instant,
        mut watch: impl FnMut(u64) -> bool,
        wanted: impl Fn(ReaderMessage) -> Option<T>,
    ) -> Result<Vec<T>, PassFailure> {
        let mut missing: Vec<usize> = (0..self.replicas.len()).collect();
        let mut got = Vec::new();
        let end = |lost: PassFailure| {
            self.shared.stop.store(true, Ordering::Relaxed);
            Err(lost)
        };
        while let Some(first) = missing.first() {
            let failed = match self.messages.recv_timeout(WATCH_INTERVAL) {
                Ok((number, ReaderMessage::Failed(why))) => Some((number, why)),
                Ok((number, said)) => {
                    missing.retain(|missing| *missing != number);
                    got.extend(wanted(said));
                    None
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    Some((*first, "a reader panicked; this is a bug in fanfs".to_owned()))
                }
            };
            if let Some((number, why)) = failed {
                return end(PassFailure::Failed { replica: self.replicas[number], why });
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

fn run_reader(
    number: usize,
    job: &ReaderJob,
    pass: Duration,
    shared: &Shared,
    started: &Receiver<Instant>,
    say: &Sender<(usize, ReaderMessage)>,
) {
    let file = match open(&job.path, job.is_direct) {
        Ok(file) => file,
        Err(error) => {
            let _ = say.send((number, ReaderMessage::Failed(format!("open: {error}"))));
            return;
        }
    };
    if !job.is_direct {
        // What is in this machine's page cache is not the replica's doing.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
    let mut memory = vec![0; (job.block_size + ALIGNMENT) as usize];
    let memory = aligned(&mut memory);
    let _ = say.send((number, ReaderMessage::Ready));
    let Ok(started) = started.recv() else { return };
    let before = cpu_time(ClockId::ThreadCPUTime);
    let mut done = ReaderResult { latency: histogram(), ended: started, cpu: Duration::ZERO };
    let blocks = job.part.len / job.block_size;
    let shuffle = job.shuffle_seed.map(|seed| BlockPermutation::new(blocks, seed));
    let mut index = 0;
    while !shared.stop.load(Ordering::Relaxed) && done.ended.duration_since(started) < pass {
        let block = shuffle.as_ref().map_or((index < blocks).then_some(index), |s| s.at(index));
        let Some(block) = block else {
            shared.is_cut_short.store(true, Ordering::Relaxed);
            shared.stop.store(true, Ordering::Relaxed);
            break;
        };
        let offset = job.part.offset + block * job.block_size;
        let began = Instant::now();
        let read = file.read_exact_at(memory, offset);
        done.ended = Instant::now();
        if let Err(error) = read {
            let _ = say.send((number, ReaderMessage::Failed(format!("read at {offset}: {error}"))));
            return;
        }
        let took = done.ended.duration_since(began).as_micros() as u64;
        done.latency.saturating_record(took.max(1));
        shared.bytes.fetch_add(job.block_size, Ordering::Relaxed);
        index += 1;
    }
    done.cpu = cpu_time(ClockId::ThreadCPUTime).saturating_sub(before);
    let _ = say.send((number, ReaderMessage::Done(Box::new(done))));
}

fn cpu_time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn job(path: PathBuf, part: FilePart, shuffled: Option<u64>) -> ReaderJob {
        let replica = Some(ReplicaId::new(1));
        ReaderJob {
            path,
            replica,
            is_direct: false,
            part,
            block_size: 65536,
            shuffle_seed: shuffled,
        }
    }

    #[test]
    fn parts_are_read_to_their_end_and_no_further() {
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
    fn what_fails_or_hangs_or_is_interrupted_is_said_of_whom() {
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
        // Opening a FIFO waits for a writer.
        let fifo = room.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(
            matches!(lost(fifo.clone(), true), PassFailure::Hung { replica } if replica == one)
        );
        assert!(matches!(lost(fifo, false), PassFailure::Interrupted));
    }
}
