//! Readers that never stop, and check every byte.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use crate::room::Room;

/// The readers' results.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reads: u64,
    pub(crate) wrong: u64,
    pub(crate) failed: Vec<io::Error>,
    pub(crate) longest: Duration,
}

/// Running readers.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    readers: Vec<JoinHandle<Outcome>>,
}

impl Load {
    /// Readers of `large`, through the page cache and past it, and of names.
    pub(crate) fn begin(room: &Room) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let expected = Arc::new(fs::read(room.path("tree/large")).unwrap());
        let mut readers = Vec::new();
        for (block, flags) in [(1 << 20, 0), (1 << 20, libc_direct()), (4096, libc_direct())] {
            let path = room.path("mnt/large");
            let file = File::options().read(true).custom_flags(flags).open(path).unwrap();
            let (stop, expected) = (Arc::clone(&stop), Arc::clone(&expected));
            readers.push(std::thread::spawn(move || read(&file, block, flags, &expected, &stop)));
        }
        let (mnt, own) = (room.path("mnt"), Arc::clone(&stop));
        readers.push(std::thread::spawn(move || {
            let mut outcome = Outcome::default();
            while !own.load(Ordering::Relaxed) {
                for i in [3, 77, 299] {
                    let path = mnt.join(format!("file-{i:03}"));
                    outcome.note(|| {
                        let is_there = fs::metadata(&path)?.len() > 0;
                        Ok(is_there && fs::read(&path)? == format!("{i}\n").as_bytes())
                    });
                }
            }
            outcome
        }));
        Self { stop, readers }
    }

    /// The result so far.
    pub(crate) fn end(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Outcome::default();
        for reader in self.readers {
            let outcome = reader.join().unwrap();
            sum.reads += outcome.reads;
            sum.wrong += outcome.wrong;
            sum.failed.extend(outcome.failed);
            sum.longest = sum.longest.max(outcome.longest);
        }
        eprintln!("{} reads, the longest {:?}", sum.reads, sum.longest);
        sum
    }

    /// No read failed, was wrong or stalled for long.
    pub(crate) fn end_well(self) {
        let outcome = self.end();
        assert!(outcome.failed.is_empty() && outcome.wrong == 0, "{outcome:?}");
        assert!(outcome.reads > 100, "{outcome:?}");
        // benches/handover measures the promised pause; a lost request takes 30 s.
        assert!(outcome.longest < Duration::from_secs(25), "{outcome:?}");
    }
}

impl Outcome {
    fn note(&mut self, look: impl FnOnce() -> io::Result<bool>) {
        let begun = Instant::now();
        match look() {
            Ok(right) => self.wrong += u64::from(!right),
            Err(error) => self.failed.push(error),
        }
        self.reads += 1;
        self.longest = self.longest.max(begun.elapsed());
    }
}

fn libc_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

fn read(file: &File, block: usize, flags: i32, expected: &[u8], stop: &AtomicBool) -> Outcome {
    let mut outcome = Outcome::default();
    // Aligned, as O_DIRECT requires.
    let mut space = vec![0u8; block + 4096];
    let start = space.as_ptr().align_offset(4096);
    let buffer = &mut space[start..start + block];
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) && outcome.failed.len() < 10 {
        if at + block > expected.len() {
            at = 0;
            if flags == 0 {
                let _ = fadvise(file, 0, None, Advice::DontNeed);
            }
        }
        outcome.note(|| {
            file.read_exact_at(buffer, at as u64)?;
            Ok(*buffer == expected[at..at + block])
        });
        at += block;
    }
    outcome
}
