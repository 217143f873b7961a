//! Readers of the stamped files, which know the right content.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use super::consistency::{Random, Report, Setup, Shared};
use super::stamp::{self, BLOCK, Found};

const ESTALE: i32 = rustix::io::Errno::STALE.raw_os_error();

pub(crate) struct Reader<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) random: Random,
    /// Remaining reads, for all readers together.
    pub(crate) left: &'a AtomicU64,
    pub(crate) over: &'a AtomicBool,
    pub(crate) report: Report,
}

/// An open file, and the state known when it was opened.
struct Handle {
    file: File,
    /// The pass that had been published before it was opened.
    noted: u64,
    /// Which of the files of this name it is, if that is known.
    which: Option<u64>,
}

impl Reader<'_> {
    pub(crate) fn go_on(&mut self, files: &[Shared]) -> Result<(), String> {
        while self.left.load(SeqCst) > 0 && !self.over.load(SeqCst) {
            let file = &files[self.random.below(files.len() as u64) as usize];
            let done = match self.random.below(16) {
                0 => self.quiet(file),
                _ => self.beside(file),
            };
            match done {
                // A reader that loses its file opens it again.
                Err(Trouble::Failed(error)) if error.raw_os_error() == Some(ESTALE) => {
                    self.report.stale += 1;
                    if !self.setup.may_be_stale {
                        return Err(format!("a file of {} bytes: {error}", file.usual));
                    }
                }
                Err(trouble) => return Err(format!("a file of {} bytes: {trouble}", file.usual)),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn open(&mut self, file: &Shared) -> Result<Handle, Trouble> {
        let noted = file.published.load(SeqCst);
        let (replaced, calls) = (file.replaced.load(SeqCst), file.calls.load(SeqCst));
        let opened = File::open(file.at(&self.setup.read))?;
        let same = calls.is_multiple_of(2) && calls == file.calls.load(SeqCst);
        self.report.opens += 1;
        Ok(Handle { file: opened, noted, which: same.then_some(replaced) })
    }

    /// No pass is in flight from open to close.
    fn quiet(&mut self, file: &Shared) -> Result<(), Trouble> {
        let _no_pass = file.pass.read().unwrap();
        let (pass, size) = (file.published.load(SeqCst), file.size.load(SeqCst));
        let handle = self.open(file)?;
        let mut content = stamp::Pages::new(size as usize + 1);
        let len = self.fill(&handle.file, &mut content, 0)?;
        if len as u64 != size {
            let text = format!("{len} bytes of {size} without a write, after pass {pass}");
            return Err(Trouble::Wrong(text));
        }
        for (index, block) in content[..len].chunks(BLOCK as usize).enumerate() {
            self.report.blocks += 1;
            let stamped = file.origin / BLOCK + index as u64;
            let found = stamp::check(block, stamped, pass..=pass, false);
            if found != Found::Intact(pass) {
                let text = format!("block {index}, {found:?} without a write after pass {pass}");
                return Err(Trouble::Wrong(text));
            }
        }
        self.report.quiet += 1;
        Ok(())
    }

    /// Some reads through one handle, at any time of a pass.
    fn beside(&mut self, file: &Shared) -> Result<(), Trouble> {
        let handle = self.open(file)?;
        for _ in 0..=self.random.below(24) {
            let blocks = file.blocks.len() as u64;
            let first = self.random.below(blocks);
            let count = [1, 1, 1, 2, 16, blocks][self.random.below(6) as usize];
            self.one(file, &handle, first, count.min(blocks - first).min(256))?;
            if self.random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(200 * self.random.below(10)));
            }
        }
        Ok(())
    }

    /// One pread of some blocks, and the contents that it may have returned.
    fn one(&mut self, file: &Shared, handle: &Handle, first: u64, n: u64) -> Result<(), Trouble> {
        let known = || handle.which == Some(file.replaced.load(SeqCst));
        let (resizes, calls) = (file.resizes.load(SeqCst), file.calls.load(SeqCst));
        let indices = first..first + n;
        let wrote = || indices.clone().map(|i| file.blocks[i as usize].load(SeqCst));
        let before: Vec<u64> = wrote().collect();
        let size = file.size.load(SeqCst);
        let current = self.setup.at_once && known();

        let mut content = stamp::Pages::new((n * BLOCK) as usize);
        self.left.fetch_update(SeqCst, SeqCst, |left| Some(left.saturating_sub(1))).unwrap();
        self.report.reads += 1;
        let len = self.fill(&handle.file, &mut content, first * BLOCK)?;

        let begun = file.begun.load(SeqCst);
        let exact = current && calls.is_multiple_of(2) && calls == file.calls.load(SeqCst);
        let resized = !resizes.is_multiple_of(2) || resizes != file.resizes.load(SeqCst);
        if exact {
            self.report.at_rest += 1;
            self.report.by_old_handles += u64::from(handle.noted < file.published.load(SeqCst));
        }
        let there = size.saturating_sub(first * BLOCK).min(n * BLOCK);
        if len as u64 != there && current && known() && !resized {
            let text = format!("{len} bytes, not {there}, at block {first} of a file of {size}");
            return Err(Trouble::Wrong(text));
        }
        for (i, block) in content[..len].chunks(BLOCK as usize).enumerate() {
            let index = first + i as u64;
            let (last, noted) = (before[i], handle.noted);
            let least = if current { noted.max(last) } else { noted };
            self.report.blocks += 1;
            let stamped = file.origin / BLOCK + index;
            let found = stamp::check(block, stamped, least..=begun, resized);
            let fine = match found {
                Found::Intact(pass) if exact => pass == last,
                Found::Intact(pass) => (least..=begun).contains(&pass),
                Found::Torn => {
                    self.report.torn += 1;
                    !exact && self.setup.may_tear
                }
                Found::Wrong(_) => false,
            };
            if !fine {
                let which = if exact { "a file at rest" } else { "a file beside its writer" };
                return Err(Trouble::Wrong(format!(
                    "block {index} of {which} is {found:?}; pass {last} wrote it last, {noted} was \
                     published before the open, {begun} has begun",
                )));
            }
        }
        Ok(())
    }

    /// Reads until the buffer is full or the file ends. An end within a block is the file's end: a
    /// second request for the rest could return a later pass.
    fn fill(&self, file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut len = 0;
        loop {
            match file.read_at(&mut buf[len..], at + len as u64)? {
                0 => return Ok(len),
                got => len += got,
            }
            if !(len as u64).is_multiple_of(BLOCK) {
                return Ok(len);
            }
        }
    }
}

/// The reason why a reader cannot continue.
enum Trouble {
    Failed(io::Error),
    Wrong(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(error) => error.fmt(f),
            Self::Wrong(text) => text.fmt(f),
        }
    }
}
