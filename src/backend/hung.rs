//! The objects that calls hang on.

use std::path::PathBuf;
use std::time::Duration;

/// An object that calls hang on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hung {
    /// Relative to the replica's root.
    pub path: PathBuf,
    /// For how long.
    pub lasts: Duration,
    /// Threads inside calls about it.
    pub threads: usize,
}

/// The objects of hung calls, the longest first.
pub(super) fn by_object(calls: impl Iterator<Item = (PathBuf, Duration)>) -> Vec<Hung> {
    let mut hung: Vec<Hung> = Vec::new();
    for (path, lasts) in calls {
        match hung.iter_mut().find(|known| known.path == path) {
            Some(known) => {
                known.threads += 1;
                known.lasts = known.lasts.max(lasts);
            }
            None => hung.push(Hung { path, lasts, threads: 1 }),
        }
    }
    hung.sort_by_key(|hung| std::cmp::Reverse(hung.lasts));
    hung
}
