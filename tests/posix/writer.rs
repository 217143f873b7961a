//! The writer that rewrites the stamped files again and again.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::consistency::{Random, Setup, Shared};
use super::stamp::{self, BLOCK};

pub(crate) struct Writer<'a> {
    setup: &'a Setup,
    random: Random,
    /// The number of passes, which is the last one's number.
    pub(crate) pass: u64,
    /// A handle that stays open, through which some passes are written and fsynced.
    kept: Option<(u64, File)>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(setup: &'a Setup) -> Self {
        Self { setup, random: Random(setup.seed), pass: 0, kept: None }
    }

    pub(crate) fn go_on(&mut self, files: &[Shared], over: &AtomicBool) -> io::Result<()> {
        while !over.load(SeqCst) {
            // The large one takes as long as all the others of its round.
            let file = &files[[0, 1, 0, 1, 2, 0, 1][self.random.below(7) as usize]];
            let size = if self.random.below(3) == 0 { self.other_size(file) } else { file.usual };
            match self.random.below(8) {
                0 | 1 => self.replace(file, size)?,
                2 | 3 => self.truncate(file, size)?,
                4 | 5 => self.in_place_and_fsync(file, size)?,
                _ => self.in_place(file, size)?,
            }
            std::thread::sleep(self.setup.rest);
        }
        Ok(())
    }

    /// Half to one and a half times as long, in words, with part of a last block.
    fn other_size(&mut self, file: &Shared) -> u64 {
        let size = (file.usual / 2 + self.random.below(file.usual)) / 8 * 8;
        if size % BLOCK < stamp::SHORTEST { size / BLOCK * BLOCK + BLOCK } else { size }
    }

    fn begin(&mut self, file: &Shared) -> u64 {
        self.pass += 1;
        file.begun.store(self.pass, SeqCst);
        self.pass
    }

    /// Rewrites everything through its own handle, which it closes.
    fn in_place(&mut self, file: &Shared, size: u64) -> io::Result<()> {
        let _pass = file.pass.write().unwrap();
        let pass = self.begin(file);
        let handle = File::options().write(true).open(file.at(&self.setup.write))?;
        self.write(file, &handle, pass, size)?;
        drop(handle);
        file.published.store(pass, SeqCst);
        Ok(())
    }

    /// Through a handle that stays open.
    fn in_place_and_fsync(&mut self, file: &Shared, size: u64) -> io::Result<()> {
        let _pass = file.pass.write().unwrap();
        let pass = self.begin(file);
        let place = file.usual << 32 | file.replaced.load(SeqCst);
        if self.kept.as_ref().is_none_or(|(kept, _)| *kept != place) {
            let opened = File::options().write(true).open(file.at(&self.setup.write))?;
            self.kept = Some((place, opened));
        }
        let (_, handle) = self.kept.take().unwrap();
        self.write(file, &handle, pass, size)?;
        handle.sync_all()?;
        self.kept = Some((place, handle));
        file.published.store(pass, SeqCst);
        Ok(())
    }

    fn truncate(&mut self, file: &Shared, size: u64) -> io::Result<()> {
        let _pass = file.pass.write().unwrap();
        let pass = self.begin(file);
        let mut handle = None;
        let path = file.at(&self.setup.write);
        let open = || {
            handle = Some(File::options().write(true).truncate(true).open(path)?);
            Ok(())
        };
        file.change(0, open, || {})?;
        self.write(file, handle.as_ref().unwrap(), pass, size)?;
        drop(handle);
        file.published.store(pass, SeqCst);
        Ok(())
    }

    pub(crate) fn replace(&mut self, file: &Shared, size: u64) -> io::Result<()> {
        let _pass = file.pass.write().unwrap();
        let pass = self.begin(file);
        let (path, next) = (file.at(&self.setup.write), self.setup.write.join("stamped-next"));
        let mut content = stamp::Pages::new(size as usize);
        stamp::write(pass, file.origin, &mut content);
        fs::write(&next, &*content)?;
        let note = || {
            // This comes first, so that a reader that sees the new passes of the blocks can see
            // that they belong to another file.
            file.replaced.fetch_add(1, SeqCst);
            file.wrote(pass, 0, size);
        };
        file.change(size, || fs::rename(next, path), note)?;
        file.published.store(pass, SeqCst);
        Ok(())
    }

    /// All blocks in order, several at a time, and the size first if it shrinks.
    fn write(&mut self, file: &Shared, to: &File, pass: u64, size: u64) -> io::Result<()> {
        if size < file.size.load(SeqCst) {
            file.change(size, || to.set_len(size), || {})?;
        }
        let mut at = 0;
        while at < size {
            let blocks = [1, 2, 7, 32, 256][self.random.below(5) as usize];
            let end = (at + blocks * BLOCK).min(size);
            let mut content = stamp::Pages::new((end - at) as usize);
            stamp::write(pass, file.origin + at, &mut content);
            let then = file.size.load(SeqCst).max(end);
            let note = || file.wrote(pass, at, end);
            file.change(then, || to.write_all_at(&content, at), note)?;
            at = end;
        }
        Ok(())
    }
}
