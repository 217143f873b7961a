//! Who has been compared, and what was found.
//!
//! Objects come in the order of the walk and are done in any order. What has been
//! done without a gap makes the *position*, and what was found so far; the few
//! behind it that are under way or done are kept one by one. So where a run is
//! can be written down at any time, and nothing is lost or counted twice when it
//! is gone on with.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::contents::Progress;
use super::difference::{Difference, NotCompared};
use super::state::{Ahead, Found, Identity, Position, State, Totals};

/// Objects under way at most. One large file among small ones holds the position
/// back; so many the others may be ahead of it, while it has all the threads.
const UNDER_WAY: usize = 1024;

/// Differences that are listed, and objects that could not be compared, at most;
/// the rest is counted.
const LISTED: usize = 10_000;

/// An object's number in the order of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(u64);

pub(super) struct Ledger {
    identity: Identity,
    inner: Mutex<Inner>,
    fewer: Condvar,
}

struct Inner {
    next: u64,
    position: Option<Position>,
    found: Found,
    under_way: BTreeMap<Number, Entry>,
    /// From an earlier run, by path.
    earlier: HashMap<PathBuf, Ahead>,
}

struct Entry {
    position: Position,
    /// `None` for what is about a directory's listing: that is listed again when the
    /// run is gone on with.
    path: Option<PathBuf>,
    done: Option<Found>,
    progress: Option<Progress>,
}

/// What an earlier run knows of an object.
pub(super) enum Earlier {
    Nothing,
    /// It has compared it so far.
    Part(Progress),
    /// It has compared it; that is in the ledger now.
    All,
}

impl Ledger {
    pub(super) fn new(identity: Identity, replicas: usize, state: Option<State>) -> Self {
        let (position, mut found, ahead) = match state {
            Some(state) => (state.position, state.found, state.ahead),
            None => (None, Found::default(), Vec::new()),
        };
        found.absent.resize(replicas, 0);
        let earlier = ahead.into_iter().map(|ahead| (ahead.path.clone(), ahead)).collect();
        let inner = Inner { next: 0, position, found, under_way: BTreeMap::new(), earlier };
        Self { identity, inner: Mutex::new(inner), fewer: Condvar::new() }
    }

    /// Takes an object up. `None` where so many are under way that it has to wait;
    /// returns then after a moment, or when there are fewer.
    pub(super) fn begin(&self, position: &Position, path: Option<&Path>) -> Option<Number> {
        let mut inner = self.inner.lock();
        if inner.under_way.len() >= UNDER_WAY {
            self.fewer.wait_for(&mut inner, Duration::from_millis(50));
            return None;
        }
        let number = Number(inner.next);
        inner.next += 1;
        let (position, path) = (position.clone(), path.map(Path::to_owned));
        inner.under_way.insert(number, Entry { position, path, done: None, progress: None });
        Some(number)
    }

    /// What an earlier run knows of an object that has been taken up.
    pub(super) fn earlier(&self, number: Number) -> Earlier {
        let known = {
            let mut inner = self.inner.lock();
            let Inner { under_way, earlier, .. } = &mut *inner;
            let Some(entry) = under_way.get_mut(&number) else { return Earlier::Nothing };
            let known = entry.path.as_ref().and_then(|path| earlier.remove(path));
            if let Some(known) = &known {
                entry.progress.clone_from(&known.progress);
            }
            known
        };
        match known {
            Some(Ahead { done: Some(found), .. }) => {
                self.done(number, found);
                Earlier::All
            }
            Some(Ahead { progress: Some(progress), .. }) => Earlier::Part(progress),
            _ => Earlier::Nothing,
        }
    }

    /// How far a file has been compared.
    pub(super) fn progress(&self, number: Number, progress: &Progress) {
        if let Some(entry) = self.inner.lock().under_way.get_mut(&number) {
            entry.progress = Some(progress.clone());
        }
    }

    /// An object has been compared.
    pub(super) fn done(&self, number: Number, found: Found) {
        let mut inner = self.inner.lock();
        if let Some(entry) = inner.under_way.get_mut(&number) {
            entry.done = Some(found);
            entry.progress = None;
        }
        while let Some(first) = inner.under_way.first_entry()
            && first.get().done.is_some()
        {
            let Entry { position, done, .. } = first.remove();
            inner.position = Some(position);
            if let Some(found) = done {
                inner.found.merge(found);
            }
        }
        self.fewer.notify_all();
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.inner.lock().under_way.is_empty()
    }

    /// Differences listed so far from the `from`th on, in the order of the walk.
    pub(super) fn differences(&self, from: usize) -> Vec<Difference> {
        let inner = self.inner.lock();
        inner.found.differences.get(from..).unwrap_or_default().to_vec()
    }

    /// The same of what could not be compared.
    pub(super) fn not_compared(&self, from: usize) -> Vec<NotCompared> {
        let inner = self.inner.lock();
        inner.found.not_compared.get(from..).unwrap_or_default().to_vec()
    }

    /// Objects that each replica was not asked about.
    pub(super) fn absent(&self) -> Vec<u64> {
        self.inner.lock().found.absent.clone()
    }

    /// How much has been compared, what is under way or was so earlier included.
    pub(super) fn totals(&self) -> Totals {
        let inner = self.inner.lock();
        let mut totals = inner.found.totals;
        for entry in inner.under_way.values() {
            totals.add_ahead(&entry.done, &entry.progress);
        }
        for ahead in inner.earlier.values() {
            totals.add_ahead(&ahead.done, &ahead.progress);
        }
        totals
    }

    /// Counts what is done in among what was found, as if nothing were missing
    /// before it: the run ends here.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        for entry in std::mem::take(&mut inner.under_way).into_values() {
            let mut found = entry.done.unwrap_or_default();
            if let Some(progress) = entry.progress {
                found.totals.bytes += progress.bytes;
                found.totals.bytes_read += progress.bytes_read;
            }
            inner.found.merge(found);
        }
    }

    /// All that is needed to go on with.
    pub(super) fn state(&self) -> State {
        let inner = self.inner.lock();
        let under_way = inner.under_way.values().filter_map(|entry| {
            let (done, progress) = (entry.done.clone(), entry.progress.clone());
            Some(Ahead { path: entry.path.clone()?, done, progress })
        });
        let known = |ahead: &Ahead| ahead.done.is_some() || ahead.progress.is_some();
        let ahead = under_way.filter(known).chain(inner.earlier.values().cloned()).collect();
        let (position, found) = (inner.position.clone(), inner.found.clone());
        State::new(self.identity.clone(), position, found, ahead)
    }
}

impl Found {
    fn merge(&mut self, other: Found) {
        self.totals.add(&other.totals);
        let room = LISTED.saturating_sub(self.differences.len());
        self.differences.extend(other.differences.into_iter().take(room));
        let room = LISTED.saturating_sub(self.not_compared.len());
        self.not_compared.extend(other.not_compared.into_iter().take(room));
        for (all, more) in self.absent.iter_mut().zip(other.absent) {
            *all += more;
        }
    }
}
