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

use super::Shared;
use super::ledger::Number;
use super::object::note_misses;
use super::peers::{Miss, Pending};
use super::state::{Found, Position};
use crate::backend::{Backend, DirEntry, FileKind, Lane, Target};
use crate::volume::{ReplicaId, ReplicaSet};

/// Entries that one worker looks at together: one call on each replica. They are a
/// round trip each on NFS, and the call has a deadline.
const BATCH: usize = 32;

/// Some entries of a directory.
pub(super) struct Batch {
    pub(super) dir: Arc<Path>,
    /// The replicas that are compared there.
    pub(super) among: ReplicaSet,
    pub(super) entries: Vec<Entry>,
}

/// One name in a directory.
pub(super) struct Entry {
    pub(super) number: Number,
    pub(super) name: OsString,
    /// Whose listing has it.
    pub(super) listed: ReplicaSet,
}

/// Directories that are still to come at one depth, the next one last.
struct Level {
    dir: Arc<Path>,
    left: Vec<(OsString, ReplicaSet)>,
}

/// What is to be done with a directory, seen from where an earlier run has ended.
enum Part {
    /// It and all below it is new.
    All,
    /// It has been looked at up to this name.
    After(PathBuf),
    /// It has been looked at, and so have its subdirectories before this one.
    From(OsString),
}

impl Part {
    fn of(dir: &Path, position: Option<&Position>) -> Self {
        // An absolute one is that of the path itself.
        let Some(position) = position.filter(|position| position.dir.is_relative()) else {
            return Self::All;
        };
        if position.dir == dir {
            return Self::After(position.name.clone());
        }
        let below = position.dir.strip_prefix(dir).ok();
        match below.and_then(|below| below.components().next()) {
            Some(next) => Self::From(next.as_os_str().to_owned()),
            None => Self::All,
        }
    }
}

/// Walks the tree below `root`, which is a directory on `among`.
pub(super) fn walk(shared: &Shared, root: &Path, among: ReplicaSet) -> Result<(), Miss> {
    let mut levels = vec![directory(shared, root.into(), among)?];
    while let Some(level) = levels.last_mut() {
        match level.left.pop() {
            Some((name, among)) => {
                let dir = level.dir.join(name);
                let below = directory(shared, dir.into(), among)?;
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
fn directory(shared: &Shared, dir: Arc<Path>, among: ReplicaSet) -> Result<Level, Miss> {
    let part = Part::of(&dir, shared.resumed_at.as_ref());
    let asked = among.iter().map(|id| (id, list(shared, id, &dir)));
    let asked: Vec<_> = asked.collect();
    let mut listings = Vec::new();
    let mut missed = Vec::new();
    for (id, pending) in asked {
        match shared.peers.answer(pending, Some(shared.options.list_deadline)) {
            Ok(listing) => listings.push((id, listing)),
            Err(Miss::Stopped) => return Err(Miss::Stopped),
            Err(miss) => missed.push((id, miss)),
        }
    }
    // Of those above it nothing new can be said but what cannot be listed now.
    let position = match &part {
        Part::From(_) => shared.resumed_at.clone(),
        _ => None,
    };
    let itself = Position { dir: dir.to_path_buf(), name: PathBuf::new() };
    if !matches!(&part, Part::After(_)) {
        let number = begin(shared, &position.unwrap_or(itself), None)?;
        let mut found = Found::default();
        note_misses(&shared.peers, &dir, missed, &mut found);
        shared.ledger.done(number, found);
    }
    let among = listings.iter().fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(*id));
    let mut level = Level { dir: Arc::clone(&dir), left: Vec::new() };
    if among.len() < 2 {
        return Ok(level);
    }
    let mut batch = Vec::new();
    for (name, entry) in merge(listings) {
        if shared.peers.is_stopped() {
            return Err(Miss::Stopped);
        }
        if entry.directories.len() > 1 && !is_before(&part, &name) {
            level.left.push((name.clone(), entry.directories));
        }
        let is_done = match &part {
            Part::All => false,
            Part::After(last) => name.as_bytes() <= last.as_os_str().as_bytes(),
            Part::From(_) => true,
        };
        if is_done {
            continue;
        }
        let position = Position { dir: dir.to_path_buf(), name: PathBuf::from(&name) };
        let number = loop {
            match shared.ledger.begin(&position, Some(&dir.join(&name))) {
                Some(number) => break number,
                // What would make room may be in here.
                None if !batch.is_empty() => {
                    shared.hand_out(Batch { dir: Arc::clone(&dir), among, entries: batch })?;
                    batch = Vec::new();
                }
                None if shared.peers.is_stopped() => return Err(Miss::Stopped),
                None => {}
            }
        };
        batch.push(Entry { number, name, listed: entry.listed });
        if batch.len() >= BATCH {
            let entries = std::mem::take(&mut batch);
            shared.hand_out(Batch { dir: Arc::clone(&dir), among, entries })?;
        }
    }
    if !batch.is_empty() {
        shared.hand_out(Batch { dir: Arc::clone(&dir), among, entries: batch })?;
    }
    level.left.reverse();
    Ok(level)
}

fn is_before(part: &Part, name: &OsStr) -> bool {
    matches!(part, Part::From(first) if name.as_bytes() < first.as_bytes())
}

/// Takes something up, as soon as that is possible.
pub(super) fn begin(
    shared: &Shared,
    position: &Position,
    path: Option<&Path>,
) -> Result<Number, Miss> {
    loop {
        if let Some(number) = shared.ledger.begin(position, path) {
            return Ok(number);
        }
        if shared.peers.is_stopped() {
            return Err(Miss::Stopped);
        }
    }
}

/// A replica's listing of `dir`, in order; sorted on its own thread.
fn list(shared: &Shared, id: ReplicaId, dir: &Arc<Path>) -> Pending<Vec<DirEntry>> {
    let dir = Arc::clone(dir);
    shared.peers.ask(id, Lane::Metadata, move |backend: &dyn Backend| {
        let mut listing = backend.entries(&Target::named(&*dir))?;
        listing.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        // A server may list what changes meanwhile twice.
        listing.dedup_by(|a, b| a.name == b.name);
        Ok(listing)
    })
}

/// Who lists a name.
struct Listed {
    listed: ReplicaSet,
    /// Who lists it as a directory.
    directories: ReplicaSet,
}

/// All names of sorted listings, in order, once each.
fn merge(listings: Vec<(ReplicaId, Vec<DirEntry>)>) -> impl Iterator<Item = (OsString, Listed)> {
    let mut listings: Vec<_> =
        listings.into_iter().map(|(id, listing)| (id, listing.into_iter().peekable())).collect();
    std::iter::from_fn(move || {
        let first = listings.iter_mut().filter_map(|(_, listing)| Some(&listing.peek()?.name));
        let name = first.min()?.clone();
        let mut listed = Listed { listed: ReplicaSet::EMPTY, directories: ReplicaSet::EMPTY };
        for (id, listing) in &mut listings {
            if let Some(entry) = listing.next_if(|entry| entry.name == name) {
                listed.listed = listed.listed.with(*id);
                if entry.kind == FileKind::Directory {
                    listed.directories = listed.directories.with(*id);
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
        let merged: Vec<_> = merge(listings)
            .map(|(name, all)| {
                (name.into_string().unwrap(), all.listed.len(), all.directories.len())
            })
            .collect();
        let expected = [("a", 1, 0), ("b", 2, 2), ("c", 1, 0), ("d", 2, 1)];
        let expected = expected.map(|(name, listed, dirs)| (name.to_owned(), listed, dirs));
        assert_eq!(merged, expected);
    }

    #[test]
    fn what_is_left_of_a_directory_is_told_from_the_position() {
        let position = Position { dir: "a/b".into(), name: "f".into() };
        let part = |dir: &str| Part::of(Path::new(dir), Some(&position));
        assert!(matches!(part("a/b"), Part::After(name) if name == Path::new("f")));
        assert!(matches!(part("a"), Part::From(name) if name == "b"));
        assert!(matches!(part(""), Part::From(name) if name == "a"));
        assert!(matches!(part("a/b/c"), Part::All));
        assert!(matches!(part("a/c"), Part::All));
        assert!(matches!(Part::of(Path::new("a"), None), Part::All));
    }
}
