//! READDIRPLUS entries without attributes.
//!
//! The kernel takes only the name of such an entry, and looks the name up when a process asks
//! for it. It recognizes the entry by its node number, which is 0. fuser would show
//! applications the same number as the entry's inode, and the C library skips entries with the
//! inode 0. So these entries are assembled here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::convert;
use crate::backend::FileKind;
use crate::fs::{Ino, entry_bytes};

/// Length of `struct fuse_entry_out`; all of it is 0. A `struct fuse_dirent` follows.
const ENTRY_OUT_BYTES: usize = 128;

/// A listing of names.
pub(super) struct NamesOnlyListing {
    bytes: Vec<u8>,
    /// The most bytes.
    room: usize,
}

impl NamesOnlyListing {
    pub(super) fn new(room: usize) -> Self {
        Self { bytes: Vec::new(), room }
    }

    /// Adds an entry, after which a reader continues from `next`. Returns false if there is no
    /// room for it.
    pub(super) fn add(&mut self, number: Ino, next: u64, name: &[u8], kind: FileKind) -> bool {
        let begin = self.bytes.len();
        let end = begin + entry_bytes(OsStr::from_bytes(name));
        if end > self.room {
            return false;
        }
        self.bytes.resize(begin + ENTRY_OUT_BYTES, 0);
        self.bytes.extend(number.0.to_ne_bytes());
        self.bytes.extend(next.to_ne_bytes());
        self.bytes.extend((name.len() as u32).to_ne_bytes());
        self.bytes.extend(convert::dirent_type(kind).to_ne_bytes());
        self.bytes.extend(name);
        self.bytes.resize(end, 0);
        true
    }

    /// The reply's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_entry_is_a_name_and_a_number() {
        const ROOM: usize = 4096;
        const DIRENT_BYTES: usize = crate::fs::DIRENTPLUS_BYTES - ENTRY_OUT_BYTES;
        let mut names = NamesOnlyListing::new(ROOM);
        assert!(names.add(Ino(7), 3, b"nested", FileKind::Directory));
        let bytes = names.bytes();
        assert_eq!(bytes.len(), 160);
        assert!(bytes[..ENTRY_OUT_BYTES].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[ENTRY_OUT_BYTES..][..8], 7u64.to_ne_bytes());
        assert_eq!(bytes[ENTRY_OUT_BYTES + 16..][..4], 6u32.to_ne_bytes());
        assert_eq!(&bytes[ENTRY_OUT_BYTES + DIRENT_BYTES..][..6], b"nested");
        while names.add(Ino(8), 4, &[b'n'; 255], FileKind::Regular) {}
        assert!((ROOM - 408..=ROOM).contains(&names.bytes().len()));
    }
}
