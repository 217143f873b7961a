//! What was changed through this mount a short while ago.
//!
//! The write replica's mount knows of a change at once. The other replicas'
//! mounts are other clients: they may take names and attributes for what they saw
//! last until their caches expire. So about whatever was changed less than that
//! ago the write replica alone is asked, and nobody else where it does not answer:
//! an error is better than the state before one's own change.
//!
//! Times and paths go in; whether somebody else may be asked comes out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Ino;

/// What was changed lately.
pub(super) struct Recent {
    lag: Duration,
    /// Whether anything was ever changed.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    paths: HashMap<PathBuf, Noted>,
    inodes: HashMap<Ino, Instant>,
    /// Until then everything counts as changed.
    all: Option<Instant>,
}

/// What of a path was changed; each at its time.
#[derive(Clone, Copy, Default)]
struct Noted {
    itself: Option<Instant>,
    /// Which names are in it.
    listing: Option<Instant>,
    /// Any name in it.
    names: Option<Instant>,
    tree: Option<Instant>,
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

/// So many changes are remembered one by one. With more, all names of a directory
/// count as changed where one was; with so many directories, everything does.
const MOST: usize = 16 * 1024;

impl Recent {
    /// Remembers changes for `lag`.
    pub(super) fn new(lag: Duration) -> Self {
        Self { lag, any: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Something was changed, or is about to be.
    pub(super) fn note(&self, path: &Path, reach: Reach, now: Instant) {
        let mut state = self.state.lock();
        self.any.store(true, Ordering::Relaxed);
        state.make_room(self.lag, now);
        let noted = match state.paths.get_mut(path) {
            Some(noted) => noted,
            None => state.paths.entry(path.to_owned()).or_default(),
        };
        match reach {
            Reach::Listing => noted.listing = Some(now),
            Reach::Itself => noted.itself = Some(now),
            Reach::Tree => (noted.itself, noted.tree) = (Some(now), Some(now)),
        }
    }

    /// Whether names were changed in the directory `path` lately.
    pub(super) fn covers_listing(&self, path: &Path, now: Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let listing = self.state.lock().paths.get(path).and_then(|noted| noted.listing);
        listing.is_some_and(|at| is_recent(at, self.lag, now)) || self.covers(path, now)
    }

    /// An inode's data or attributes were changed, by whatever name.
    pub(super) fn note_inode(&self, ino: Ino, now: Instant) {
        let mut state = self.state.lock();
        self.any.store(true, Ordering::Relaxed);
        state.make_room(self.lag, now);
        state.inodes.insert(ino, now);
    }

    /// Whether what `path` shows may have been changed lately.
    pub(super) fn covers(&self, path: &Path, now: Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state.lock();
        let is_new = |at: Option<Instant>| at.is_some_and(|at| is_recent(at, self.lag, now));
        let noted = |path: &Path| state.paths.get(path).copied().unwrap_or_default();
        is_new(state.all)
            || is_new(noted(path).itself)
            || path.parent().is_some_and(|dir| is_new(noted(dir).names))
            || path.ancestors().any(|dir| is_new(noted(dir).tree))
    }

    /// Anything may have been changed.
    pub(super) fn note_all(&self, now: Instant) {
        self.any.store(true, Ordering::Relaxed);
        self.state.lock().all = Some(now);
    }

    /// Whether anything was ever changed.
    pub(super) fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether the inode was changed lately.
    pub(super) fn covers_inode(&self, ino: Ino, now: Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state.lock();
        let at = [state.all, state.inodes.get(&ino).copied()];
        at.into_iter().flatten().any(|at| is_recent(at, self.lag, now))
    }
}

impl State {
    fn make_room(&mut self, lag: Duration, now: Instant) {
        if self.paths.len() < MOST && self.inodes.len() < MOST {
            return;
        }
        self.paths.retain(|_, noted| {
            let last = noted.itself.max(noted.listing);
            last.is_some_and(|at| is_recent(at, lag, now))
        });
        self.inodes.retain(|_, at| is_recent(*at, lag, now));
        if self.paths.len() >= MOST / 2 {
            self.fold();
        }
        if self.paths.len() >= MOST / 2 || self.inodes.len() >= MOST / 2 {
            // Swept again and again, it would take longer than what it saves.
            self.paths.clear();
            self.inodes.clear();
            self.all = Some(now);
        }
    }

    /// Remembers the directories instead of the names in them.
    fn fold(&mut self) {
        let paths = std::mem::take(&mut self.paths);
        for (path, noted) in paths {
            if noted.tree.or(noted.names).or(noted.listing).is_some() {
                let kept = self.paths.entry(path.clone()).or_default();
                *kept = Noted { names: kept.names.max(noted.names), ..noted };
            }
            if let Some(dir) = path.parent() {
                let kept = self.paths.entry(dir.to_owned()).or_default();
                kept.listing = kept.listing.max(noted.itself);
                kept.names = kept.names.max(noted.itself);
            }
        }
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
            assert!(!recent.covers(Path::new(path), now + LAG), "{path}");
        }
        for path in free {
            assert!(!recent.covers(Path::new(path), now), "{path}");
        }
    }

    #[test]
    fn with_many_names_their_directory_stands_for_them_and_for_no_others() {
        let (recent, now) = (Recent::new(LAG), Instant::now());
        for i in 0..2 * MOST {
            recent.note(Path::new(&format!("d/{i}")), Reach::Itself, now);
        }
        recent.note(Path::new("t"), Reach::Tree, now);
        assert!(recent.state.lock().paths.len() <= MOST);
        assert!(recent.covers_listing(Path::new("d"), now));
        for path in ["d/0", "t/x/y"] {
            assert!(recent.covers(Path::new(path), now), "{path}");
        }
        assert!(!recent.covers(Path::new("other/0"), now));
        assert!(!recent.covers(Path::new("d/0"), now + LAG));
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_forgotten_too_early() {
        let (recent, now) = (Recent::new(LAG), Instant::now());
        for i in 0..3 * MOST {
            recent.note(Path::new(&format!("{i}/f")), Reach::Itself, now);
        }
        assert!(recent.state.lock().paths.len() <= MOST);
        assert!(recent.covers(Path::new("0/f"), now));
        assert!(recent.covers_inode(Ino(7), now));
        assert!(!recent.covers(Path::new("0/f"), now + LAG));
    }
}
