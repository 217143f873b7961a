//! The objects on which calls hang.

use std::path::PathBuf;
use std::time::Duration;

/// An object on which calls hang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HungPath {
    /// Relative to the replica's root.
    pub path: PathBuf,
    /// How long its longest call has been hanging.
    pub duration: Duration,
    /// Threads inside stuck calls about it.
    pub threads: usize,
}

/// The objects of hung calls, the longest-hung first.
pub(super) fn group_by_path(calls: impl Iterator<Item = (PathBuf, Duration)>) -> Vec<HungPath> {
    let mut hung: Vec<HungPath> = Vec::new();
    for (path, lasts) in calls {
        match hung.iter_mut().find(|known| known.path == path) {
            Some(known) => {
                known.threads += 1;
                known.duration = known.duration.max(lasts);
            }
            None => hung.push(HungPath { path, duration: lasts, threads: 1 }),
        }
    }
    hung.sort_by_key(|hung| std::cmp::Reverse(hung.duration));
    hung
}
