//! Whether a volume's replicas hold the same.
//!
//! In go the replicas' backends and [`Options`]; out come [`Difference`]s, and
//! what could not be compared. The replicas are looked at directly, not through a
//! mount: one thread walks the tree ([`walk`]), a few workers compare its objects
//! ([`object`]), attributes first ([`attributes`]), then contents block by block
//! ([`contents`]), with the replicas' own threads doing the reading and hashing
//! ([`peers`]). What is found is kept by the [`ledger`], which can say at any time
//! where the run is ([`State`]), so that another one can go on from there.
//!
//! *Invariants:*
//! - Nothing waits for a replica longer than its deadline.
//! - A replica that cannot be asked is never said to differ: what was not seen is
//!   reported as not compared.
//! - Memory is bounded by the largest directory's listings, the objects under way
//!   and what is listed of differences, not by the tree.
//! - Nothing is changed on a replica.

mod attributes;
mod contents;
mod difference;
mod ledger;
mod narrow;
mod object;
mod pace;
mod peers;
mod sample;
mod state;
mod walk;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::backend::FileKind;
use crate::volume::{Mode, ReplicaId, ReplicaSet};
use attributes::{Look, Rules, Seen, here, look_again};
use contents::How;
use ledger::{Earlier, Ledger};
use peers::{Miss, Peers};
use state::{Identity, Position};
use walk::Batch;

pub use difference::{Content, Difference, Group, IGNORABLE, Kind, NotCompared, Range, Shown};
pub use peers::Member;
pub use sample::{BLOCK, Coverage};
pub use state::{State, StateError, Totals};

/// What is compared, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The volume's name.
    pub volume: String,
    /// How its replicas relate: in `shared` volumes inode numbers and change times
    /// are compared as well.
    pub mode: Mode,
    /// A file or directory relative to the volume's root; empty for all of it.
    pub path: PathBuf,
    /// How much of each file.
    pub coverage: Coverage,
    /// Which blocks, where not all are.
    pub seed: u64,
    /// Kinds of differences, of [`IGNORABLE`], that are none.
    pub ignore: Vec<Kind>,
    /// Whether extended attributes `user.*` are compared.
    pub xattrs: bool,
    /// Files compared at a time, and blocks read at a time from each replica; at
    /// least 1.
    pub jobs: usize,
    /// Most bytes a second to read, of all replicas together.
    pub rate: Option<u64>,
    /// How long one call on a replica may take.
    pub deadline: Duration,
    /// How long the listing of a directory may take.
    pub list_deadline: Duration,
}

/// Why there is nothing to compare.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The path is on no replica that answers.
    #[error("{0}: no replica has it")]
    NoSuchPath(String),
    /// Fewer than two replicas can be looked at.
    #[error("fewer than two replicas can be compared{0}")]
    TooFew(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(String),
}

/// A comparison under way.
pub struct Run {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a run have in common.
struct Shared {
    options: Options,
    rules: Rules,
    how: How,
    peers: Peers,
    ledger: Ledger,
    /// Where an earlier run has ended.
    resumed_at: Option<Position>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    /// Nothing more will come.
    is_closed: bool,
    /// Threads that have ended.
    ended: usize,
}

/// Batches that wait for a worker at most, for each.
const WAITING: usize = 2;

/// How often who waits looks whether the run was stopped.
const TICK: Duration = Duration::from_millis(50);

impl Run {
    /// Begins to compare, or goes on where `state` says. Of the threads that it
    /// starts none outlives the run, but those inside a replica that hangs.
    ///
    /// # Errors
    /// Where there is nothing to compare.
    pub fn start(
        options: Options,
        members: Vec<Member>,
        state: Option<State>,
    ) -> Result<Self, VerifyError> {
        let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
        let jobs = options.jobs.max(1);
        let peers = Peers::new(members, jobs, options.rate, options.deadline);
        if peers.there().len() < 2 {
            let why: Vec<&str> = peers.left_out().map(|(_, why)| why).collect();
            let why = if why.is_empty() { String::new() } else { format!(": {}", why.join("; ")) };
            return Err(VerifyError::TooFew(why));
        }
        let rules =
            Rules { mode: options.mode, ignore: options.ignore.clone(), xattrs: options.xattrs };
        let root = look_again(&peers, &options.path, peers.there(), &rules);
        if root.iter().all(|(_, seen)| *seen == Seen::Gone) {
            return Err(VerifyError::NoSuchPath(Shown(&options.path).to_string()));
        }
        let resumed_at = state.as_ref().and_then(|state| state.position.clone());
        let ledger = Ledger::new(Identity::of(&options, &names), names.len(), state);
        let how = How { coverage: options.coverage, seed: options.seed, window: jobs };
        let shared = Arc::new(Shared {
            options,
            rules,
            how,
            peers,
            ledger,
            resumed_at,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut run = Self { shared, threads: Vec::new() };
        run.thread("walk", move |shared| shared.walk(root))?;
        for _ in 0..jobs {
            run.thread("compare", Shared::work)?;
        }
        Ok(run)
    }

    fn thread(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<(), VerifyError> {
        /// Says that a thread has ended, however it does.
        struct Ended(Arc<Shared>);
        impl Drop for Ended {
            fn drop(&mut self) {
                // Without one of them the others would wait for ever.
                if std::thread::panicking() {
                    self.0.peers.stop();
                }
                self.0.queue.lock().ended += 1;
                self.0.changed.notify_all();
            }
        }
        let shared = Arc::clone(&self.shared);
        let run = move || {
            let ended = Ended(shared);
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

    /// Waits for the end, at most so long; whether it has come.
    pub fn wait(&self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut queue = self.shared.queue.lock();
        while queue.ended < self.threads.len() {
            if self.shared.changed.wait_until(&mut queue, until).timed_out() {
                return queue.ended == self.threads.len();
            }
        }
        true
    }

    /// Has the run end soon, wherever it is.
    pub fn stop(&self) {
        self.shared.peers.stop();
        self.shared.changed.notify_all();
    }

    /// Whether all has been compared that can be; asked when it has ended.
    pub fn is_complete(&self) -> bool {
        !self.shared.peers.is_stopped() && self.shared.ledger.is_idle()
    }

    /// Where it is, for another run to go on from.
    pub fn state(&self) -> State {
        self.shared.ledger.state()
    }

    /// How much has been compared, by earlier runs as well.
    pub fn totals(&self) -> Totals {
        self.shared.ledger.totals()
    }

    /// Differences from number `from` on, in the tree's order; at most 10,000 are
    /// listed.
    pub fn differences(&self, from: usize) -> Vec<Difference> {
        self.shared.ledger.differences(from)
    }

    /// What could not be compared, from number `from` on; at most 10,000 are
    /// listed. What a replica that did not answer at all missed is in
    /// [`Run::absent`].
    pub fn not_compared(&self, from: usize) -> Vec<NotCompared> {
        self.shared.ledger.not_compared(from)
    }

    /// Replicas that were not asked for some objects, as they did not answer, and
    /// for how many.
    pub fn absent(&self) -> Vec<(String, u64)> {
        let absent = self.shared.ledger.absent().into_iter().enumerate();
        let named = |(i, objects)| (self.shared.peers.name(ReplicaId::new(i)).to_owned(), objects);
        absent.map(named).filter(|(_, objects)| *objects > 0).collect()
    }

    /// Replicas that could not be looked at at all, and why.
    pub fn left_out(&self) -> Vec<(String, String)> {
        let left_out = self.shared.peers.left_out();
        left_out.map(|(name, why)| (name.to_owned(), why.to_owned())).collect()
    }

    /// Lists what has been found out of order as well. For a run that has ended
    /// and is not gone on with; its [`State`] is no use after that.
    pub fn close(&self) {
        self.shared.ledger.close();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// The walk's thread.
    fn walk(&self, root: Look) {
        // Stopped: the workers are, too.
        let _ = self.walk_from(&root);
        self.queue.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn walk_from(&self, root: &Look) -> Result<(), Miss> {
        let path: &Path = &self.options.path;
        let directories = here(root).filter(|(_, root)| root.attr.kind == FileKind::Directory);
        let among = directories.fold(ReplicaSet::EMPTY, |set, (id, _)| set.with(id));
        if self.resumed_at.is_none() {
            // Absolute, so that it is none in the tree.
            let position = Position { dir: PathBuf::from("/"), name: path.to_owned() };
            let number = walk::begin(self, &position, Some(path))?;
            let earlier = match self.ledger.earlier(number) {
                Earlier::Part(progress) => Some(progress),
                _ => None,
            };
            let report = |progress: &_| self.ledger.progress(number, progress);
            let found = object::object(self, path, root.clone(), earlier, report)?;
            self.ledger.done(number, found);
        }
        if among.len() > 1 { walk::walk(self, path, among) } else { Ok(()) }
    }

    /// Gives a batch to the workers, when one of them is near its turn.
    fn hand_out(&self, batch: Batch) -> Result<(), Miss> {
        let mut queue = self.queue.lock();
        while queue.batches.len() >= WAITING * self.how.window {
            if self.peers.is_stopped() {
                return Err(Miss::Stopped);
            }
            self.changed.wait_for(&mut queue, TICK);
        }
        queue.batches.push_back(batch);
        self.changed.notify_all();
        Ok(())
    }

    /// A worker's thread.
    fn work(&self) {
        while let Some(batch) = self.next_batch() {
            if object::batch(self, &batch).is_err() {
                return;
            }
        }
    }

    fn next_batch(&self) -> Option<Batch> {
        let mut queue = self.queue.lock();
        loop {
            if self.peers.is_stopped() {
                return None;
            }
            if let Some(batch) = queue.batches.pop_front() {
                self.changed.notify_all();
                return Some(batch);
            }
            if queue.is_closed {
                return None;
            }
            self.changed.wait_for(&mut queue, TICK);
        }
    }
}

#[cfg(test)]
mod tests;
