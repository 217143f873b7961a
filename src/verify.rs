//! Checks whether a volume's replicas hold the same data.
//!
//! The inputs are the replicas' backends and [`VerifyOptions`]. The outputs are [`Difference`]s,
//! and the objects that could not be compared. The replicas are read directly, not through a mount.
//! One thread walks the tree ([`walk`]). A few workers compare its objects ([`compare_object`]):
//! attributes first ([`attributes`]), then contents block by block ([`contents`]). The replicas'
//! own threads read and hash ([`replica_calls`]). [`progress`] keeps the findings, and makes a
//! [`Checkpoint`] at any time, from which another run can resume.
//!
//! *Invariants:*
//! - No wait for a replica is longer than its deadline.
//! - A replica that does not answer is never reported as different: objects that it did not show
//!   are reported as not compared.
//! - Memory is bounded by the listings of the largest directory, the objects in progress and the
//!   listed differences, not by the size of the tree.
//! - Nothing is changed on a replica.

mod attributes;
mod checkpoint;
mod compare_object;
mod contents;
mod diff_ranges;
mod difference;
mod entry_batch;
mod progress;
mod replica_calls;
mod sample;
mod throttle;
mod walk;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::backend::FileKind;
use crate::volume::{ReplicaId, ReplicaSet, VolumeMode};
use attributes::{CompareRules, ObjectView, ReplicaView, present_replicas, view_uncached};
use checkpoint::{RunId, WalkPosition};
use contents::ContentOptions;
use entry_batch::EntryBatch;
use progress::{ResumePoint, RunProgress};
use replica_calls::{CallError, ReplicaCalls};

pub use checkpoint::{Checkpoint, CheckpointError, Totals};
pub use difference::{
    ContentDifference, Difference, DifferenceKind, DifferingRange, EscapedPath, IGNORABLE,
    NotCompared, ReplicaGroup,
};
pub use replica_calls::{ComparedReplica, ExcludedReplica, ExclusionReason};
pub use sample::{COMPARE_BLOCK_SIZE, Coverage};

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The volume's name.
    pub volume: String,
    /// How its replicas relate to each other. In `shared` volumes, inode numbers and change times
    /// are compared too.
    pub mode: VolumeMode,
    /// A file or directory, relative to the volume's root; empty for the whole volume.
    pub path: PathBuf,
    /// How much of each file is compared.
    pub coverage: Coverage,
    /// The seed that chooses the blocks, if not all are compared.
    pub seed: u64,
    /// Kinds of differences to ignore, from [`IGNORABLE`].
    pub ignore: Vec<DifferenceKind>,
    /// Whether extended attributes `user.*` are compared.
    pub xattrs: bool,
    /// Files compared at a time, and blocks read at a time from each replica; at least 1.
    pub jobs: usize,
    /// The most bytes per second to read from all replicas together.
    pub rate: Option<u64>,
    /// The longest that one call on a replica may take.
    pub deadline: Duration,
    /// The longest that listing a directory may take.
    pub list_deadline: Duration,
}

/// Why nothing can be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// No replica that answers has the path.
    #[error("{0}: no replica has this path")]
    NoSuchPath(String),
    /// Fewer than two replicas can be read.
    #[error("fewer than two replicas can be compared{0}")]
    TooFewReplicas(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(String),
}

/// A replica that was not asked about some objects, because it did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsentReplica {
    /// Its name in the configuration.
    pub name: String,
    /// The number of those objects.
    pub objects: u64,
}

/// A comparison in progress.
pub struct Run {
    shared: Arc<RunShared>,
    threads: Vec<JoinHandle<()>>,
}

/// State that the threads of a run share.
struct RunShared {
    options: VerifyOptions,
    rules: CompareRules,
    content_options: ContentOptions,
    replicas: ReplicaCalls,
    progress: RunProgress,
    /// The position at which an earlier run ended.
    resume_position: Option<WalkPosition>,
    batch_queue: Mutex<BatchQueue>,
    changed: Condvar,
}

#[derive(Default)]
struct BatchQueue {
    batches: VecDeque<EntryBatch>,
    /// The walk has ended: no batch will be added.
    is_closed: bool,
    /// The number of threads that have ended.
    ended_threads: usize,
}

/// The most batches that wait, for each worker.
const MAX_WAITING_BATCHES_PER_WORKER: usize = 2;

/// How often a thread that waits checks whether the run was stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Run {
    /// Starts a comparison, or resumes one from `state`. All threads that it starts end with the
    /// run, except those inside a hung replica.
    ///
    /// # Errors
    /// If there is nothing to compare.
    pub fn start(
        options: VerifyOptions,
        members: Vec<ComparedReplica>,
        state: Option<Checkpoint>,
    ) -> Result<Self, VerifyError> {
        let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
        let jobs = options.jobs.max(1);
        let replicas = ReplicaCalls::new(members, jobs, options.rate, options.deadline);
        if replicas.reachable().len() < 2 {
            let reasons: Vec<String> =
                replicas.excluded().iter().map(|excluded| excluded.reason.to_string()).collect();
            let why = if reasons.is_empty() {
                String::new()
            } else {
                format!(": {}", reasons.join("; "))
            };
            return Err(VerifyError::TooFewReplicas(why));
        }
        let rules = CompareRules {
            mode: options.mode,
            ignore: options.ignore.clone(),
            xattrs: options.xattrs,
        };
        let root = view_uncached(&replicas, &options.path, replicas.reachable(), &rules);
        if root.iter().all(|(_, seen)| *seen == ReplicaView::Missing) {
            return Err(VerifyError::NoSuchPath(EscapedPath(&options.path).to_string()));
        }
        let resumed_at = state.as_ref().and_then(|state| state.position.clone());
        let progress = RunProgress::new(RunId::new(&options, &names), names.len(), state);
        let content_options = ContentOptions {
            coverage: options.coverage,
            seed: options.seed,
            max_blocks_in_flight: jobs,
        };
        let shared = Arc::new(RunShared {
            options,
            rules,
            content_options,
            replicas,
            progress,
            resume_position: resumed_at,
            batch_queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut run = Self { shared, threads: Vec::new() };
        run.spawn_thread("walk", move |shared| shared.run_walk(root))?;
        for _ in 0..jobs {
            run.spawn_thread("compare", RunShared::run_worker)?;
        }
        Ok(run)
    }

    fn spawn_thread(
        &mut self,
        name: &str,
        work: impl FnOnce(&RunShared) + Send + 'static,
    ) -> Result<(), VerifyError> {
        /// Counts a thread's end, even if it panics.
        struct CountEndOnDrop(Arc<RunShared>);
        impl Drop for CountEndOnDrop {
            fn drop(&mut self) {
                // The other threads would wait forever for one that panicked.
                if std::thread::panicking() {
                    self.0.replicas.stop();
                }
                self.0.batch_queue.lock().ended_threads += 1;
                self.0.changed.notify_all();
            }
        }
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let ended = CountEndOnDrop(shared);
            work(&ended.0);
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        match thread {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.stop();
                return Err(VerifyError::Thread(error.to_string()));
            }
        }
        Ok(())
    }

    /// Waits for the end, at most this long; returns whether it has ended.
    pub fn wait(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut queue = self.shared.batch_queue.lock();
        while queue.ended_threads < self.threads.len() {
            if self.shared.changed.wait_until(&mut queue, until).timed_out() {
                return queue.ended_threads == self.threads.len();
            }
        }
        true
    }

    /// Makes the run end soon, wherever it is.
    pub fn stop(&self) {
        self.shared.replicas.stop();
        self.shared.changed.notify_all();
    }

    /// Whether everything that can be compared was compared; valid after the end.
    pub fn is_complete(&self) -> bool {
        !self.shared.replicas.is_stopped() && self.shared.progress.is_idle()
    }

    /// The current state, from which another run can resume.
    pub fn checkpoint(&self) -> Checkpoint {
        self.shared.progress.checkpoint()
    }

    /// How much has been compared, including by earlier runs.
    pub fn totals(&self) -> Totals {
        self.shared.progress.totals()
    }

    /// The listed differences from number `from` on, in the order of the walk. At most 10,000 are
    /// listed.
    pub fn differences(&self, from: usize) -> Vec<Difference> {
        self.shared.progress.differences(from)
    }

    /// The listed objects that could not be compared, from number `from` on. At most 10,000 are
    /// listed. [`Self::absent_replicas`] counts the objects missed by replicas that did not answer
    /// at all.
    pub fn not_compared(&self, from: usize) -> Vec<NotCompared> {
        self.shared.progress.not_compared(from)
    }

    /// Replicas that were not asked about some objects, because they did not answer.
    pub fn absent_replicas(&self) -> Vec<AbsentReplica> {
        let absent = self.shared.progress.absent_counts().into_iter().enumerate();
        let named = |(i, objects)| AbsentReplica {
            name: self.shared.replicas.name(ReplicaId::new(i)).to_owned(),
            objects,
        };
        absent.map(named).filter(|absent| absent.objects > 0).collect()
    }

    /// Replicas that are excluded from the comparison, and the reasons.
    pub fn excluded_replicas(&self) -> Vec<ExcludedReplica> {
        self.shared.replicas.excluded()
    }

    /// Adds findings that are out of order to the lists. For a run that has ended and will not be
    /// resumed: its [`Checkpoint`] is useless afterwards.
    pub fn merge_out_of_order(&self) {
        self.shared.progress.merge_out_of_order();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

impl RunShared {
    /// Runs the walk's thread.
    fn run_walk(&self, root: ObjectView) {
        // If the run is stopped, the workers stop too.
        let _ = self.compare_tree(&root);
        self.batch_queue.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn compare_tree(&self, root: &ObjectView) -> Result<(), CallError> {
        let path: &Path = &self.options.path;
        let directories =
            present_replicas(root).filter(|(_, root)| root.attr.kind == FileKind::Directory);
        let among = directories.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id));
        if self.resume_position.is_none() {
            // An absolute path, so that it equals no position in the tree.
            let position = WalkPosition { dir: PathBuf::from("/"), name: path.to_owned() };
            let number = walk::start_object(self, &position, Some(path))?;
            let earlier = match self.progress.resume_point(number) {
                ResumePoint::Partial(progress) => Some(progress),
                _ => None,
            };
            let report = |progress: &_| self.progress.set_file_progress(number, progress);
            let found = compare_object::compare_object(self, path, root.clone(), earlier, report)?;
            self.progress.finish_object(number, found);
        }
        if among.len() > 1 { walk::walk_tree(self, path, among) } else { Ok(()) }
    }

    /// Queues a batch for the workers; waits while the queue is full.
    fn enqueue_batch(&self, batch: EntryBatch) -> Result<(), CallError> {
        let mut queue = self.batch_queue.lock();
        while queue.batches.len()
            >= MAX_WAITING_BATCHES_PER_WORKER * self.content_options.max_blocks_in_flight
        {
            if self.replicas.is_stopped() {
                return Err(CallError::Stopped);
            }
            self.changed.wait_for(&mut queue, STOP_CHECK_INTERVAL);
        }
        queue.batches.push_back(batch);
        self.changed.notify_all();
        Ok(())
    }

    /// Runs a worker's thread.
    fn run_worker(&self) {
        while let Some(batch) = self.next_batch() {
            if compare_object::compare_batch(self, &batch).is_err() {
                return;
            }
        }
    }

    fn next_batch(&self) -> Option<EntryBatch> {
        let mut queue = self.batch_queue.lock();
        loop {
            if self.replicas.is_stopped() {
                return None;
            }
            if let Some(batch) = queue.batches.pop_front() {
                self.changed.notify_all();
                return Some(batch);
            }
            if queue.is_closed {
                return None;
            }
            self.changed.wait_for(&mut queue, STOP_CHECK_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests;
