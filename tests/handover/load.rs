//! Readers that never stop, and check every byte.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use crate::machine::{HOPS, Machine};
use crate::room::Room;

/// No read takes as long: benches/handover measures the promised pause, and a lost request takes
/// 30 s.
pub(crate) const LONG: Duration = Duration::from_secs(25);

/// The readers' results.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reads: u64,
    pub(crate) wrong: u64,
    pub(crate) failed: Vec<io::Error>,
    /// The longest read. Of one that took [`LONG`] or more, the machine's delays are subtracted.
    pub(crate) longest: Duration,
    /// When each read began that took [`LONG`] or more, and its duration.
    long: Vec<(Instant, Duration)>,
}

/// Running readers.
pub(crate) struct Load {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<Outcome>>,
    watch: JoinHandle<()>,
}

struct Shared {
    begun: Instant,
    machine: Machine,
    /// The readers have to end.
    stop: AtomicBool,
    /// They have ended.
    have_ended: AtomicBool,
    reads: AtomicU64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits until there are more than `least` reads.
    fn wait_for(&self, least: u64) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.reads.load(Ordering::Relaxed) <= least && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Load {
    /// Readers of `large`, through the page cache and past it, and of names.
    pub(crate) fn begin(room: &Room) -> Self {
        let shared = Arc::new(Shared {
            begun: Instant::now(),
            machine: Machine::new(),
            stop: AtomicBool::new(false),
            have_ended: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        let watch = std::thread::spawn(move || {
            own.machine.watch(|| own.have_ended.load(Ordering::Relaxed));
        });
        let expected = Arc::new(fs::read(room.path("tree/large")).unwrap());
        let mut readers = Vec::new();
        for (block, flags) in [(1 << 20, 0), (1 << 20, libc_direct()), (4096, libc_direct())] {
            let path = room.path("mnt/large");
            let file = File::options().read(true).custom_flags(flags).open(path).unwrap();
            let (shared, expected) = (Arc::clone(&shared), Arc::clone(&expected));
            let reader = move || read(&file, block, flags, &expected, &shared);
            readers.push(std::thread::spawn(reader));
        }
        let (mnt, own) = (room.path("mnt"), Arc::clone(&shared));
        readers.push(std::thread::spawn(move || {
            let mut outcome = Outcome::default();
            while !own.is_over() {
                for i in [3, 77, 299] {
                    let path = mnt.join(format!("file-{i:03}"));
                    outcome.note(&own, || {
                        let is_there = fs::metadata(&path)?.len() > 0;
                        Ok(is_there && fs::read(&path)? == format!("{i}\n").as_bytes())
                    });
                }
            }
            outcome
        }));
        shared.wait_for(0);
        Self { shared, readers, watch }
    }

    /// The result so far.
    pub(crate) fn end(self) -> Outcome {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut sum = Outcome::default();
        for reader in self.readers {
            let outcome = reader.join().unwrap();
            sum.reads += outcome.reads;
            sum.wrong += outcome.wrong;
            sum.failed.extend(outcome.failed);
            sum.longest = sum.longest.max(outcome.longest);
            sum.long.extend(outcome.long);
        }
        self.shared.have_ended.store(true, Ordering::Relaxed);
        self.watch.join().unwrap();
        for (at, took) in &sum.long {
            let from = at.saturating_duration_since(self.shared.begun);
            let late = self.shared.machine.late(from, from + *took);
            sum.longest = sum.longest.max(took.saturating_sub(late * HOPS));
        }
        eprintln!("{} reads, the longest {:?}", sum.reads, sum.longest);
        sum
    }

    /// No read failed, was wrong or stalled for long.
    pub(crate) fn end_well(self) {
        self.shared.wait_for(100);
        let outcome = self.end();
        assert!(outcome.failed.is_empty() && outcome.wrong == 0, "{outcome:?}");
        assert!(outcome.reads > 100, "{outcome:?}");
        assert!(outcome.longest < LONG, "{outcome:?}");
    }
}

impl Outcome {
    fn note(&mut self, shared: &Shared, look: impl FnOnce() -> io::Result<bool>) {
        let begun = Instant::now();
        match look() {
            Ok(right) => self.wrong += u64::from(!right),
            Err(error) => self.failed.push(error),
        }
        self.reads += 1;
        shared.reads.fetch_add(1, Ordering::Relaxed);
        let took = begun.elapsed();
        match took < LONG {
            true => self.longest = self.longest.max(took),
            false => self.long.push((begun, took)),
        }
    }
}

fn libc_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

fn read(file: &File, block: usize, flags: i32, expected: &[u8], shared: &Shared) -> Outcome {
    let mut outcome = Outcome::default();
    // Aligned, as O_DIRECT requires.
    let mut space = vec![0u8; block + 4096];
    let start = space.as_ptr().align_offset(4096);
    let buffer = &mut space[start..start + block];
    let mut at = 0;
    while !shared.is_over() && outcome.failed.len() < 10 {
        if at + block > expected.len() {
            at = 0;
            if flags == 0 {
                let _ = fadvise(file, 0, None, Advice::DontNeed);
            }
        }
        outcome.note(shared, || {
            file.read_exact_at(buffer, at as u64)?;
            Ok(*buffer == expected[at..at + block])
        });
        at += block;
    }
    outcome
}
