//! Decides which calls may start while other calls are stuck.
//!
//! A hung object is seldom alone: a dead mount or a failed storage target affects many objects,
//! often in one directory. Two objects are *near* each other if they are in the same top-level
//! directory, or both directly in the root. Once a call is stuck, every call near it counts from
//! its start.
//!
//! *Invariant:* the near calls that are not stuck yet take at most half of the threads. All near
//! calls together take at most the number of replacements plus half of the threads. The other half
//! is left for all other objects.
//!
//! A healthy object near many hung ones looks like them. So once as many near calls are stuck as
//! the pool has threads, only a few calls at a time may try an object there. An object that has
//! answered since the calls got stuck needs no trial. Nor does an object in a directory that has
//! answered and in which no call is stuck. Only such directories may use threads beyond the number
//! of replacements.

use super::{Lane, PathKey};

/// The most calls about one object once one of them is stuck. When as many calls are stuck as the
/// pool has threads, the limit is 1.
const MAX_CALLS_PER_STUCK_OBJECT: usize = 2;

/// A call in progress.
pub(super) struct ActiveCall {
    pub(super) path_key: PathKey,
    pub(super) lane: Lane,
    pub(super) is_stuck: bool,
}

/// The calls in progress of a pool with `threads` threads.
pub(super) struct Bulkhead<'a> {
    pub(super) threads: usize,
    pub(super) calls: Vec<ActiveCall>,
    pub(super) responsive: &'a ResponsiveObjects,
}

/// The most stuck calls whose threads are replaced.
pub(super) fn max_replacements(lane: Lane, threads: usize) -> usize {
    match lane {
        Lane::Metadata => 3 * threads,
        // A stuck read keeps its buffer.
        Lane::Read => 2 * threads,
    }
}

/// Threads that reads leave to metadata calls, if the pool has more than these.
const RESERVED_FOR_METADATA: usize = 2;

/// The most threads inside calls of a lane at once, not counting replacements.
pub(super) fn base_threads(lane: Lane, threads: usize) -> usize {
    match lane {
        Lane::Metadata => threads,
        Lane::Read => threads.saturating_sub(RESERVED_FOR_METADATA).max(1),
    }
}

/// The most calls near a stuck one that are not stuck themselves.
fn max_unstuck_nearby(lane: Lane, threads: usize) -> usize {
    let own = base_threads(lane, threads);
    (own / 2).max(2).min(own)
}

impl Bulkhead<'_> {
    /// Whether one more call may start.
    pub(super) fn allows(&self, about: &PathKey, lane: Lane) -> bool {
        self.has_room_for_object(about)
            && self.has_room_nearby(about, Lane::Metadata)
            && (lane == Lane::Metadata || self.has_room_nearby(about, lane))
    }

    fn has_room_for_object(&self, about: &PathKey) -> bool {
        let stuck = || self.calls.iter().filter(|call| call.is_stuck).map(|call| call.path_key);
        let held = if stuck().count() < self.threads { MAX_CALLS_PER_STUCK_OBJECT } else { 1 };
        let within =
            |of: &PathKey| self.calls.iter().filter(|call| call.path_key.is_within(of)).count();
        !stuck().any(|of| about.is_within(&of) && within(&of) >= held)
    }

    /// Counts the near reads for `Lane::Read`, and all near calls for `Lane::Metadata`.
    fn has_room_nearby(&self, about: &PathKey, lane: Lane) -> bool {
        let counts = |call: &&ActiveCall| {
            (lane == Lane::Metadata || call.lane == Lane::Read) && call.path_key.is_near(about)
        };
        let (stuck, moving): (Vec<&ActiveCall>, Vec<&ActiveCall>) =
            self.calls.iter().filter(counts).partition(|call| call.is_stuck);
        if stuck.is_empty() {
            return true;
        }
        let all = stuck.len() + moving.len();
        let replaced = max_replacements(lane, self.threads);
        if moving.len() >= max_unstuck_nearby(lane, self.threads) {
            return false;
        }
        if self.is_in_responsive_directory(about) {
            return all < replaced + base_threads(lane, self.threads) / 2;
        }
        if all >= replaced {
            return false;
        }
        let trials =
            || moving.iter().filter(|call| !self.is_known_responsive(&call.path_key)).count();
        let most_trials = (self.threads / 4).max(1);
        stuck.len() < self.threads || self.is_known_responsive(about) || trials() < most_trials
    }

    fn is_known_responsive(&self, about: &PathKey) -> bool {
        self.responsive.has_object(about) || self.is_in_responsive_directory(about)
    }

    /// Whether it is a directory that has answered and has no stuck call in it, or is directly in
    /// one.
    fn is_in_responsive_directory(&self, about: &PathKey) -> bool {
        let is_healthy = |dir: &PathKey| {
            let is_stuck_in =
                |call: &ActiveCall| call.is_stuck && call.path_key.parent() == Some(*dir);
            self.responsive.has_directory(dir) && !self.calls.iter().any(is_stuck_in)
        };
        is_healthy(&about.without_ancestors()) || about.parent().is_some_and(|dir| is_healthy(&dir))
    }
}

/// Objects that have answered since calls got stuck, and their directories. A later object may
/// overwrite an earlier one in the table.
#[derive(Default)]
pub(super) struct ResponsiveObjects {
    objects: Vec<PathKey>,
    directories: Vec<PathKey>,
}

/// The number of objects that are remembered, and of directories.
const TABLE_SIZE: usize = 256;

impl ResponsiveObjects {
    pub(super) fn add(&mut self, about: &PathKey) {
        remember(&mut self.objects, about.without_ancestors());
        if let Some(dir) = about.parent() {
            remember(&mut self.directories, dir);
        }
    }

    /// Called when no call is stuck any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn has_object(&self, about: &PathKey) -> bool {
        self.objects.get(about.bucket(TABLE_SIZE)) == Some(&about.without_ancestors())
    }

    fn has_directory(&self, dir: &PathKey) -> bool {
        self.directories.get(dir.bucket(TABLE_SIZE)) == Some(dir)
    }
}

fn remember(known: &mut Vec<PathKey>, about: PathKey) {
    if about == PathKey::default() {
        return;
    }
    known.resize(TABLE_SIZE, PathKey::default());
    known[about.bucket(TABLE_SIZE)] = about;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn about(path: &str) -> PathKey {
        PathKey::from_path(Path::new(path))
    }

    /// Starts calls about hung objects all at once; each becomes stuck when no more can start.
    /// Returns the calls that started.
    fn all_hang(
        lane: Lane,
        threads: usize,
        paths: &[PathKey],
        answered: &ResponsiveObjects,
    ) -> Vec<PathKey> {
        let mut bound = Bulkhead { threads, calls: Vec::new(), responsive: answered };
        loop {
            let stuck = bound.calls.len();
            let replaced = stuck.min(max_replacements(lane, threads));
            for about in paths {
                let most = base_threads(lane, threads) + replaced;
                let is_new = !bound.calls.iter().any(|call| call.path_key == *about);
                if is_new && bound.calls.len() < most && bound.allows(about, lane) {
                    bound.calls.push(ActiveCall { path_key: *about, lane, is_stuck: false });
                }
            }
            let left = base_threads(lane, threads) + replaced - bound.calls.len();
            let least = base_threads(lane, threads) - max_unstuck_nearby(lane, threads);
            assert!(stuck == 0 || left >= least, "{lane:?}: {left} of {threads} are left");
            if bound.calls.len() == stuck {
                assert!(bound.allows(&about("elsewhere/f"), lane));
                assert!(bound.allows(&about(""), lane), "the root itself");
                let reads_pass = lane == Lane::Metadata && bound.allows(&paths[stuck], Lane::Read);
                assert!(!reads_pass, "reads take the threads that are left");
                return bound.calls.iter().map(|call| call.path_key).collect();
            }
            bound.calls.iter_mut().for_each(|call| call.is_stuck = true);
        }
    }

    #[test]
    fn hung_objects_leave_half_of_the_threads_to_others() {
        for lane in [Lane::Metadata, Lane::Read] {
            for threads in [2, 3, 4, 8, 64] {
                for dir in ["", "dead/", "a/dead/"] {
                    let paths: Vec<PathKey> =
                        (0..6 * threads).map(|i| about(&format!("{dir}f{i}"))).collect();
                    let began = all_hang(lane, threads, &paths, &ResponsiveObjects::default());
                    assert_eq!(began.len(), max_replacements(lane, threads));
                    let mut answered = ResponsiveObjects::default();
                    paths.iter().for_each(|about| remember(&mut answered.objects, *about));
                    all_hang(lane, threads, &paths, &answered);
                }
            }
        }
    }

    #[test]
    fn an_object_that_has_answered_is_served_near_hung_ones() {
        let mut answered = ResponsiveObjects::default();
        let lane = Lane::Metadata;
        let hang = |path: String| ActiveCall { path_key: about(&path), lane, is_stuck: true };
        let mut calls: Vec<ActiveCall> = (0..14).map(|i| hang(format!("d/h{i}"))).collect();
        for trial in ["d/h14", "d/h15"] {
            calls.push(ActiveCall { path_key: about(trial), lane, is_stuck: false });
        }
        let admits = |calls: &mut Vec<ActiveCall>, answered: &ResponsiveObjects, path: &str| {
            let bound = Bulkhead { threads: 8, calls: std::mem::take(calls), responsive: answered };
            let admits = bound.allows(&about(path), lane);
            *calls = bound.calls;
            admits
        };
        assert!(!admits(&mut calls, &answered, "d/g"), "two are tried already");
        assert!(!admits(&mut calls, &answered, "d/ok/f"), "two are tried already");
        answered.add(&about("d/g"));
        answered.add(&about("d/ok/f"));
        assert!(admits(&mut calls, &answered, "d/g"));
        assert!(
            admits(&mut calls, &answered, "d/ok/other") && admits(&mut calls, &answered, "d/ok")
        );
        assert!(!admits(&mut calls, &answered, "d/new"), "hung objects are in its directory");
        // As many calls hang as are replaced.
        calls.iter_mut().for_each(|call| call.is_stuck = true);
        calls.extend((16..24).map(|i| hang(format!("d/h{i}"))));
        assert!(!admits(&mut calls, &answered, "d/g"));
        assert!(
            admits(&mut calls, &answered, "d/ok/other") && admits(&mut calls, &answered, "d/ok")
        );
        calls.extend((24..28).map(|i| hang(format!("d/other/h{i}"))));
        assert!(!admits(&mut calls, &answered, "d/ok"), "it takes the threads left for others");
        calls.truncate(24);
        calls.push(hang("d/ok/h".to_owned()));
        assert!(!admits(&mut calls, &answered, "d/ok/other"));
        answered.clear();
        assert!(!admits(&mut calls, &answered, "d/ok") && admits(&mut calls, &answered, "e/g"));
    }
}
