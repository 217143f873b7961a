//! The room in a reply to READDIRPLUS.

use std::ffi::OsStr;

use crate::fs::listing::ListedEntry;

/// Bytes of an entry besides its name: `struct fuse_direntplus` of the FUSE protocol.
pub const DIRENTPLUS_BYTES: usize = 152;

/// Bytes of the entry in a reply.
pub fn entry_bytes(name: &OsStr) -> usize {
    (DIRENTPLUS_BYTES + name.len()).next_multiple_of(size_of::<u64>())
}

/// The first of these entries that fit into a reply of `room` bytes.
pub(super) fn fitting<'a>(
    entries: impl Iterator<Item = ListedEntry<'a>>,
    room: usize,
) -> impl Iterator<Item = ListedEntry<'a>> {
    let mut left = room;
    entries.map_while(move |entry| {
        left = left.checked_sub(entry_bytes(entry.name))?;
        Some(entry)
    })
}
