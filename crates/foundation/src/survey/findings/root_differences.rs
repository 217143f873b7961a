//! How the names in the roots of two replicas differ.

use std::ffi::OsStr;

use crate::survey::{EntryKind, RootListing, RootListingEntry};

/// The complete listing of a replica's root.
pub(super) struct NamedListing<'a> {
    pub(super) replica: &'a str,
    pub(super) listing: &'a RootListing,
}

/// How two listings differ, in the order of the names.
pub(super) fn differences(one: NamedListing<'_>, other: NamedListing<'_>) -> Vec<String> {
    let NamedListing { replica: a, listing: ones } = one;
    let NamedListing { replica: b, listing: others } = other;
    let mut found = Vec::new();
    let mut all: Vec<&OsStr> =
        ones.entries.keys().chain(others.entries.keys()).map(|n| &**n).collect();
    all.sort_unstable();
    all.dedup();
    // mkfs creates it, so copies may lack it.
    all.retain(|name| *name != "lost+found");
    for name in all {
        found.extend(match (ones.entries.get(name), others.entries.get(name)) {
            (Some(_), None) => Some(format!("{name:?} is only in {a}")),
            (None, Some(_)) => Some(format!("{name:?} is only in {b}")),
            (Some(one), Some(other)) => difference(one, other)
                .map(|(one, other)| format!("{name:?} is {one} in {a} and {other} in {b}")),
            (None, None) => None,
        });
    }
    found
}

fn difference(one: &RootListingEntry, other: &RootListingEntry) -> Option<(String, String)> {
    let word = |kind| match kind {
        EntryKind::File => "a file",
        EntryKind::Directory => "a directory",
        EntryKind::Symlink => "a symbolic link",
        EntryKind::Special => "a special file",
    };
    if let Some((a, b)) = one.kind.zip(other.kind).filter(|(a, b)| a != b) {
        return Some((word(a).to_owned(), word(b).to_owned()));
    }
    let (a, b) = one.size.zip(other.size).filter(|(a, b)| a != b)?;
    Some((format!("{a} bytes"), format!("{b} bytes")))
}
