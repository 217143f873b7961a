//! The tree, directory by directory.
//!
//! A directory is listed on all replicas that have it, the listings are merged by
//! name, and its entries are handed to the workers a few at a time; then come its
//! subdirectories. In memory are the listings of one directory, and of those above
//! it the subdirectories that are still to come.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::RunShared;
use super::checkpoint::{VerifyFindings, WalkPosition};
use super::compare_object::add_call_errors;
use super::progress::ObjectNumber;
use super::replica_calls::{CallError, PendingCall};
use crate::backend::{Backend, DirEntry, FileKind, Lane, ObjectRef};
use crate::volume::{ReplicaId, ReplicaSet};

/// Entries that one worker looks at together: one call on each replica. They are a
/// round trip each on NFS, and the call has a deadline.
const MAX_BATCH_ENTRIES: usize = 32;

/// Some entries of a directory.
pub(super) struct EntryBatch {
    pub(super) dir: Arc<Path>,
    /// The replicas that are compared there.
    pub(super) compared_on: ReplicaSet,
    pub(super) entries: Vec<BatchEntry>,
}

/// One name in a directory.
pub(super) struct BatchEntry {
    pub(super) number: ObjectNumber,
    pub(super) name: OsString,
    /// Whose listing has it.
    pub(super) listed_on: ReplicaSet,
}

/// Directories that are still to come at one depth, the next one last.
struct DirLevel {
    dir: Arc<Path>,
    pending_dirs: Vec<(OsString, ReplicaSet)>,
}

/// What is to be done with a directory, seen from where an earlier run has ended.
enum DirResume {
    /// It and all below it is new.
    Whole,
    /// It has been looked at up to this name.
    AfterEntry(PathBuf),
    /// It has been looked at, and so have its subdirectories before this one.
    FromSubdir(OsString),
}

impl DirResume {
    fn new(dir: &Path, position: Option<&WalkPosition>) -> Self {
        // An absolute one is that of the path itself.
        let Some(position) = position.filter(|position| position.dir.is_relative()) else {
            return Self::Whole;
        };
        if position.dir == dir {
            return Self::AfterEntry(position.name.clone());
        }
        let below = position.dir.strip_prefix(dir).ok();
        match below.and_then(|below| below.components().next()) {
            Some(next) => Self::FromSubdir(next.as_os_str().to_owned()),
            None => Self::Whole,
        }
    }
}

/// Walks the tree below `root`, which is a directory on `among`.
pub(super) fn walk_tree(
    shared: &RunShared,
    root: &Path,
    among: ReplicaSet,
) -> Result<(), CallError> {
    let mut levels = vec![walk_directory(shared, root.into(), among)?];
    while let Some(level) = levels.last_mut() {
        match level.pending_dirs.pop() {
            Some((name, among)) => {
                let dir = level.dir.join(name);
                let below = walk_directory(shared, dir.into(), among)?;
                levels.push(below);
            }
            None => {
                levels.pop();
            }
        }
    }
    Ok(())
}

/// Hands a directory's entries to the workers; returns its subdirectories.
fn walk_directory(
    shared: &RunShared,
    dir: Arc<Path>,
    among: ReplicaSet,
) -> Result<DirLevel, CallError> {
    let part = DirResume::new(&dir, shared.resume_position.as_ref());
    let asked = among.iter().map(|id| (id, start_listing(shared, id, &dir)));
    let asked: Vec<_> = asked.collect();
    let mut listings = Vec::new();
    let mut missed = Vec::new();
    for (id, pending) in asked {
        match shared.replicas.wait_for(pending, Some(shared.options.list_deadline)) {
            Ok(listing) => listings.push((id, listing)),
            Err(CallError::Stopped) => return Err(CallError::Stopped),
            Err(miss) => missed.push((id, miss)),
        }
    }
    // Of those above it nothing new can be said but what cannot be listed now.
    let position = match &part {
        DirResume::FromSubdir(_) => shared.resume_position.clone(),
        _ => None,
    };
    let itself = WalkPosition { dir: dir.to_path_buf(), name: PathBuf::new() };
    if !matches!(&part, DirResume::AfterEntry(_)) {
        let number = start_object(shared, &position.unwrap_or(itself), None)?;
        let mut found = VerifyFindings::default();
        add_call_errors(&shared.replicas, &dir, missed, &mut found);
        shared.progress.finish_object(number, found);
    }
    let among = listings.iter().fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(*id));
    let mut level = DirLevel { dir: Arc::clone(&dir), pending_dirs: Vec::new() };
    if among.len() < 2 {
        return Ok(level);
    }
    let mut batch = Vec::new();
    for (name, entry) in merge_listings(listings) {
        if shared.replicas.is_stopped() {
            return Err(CallError::Stopped);
        }
        if entry.directory_on.len() > 1 && !is_subdir_done(&part, &name) {
            level.pending_dirs.push((name.clone(), entry.directory_on));
        }
        let is_done = match &part {
            DirResume::Whole => false,
            DirResume::AfterEntry(last) => name.as_bytes() <= last.as_os_str().as_bytes(),
            DirResume::FromSubdir(_) => true,
        };
        if is_done {
            continue;
        }
        let position = WalkPosition { dir: dir.to_path_buf(), name: PathBuf::from(&name) };
        let number = loop {
            match shared.progress.try_start_object(&position, Some(&dir.join(&name))) {
                Some(number) => break number,
                // What would make room may be in here.
                None if !batch.is_empty() => {
                    shared.enqueue_batch(EntryBatch {
                        dir: Arc::clone(&dir),
                        compared_on: among,
                        entries: batch,
                    })?;
                    batch = Vec::new();
                }
                None if shared.replicas.is_stopped() => return Err(CallError::Stopped),
                None => {}
            }
        };
        batch.push(BatchEntry { number, name, listed_on: entry.listed_on });
        if batch.len() >= MAX_BATCH_ENTRIES {
            let entries = std::mem::take(&mut batch);
            shared.enqueue_batch(EntryBatch {
                dir: Arc::clone(&dir),
                compared_on: among,
                entries,
            })?;
        }
    }
    if !batch.is_empty() {
        shared.enqueue_batch(EntryBatch {
            dir: Arc::clone(&dir),
            compared_on: among,
            entries: batch,
        })?;
    }
    level.pending_dirs.reverse();
    Ok(level)
}

fn is_subdir_done(part: &DirResume, name: &OsStr) -> bool {
    matches!(part, DirResume::FromSubdir(first) if name.as_bytes() < first.as_bytes())
}

/// Takes something up, as soon as that is possible.
pub(super) fn start_object(
    shared: &RunShared,
    position: &WalkPosition,
    path: Option<&Path>,
) -> Result<ObjectNumber, CallError> {
    loop {
        if let Some(number) = shared.progress.try_start_object(position, path) {
            return Ok(number);
        }
        if shared.replicas.is_stopped() {
            return Err(CallError::Stopped);
        }
    }
}

/// A replica's listing of `dir`, in order; sorted on its own thread.
fn start_listing(shared: &RunShared, id: ReplicaId, dir: &Arc<Path>) -> PendingCall<Vec<DirEntry>> {
    let dir = Arc::clone(dir);
    shared.replicas.start_call(id, Lane::Metadata, move |backend: &dyn Backend| {
        let mut listing = backend.entries(&ObjectRef::unchecked(&*dir))?;
        listing.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        // A server may list what changes meanwhile twice.
        listing.dedup_by(|a, b| a.name == b.name);
        Ok(listing)
    })
}

/// Who lists a name.
struct MergedEntry {
    listed_on: ReplicaSet,
    /// Who lists it as a directory.
    directory_on: ReplicaSet,
}

/// All names of sorted listings, in order, once each.
fn merge_listings(
    listings: Vec<(ReplicaId, Vec<DirEntry>)>,
) -> impl Iterator<Item = (OsString, MergedEntry)> {
    let mut listings: Vec<_> =
        listings.into_iter().map(|(id, listing)| (id, listing.into_iter().peekable())).collect();
    std::iter::from_fn(move || {
        let first = listings.iter_mut().filter_map(|(_, listing)| Some(&listing.peek()?.name));
        let name = first.min()?.clone();
        let mut listed =
            MergedEntry { listed_on: ReplicaSet::EMPTY, directory_on: ReplicaSet::EMPTY };
        for (id, listing) in &mut listings {
            if let Some(entry) = listing.next_if(|entry| entry.name == name) {
                listed.listed_on = listed.listed_on.with(*id);
                if entry.kind == FileKind::Directory {
                    listed.directory_on = listed.directory_on.with(*id);
                }
            }
        }
        Some((name, listed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kind: FileKind) -> DirEntry {
        DirEntry { name: name.into(), ino: 1, kind }
    }

    #[test]
    fn listings_are_merged_by_name() {
        let (file, dir) = (FileKind::Regular, FileKind::Directory);
        let ids = [ReplicaId::new(0), ReplicaId::new(2)];
        let listings = vec![
            (ids[0], vec![entry("a", file), entry("b", dir), entry("d", dir)]),
            (ids[1], vec![entry("b", dir), entry("c", file), entry("d", file)]),
        ];
        let merged: Vec<_> = merge_listings(listings)
            .map(|(name, all)| {
                (name.into_string().unwrap(), all.listed_on.len(), all.directory_on.len())
            })
            .collect();
        let expected = [("a", 1, 0), ("b", 2, 2), ("c", 1, 0), ("d", 2, 1)];
        let expected = expected.map(|(name, listed, dirs)| (name.to_owned(), listed, dirs));
        assert_eq!(merged, expected);
    }

    #[test]
    fn what_is_left_of_a_directory_is_told_from_the_position() {
        let position = WalkPosition { dir: "a/b".into(), name: "f".into() };
        let part = |dir: &str| DirResume::new(Path::new(dir), Some(&position));
        assert!(matches!(part("a/b"), DirResume::AfterEntry(name) if name == Path::new("f")));
        assert!(matches!(part("a"), DirResume::FromSubdir(name) if name == "b"));
        assert!(matches!(part(""), DirResume::FromSubdir(name) if name == "a"));
        assert!(matches!(part("a/b/c"), DirResume::Whole));
        assert!(matches!(part("a/c"), DirResume::Whole));
        assert!(matches!(DirResume::new(Path::new("a"), None), DirResume::Whole));
    }
}
