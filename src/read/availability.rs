//! The availability of replicas: it tells which replicas metadata calls may ask and whether
//! a set of replicas answers, and records the outcome of each call.

use std::sync::Arc;
use std::time::Instant;

use super::Reader;
use crate::scheduler::health::CallOutcome;
use crate::scheduler::health_board::Responsiveness;
use crate::volume::{ReplicaId, ReplicaSet};

/// Who may be asked for metadata.
#[derive(Clone, Copy, Debug)]
pub struct Availability {
    /// All who may be asked at all.
    pub usable: ReplicaSet,
    /// Those of them who failed or were late lately.
    pub suspects: ReplicaSet,
    /// Those of the suspect that failed by errors, and answer in time.
    pub error_suspects: ReplicaSet,
}

impl Reader {
    /// Who may be asked for metadata.
    pub fn availability(&self) -> Availability {
        let mut scheduler = self.scheduler.lock();
        let availability = Availability {
            usable: scheduler.usable(Instant::now()),
            suspects: scheduler.suspects(),
            error_suspects: scheduler.error_suspects(),
        };
        let all_are_in = scheduler.all_available();
        drop(scheduler);
        if !all_are_in {
            self.wake_ticker();
        }
        availability
    }

    /// Whether any replica of a set answers; its roots are asked. For what has waited for
    /// long.
    pub fn responsiveness(self: &Arc<Self>, of: ReplicaSet, now: Instant) -> Responsiveness {
        let (silence, to_prove) = {
            let mut scheduler = self.scheduler.lock();
            (scheduler.responsiveness(of, now), scheduler.due_mount_checks(now))
        };
        for replica in to_prove.iter() {
            self.start_mount_check(replica, |_| {});
            self.wake_ticker();
        }
        silence
    }

    /// What a metadata call told of a replica.
    pub fn record_call(self: &Arc<Self>, replica: ReplicaId, heard: CallOutcome) {
        let now = Instant::now();
        let to_prove = {
            let mut scheduler = self.scheduler.lock();
            scheduler.record_call(replica, heard, now);
            match heard {
                CallOutcome::AmbiguousError | CallOutcome::Unanswered => {
                    scheduler.due_mount_checks(now)
                }
                CallOutcome::Success | CallOutcome::Late => ReplicaSet::EMPTY,
            }
        };
        for replica in to_prove.iter() {
            self.start_mount_check(replica, |_| {});
            self.wake_ticker();
        }
    }
}
