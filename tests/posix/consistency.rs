//! Readers beside a writer: reads return the data of earlier writes.
//!
//! The writer rewrites each file again and again: in place, by truncating and writing, by writing
//! another file and renaming it, longer and shorter ones. Each block of a pass carries its stamp.
//! Readers open the files all the time, and each block that they read must
//!
//! - be intact, of one pass and in its place;
//! - be no older than the pass that was published when they were about to open
//!   (close-to-open);
//! - if no write was in flight, be the very block that was written last, also through a handle that
//!   was opened long before (*at once*).
//!
//! A counter that is odd while the writer is inside a call shows whether a write was in flight: a
//! read that began and ended at the same even count saw a file at rest. Another read may get the
//! old block or the new one, and on file systems that do not exclude reads and writes (as ext4 does
//! not) some bytes of both. Those are counted, and forbidden if a test says so.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use super::reader::Reader;
use super::stamp::BLOCK;
use super::writer::Writer;

/// Approximate sizes of the files.
const SIZES: [u64; 3] = [4 << 10, 300 << 10, 5 << 20];

/// The setup of the test.
pub(crate) struct Setup {
    /// The writer's and the readers' directories: one directory, or one seen through two mounts.
    pub(crate) write: PathBuf,
    pub(crate) read: PathBuf,
    /// Number of all reads.
    pub(crate) reads: u64,
    pub(crate) readers: u64,
    /// Data is visible when write(2) returns, and not only to readers that open the file after it
    /// was closed.
    pub(crate) at_once: bool,
    /// A read beside a write may return a block partly old, partly new.
    pub(crate) may_tear: bool,
    /// A file that was replaced may fail with ESTALE.
    pub(crate) may_be_stale: bool,
    /// The writer's pause after each pass.
    pub(crate) rest: Duration,
    pub(crate) seed: u64,
}

impl Setup {
    pub(crate) fn of(dir: &Path) -> Self {
        Self {
            write: dir.to_owned(),
            read: dir.to_owned(),
            reads: 100_000,
            readers: 4,
            at_once: true,
            may_tear: true,
            may_be_stale: false,
            rest: Duration::from_millis(1),
            seed: 1,
        }
    }
}

/// The results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) passes: u64,
    pub(crate) opens: u64,
    pub(crate) reads: u64,
    pub(crate) blocks: u64,
    /// Reads without a write in flight, which had to be exact.
    pub(crate) at_rest: u64,
    /// Of those, reads through handles opened before the last pass.
    pub(crate) by_old_handles: u64,
    /// Blocks partly old, partly new, each in a read beside a write.
    pub(crate) torn: u64,
    /// Files that were read completely, from open to close between two passes.
    pub(crate) quiet: u64,
    pub(crate) stale: u64,
}

/// The same with a setup; the error is the violation.
pub(crate) fn attempt(setup: &Setup) -> Result<Report, String> {
    let files: Vec<_> = (0..).zip(SIZES).map(|(number, size)| Shared::new(number, size)).collect();
    let mut writer = Writer::new(setup);
    for file in &files {
        writer.replace(file, file.usual).map_err(|error| format!("the first pass: {error}"))?;
    }
    let (left, over) = (AtomicU64::new(setup.reads), AtomicBool::new(false));
    let total = Mutex::new(Report::default());
    let wrong = Mutex::new(None::<String>);
    std::thread::scope(|scope| {
        let (files, left, over, total, wrong) = (&files, &left, &over, &total, &wrong);
        let readers: Vec<_> = (0..setup.readers)
            .map(|number| {
                let random = Random(setup.seed * 1000 + number + 1);
                let mut reader = Reader { setup, random, left, over, report: Report::default() };
                scope.spawn(move || {
                    if let Err(found) = reader.go_on(files) {
                        wrong.lock().unwrap().get_or_insert(found);
                        over.store(true, SeqCst);
                    }
                    total.lock().unwrap().add(&reader.report);
                })
            })
            .collect();
        scope.spawn(move || {
            if let Err(error) = writer.go_on(files, over) {
                wrong.lock().unwrap().get_or_insert(format!("the writer: {error}"));
                over.store(true, SeqCst);
            }
            total.lock().unwrap().passes = writer.pass;
        });
        for reader in readers {
            let _ = reader.join();
        }
        over.store(true, SeqCst);
    });
    match wrong.into_inner().unwrap() {
        Some(wrong) => Err(wrong),
        None => Ok(total.into_inner().unwrap()),
    }
}

impl Report {
    fn add(&mut self, other: &Self) {
        self.opens += other.opens;
        self.reads += other.reads;
        self.blocks += other.blocks;
        self.at_rest += other.at_rest;
        self.by_old_handles += other.by_old_handles;
        self.torn += other.torn;
        self.quiet += other.quiet;
        self.stale += other.stale;
    }
}

/// The writer's and the readers' knowledge of one file.
pub(crate) struct Shared {
    pub(crate) usual: u64,
    /// The start of its blocks, in stamps; no other file has the same.
    pub(crate) origin: u64,
    /// Held by the writer for a pass, and by readers that exclude passes.
    pub(crate) pass: RwLock<()>,
    /// Odd while the writer is inside a call that changes the file.
    pub(crate) calls: AtomicU64,
    /// Odd while the writer is inside a call that changes the size.
    pub(crate) resizes: AtomicU64,
    /// How often the name moved to another file.
    pub(crate) replaced: AtomicU64,
    /// The pass that was begun last, and the last one that was closed or fsynced.
    pub(crate) begun: AtomicU64,
    pub(crate) published: AtomicU64,
    pub(crate) size: AtomicU64,
    /// The pass that wrote each block last.
    pub(crate) blocks: Vec<AtomicU64>,
}

impl Shared {
    fn new(number: u64, usual: u64) -> Self {
        Self {
            usual,
            origin: number << 40,
            pass: RwLock::new(()),
            calls: AtomicU64::new(0),
            resizes: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            published: AtomicU64::new(0),
            size: AtomicU64::new(0),
            blocks: (0..=usual * 3 / 2 / BLOCK).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(crate) fn at(&self, dir: &Path) -> PathBuf {
        dir.join(format!("stamped-{}", self.usual))
    }

    /// Makes one call that changes the file, whose size is then `size` bytes, and records it.
    pub(crate) fn change(
        &self,
        size: u64,
        call: impl FnOnce() -> io::Result<()>,
        note: impl FnOnce(),
    ) -> io::Result<()> {
        let resizes = u64::from(size != self.size.load(SeqCst));
        self.resizes.fetch_add(resizes, SeqCst);
        self.calls.fetch_add(1, SeqCst);
        let done = call();
        note();
        self.size.store(size, SeqCst);
        self.calls.fetch_add(1, SeqCst);
        self.resizes.fetch_add(resizes, SeqCst);
        done
    }

    pub(crate) fn wrote(&self, pass: u64, from: u64, to: u64) {
        for index in from / BLOCK..to.div_ceil(BLOCK) {
            self.blocks[index as usize].store(pass, SeqCst);
        }
    }
}

/// A small random number generator, so that failures repeat as far as thread scheduling allows.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
