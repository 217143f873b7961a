//! The availability of replicas: which may be asked, whether a set of them answers, and how the
//! outcome of each call counts.

use std::sync::Arc;
use std::time::Instant;

use super::Replicas;
use super::health::CallOutcome;
use super::health_board::Responsiveness;
use crate::volume::{ReplicaId, ReplicaSet, VolumeMode};

/// Which replicas may be asked.
#[derive(Clone, Copy, Debug)]
pub struct Availability {
    /// All that may be asked; all replicas if none should be.
    pub usable: ReplicaSet,
    /// Those that failed or were late recently.
    pub suspects: ReplicaSet,
    /// The suspects that failed with errors and answer in time.
    pub error_suspects: ReplicaSet,
    /// Those that may not be asked for data only because they deliver it slowly.
    pub merely_slow: ReplicaSet,
}

impl Availability {
    /// The replicas that may be asked by metadata calls. In `copies` mode the first of them decides:
    /// a copy does not become the right one because those before it read slowly.
    pub fn for_calls(&self, mode: VolumeMode) -> ReplicaSet {
        match mode {
            VolumeMode::Copies => self.usable.or(self.merely_slow),
            VolumeMode::Shared => self.usable,
        }
    }
}

impl Replicas {
    /// Which replicas may be asked now.
    pub fn availability(&self) -> Availability {
        let mut health = self.lock_health();
        let now = Instant::now();
        let usable = health.usable(now);
        let availability = Availability {
            usable,
            suspects: health.suspects(),
            error_suspects: health.error_suspects(),
            merely_slow: match usable == self.all() {
                true => ReplicaSet::EMPTY,
                false => health.merely_slow(now),
            },
        };
        let all_are_in = health.all_available();
        drop(health);
        if !all_are_in {
            self.ticker.wake_to_linger();
        }
        availability
    }

    /// Whether any replica of a set answers. Asks their roots, so call it only for requests that
    /// have waited for long.
    pub fn responsiveness(
        self: &Arc<Self>,
        of: ReplicaSet,
        since: Instant,
        now: Instant,
    ) -> Responsiveness {
        let mut health = self.lock_health();
        let responsiveness = health.responsiveness(of, since, now);
        let due = health.due_mount_checks(now);
        drop(health);
        self.start_mount_checks(due);
        responsiveness
    }

    /// Records the outcome of a metadata call.
    pub fn record_call(self: &Arc<Self>, replica: ReplicaId, outcome: CallOutcome) {
        let now = Instant::now();
        let mut health = self.lock_health();
        health.record_call(replica, outcome, now);
        let due = match outcome {
            CallOutcome::AmbiguousError | CallOutcome::Unanswered => health.due_mount_checks(now),
            CallOutcome::Success | CallOutcome::Late => ReplicaSet::EMPTY,
        };
        drop(health);
        self.start_mount_checks(due);
    }
}
