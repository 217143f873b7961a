//! The objects compared so far, and the findings.
//!
//! The walk delivers objects in its order, and workers finish them in any order. The
//! *position* covers all objects that are finished without a gap, with their findings; the
//! few behind it that are in progress or finished are kept one by one. So a checkpoint can
//! be written at any time, and a run that resumes loses nothing and counts nothing twice.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::checkpoint::{Checkpoint, OutOfOrder, RunId, Totals, VerifyFindings, WalkPosition};
use super::contents::FileProgress;
use super::difference::{Difference, NotCompared};

/// The most objects in progress. One large file among small ones holds the position back. This many
/// others may finish before it, while the large file gets all the threads.
const MAX_IN_FLIGHT: usize = 1024;

/// The most differences, and the most objects not compared, that are listed; further ones are only
/// counted.
const MAX_LISTED: usize = 10_000;

/// An object's number in the order of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectNumber(u64);

pub(super) struct RunProgress {
    run_id: RunId,
    state: Mutex<ProgressState>,
    room_available: Condvar,
}

struct ProgressState {
    next_number: u64,
    position: Option<WalkPosition>,
    findings: VerifyFindings,
    in_flight: BTreeMap<ObjectNumber, InFlightObject>,
    /// The objects that an earlier run had compared out of order, by path.
    resumed: HashMap<PathBuf, OutOfOrder>,
}

struct InFlightObject {
    position: WalkPosition,
    /// `None` for a directory's listing, which a resumed run lists again.
    path: Option<PathBuf>,
    findings: Option<VerifyFindings>,
    file_progress: Option<FileProgress>,
}

/// What an earlier run did with an object.
pub(super) enum ResumePoint {
    NotStarted,
    /// It compared the object in part.
    Partial(FileProgress),
    /// It compared the object; the findings are now in this run's progress.
    Complete,
}

impl RunProgress {
    pub(super) fn new(identity: RunId, replicas: usize, state: Option<Checkpoint>) -> Self {
        let (position, mut found, ahead) = match state {
            Some(state) => (state.position, state.found, state.ahead),
            None => (None, VerifyFindings::default(), Vec::new()),
        };
        found.absent.resize(replicas, 0);
        let earlier = ahead.into_iter().map(|ahead| (ahead.path.clone(), ahead)).collect();
        let inner = ProgressState {
            next_number: 0,
            position,
            findings: found,
            in_flight: BTreeMap::new(),
            resumed: earlier,
        };
        Self { run_id: identity, state: Mutex::new(inner), room_available: Condvar::new() }
    }

    /// Starts an object. If too many are in progress, waits until there are fewer, at most 50 ms,
    /// and returns `None`.
    pub(super) fn try_start_object(
        &self,
        position: &WalkPosition,
        path: Option<&Path>,
    ) -> Option<ObjectNumber> {
        let mut inner = self.state.lock();
        if inner.in_flight.len() >= MAX_IN_FLIGHT {
            self.room_available.wait_for(&mut inner, Duration::from_millis(50));
            return None;
        }
        let number = ObjectNumber(inner.next_number);
        inner.next_number += 1;
        let object = InFlightObject {
            position: position.clone(),
            path: path.map(Path::to_owned),
            findings: None,
            file_progress: None,
        };
        inner.in_flight.insert(number, object);
        Some(number)
    }

    /// What an earlier run did with an object that was just started.
    pub(super) fn resume_point(&self, number: ObjectNumber) -> ResumePoint {
        let known = {
            let mut inner = self.state.lock();
            let ProgressState { in_flight, resumed, .. } = &mut *inner;
            let Some(entry) = in_flight.get_mut(&number) else { return ResumePoint::NotStarted };
            let known = entry.path.as_ref().and_then(|path| resumed.remove(path));
            if let Some(known) = &known {
                entry.file_progress.clone_from(&known.progress);
            }
            known
        };
        match known {
            Some(OutOfOrder { done: Some(found), .. }) => {
                self.finish_object(number, found);
                ResumePoint::Complete
            }
            Some(OutOfOrder { progress: Some(progress), .. }) => ResumePoint::Partial(progress),
            _ => ResumePoint::NotStarted,
        }
    }

    /// Records how far a file has been compared.
    pub(super) fn set_file_progress(&self, number: ObjectNumber, progress: &FileProgress) {
        if let Some(entry) = self.state.lock().in_flight.get_mut(&number) {
            entry.file_progress = Some(progress.clone());
        }
    }

    /// Records that an object was compared, and advances the position.
    pub(super) fn finish_object(&self, number: ObjectNumber, found: VerifyFindings) {
        let mut inner = self.state.lock();
        if let Some(entry) = inner.in_flight.get_mut(&number) {
            entry.findings = Some(found);
            entry.file_progress = None;
        }
        while let Some(first) = inner.in_flight.first_entry()
            && first.get().findings.is_some()
        {
            let InFlightObject { position, findings: done, .. } = first.remove();
            inner.position = Some(position);
            if let Some(found) = done {
                inner.findings.merge(found);
            }
        }
        self.room_available.notify_all();
    }

    /// Whether no object is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.state.lock().in_flight.is_empty()
    }

    /// The differences listed so far, from number `from` on, in the order of the walk.
    pub(super) fn differences(&self, from: usize) -> Vec<Difference> {
        let inner = self.state.lock();
        inner.findings.differences.get(from..).unwrap_or_default().to_vec()
    }

    /// The objects not compared that are listed so far, from number `from` on.
    pub(super) fn not_compared(&self, from: usize) -> Vec<NotCompared> {
        let inner = self.state.lock();
        inner.findings.not_compared.get(from..).unwrap_or_default().to_vec()
    }

    /// For each replica, the number of objects about which it was not asked.
    pub(super) fn absent_counts(&self) -> Vec<u64> {
        self.state.lock().findings.absent.clone()
    }

    /// How much has been compared, including objects in progress and those of an earlier run.
    pub(super) fn totals(&self) -> Totals {
        let inner = self.state.lock();
        let mut totals = inner.findings.totals;
        for entry in inner.in_flight.values() {
            totals.add_out_of_order(&entry.findings, &entry.file_progress);
        }
        for ahead in inner.resumed.values() {
            totals.add_out_of_order(&ahead.done, &ahead.progress);
        }
        totals
    }

    /// Adds the findings about all objects in progress, as if no object before them were missing.
    /// For the end of a run.
    pub(super) fn merge_out_of_order(&self) {
        let mut inner = self.state.lock();
        for entry in std::mem::take(&mut inner.in_flight).into_values() {
            let mut found = entry.findings.unwrap_or_default();
            if let Some(progress) = entry.file_progress {
                found.totals.bytes += progress.bytes;
                found.totals.bytes_read += progress.bytes_read;
            }
            inner.findings.merge(found);
        }
    }

    /// The state that a later run needs to resume.
    pub(super) fn checkpoint(&self) -> Checkpoint {
        let inner = self.state.lock();
        let in_flight = inner.in_flight.values().filter_map(|entry| {
            Some(OutOfOrder {
                path: entry.path.clone()?,
                done: entry.findings.clone(),
                progress: entry.file_progress.clone(),
            })
        });
        let known = |ahead: &OutOfOrder| ahead.done.is_some() || ahead.progress.is_some();
        let ahead = in_flight.filter(known).chain(inner.resumed.values().cloned()).collect();
        let position = inner.position.clone();
        Checkpoint::new(self.run_id.clone(), position, inner.findings.clone(), ahead)
    }
}

impl VerifyFindings {
    fn merge(&mut self, other: VerifyFindings) {
        self.totals.add(&other.totals);
        let room = MAX_LISTED.saturating_sub(self.differences.len());
        self.differences.extend(other.differences.into_iter().take(room));
        let room = MAX_LISTED.saturating_sub(self.not_compared.len());
        self.not_compared.extend(other.not_compared.into_iter().take(room));
        for (all, more) in self.absent.iter_mut().zip(other.absent) {
            *all += more;
        }
    }
}
