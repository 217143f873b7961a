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
use super::plan::Part;
use super::shuffle::Shuffle;
use super::subject::{aligned, open};
use crate::volume::ReplicaId;

/// What one reader does.
pub(super) struct Job {
    pub(super) path: PathBuf,
    /// Which replica it reads from; none through fanfs.
    pub(super) replica: Option<ReplicaId>,
    pub(super) direct: bool,
    pub(super) part: Part,
    pub(super) block: u64,
    /// In random order, of this seed.
    pub(super) shuffled: Option<u64>,
}

/// What the readers of a pass did.
pub(super) struct Taken {
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
    pub(super) is_cut: bool,
}

/// Why a pass has no figures.
#[derive(Debug)]
pub(super) enum Lost {
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
    is_cut: AtomicBool,
    bytes: AtomicU64,
}

struct Done {
    latency: Histogram<u64>,
    ended: Instant,
    cpu: Duration,
}

enum Said {
    Ready,
    Done(Box<Done>),
    Failed(String),
}

/// How often who watches is told.
const TICK: Duration = Duration::from_millis(20);

/// Carries out a pass. `watch` is told the time since its begin and the bytes read, and
/// says whether to go on.
pub(super) fn read(
    jobs: Vec<Job>,
    pass: Duration,
    deadline: Duration,
    mut watch: impl FnMut(Duration, u64) -> bool,
) -> Result<Taken, Lost> {
    let replicas: Vec<Option<ReplicaId>> = jobs.iter().map(|job| job.replica).collect();
    let shared = Arc::new(Shared::default());
    let (say, said) = channel();
    let mut go = Vec::new();
    for (number, job) in jobs.into_iter().enumerate() {
        let replica = job.replica;
        let (start, started) = sync_channel(1);
        let (say, shared) = (say.clone(), Arc::clone(&shared));
        let thread = move || reader(number, &job, pass, &shared, &started, &say);
        let spawned = std::thread::Builder::new().name("bench-reader".to_owned()).spawn(thread);
        spawned.map_err(|error| Lost::Failed { replica, why: error.to_string() })?;
        go.push(start);
    }
    drop(say);
    let crew = Crew { replicas, shared: Arc::clone(&shared), said };
    crew.wait(
        Instant::now() + deadline,
        |_| watch(Duration::ZERO, 0),
        |said| matches!(said, Said::Ready).then_some(()),
    )?;
    let (all, own) = (cpu(ClockId::ProcessCPUTime), cpu(ClockId::ThreadCPUTime));
    let started = Instant::now();
    for start in &go {
        let _ = start.send(started);
    }
    let going = |bytes| watch(started.elapsed(), bytes);
    let done = crew.wait(started + pass + deadline, going, |said| match said {
        Said::Done(done) => Some(*done),
        _ => None,
    })?;
    let all = cpu(ClockId::ProcessCPUTime).saturating_sub(all);
    let own = cpu(ClockId::ThreadCPUTime).saturating_sub(own);
    let mut latency = histogram();
    for one in &done {
        latency += &one.latency;
    }
    let ended = done.iter().map(|one| one.ended).max().unwrap_or(started);
    let reader_cpu = done.iter().map(|one| one.cpu).sum();
    Ok(Taken {
        bytes: shared.bytes.load(Ordering::Relaxed),
        time: ended - started,
        latency,
        reader_cpu,
        other_cpu: all.saturating_sub(own).saturating_sub(reader_cpu),
        is_cut: shared.is_cut.load(Ordering::Relaxed),
    })
}

/// The readers, as who waits for them sees them.
struct Crew {
    replicas: Vec<Option<ReplicaId>>,
    shared: Arc<Shared>,
    said: Receiver<(usize, Said)>,
}

impl Crew {
    /// Waits until each has said what `wanted` takes.
    fn wait<T>(
        &self,
        until: Instant,
        mut watch: impl FnMut(u64) -> bool,
        wanted: impl Fn(Said) -> Option<T>,
    ) -> Result<Vec<T>, Lost> {
        let mut missing: Vec<usize> = (0..self.replicas.len()).collect();
        let mut got = Vec::new();
        let end = |lost: Lost| {
            self.shared.stop.store(true, Ordering::Relaxed);
            Err(lost)
        };
        while let Some(first) = missing.first() {
            let failed = match self.said.recv_timeout(TICK) {
                Ok((number, Said::Failed(why))) => Some((number, why)),
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
                return end(Lost::Failed { replica: self.replicas[number], why });
            }
            if !watch(self.shared.bytes.load(Ordering::Relaxed)) {
                return end(Lost::Interrupted);
            }
            if let Some(first) = missing.first().filter(|_| Instant::now() > until) {
                return end(Lost::Hung { replica: self.replicas[*first] });
            }
        }
        Ok(got)
    }
}

fn reader(
    number: usize,
    job: &Job,
    pass: Duration,
    shared: &Shared,
    started: &Receiver<Instant>,
    say: &Sender<(usize, Said)>,
) {
    let file = match open(&job.path, job.direct) {
        Ok(file) => file,
        Err(error) => {
            let _ = say.send((number, Said::Failed(format!("open: {error}"))));
            return;
        }
    };
    if !job.direct {
        // What is in this machine's page cache is not the replica's doing.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
    let mut memory = vec![0; (job.block + ALIGNMENT) as usize];
    let memory = aligned(&mut memory);
    let _ = say.send((number, Said::Ready));
    let Ok(started) = started.recv() else { return };
    let before = cpu(ClockId::ThreadCPUTime);
    let mut done = Done { latency: histogram(), ended: started, cpu: Duration::ZERO };
    let blocks = job.part.len / job.block;
    let shuffle = job.shuffled.map(|seed| Shuffle::new(blocks, seed));
    let mut index = 0;
    while !shared.stop.load(Ordering::Relaxed) && done.ended.duration_since(started) < pass {
        let block = shuffle.as_ref().map_or((index < blocks).then_some(index), |s| s.at(index));
        let Some(block) = block else {
            shared.is_cut.store(true, Ordering::Relaxed);
            shared.stop.store(true, Ordering::Relaxed);
            break;
        };
        let offset = job.part.offset + block * job.block;
        let began = Instant::now();
        let read = file.read_exact_at(memory, offset);
        done.ended = Instant::now();
        if let Err(error) = read {
            let _ = say.send((number, Said::Failed(format!("read at {offset}: {error}"))));
            return;
        }
        let took = done.ended.duration_since(began).as_micros() as u64;
        done.latency.saturating_record(took.max(1));
        shared.bytes.fetch_add(job.block, Ordering::Relaxed);
        index += 1;
    }
    done.cpu = cpu(ClockId::ThreadCPUTime).saturating_sub(before);
    let _ = say.send((number, Said::Done(Box::new(done))));
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn job(path: PathBuf, part: Part, shuffled: Option<u64>) -> Job {
        let replica = Some(ReplicaId::new(1));
        Job { path, replica, direct: false, part, block: 65536, shuffled }
    }

    #[test]
    fn parts_are_read_to_their_end_and_no_further() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 * MIB).unwrap();
        for shuffled in [None, Some(3)] {
            let part = Part { offset: MIB, len: 2 * MIB };
            let jobs = vec![job(file.path().to_owned(), part, shuffled)];
            let minute = Duration::from_secs(60);
            let taken = read(jobs, minute, minute, |_, _| true).unwrap();
            assert_eq!(taken.bytes, 2 * MIB);
            assert_eq!(taken.latency.len(), 32);
            assert!(taken.is_cut && taken.time < minute);
        }
    }

    #[test]
    fn what_fails_or_hangs_or_is_interrupted_is_said_of_whom() {
        let room = tempfile::tempdir().unwrap();
        let short = room.path().join("short");
        std::fs::write(&short, [1; 100_000]).unwrap();
        let part = Part { offset: 0, len: MIB };
        let second = Duration::from_secs(1);
        let lost = |path: PathBuf, go: bool| {
            read(vec![job(path, part, None)], second, second / 4, |_, _| go).err().unwrap()
        };
        let one = Some(ReplicaId::new(1));
        assert!(matches!(lost(short, true), Lost::Failed { replica, .. } if replica == one));
        let nowhere = room.path().join("nowhere");
        assert!(matches!(lost(nowhere, true), Lost::Failed { replica, .. } if replica == one));
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
        assert!(matches!(lost(fifo.clone(), true), Lost::Hung { replica } if replica == one));
        assert!(matches!(lost(fifo, false), Lost::Interrupted));
    }
}
