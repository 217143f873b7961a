//! Files that the kernel reads from one replica by itself.
//!
//! If passthrough is configured, the first open of a file chooses a replica, and lends the kernel
//! that replica's descriptor. Reads then never reach fanfs, and cost as much as reads of the
//! replica. The scheduler does not see them, and no other replica takes over if this one fails.
//! This module decides which replica to use, and records why passthrough is not possible.
//! [`super::open_files`] carries that out.
//!
//! *Invariants:*
//! - The first open of an inode decides how the kernel reads it, until its last handle is closed.
//!   The kernel refuses (EIO) an open that disagrees with the others, or that names another
//!   descriptor.
//! - A lent descriptor is taken back with the inode's last handle.
//! - An obstacle is logged once and is no error: the file is then read like all others.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use super::kernel_open::{BackingId, KernelOpen};
use crate::backend::{Attr, BackendFile};
use crate::scheduler::ReplicaSnapshot;
use crate::sync::before_io;
use crate::volume::{ReplicaId, ReplicaMap, ReplicaSet};

/// A file of one replica that the kernel reads by itself.
pub struct PassthroughFile {
    /// The replica that has it open.
    pub(super) replica: ReplicaId,
    file: Arc<dyn BackendFile>,
    backing_id: BackingId,
    size: u64,
}

/// Passthrough files of a volume, and the obstacles to more.
pub(super) struct Passthrough {
    wanted: bool,
    state: Mutex<PassthroughState>,
}

struct PassthroughState {
    /// Whether the kernel and the daemon's privileges allow passthrough.
    possible: bool,
    /// Replicas whose files cannot be lent.
    disabled_replicas: ReplicaSet,
    obstacles: BTreeSet<String>,
    /// Bytes of the files lent on each replica.
    open_bytes: ReplicaMap<u64>,
    files: usize,
    opens: u64,
}

/// The state of passthrough, as `fanfs status` shows it.
#[derive(Clone, Debug, Default)]
pub struct PassthroughStatus {
    /// Whether passthrough is configured.
    pub wanted: bool,
    /// Opens that were answered with a lent file.
    pub opens: u64,
    /// Lent files that are open.
    pub files: usize,
    /// The obstacles seen so far.
    pub obstacles: Vec<String>,
}

/// Replicas whose expected completion is within this factor of the least take turns.
const SIMILAR_TIME_RATIO: f64 = 1.2;

impl PassthroughFile {
    /// The attributes of the file that the kernel reads. Blocks.
    pub(super) fn attr(&self) -> crate::backend::Result<Attr> {
        self.file.attr()
    }

    /// Identifies the lent file to the kernel.
    pub fn backing_id(&self) -> &(dyn Any + Send + Sync) {
        &*self.backing_id
    }
}

impl Passthrough {
    pub(super) fn new(wanted: bool, replicas: usize) -> Self {
        let state = PassthroughState {
            possible: true,
            disabled_replicas: ReplicaSet::EMPTY,
            obstacles: BTreeSet::new(),
            open_bytes: ReplicaMap::from_fn(replicas, |_| 0),
            files: 0,
            opens: 0,
        };
        Self { wanted, state: Mutex::new(state) }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    pub(super) fn status(&self) -> PassthroughStatus {
        let state = self.state.lock();
        PassthroughStatus {
            wanted: self.wanted,
            opens: state.opens,
            files: state.files,
            obstacles: state.obstacles.iter().cloned().collect(),
        }
    }

    /// Turns passthrough off for this volume.
    pub(super) fn disable(&self, why: String) {
        self.state.lock().possible = false;
        self.add_obstacle(why);
    }

    fn disable_for(&self, replica: ReplicaId, why: String) {
        {
            let mut state = self.state.lock();
            state.disabled_replicas = state.disabled_replicas.with(replica);
        }
        self.add_obstacle(why);
    }

    fn add_obstacle(&self, why: String) {
        if self.state.lock().obstacles.insert(why.clone()) {
            tracing::info!(%why, "no passthrough for some or all files");
        }
    }

    /// The replica to lend a file of `size` bytes from. Each set of `preferred` in turn restricts
    /// the choice, unless no replica is left. `None` if no replica can lend files.
    pub(super) fn choose_replica(
        &self,
        standings: &ReplicaMap<ReplicaSnapshot>,
        usable: ReplicaSet,
        preferred: [ReplicaSet; 2],
        size: u64,
    ) -> Option<ReplicaId> {
        let state = self.state.lock();
        if !self.wanted || !state.possible {
            return None;
        }
        let mut set = usable.minus(state.disabled_replicas);
        for wish in preferred {
            let granted = set.and(wish);
            set = if granted.is_empty() { set } else { granted };
        }
        choose_soonest(&expected_completion(standings, &state.open_bytes, size), set, state.opens)
    }

    /// Lends the kernel `file`, which `replica` has open, if that is possible.
    pub(super) fn open_backing(
        &self,
        replica: ReplicaId,
        name: &str,
        file: Arc<dyn BackendFile>,
        size: u64,
        kernel: &impl KernelOpen,
    ) -> Option<Arc<PassthroughFile>> {
        let Some(descriptor) = file.descriptor() else {
            self.disable_for(
                replica,
                format!("replica {name} has a max_rate, or its files have no descriptors"),
            );
            return None;
        };
        before_io("the registration of a backing file");
        match kernel.register_backing(descriptor) {
            Ok(lent) => {
                // The kernel reads through it as an application would.
                let _ = fadvise(descriptor, 0, None, Advice::Normal);
                let mut state = self.state.lock();
                state.files += 1;
                state.open_bytes[replica] += size;
                Some(Arc::new(PassthroughFile { replica, file, backing_id: lent, size }))
            }
            Err(error) => {
                self.record_failure(replica, name, &error);
                None
            }
        }
    }

    fn record_failure(&self, replica: ReplicaId, name: &str, error: &std::io::Error) {
        let errno = Errno::from_io_error(error);
        match errno {
            Some(Errno::PERM) => {
                self.disable("the daemon lacks CAP_SYS_ADMIN".to_owned());
            }
            None | Some(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.disable(format!("the kernel refuses passthrough: {error}"));
            }
            // These resources may be available again later.
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOSPC) => {
                self.add_obstacle(format!("replica {name}: {error}"));
            }
            Some(Errno::LOOP) => {
                self.disable_for(
                    replica,
                    format!("replica {name}: its file system is stacked on another one"),
                );
            }
            Some(_) => self.disable_for(replica, format!("replica {name}: {error}")),
        }
    }

    /// An open was answered with a lent file.
    pub(super) fn count_open(&self) {
        self.state.lock().opens += 1;
    }

    /// The last handle of a lent file is closed.
    pub(super) fn release(&self, backing: &PassthroughFile) {
        let mut state = self.state.lock();
        state.files -= 1;
        state.open_bytes[backing.replica] -= backing.size;
    }
}

/// When each replica would complete a file of `size` bytes, seconds. Bytes in flight and files lent
/// before come first.
fn expected_completion(
    standings: &ReplicaMap<ReplicaSnapshot>,
    lent: &ReplicaMap<u64>,
    size: u64,
) -> ReplicaMap<f64> {
    standings.map(|id, standing| {
        let bytes = standing.in_flight.saturating_add(lent[id]).saturating_add(size);
        standing.latency.as_secs_f64() + bytes as f64 / standing.rate.local.max(1.0)
    })
}

/// The replica of `set` that is expected to complete first; those that are nearly as quick take
/// turns.
fn choose_soonest(expected: &ReplicaMap<f64>, set: ReplicaSet, turn: u64) -> Option<ReplicaId> {
    let least = set.iter().map(|id| expected[id]).min_by(f64::total_cmp)?;
    let alike: Vec<_> =
        set.iter().filter(|id| expected[*id] <= least * SIMILAR_TIME_RATIO).collect();
    alike.get((turn % alike.len().max(1) as u64) as usize).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn r(i: usize) -> ReplicaId {
        ReplicaId::new(i)
    }

    #[test]
    fn the_fastest_replica_is_chosen_and_ties_alternate() {
        let times = ReplicaMap::from_iter([1.0, 3.0, 1.1]);
        let all = times.all();
        let chosen: Vec<_> = (0..4).map(|turn| choose_soonest(&times, all, turn)).collect();
        assert_eq!(chosen, [Some(r(0)), Some(r(2)), Some(r(0)), Some(r(2))]);
        let slow = ReplicaSet::EMPTY.with(r(1));
        assert_eq!(choose_soonest(&times, slow, 7), Some(r(1)));
        assert_eq!(choose_soonest(&times, ReplicaSet::EMPTY, 0), None);
    }
}
