//! What was changed through this mount a short while ago.
//!
//! The write replica's mount knows of a change at once. The other replicas'
//! mounts are other clients: they may take names and attributes for what they saw
//! last until their caches expire. So about whatever was changed less than that
//! ago the write replica alone is asked, and no other where it does not answer:
//! an error is better than the state before one's own change.
//!
//! Changes are remembered by the hash of their path. Up to [`MOST`] of them are kept one
//! by one, more in a few Bloom filters of fixed size: those may take a name that was not
//! changed for one that was, rarely, and never the other way. The next daemon gets all of
//! it, also the one after a kill, which finds it in the journal.
//!
//! Times and paths go in; whether another replica may be asked comes out.
//!
//! *Invariant:* one change never makes all names of the volume count as changed.

mod sieve;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::Ino;
use super::journal::{Entry, Journal};
use sieve::Sieves;

/// What was changed lately.
pub(super) struct Recent {
    lag: Duration,
    /// Whether anything may count as changed. Set and cleared under the lock of `state`.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When each was changed last.
    marks: HashMap<Mark, Instant>,
    /// What there is no room for among them.
    sieves: Sieves,
    /// When marks that are not recent any more were dropped last.
    swept: Option<Instant>,
    /// When the last change was noted.
    last: Option<Instant>,
    journal: Option<Arc<Journal>>,
}

/// A hash of something that may be changed.
pub(super) type Mark = u64;

/// What was changed, for the next daemon; with the age of each, milliseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Changes {
    pub(super) marks: Vec<(Mark, u32)>,
    sieves: Vec<(u32, Vec<u64>)>,
}

/// How far a change reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Which names are in a directory.
    Listing,
    /// The object by that name.
    Itself,
    /// Everything below it as well.
    Tree,
}

/// What a mark stands for.
#[derive(Clone, Copy)]
enum Kind {
    /// Which names are in the directory.
    Listing,
    /// The object.
    Itself,
    /// Everything below the directory.
    Tree,
    /// The inode, by whatever name.
    Inode,
}

/// So many changes are remembered one by one.
const MOST: usize = 16 * 1024;

/// Marks are swept so often at most within the time that they count as recent.
const SWEEPS: u32 = 8;

/// The same in every process and release: daemons hand marks to one another.
fn mark(kind: Kind, of: &[u8]) -> Mark {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind as u8]).update(of);
    let hash = hasher.finalize();
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    u64::from_le_bytes(*first)
}

fn mark_of(kind: Kind, path: &Path) -> Mark {
    mark(kind, path.as_os_str().as_encoded_bytes())
}

/// The marks of changes that reach the object at `path`.
fn marks_over(path: &Path) -> impl Iterator<Item = Mark> {
    let trees = path.ancestors().map(|dir| mark_of(Kind::Tree, dir));
    std::iter::once(mark_of(Kind::Itself, path)).chain(trees)
}

impl Recent {
    /// Remembers changes for `lag`.
    pub(super) fn new(lag: Duration) -> Self {
        Self { lag, any: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Something was changed, or is about to be.
    pub(super) fn note(&self, path: &Path, reach: Reach, now: Instant) {
        let kinds: &[Kind] = match reach {
            Reach::Listing => &[Kind::Listing],
            Reach::Itself => &[Kind::Itself],
            Reach::Tree => &[Kind::Itself, Kind::Tree],
        };
        kinds.iter().for_each(|kind| self.note_mark(mark_of(*kind, path), now));
    }

    /// An inode's data or attributes were changed, by whatever name.
    pub(super) fn note_inode(&self, ino: Ino, now: Instant) {
        self.note_mark(mark(Kind::Inode, &ino.0.to_le_bytes()), now);
    }

    fn note_mark(&self, mark: Mark, now: Instant) {
        let mut state = self.state.lock();
        self.any.store(true, Ordering::Relaxed);
        if !state.note(mark, now, self.lag)
            && let Some(journal) = &state.journal
        {
            // Under the lock: a journal that is rewritten meanwhile has it as well.
            journal.append(&Entry::Changed(mark));
        }
    }

    /// Whether names were changed in the directory `path` lately.
    pub(super) fn covers_listing(&self, path: &Path, now: Instant) -> bool {
        self.has_any(now, || {
            std::iter::once(mark_of(Kind::Listing, path)).chain(marks_over(path)).collect()
        })
    }

    /// Whether what `path` shows may have been changed lately.
    pub(super) fn covers(&self, path: &Path, now: Instant) -> bool {
        self.has_any(now, || marks_over(path).collect())
    }

    /// Whether the inode was changed lately.
    pub(super) fn covers_inode(&self, ino: Ino, now: Instant) -> bool {
        self.has_any(now, || vec![mark(Kind::Inode, &ino.0.to_le_bytes())])
    }

    /// Whether any of these marks is recent. Hashes outside the lock, and only if there
    /// are recent changes at all.
    fn has_any(&self, now: Instant, marks: impl FnOnce() -> Vec<Mark>) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let marks = marks();
        let state = self.state.lock();
        if !state.last.is_some_and(|last| is_recent(last, self.lag, now)) {
            self.any.store(false, Ordering::Relaxed);
            return false;
        }
        marks.into_iter().any(|mark| state.has(mark, now, self.lag))
    }

    /// Goes on with what the daemon before knew.
    pub(super) fn restore(&self, changes: Changes, now: Instant) {
        if changes.marks.is_empty() && changes.sieves.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        self.any.store(true, Ordering::Relaxed);
        // Before this machine was started nothing was changed.
        let at = |age: u32| now.checked_sub(Duration::from_millis(age.into())).unwrap_or(now);
        for (mark, age) in changes.marks {
            state.note(mark, at(age), self.lag);
        }
        for (age, bits) in changes.sieves {
            state.last = state.last.max(Some(at(age)));
            state.sieves.restore(at(age), bits);
        }
    }

    /// Keeps everything as it is until the result is dropped.
    pub(super) fn hold(&self) -> Held<'_> {
        Held { state: self.state.lock(), lag: self.lag }
    }
}

/// What was changed, and nothing is added to it.
pub(super) struct Held<'a> {
    state: MutexGuard<'a, State>,
    lag: Duration,
}

impl Held<'_> {
    /// What the next daemon has to know.
    pub(super) fn carry(&self, now: Instant) -> Changes {
        let age = |at: Instant| now.saturating_duration_since(at).as_millis() as u32;
        let marks = self.state.marks.iter();
        let recent = marks.filter(|(_, at)| is_recent(**at, self.lag, now));
        Changes {
            marks: recent.map(|(mark, at)| (*mark, age(*at))).collect(),
            sieves: self.state.sieves.carry(self.lag, now).map(|(at, b)| (age(at), b)).collect(),
        }
    }

    /// Writes down from now on what is changed.
    pub(super) fn write_down(mut self, journal: Arc<Journal>) {
        self.state.journal = Some(journal);
    }
}

impl State {
    /// Whether it was there already.
    fn note(&mut self, mark: Mark, now: Instant, lag: Duration) -> bool {
        self.last = self.last.max(Some(now));
        if let Some(at) = self.marks.get_mut(&mark) {
            let was_recent = is_recent(*at, lag, now);
            *at = now.max(*at);
            return was_recent;
        }
        if self.marks.len() >= MOST
            && !self.swept.is_some_and(|at| is_recent(at, lag / SWEEPS, now))
        {
            self.swept = Some(now);
            self.marks.retain(|_, at| is_recent(*at, lag, now));
        }
        if self.marks.len() < MOST {
            self.marks.insert(mark, now);
        } else {
            self.sieves.note(mark, lag, now);
        }
        false
    }

    fn has(&self, mark: Mark, now: Instant, lag: Duration) -> bool {
        self.marks.get(&mark).is_some_and(|at| is_recent(*at, lag, now))
            || self.sieves.has(mark, lag, now)
    }
}

fn is_recent(at: Instant, lag: Duration, now: Instant) -> bool {
    now.saturating_duration_since(at) < lag
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAG: Duration = Duration::from_secs(60);

    #[test]
    fn a_change_reaches_as_far_as_it_says_and_no_longer_than_the_lag() {
        let (recent, now) = (Recent::new(LAG), Instant::now());
        assert!(!recent.covers(Path::new("a"), now));
        recent.note(Path::new("a/f"), Reach::Itself, now);
        recent.note(Path::new("t"), Reach::Tree, now);
        recent.note(Path::new("l"), Reach::Listing, now);
        assert!(recent.covers_listing(Path::new("l"), now));
        let covered = ["a/f", "t", "t/x", "t/x/y"];
        let free = ["a", "a/g", "a/f/x", "u", "", "l", "l/x"];
        for path in covered {
            assert!(recent.covers(Path::new(path), now), "{path}");
        }
        for path in free {
            assert!(!recent.covers(Path::new(path), now), "{path}");
        }
        for path in covered {
            assert!(!recent.covers(Path::new(path), now + LAG), "{path}");
        }
    }

    #[test]
    fn once_all_changes_are_old_nothing_is_looked_up() {
        let (recent, now) = (Recent::new(LAG), Instant::now());
        recent.note(Path::new("f"), Reach::Itself, now);
        let no_marks = || -> Vec<Mark> { panic!("nothing is recent") };
        assert!(recent.covers(Path::new("f"), now) && !recent.covers(Path::new("f"), now + LAG));
        assert!(!recent.has_any(now + LAG, no_marks));
        recent.note(Path::new("f"), Reach::Itself, now + LAG);
        assert!(recent.covers(Path::new("f"), now + LAG));
    }

    #[test]
    fn many_changes_are_all_remembered_and_others_are_not_taken_for_them() {
        let (recent, now) = (Recent::new(LAG), Instant::now());
        let path = |i: usize| format!("{i}/f");
        for i in 0..3 * MOST {
            recent.note(Path::new(&path(i)), Reach::Itself, now);
        }
        recent.note(Path::new("t"), Reach::Tree, now);
        recent.note_inode(Ino(7), now);
        assert_eq!(recent.state.lock().marks.len(), MOST);
        for i in (0..3 * MOST).step_by(97) {
            assert!(recent.covers(Path::new(&path(i)), now), "{i}");
        }
        assert!(recent.covers(Path::new("t/x/y"), now) && recent.covers_inode(Ino(7), now));
        let others = (0..1000).filter(|i| recent.covers(Path::new(&format!("{i}/g")), now));
        assert!(others.count() < 5);
        // Long after, nothing of it counts, and there is room again.
        let later = now + 2 * LAG;
        assert!(!recent.covers(Path::new(&path(3 * MOST - 1)), later));
        recent.note(Path::new("new"), Reach::Itself, later);
        assert_eq!(recent.state.lock().marks.len(), 1);
    }

    #[test]
    fn the_next_daemon_knows_what_was_changed_and_that_nothing_else_was() {
        let (recent, now) = (Recent::new(LAG), Instant::now());
        recent.note(Path::new("old"), Reach::Itself, now);
        let later = now + LAG / 2;
        for i in 0..MOST + 10 {
            recent.note(Path::new(&format!("f{i}")), Reach::Itself, later);
        }
        let changes = recent.hold().carry(later);
        let next = Recent::new(LAG);
        next.restore(changes, later);
        let last = format!("f{}", MOST + 9);
        for path in ["old", "f0", &last] {
            assert!(next.covers(Path::new(path), later), "{path}");
        }
        assert!(!next.covers(Path::new("other"), later));
        assert!(!next.covers(Path::new("old"), now + LAG));
        assert!(next.covers(Path::new(&last), now + LAG));
    }
}
