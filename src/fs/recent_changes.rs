//! Changes that were made through this mount recently.
//!
//! The write replica's mount knows of a change at once. The mounts of the other replicas are other
//! clients: until their caches expire, they may show names and attributes as they last saw them. So
//! for that time only the write replica is asked about a changed name or inode. If it does not
//! answer, no other replica is asked: an error is better than the state before the caller's own
//! change.
//!
//! Changes are remembered by the hash of their path or inode. Up to [`MAX_MARKS`] of them are kept
//! one by one, further ones in a few Bloom filters of fixed size. A filter may, rarely, take an
//! unchanged name for a changed one, and never the other way round. The next daemon gets all of it.
//! After a kill it finds it in the journal.
//!
//! Times and paths go in; whether another replica may be asked comes out.
//!
//! *Invariants:*
//! - One change never makes all names of the volume count as changed.
//! - A change is in the journal before it is sent to the replica, even if another thread has just
//!   noted the same change.

mod bloom;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::ino::Ino;
use super::records::{ChangeMark, JournalEntry, RecentChangesRecord};
use super::step_log::StepLog;
use crate::sync::{LockRank, RankedMutex, RankedMutexGuard};
use bloom::BloomFilters;

/// The marks of one change, or of some that are noted together.
#[derive(Default)]
pub(super) struct ChangeMarks(Marks);

type Marks = SmallVec<[ChangeMark; 4]>;

/// How recent changes affect the object at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathChange {
    /// Not at all.
    None,
    /// Names in it were changed, if it is a directory.
    Listing,
    /// The object may have been changed, or another one may have its path.
    Object,
}

pub(super) struct RecentChanges {
    lag: Duration,
    /// Whether anything may count as changed. Set and cleared under the lock of `state`.
    is_nonempty: AtomicBool,
    state: RankedMutex<RecentState>,
    log: Arc<StepLog>,
}

#[derive(Default)]
struct RecentState {
    /// When each was changed last.
    marks: HashMap<ChangeMark, Instant>,
    /// Changes that found no room in `marks`.
    filters: BloomFilters,
    /// When marks that were no longer recent were last dropped.
    last_sweep: Option<Instant>,
    /// When the last change was noted.
    last_change: Option<Instant>,
}

/// How far a change reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeScope {
    /// The set of names in a directory.
    Listing,
    /// The object by that name.
    Object,
    /// The object and everything below it.
    Subtree,
}

/// The subject of a mark.
#[derive(Clone, Copy)]
enum MarkKind {
    /// The set of names in the directory.
    Listing,
    /// The object.
    Object,
    /// Everything below the directory.
    Subtree,
    /// The inode, by any name.
    Inode,
}

/// Changes remembered one by one, at most.
const MAX_MARKS: usize = 16 * 1024;

/// Longer paths are copied to the heap to be hashed.
const MAX_SHORT_PATH: usize = 256;

/// Sweeps of the marks per lag, at most.
const SWEEPS_PER_LAG: u32 = 8;

/// The same in every process and release, as daemons hand marks over.
fn mark_of_bytes(kind: MarkKind, of: &[u8]) -> ChangeMark {
    let mut bytes = SmallVec::<[u8; MAX_SHORT_PATH]>::new();
    bytes.push(kind as u8);
    bytes.extend_from_slice(of);
    let hash = blake3::hash(&bytes);
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    u64::from_le_bytes(*first)
}

fn mark_of_path(kind: MarkKind, path: &Path) -> ChangeMark {
    mark_of_bytes(kind, path.as_os_str().as_encoded_bytes())
}

impl ChangeMarks {
    /// Something at `path` is changed.
    pub(super) fn add_path(&mut self, path: &Path, reach: ChangeScope) {
        let kinds: &[MarkKind] = match reach {
            ChangeScope::Listing => &[MarkKind::Listing],
            ChangeScope::Object => &[MarkKind::Object],
            ChangeScope::Subtree => &[MarkKind::Object, MarkKind::Subtree],
        };
        self.0.extend(kinds.iter().map(|kind| mark_of_path(*kind, path)));
    }

    /// An inode's data or attributes are changed, by any name.
    pub(super) fn add_inode(&mut self, ino: Ino) {
        self.0.push(mark_of_bytes(MarkKind::Inode, &ino.0.to_le_bytes()));
    }
}

impl RecentChanges {
    /// Remembers changes for `lag`, and records them in `log`.
    pub(super) fn new(lag: Duration, log: Arc<StepLog>) -> Self {
        let state = RankedMutex::new(LockRank::RecentChanges, RecentState::default());
        Self { lag, is_nonempty: AtomicBool::new(false), state, log }
    }

    /// Notes that something was changed, or is about to be.
    pub(super) fn record(&self, changes: &ChangeMarks, now: Instant) {
        let recorded = {
            let mut state = self.state.lock();
            self.is_nonempty.store(true, Ordering::Relaxed);
            let record = |mark: &ChangeMark| match state.insert_mark(*mark, now, self.lag) {
                true => self.log.all_queued(),
                // Under the lock, so a journal that is rewritten meanwhile has it as well.
                false => self.log.append(|| JournalEntry::Changed(*mark)),
            };
            changes.0.iter().map(record).max().unwrap_or_default()
        };
        self.log.flush(recorded);
    }

    /// How recent changes affect the object at `path`.
    pub(super) fn path_change(&self, path: &Path, now: Instant) -> PathChange {
        if self.has_path_changed(path, now) {
            return PathChange::Object;
        }
        match self.has_any(now, || [mark_of_path(MarkKind::Listing, path)].into_iter().collect()) {
            true => PathChange::Listing,
            false => PathChange::None,
        }
    }

    /// Whether the object at `path` may have been changed recently.
    pub(super) fn has_path_changed(&self, path: &Path, now: Instant) -> bool {
        self.has_any(now, || {
            let object = mark_of_path(MarkKind::Object, path);
            let trees = path.ancestors().map(|dir| mark_of_path(MarkKind::Subtree, dir));
            std::iter::once(object).chain(trees).collect()
        })
    }

    /// Whether the inode was changed recently.
    pub(super) fn has_inode_changed(&self, ino: Ino, now: Instant) -> bool {
        let mark = || mark_of_bytes(MarkKind::Inode, &ino.0.to_le_bytes());
        self.has_any(now, || [mark()].into_iter().collect())
    }

    /// Whether any of these marks is recent. Hashes outside the lock, and only if there are recent
    /// changes at all.
    fn has_any(&self, now: Instant, marks: impl FnOnce() -> Marks) -> bool {
        if !self.is_nonempty.load(Ordering::Relaxed) {
            return false;
        }
        let marks = marks();
        let state = self.state.lock();
        if !state.last_change.is_some_and(|last| is_recent(last, self.lag, now)) {
            self.is_nonempty.store(false, Ordering::Relaxed);
            return false;
        }
        marks.into_iter().any(|mark| state.has_mark(mark, now, self.lag))
    }

    /// Restores the changes that the predecessor knew.
    pub(super) fn restore(&self, changes: RecentChangesRecord, now: Instant) {
        if changes.marks.is_empty() && changes.filters.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        self.is_nonempty.store(true, Ordering::Relaxed);
        // An age before the start of the clock counts as now.
        let at = |age: u32| now.checked_sub(Duration::from_millis(age.into())).unwrap_or(now);
        for (mark, age) in changes.marks {
            state.insert_mark(mark, at(age), self.lag);
        }
        for (age, bits) in changes.filters {
            state.last_change = state.last_change.max(Some(at(age)));
            state.filters.restore(at(age), bits);
        }
    }

    /// Blocks new changes until the result is dropped.
    pub(super) fn freeze(&self) -> RecentChangesGuard<'_> {
        RecentChangesGuard { state: self.state.lock(), lag: self.lag }
    }
}

/// The recent changes; none is added while this lives.
pub(super) struct RecentChangesGuard<'a> {
    state: RankedMutexGuard<'a, RecentState>,
    lag: Duration,
}

impl RecentChangesGuard<'_> {
    /// The record for the next daemon.
    pub(super) fn snapshot(&self, now: Instant) -> RecentChangesRecord {
        let age = |at: Instant| now.saturating_duration_since(at).as_millis() as u32;
        let marks = self.state.marks.iter();
        let recent = marks.filter(|(_, at)| is_recent(**at, self.lag, now));
        RecentChangesRecord {
            marks: recent.map(|(mark, at)| (*mark, age(*at))).collect(),
            filters: self
                .state
                .filters
                .snapshot(self.lag, now)
                .map(|(at, b)| (age(at), b))
                .collect(),
        }
    }
}

impl RecentState {
    /// Returns whether the mark was recent already.
    fn insert_mark(&mut self, mark: ChangeMark, now: Instant, lag: Duration) -> bool {
        self.last_change = self.last_change.max(Some(now));
        if let Some(at) = self.marks.get_mut(&mark) {
            let was_recent = is_recent(*at, lag, now);
            *at = now.max(*at);
            return was_recent;
        }
        if self.marks.len() >= MAX_MARKS
            && !self.last_sweep.is_some_and(|at| is_recent(at, lag / SWEEPS_PER_LAG, now))
        {
            self.last_sweep = Some(now);
            self.marks.retain(|_, at| is_recent(*at, lag, now));
        }
        if self.marks.len() < MAX_MARKS {
            self.marks.insert(mark, now);
        } else {
            self.filters.insert(mark, lag, now);
        }
        false
    }

    fn has_mark(&self, mark: ChangeMark, now: Instant, lag: Duration) -> bool {
        self.marks.get(&mark).is_some_and(|at| is_recent(*at, lag, now))
            || self.filters.contains(mark, lag, now)
    }
}

fn is_recent(at: Instant, lag: Duration, now: Instant) -> bool {
    now.saturating_duration_since(at) < lag
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: Duration = Duration::from_secs(60);

    fn recent_changes() -> RecentChanges {
        RecentChanges::new(LAG, Arc::default())
    }

    impl RecentChanges {
        fn record_path(&self, path: &Path, reach: ChangeScope, now: Instant) {
            let mut marks = ChangeMarks::default();
            marks.add_path(path, reach);
            self.record(&marks, now);
        }
    }

    #[test]
    fn a_change_affects_only_its_scope_within_the_lag() {
        let (recent, now) = (recent_changes(), Instant::now());
        assert!(!recent.has_path_changed(Path::new("a"), now));
        recent.record_path(Path::new("a/f"), ChangeScope::Object, now);
        recent.record_path(Path::new("t"), ChangeScope::Subtree, now);
        recent.record_path(Path::new("l"), ChangeScope::Listing, now);
        assert_eq!(recent.path_change(Path::new("l"), now), PathChange::Listing);
        assert_eq!(recent.path_change(Path::new("t"), now), PathChange::Object);
        assert_eq!(recent.path_change(Path::new("a"), now), PathChange::None);
        let covered = ["a/f", "t", "t/x", "t/x/y"];
        let free = ["a", "a/g", "a/f/x", "u", "", "l", "l/x"];
        for path in covered {
            assert!(recent.has_path_changed(Path::new(path), now), "{path}");
        }
        for path in free {
            assert!(!recent.has_path_changed(Path::new(path), now), "{path}");
        }
        for path in covered {
            assert!(!recent.has_path_changed(Path::new(path), now + LAG), "{path}");
        }
    }

    #[test]
    fn no_lookup_happens_once_all_changes_are_old() {
        let (recent, now) = (recent_changes(), Instant::now());
        recent.record_path(Path::new("f"), ChangeScope::Object, now);
        let no_marks = || -> Marks { panic!("nothing is recent") };
        assert!(
            recent.has_path_changed(Path::new("f"), now)
                && !recent.has_path_changed(Path::new("f"), now + LAG)
        );
        assert!(!recent.has_any(now + LAG, no_marks));
        recent.record_path(Path::new("f"), ChangeScope::Object, now + LAG);
        assert!(recent.has_path_changed(Path::new("f"), now + LAG));
    }

    #[test]
    fn many_changes_are_remembered_without_false_matches() {
        let (recent, now) = (recent_changes(), Instant::now());
        let path = |i: usize| format!("{i}/f");
        for i in 0..3 * MAX_MARKS {
            recent.record_path(Path::new(&path(i)), ChangeScope::Object, now);
        }
        recent.record_path(Path::new("t"), ChangeScope::Subtree, now);
        let mut inode = ChangeMarks::default();
        inode.add_inode(Ino(7));
        recent.record(&inode, now);
        assert_eq!(recent.state.lock().marks.len(), MAX_MARKS);
        for i in (0..3 * MAX_MARKS).step_by(97) {
            assert!(recent.has_path_changed(Path::new(&path(i)), now), "{i}");
        }
        assert!(
            recent.has_path_changed(Path::new("t/x/y"), now)
                && recent.has_inode_changed(Ino(7), now)
        );
        let others =
            (0..1000).filter(|i| recent.has_path_changed(Path::new(&format!("{i}/g")), now));
        assert!(others.count() < 5);
        // Long after, no mark counts, and there is room again.
        let later = now + 2 * LAG;
        assert!(!recent.has_path_changed(Path::new(&path(3 * MAX_MARKS - 1)), later));
        recent.record_path(Path::new("new"), ChangeScope::Object, later);
        assert_eq!(recent.state.lock().marks.len(), 1);
    }

    #[test]
    fn the_next_daemon_knows_exactly_the_recent_changes() {
        let (recent, now) = (recent_changes(), Instant::now());
        recent.record_path(Path::new("old"), ChangeScope::Object, now);
        let later = now + LAG / 2;
        for i in 0..MAX_MARKS + 10 {
            recent.record_path(Path::new(&format!("f{i}")), ChangeScope::Object, later);
        }
        let changes = recent.freeze().snapshot(later);
        let next = recent_changes();
        next.restore(changes, later);
        let last = format!("f{}", MAX_MARKS + 9);
        for path in ["old", "f0", &last] {
            assert!(next.has_path_changed(Path::new(path), later), "{path}");
        }
        assert!(!next.has_path_changed(Path::new("other"), later));
        assert!(!next.has_path_changed(Path::new("old"), now + LAG));
        assert!(next.has_path_changed(Path::new(&last), now + LAG));
    }
}
