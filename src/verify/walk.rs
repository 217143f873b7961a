//! Walks the tree, directory by directory.
//!
//! All replicas that have a directory list it, and the listings are merged by name. The entries go
//! to the workers in small batches; then the walk enters the subdirectories. Memory holds the
//! listings of one directory and, for each directory above it, the subdirectories still to walk.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::RunShared;
use super::checkpoint::{VerifyFindings, WalkPosition};
use super::compare_object::add_call_errors;
use super::entry_batch::{BatchEntry, EntryBatch};
use super::progress::ObjectNumber;
use super::replica_calls::{CallError, FailedCall, PendingCall};
use crate::backend::{Backend, DirEntry, FileKind, Lane, ObjectRef};
use crate::volume::{ReplicaId, ReplicaSet};

/// The most entries in a batch, which takes one call on each replica. On NFS each entry costs a
/// round trip, and the call has a deadline.
const MAX_BATCH_ENTRIES: usize = 32;

/// The directories still to walk at one depth, the next one last.
struct DirLevel {
    dir: Arc<Path>,
    pending_dirs: Vec<(OsString, ReplicaSet)>,
}

/// What to do with a directory, depending on where an earlier run ended.
enum DirResume {
    /// The directory and everything below it is new.
    Whole,
    /// Its entries are compared up to this name.
    AfterEntry(PathBuf),
    /// Its entries are compared, and so are its subdirectories before this one.
    FromSubdir(OsString),
}

impl DirResume {
    fn new(dir: &Path, position: Option<&WalkPosition>) -> Self {
        // An absolute position is that of the root itself.
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

    fn is_subdir_done(&self, name: &OsStr) -> bool {
        matches!(self, Self::FromSubdir(first) if name.as_bytes() < first.as_bytes())
    }

    fn is_entry_done(&self, name: &OsStr) -> bool {
        match self {
            Self::Whole => false,
            Self::AfterEntry(last) => name.as_bytes() <= last.as_os_str().as_bytes(),
            Self::FromSubdir(_) => true,
        }
    }
}

/// Walks the tree below `root`, which is a directory on the replicas `among`.
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

/// Sends a directory's entries to the workers; returns its subdirectories.
fn walk_directory(
    shared: &RunShared,
    dir: Arc<Path>,
    among: ReplicaSet,
) -> Result<DirLevel, CallError> {
    let resume = DirResume::new(&dir, shared.resume_position.as_ref());
    let listed = DirListings::read(shared, &dir, among)?;
    record_directory(shared, &dir, &resume, listed.failed)?;
    let among = listed.listings.iter().fold(ReplicaSet::EMPTY, |set, one| set.with(one.replica));
    let mut level = DirLevel { dir: Arc::clone(&dir), pending_dirs: Vec::new() };
    if among.len() < 2 {
        return Ok(level);
    }
    let mut batch = EntryBatcher { shared, dir: Arc::clone(&dir), among, entries: Vec::new() };
    for entry in merge_listings(listed.listings) {
        if shared.replicas.is_stopped() {
            return Err(CallError::Stopped);
        }
        if entry.directory_on.len() > 1 && !resume.is_subdir_done(&entry.name) {
            level.pending_dirs.push((entry.name.clone(), entry.directory_on));
        }
        if !resume.is_entry_done(&entry.name) {
            batch.add(entry)?;
        }
    }
    batch.flush()?;
    level.pending_dirs.reverse();
    Ok(level)
}

/// The replicas' listings of a directory.
struct DirListings {
    listings: Vec<ReplicaListing>,
    failed: Vec<FailedCall>,
}

impl DirListings {
    /// Lists the directory on all of `among` at once.
    fn read(shared: &RunShared, dir: &Arc<Path>, among: ReplicaSet) -> Result<Self, CallError> {
        let asked: Vec<_> = among.iter().map(|id| (id, start_listing(shared, id, dir))).collect();
        let mut listed = Self { listings: Vec::new(), failed: Vec::new() };
        for (replica, pending) in asked {
            match shared.replicas.wait_for(pending, Some(shared.options.list_deadline)) {
                Ok(entries) => listed.listings.push(ReplicaListing { replica, entries }),
                Err(CallError::Stopped) => return Err(CallError::Stopped),
                Err(error) => listed.failed.push(FailedCall { replica, error }),
            }
        }
        Ok(listed)
    }
}

/// Records the replicas that cannot list a directory, unless an earlier run has.
fn record_directory(
    shared: &RunShared,
    dir: &Path,
    resume: &DirResume,
    failed: Vec<FailedCall>,
) -> Result<(), CallError> {
    // For a directory above the position, only new listing failures are recorded.
    let position = match resume {
        DirResume::AfterEntry(_) => return Ok(()),
        DirResume::FromSubdir(_) => shared.resume_position.clone(),
        DirResume::Whole => None,
    };
    let itself = WalkPosition { dir: dir.to_path_buf(), name: PathBuf::new() };
    let number = start_object(shared, &position.unwrap_or(itself), None)?;
    let mut found = VerifyFindings::default();
    add_call_errors(&shared.replicas, dir, failed, &mut found);
    shared.progress.finish_object(number, found);
    Ok(())
}

/// Collects a directory's entries and sends them to the workers in batches.
struct EntryBatcher<'s> {
    shared: &'s RunShared,
    dir: Arc<Path>,
    /// The replicas that list the directory.
    among: ReplicaSet,
    entries: Vec<BatchEntry>,
}

impl EntryBatcher<'_> {
    fn add(&mut self, entry: MergedEntry) -> Result<(), CallError> {
        let MergedEntry { name, listed_on, .. } = entry;
        let position = WalkPosition { dir: self.dir.to_path_buf(), name: PathBuf::from(&name) };
        let path = self.dir.join(&name);
        let number = loop {
            match self.shared.progress.try_start_object(&position, Some(&path)) {
                Some(number) => break number,
                // The entries in this batch may be those that must finish to make room.
                None if !self.entries.is_empty() => self.flush()?,
                None if self.shared.replicas.is_stopped() => return Err(CallError::Stopped),
                None => {}
            }
        };
        self.entries.push(BatchEntry { number, name, listed_on });
        if self.entries.len() >= MAX_BATCH_ENTRIES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), CallError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.shared.enqueue_batch(EntryBatch {
            dir: Arc::clone(&self.dir),
            compared_on: self.among,
            entries: std::mem::take(&mut self.entries),
        })
    }
}

/// Starts an object; waits until there is room.
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

/// Starts to list `dir` on a replica; the replica's thread sorts the listing.
fn start_listing(shared: &RunShared, id: ReplicaId, dir: &Arc<Path>) -> PendingCall<Vec<DirEntry>> {
    let dir = Arc::clone(dir);
    shared.replicas.start_call(id, Lane::Metadata, move |backend: &dyn Backend| {
        let mut listing = backend.entries(&ObjectRef::unchecked(&*dir))?;
        listing.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        // A server may list an entry twice if the directory changes meanwhile.
        listing.dedup_by(|a, b| a.name == b.name);
        Ok(listing)
    })
}

/// One replica's listing of a directory.
struct ReplicaListing {
    replica: ReplicaId,
    /// Sorted by name.
    entries: Vec<DirEntry>,
}

/// A name and the replicas that list it.
struct MergedEntry {
    name: OsString,
    listed_on: ReplicaSet,
    /// The replicas that list it as a directory.
    directory_on: ReplicaSet,
}

/// All names in sorted listings, in order, each once.
fn merge_listings(listings: Vec<ReplicaListing>) -> impl Iterator<Item = MergedEntry> {
    let mut listings: Vec<_> =
        listings.into_iter().map(|one| (one.replica, one.entries.into_iter().peekable())).collect();
    std::iter::from_fn(move || {
        let first = listings.iter_mut().filter_map(|(_, listing)| Some(&listing.peek()?.name));
        let name = first.min()?.clone();
        let mut listed_on = ReplicaSet::EMPTY;
        let mut directory_on = ReplicaSet::EMPTY;
        for (id, listing) in &mut listings {
            if let Some(entry) = listing.next_if(|entry| entry.name == name) {
                listed_on = listed_on.with(*id);
                if entry.kind == FileKind::Directory {
                    directory_on = directory_on.with(*id);
                }
            }
        }
        Some(MergedEntry { name, listed_on, directory_on })
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
        let file = FileKind::Regular;
        let dir = FileKind::Directory;
        let listing =
            |replica, entries| ReplicaListing { replica: ReplicaId::new(replica), entries };
        let listings = vec![
            listing(0, vec![entry("a", file), entry("b", dir), entry("d", dir)]),
            listing(2, vec![entry("b", dir), entry("c", file), entry("d", file)]),
        ];
        let merged: Vec<_> = merge_listings(listings)
            .map(|all| {
                (all.name.into_string().unwrap(), all.listed_on.len(), all.directory_on.len())
            })
            .collect();
        let expected = [("a", 1, 0), ("b", 2, 2), ("c", 1, 0), ("d", 2, 1)];
        let expected = expected.map(|(name, listed, dirs)| (name.to_owned(), listed, dirs));
        assert_eq!(merged, expected);
    }

    #[test]
    fn the_position_marks_the_rest_of_a_directory() {
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
