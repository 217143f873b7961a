//! READDIRPLUS entries without attributes.
//!
//! The kernel takes only the name of such an entry, and looks the name up when a process asks
//! for it. It recognizes the entry by its node number, which is 0. fuser would show
//! applications the same number as the entry's inode, and the C library skips entries with the
//! inode 0. So these entries are assembled here.

use super::convert;
use crate::backend::FileKind;
use crate::fs::Ino;

/// Length of `struct fuse_entry_out`; all of it is 0.
const ENTRY_OUT_BYTES: usize = 128;

/// Length of `struct fuse_dirent` before the name.
const DIRENT_BYTES: usize = 24;

/// The kernel's buffer has at least one page of memory.
const BUFFER_BYTES: usize = 4096;

/// A listing of names.
#[derive(Default)]
pub(super) struct NamesOnlyListing(Vec<u8>);

impl NamesOnlyListing {
    /// Adds an entry, after which a reader continues from `next`. Returns false if there is no
    /// room for it.
    pub(super) fn add(&mut self, number: Ino, next: u64, name: &[u8], kind: FileKind) -> bool {
        let len = (ENTRY_OUT_BYTES + DIRENT_BYTES + name.len()).next_multiple_of(8);
        if self.0.len() + len > BUFFER_BYTES {
            return false;
        }
        let end = self.0.len() + len;
        self.0.resize(self.0.len() + ENTRY_OUT_BYTES, 0);
        self.0.extend(number.0.to_ne_bytes());
        self.0.extend(next.to_ne_bytes());
        self.0.extend((name.len() as u32).to_ne_bytes());
        self.0.extend(convert::dirent_type(kind).to_ne_bytes());
        self.0.extend(name);
        self.0.resize(end, 0);
        true
    }

    /// The reply's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_entry_is_a_name_and_a_number() {
        let mut names = NamesOnlyListing::default();
        assert!(names.add(Ino(7), 3, b"nested", FileKind::Directory));
        let bytes = names.bytes();
        assert_eq!(bytes.len(), 160);
        assert!(bytes[..ENTRY_OUT_BYTES].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[ENTRY_OUT_BYTES..][..8], 7u64.to_ne_bytes());
        assert_eq!(bytes[ENTRY_OUT_BYTES + 16..][..4], 6u32.to_ne_bytes());
        assert_eq!(&bytes[ENTRY_OUT_BYTES + DIRENT_BYTES..][..6], b"nested");
        while names.add(Ino(8), 4, &[b'n'; 255], FileKind::Regular) {}
        assert!((BUFFER_BYTES - 408..=BUFFER_BYTES).contains(&names.bytes().len()));
    }
}
