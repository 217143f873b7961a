//! The files, and the right value of every byte.
//!
//! A byte is a function of its file, the version and the offset, so bytes that were read show which
//! file and version they belong to. Most files never change. *Stamped* ones are written again and
//! again, and each block names its pass.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::stamp::{self, BLOCK};

/// Bytes of each of the large files.
pub(crate) const LARGE: [u64; 3] = [24 << 20, 9 << 20, (3 << 20) + 4321];

/// Small files in each directory.
pub(crate) const SMALL: u64 = 40;

pub(crate) const DIRECTORIES: u64 = 4;

/// Bytes of each of the stamped files.
pub(crate) const STAMPED: [u64; 3] = [8 << 10, 300 << 10, 3 << 20];

/// Bytes of each file that is written once.
pub(crate) const BLOCK_OF_FILES: usize = 64 << 10;

/// A file that never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    number: u64,
    pub(crate) size: u64,
}

/// The version that all replicas show except a diverged one.
pub(crate) const USUAL: u64 = 1;

/// The version of a diverged replica.
pub(crate) const DIVERGED: u64 = 2;

impl Fixed {
    pub(crate) fn large(index: usize) -> Self {
        Self { number: index as u64, size: LARGE[index] }
    }

    pub(crate) fn small(directory: u64, index: u64) -> Self {
        let number = 100 + directory * SMALL + index;
        // From 0 to 20 KB.
        Self { number, size: number * 7919 % 20_011 * u64::from(index > 0) }
    }

    /// Relative to a root.
    pub(crate) fn path(&self) -> PathBuf {
        match self.number.checked_sub(100) {
            None => format!("large{}", self.number).into(),
            Some(small) => Self::directory(small / SMALL).join(format!("f{}", small % SMALL)),
        }
    }

    pub(crate) fn directory(number: u64) -> PathBuf {
        format!("d{number}").into()
    }

    /// A diverged file is longer by a block, or newer.
    fn size_of(&self, version: u64) -> u64 {
        let longer = version == DIVERGED && self.number.is_multiple_of(2);
        self.size + if longer { BLOCK } else { 0 }
    }

    /// The bytes from `from` on.
    pub(crate) fn bytes(&self, version: u64, from: u64, len: usize) -> Vec<u8> {
        let first = from / BLOCK * BLOCK;
        let skipped = (from - first) as usize;
        let mut bytes = vec![0; skipped + len];
        stamp::write(version, (self.number << 32) + first, &mut bytes);
        bytes.drain(..skipped);
        bytes
    }

    /// Whether a read of `wanted` bytes at `from` has ended early, after whole pages.
    pub(crate) fn lacks_pages(&self, from: u64, len: usize, wanted: usize) -> bool {
        let end = from + len as u64;
        len > 0 && len < wanted && end < self.size && end.is_multiple_of(4096)
    }

    /// Whether `bytes` are the file's content at `from`; otherwise the difference.
    pub(crate) fn check(&self, from: u64, bytes: &[u8], wanted: usize) -> Result<(), String> {
        let there = self.size.saturating_sub(from).min(wanted as u64) as usize;
        let path = self.path();
        if bytes.len() != there {
            let found = bytes.len();
            return Err(format!("{}: {found} bytes, not {there}, at {from}", path.display()));
        }
        let right = self.bytes(USUAL, from, there);
        let Some(place) = bytes.iter().zip(&right).position(|(is, should)| is != should) else {
            return Ok(());
        };
        let other = self.bytes(DIVERGED, from, there);
        let whose =
            if other[place..] == bytes[place..] { "the diverged copy's" } else { "no copy's" };
        let at = from + place as u64;
        Err(format!("{}: wrong from byte {at} on: {whose}", path.display()))
    }

    fn make(&self, root: &Path, version: u64) -> io::Result<()> {
        let file = File::create(root.join(self.path()))?;
        let size = self.size_of(version);
        let mut at = 0;
        while at < size {
            let len = (size - at).min(1 << 20);
            file.write_all_at(&self.bytes(version, at, len as usize), at)?;
            at += len;
        }
        // Copies of one version have one time.
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + version);
        file.set_modified(time)
    }
}

/// Fills `root` with all files at this version.
pub(crate) fn fill(root: &Path, version: u64) -> io::Result<()> {
    fs::create_dir_all(root)?;
    for index in 0..LARGE.len() {
        Fixed::large(index).make(root, version)?;
    }
    for directory in 0..DIRECTORIES {
        fs::create_dir(root.join(Fixed::directory(directory)))?;
        for index in 0..SMALL {
            Fixed::small(directory, index).make(root, version)?;
        }
    }
    Ok(())
}

/// The path of a stamped file.
pub(crate) fn stamped(index: usize) -> PathBuf {
    format!("stamped{index}").into()
}

/// The start of its blocks, in stamps; no other file has the same.
pub(crate) fn origin(index: usize) -> u64 {
    (1 + index as u64) << 44
}
