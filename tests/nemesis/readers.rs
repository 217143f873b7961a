//! Readers of the files that never change, in every way of reading.
//!
//! Each reader is slow on purpose: a call must be in flight when a replica breaks; the number of
//! calls does not matter.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{Advice, OFlags, fadvise};

use crate::content::{DIRECTORIES, Fixed, LARGE, SMALL};
use crate::judge::{Call, Judge, Seat};
use crate::mapped::{Mapper, Mapping};
use crate::schedule::Random;
use crate::stamp::Pages;

const EIO: i32 = 5;
const EFAULT: i32 = 14;

/// A way of reading.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Manner {
    /// A large file from the start to the end.
    Sequential,
    /// Random parts of large files.
    Random,
    /// With O_DIRECT.
    Direct,
    /// Through mmap(2).
    Mapped,
    /// Small files, opened, read and closed.
    Small,
    /// Listings and attributes.
    Looking,
}

/// The concurrent readers.
pub(crate) const CREW: [Manner; 8] = [
    Manner::Sequential,
    Manner::Sequential,
    Manner::Random,
    Manner::Random,
    Manner::Direct,
    Manner::Mapped,
    Manner::Small,
    Manner::Looking,
];

pub(crate) struct Reader<'a> {
    pub(crate) judge: &'a Judge,
    pub(crate) root: PathBuf,
    pub(crate) random: Random,
    pub(crate) seat: Seat,
    /// For the one reader that reads mapped memory.
    pub(crate) mapper: Option<&'a Mutex<Mapper>>,
}

impl Reader<'_> {
    pub(crate) fn go_on(&mut self, manner: Manner) {
        while !self.judge.is_over() {
            self.once(manner);
            self.rest(15);
        }
    }

    pub(crate) fn once(&mut self, manner: Manner) {
        match manner {
            Manner::Sequential => self.sequential(),
            Manner::Random => self.random(),
            Manner::Direct => self.direct(),
            Manner::Mapped => self.mapped(),
            Manner::Small => self.small(),
            Manner::Looking => self.look(),
        };
    }

    fn rest(&mut self, ms: u64) {
        std::thread::sleep(self.random.time(ms / 2, ms * 2));
    }

    fn large(&mut self) -> Fixed {
        Fixed::large(self.random.below(LARGE.len() as u64) as usize)
    }

    fn open(&self, file: &Fixed, flags: OFlags) -> Option<File> {
        let path = self.root.join(file.path());
        let flags = flags.bits() as i32;
        let parts = file.path().components().count() as u32;
        let call = Call::other("open", parts + 1);
        let opened = self
            .judge
            .make(self.seat, call, || File::options().read(true).custom_flags(flags).open(path))?;
        // Pages in the kernel's cache tell nothing about replicas.
        let _ = fadvise(&opened, 0, None, Advice::DontNeed);
        Some(opened)
    }

    /// One pread, checked; `false` if it failed.
    fn pread(&self, file: &Fixed, from: &File, buf: &mut [u8], at: u64, call: Call) -> bool {
        let Some(mut len) = self.judge.make(self.seat, call, || from.read_at(buf, at)) else {
            return false;
        };
        let mut wanted = buf.len();
        // Linux returns the pages that it has if a later one fails. The rest must be there, or fail.
        while file.lacks_pages(at, len, wanted) {
            let rest = || from.read_at(&mut buf[len..], at + len as u64);
            match self.judge.make(self.seat, call, rest) {
                // The file ends early.
                Some(0) => break,
                Some(more) => len += more,
                None => wanted = len,
            }
        }
        let right = file.check(at, &buf[..len], wanted);
        self.judge.bytes(right.map(|()| len as u64));
        true
    }

    fn sequential(&mut self) -> Option<()> {
        let file = self.large();
        let opened = self.open(&file, OFlags::empty())?;
        let mut buf = vec![0; 128 << 10];
        let mut at = 0;
        while at < file.size && !self.judge.is_over() {
            // After a failure the reader continues behind it.
            self.pread(&file, &opened, &mut buf, at, Call::read("a sequential read"));
            at += buf.len() as u64;
            self.rest(12);
        }
        Some(())
    }

    fn random(&mut self) -> Option<()> {
        let file = self.large();
        let opened = self.open(&file, OFlags::empty())?;
        for _ in 0..20 {
            let most = [100, 4096, 100_000][self.random.below(3) as usize];
            let len = 1 + self.random.below(most);
            let at = self.random.below(file.size);
            let mut buf = vec![0; len as usize];
            self.pread(&file, &opened, &mut buf, at, Call::read("a random read"));
            let _ = fadvise(&opened, 0, None, Advice::DontNeed);
            self.rest(25);
        }
        Some(())
    }

    fn direct(&mut self) -> Option<()> {
        let file = self.large();
        let opened = self.open(&file, OFlags::DIRECT)?;
        for _ in 0..20 {
            let mut buf = Pages::new(4096 << self.random.below(6));
            let at = self.random.below(file.size) / 4096 * 4096;
            self.pread(&file, &opened, &mut buf, at, Call::read("a direct read"));
            self.rest(25);
        }
        Some(())
    }

    fn mapped(&mut self) -> Option<()> {
        const WINDOW: u64 = 1 << 20;
        const PART: u64 = 4096;
        let mut mapper = self.mapper?.lock();
        let file = self.large();
        // Pages in the kernel's cache tell nothing about replicas.
        drop(self.open(&file, OFlags::empty())?);
        let from = self.random.below(file.size - WINDOW) / 4096 * 4096;
        let path = self.root.join(file.path());
        let parts = file.path().components().count() as u32;
        let call = Call::other("an open to map", parts + 2);
        let open = || mapper.open(&path, from, WINDOW, Mapping::Private);
        self.judge.make(self.seat, call, open)?;
        for _ in 0..20 {
            let at = self.random.below(WINDOW / PART) * PART;
            let call = Call::read("a read of mapped memory");
            let read = || match mapper.read(at, PART) {
                // The error for an unavailable page.
                Err(error) if error.raw_os_error() == Some(EFAULT) => {
                    Err(io::Error::from_raw_os_error(EIO))
                }
                result => result,
            };
            if let Some(bytes) = self.judge.make(self.seat, call, read) {
                let right = file.check(from + at, &bytes, PART as usize);
                self.judge.bytes(right.map(|()| bytes.len() as u64));
            }
            self.rest(25);
        }
        self.judge.make(self.seat, Call::other("a close of a mapped file", 2), || mapper.close())
    }

    fn small(&mut self) -> Option<()> {
        let (directory, index) = (self.random.below(DIRECTORIES), self.random.below(SMALL));
        let file = Fixed::small(directory, index);
        let opened = self.open(&file, OFlags::empty())?;
        let mut buf = vec![0; 32 << 10];
        self.pread(&file, &opened, &mut buf, 0, Call::read("a read of a small file"));
        Some(())
    }

    fn look(&mut self) -> Option<()> {
        let directory = self.random.below(DIRECTORIES);
        let path = self.root.join(Fixed::directory(directory));
        if self.random.below(4) == 0 {
            let names = |path: &Path| -> io::Result<usize> {
                let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
                Ok(entries.len())
            };
            // A lookup, an open, a listing.
            let found = self.judge.make(self.seat, Call::other("a listing", 3), || names(&path))?;
            let right = match found as u64 {
                SMALL => Ok(0),
                _ => Err(format!("{found} entries in {}, not {SMALL}", path.display())),
            };
            self.judge.bytes(right);
        } else {
            let file = Fixed::small(directory, self.random.below(SMALL));
            let path = self.root.join(file.path());
            let call = Call::other("stat", 2);
            let size = self.judge.make(self.seat, call, || Ok(fs::metadata(path)?.len()))?;
            let right = match size == file.size {
                true => Ok(0),
                false => {
                    Err(format!("{} has {size} bytes, not {}", file.path().display(), file.size))
                }
            };
            self.judge.bytes(right);
        }
        self.rest(10);
        Some(())
    }
}
