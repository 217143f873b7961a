//! Writers that rewrite the stamped files again and again, and readers beside them.
//!
//! A pass is *begun* before its first call, and *published* when all of it has been written and
//! closed. A reader that opens the file after that finds, in every block, that pass or one that was
//! begun since. A pass may fail while the write replica is not healthy. Then it is not published,
//! and may have been made in part, or be made later, until a later pass is published: an abandoned
//! change must not follow the next one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;

use crate::content::{self, STAMPED};
use crate::judge::{Call, Judge, Seat};
use crate::schedule::Random;
use crate::stamp::{self, BLOCK, Found};
use crate::world::{DEADLINE, WRITE_DEADLINE};

/// The writer's and the readers' knowledge of a stamped file.
#[derive(Default)]
pub(crate) struct Stamped {
    begun: AtomicU64,
    /// The last published pass, and the file's size then.
    published: Mutex<(u64, u64)>,
}

/// The write replica.
const WRITE_REPLICA: usize = 0;

/// Whether a call that starts now may fail: the write replica is broken, or was and may have left a
/// change behind that others wait for.
fn may_fail(judge: &Judge) -> bool {
    let now = judge.now();
    let from = now.saturating_sub(2 * WRITE_DEADLINE + DEADLINE);
    // Long enough for every call that starts now.
    let until = now + 2 * DEADLINE;
    !judge.schedule.is_well(WRITE_REPLICA, from, until)
}

pub(crate) struct Writer<'a> {
    pub(crate) judge: &'a Judge,
    pub(crate) root: PathBuf,
    pub(crate) random: Random,
    pub(crate) seat: Seat,
    pub(crate) files: &'a [Stamped],
    pub(crate) pass: u64,
}

impl Writer<'_> {
    /// Creates the files, before anything breaks.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        for (index, file) in self.files.iter().enumerate() {
            self.pass += 1;
            file.begun.store(self.pass, SeqCst);
            let mut bytes = stamp::Pages::new(STAMPED[index] as usize);
            stamp::write(self.pass, content::origin(index), &mut bytes);
            fs::write(self.root.join(content::stamped(index)), &*bytes)?;
            *file.published.lock() = (self.pass, STAMPED[index]);
        }
        Ok(())
    }

    pub(crate) fn go_on(&mut self) {
        while !self.judge.is_over() {
            let index = [0, 1, 0, 1, 2][self.random.below(5) as usize];
            let usual = STAMPED[index];
            let size = match self.random.below(3) {
                0 => (usual / 2 + self.random.below(usual)) / BLOCK * BLOCK + BLOCK,
                _ => usual,
            };
            self.pass += 1;
            let file = &self.files[index];
            file.begun.store(self.pass, SeqCst);
            let done = match self.random.below(3) {
                0 => self.replace(index, size),
                truncate => self.in_place(index, size, truncate == 1),
            };
            if done.is_some() {
                *file.published.lock() = (self.pass, size);
            }
            std::thread::sleep(self.random.time(20, 150));
        }
    }

    fn make<T>(
        &self,
        name: &'static str,
        requests: u32,
        make: impl FnOnce() -> io::Result<T>,
    ) -> Option<T> {
        // The kernel looks names up before it requests a change.
        let call = Call::other(name, requests).within(WRITE_DEADLINE.max(DEADLINE));
        self.judge.make(self.seat, call.or_fail(may_fail(self.judge)), make)
    }

    fn in_place(&mut self, index: usize, size: u64, truncate: bool) -> Option<()> {
        let path = self.root.join(content::stamped(index));
        let opened = self.make("an open to write", 3, || {
            File::options().write(true).truncate(truncate).open(path)
        })?;
        if !truncate {
            self.make("a truncation", 2, || opened.set_len(size))?;
        }
        self.write(index, &opened, size)?;
        // close(2) reports no errors here; fsync(2) does.
        self.make("an fsync", 2, || opened.sync_all())?;
        self.make("a close", 2, || {
            drop(opened);
            Ok(())
        })
    }

    fn replace(&mut self, index: usize, size: u64) -> Option<()> {
        let path = self.root.join(content::stamped(index));
        let next = self.root.join(format!("next{}", self.pass));
        let replaced = self.try_to_replace(index, size, &next, &path);
        if replaced.is_none() {
            // An abandoned rename may still be made, until its source is gone.
            while !self.judge.is_over() {
                match fs::remove_file(&next) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        std::thread::sleep(Duration::from_millis(100));
                    }
                    _ => break,
                }
            }
        }
        replaced
    }

    fn try_to_replace(
        &self,
        index: usize,
        size: u64,
        next: &PathBuf,
        path: &PathBuf,
    ) -> Option<()> {
        let made = self.make("a create", 3, || File::create(next))?;
        self.write(index, &made, size)?;
        self.make("an fsync", 2, || made.sync_all())?;
        drop(made);
        self.make("a rename", 4, || fs::rename(next, path))
    }

    fn write(&self, index: usize, to: &File, size: u64) -> Option<()> {
        let mut at = 0;
        while at < size {
            let len = (size - at).min(64 * BLOCK);
            let mut bytes = stamp::Pages::new(len as usize);
            stamp::write(self.pass, content::origin(index) + at, &mut bytes);
            // The number of requests that the kernel makes of it: it may write page by page.
            self.make("a write", 2, || to.write_all_at(&bytes, at))?;
            at += len;
        }
        Some(())
    }
}

pub(crate) struct StampReader<'a> {
    pub(crate) judge: &'a Judge,
    pub(crate) root: PathBuf,
    pub(crate) random: Random,
    pub(crate) seat: Seat,
    pub(crate) files: &'a [Stamped],
}

impl StampReader<'_> {
    pub(crate) fn go_on(&mut self) {
        while !self.judge.is_over() {
            self.read_one();
            std::thread::sleep(self.random.time(5, 20));
        }
    }

    fn read_one(&mut self) -> Option<()> {
        let index = self.random.below(STAMPED.len() as u64) as usize;
        let file = &self.files[index];
        let (published, size) = *file.published.lock();
        let path = self.root.join(content::stamped(index));
        let replaced = || file.begun.load(SeqCst) > published;
        // A file that is replaced again and again may be ESTALE, as on NFS.
        let call = Call::other("an open of a stamped file", 3);
        let call = call.or_fail(may_fail(self.judge) || replaced());
        let opened = self.judge.make(self.seat, call, || File::open(path))?;
        for _ in 0..8 {
            let blocks = STAMPED[index] * 3 / 2 / BLOCK;
            let first = self.random.below(blocks);
            let mut bytes =
                stamp::Pages::new(([1, 1, 2, 16][self.random.below(4) as usize] * BLOCK) as usize);
            // Another reader of the page may have requested it first and got a deadline error: then
            // the kernel requests it again.
            let call = Call::read("a read of a stamped file").within(2 * DEADLINE);
            let call = call.or_fail(may_fail(self.judge));
            let read = || opened.read_at(&mut bytes, first * BLOCK);
            if let Some(len) = self.judge.make(self.seat, call, read) {
                let begun = file.begun.load(SeqCst);
                let right = check(&bytes[..len], index, first, published..=begun);
                let there = size.saturating_sub(first * BLOCK).min(bytes.len() as u64);
                let whole = begun > published || len as u64 == there;
                let right = right.and_then(|()| match whole {
                    true => Ok(len as u64),
                    false => Err(format!("{len} bytes, not {there}, of stamped file {index}")),
                });
                self.judge.bytes(right);
            }
            std::thread::sleep(self.random.time(2, 15));
        }
        Some(())
    }
}

/// Each block is of one pass of `passes`; or, if several are possible, mixes some of them.
fn check(
    bytes: &[u8],
    index: usize,
    first: u64,
    passes: std::ops::RangeInclusive<u64>,
) -> Result<(), String> {
    let is_quiet = passes.start() == passes.end();
    for (i, block) in bytes.chunks(BLOCK as usize).enumerate() {
        let number = first + i as u64;
        let stamped = content::origin(index) / BLOCK + number;
        let found = stamp::check(block, stamped, passes.clone(), !is_quiet);
        let fine = match &found {
            Found::Intact(0) => !is_quiet && block.iter().all(|byte| *byte == 0),
            Found::Intact(pass) => passes.contains(pass),
            Found::Torn => !is_quiet,
            Found::Wrong(_) => false,
        };
        if !fine {
            return Err(format!(
                "block {number} of stamped file {index} is {found:?}, not of {passes:?}"
            ));
        }
    }
    Ok(())
}
