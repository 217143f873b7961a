//! The objects on which calls hang.

use std::path::PathBuf;
use std::time::Instant;

/// An object on which calls hang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HungPath {
    /// Relative to the replica's root.
    pub path: PathBuf,
    /// The start of the call that has been hanging longest.
    pub since: Instant,
    /// Threads inside stuck calls about it.
    pub threads: usize,
}

/// The objects of hung calls, the longest-hung first.
pub(super) fn group_by_path(calls: impl Iterator<Item = (PathBuf, Instant)>) -> Vec<HungPath> {
    let mut hung: Vec<HungPath> = Vec::new();
    for (path, since) in calls {
        match hung.iter_mut().find(|known| known.path == path) {
            Some(known) => {
                known.threads += 1;
                known.since = known.since.min(since);
            }
            None => hung.push(HungPath { path, since, threads: 1 }),
        }
    }
    hung.sort_by_key(|hung| hung.since);
    hung
}
