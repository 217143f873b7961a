//! The object of a call, and preferences for replicas.

use std::path::Path;
use std::time::Instant;

use super::{ChangeClass, RunAs};
use crate::backend::{Lane, PathKey};
use crate::placement::affinity::Pin;
use crate::replicas::request_deadline::RequestDeadline;
use crate::volume::{ReplicaId, ReplicaSet};

/// The object of a call, with everything that matters for the choice of replicas.
#[derive(Clone, Copy, Debug)]
pub struct CallTarget {
    /// The key by which the pools count calls that hang on the object.
    pub(super) path_key: PathKey,
    /// A hash of the path.
    pub(super) path_hash: u64,
    /// The affinity rule that pins it.
    pub(super) pin: Option<Pin>,
    /// The only replica that can answer.
    pub(super) sole_replica: Option<ReplicaId>,
    /// Replicas to ask if that one cannot answer.
    pub(super) fallback_replicas: ReplicaSet,
    /// The replica to ask first.
    pub(super) preferred: Option<ReplicaId>,
    /// Whether the object is known to exist: two replicas must agree that it is missing.
    pub(super) is_known_to_exist: bool,
    /// When the application made the request, if that was before this call.
    pub(super) requested_at: Option<Instant>,
    /// Whether it takes longer than other calls: see [`CallTarget::long`].
    pub(super) is_long: bool,
}

impl CallTarget {
    /// A call about `path`, which the rule `pin` pins if there is one.
    pub fn new(path: &Path, pin: Option<Pin>) -> Self {
        let path_key = PathKey::from_path(path);
        Self {
            path_hash: path_key.hash(),
            path_key,
            pin,
            sole_replica: None,
            fallback_replicas: ReplicaSet::EMPTY,
            preferred: None,
            is_known_to_exist: false,
            requested_at: None,
            is_long: false,
        }
    }

    /// A hash of the path.
    pub fn path_hash(&self) -> u64 {
        self.path_hash
    }

    /// The same call, marked as possibly much longer than others: a listing. No session thread
    /// makes it.
    pub fn long(self) -> Self {
        Self { is_long: true, ..self }
    }

    /// The same call, with a deadline that counts from `since`.
    pub fn requested_at(self, since: Instant) -> Self {
        Self { requested_at: Some(since), ..self }
    }

    /// The same call as a retry of `before`, with the deadline of `before`.
    pub fn for_retry_of(self, before: Self) -> Self {
        Self { requested_at: before.requested_at, ..self }
    }

    /// The same call, which only `replica` can answer.
    pub fn only_on(self, replica: ReplicaId) -> Self {
        Self { sole_replica: Some(replica), ..self }
    }

    /// The same call, with replicas to ask if the only one cannot answer.
    pub fn with_fallback_replicas(self, others: ReplicaSet) -> Self {
        Self { fallback_replicas: others, ..self }
    }

    /// The same call, about an object that is known to exist.
    pub fn known_to_exist(self) -> Self {
        Self { is_known_to_exist: true, ..self }
    }

    /// Whether an affinity rule pins it.
    pub fn is_pinned(&self) -> bool {
        self.pin.is_some()
    }

    /// Whether only one replica can answer.
    pub fn has_sole_replica(self) -> bool {
        self.sole_replica.is_some()
    }

    /// The same call, asking `replica` first.
    pub fn preferring(self, replica: ReplicaId) -> Self {
        Self { preferred: Some(replica), ..self }
    }
}

/// The properties of a call.
#[derive(Clone, Debug)]
pub(super) struct CallOptions {
    /// Present if it may change something.
    pub(super) change: Option<ChangeClass>,
    pub(super) pin: Option<Pin>,
    pub(super) path_key: PathKey,
    /// See [`CallTarget::is_known_to_exist`].
    pub(super) is_known_to_exist: bool,
    /// See [`CallTarget::long`].
    pub(super) is_long: bool,
    pub(super) lane: Lane,
    pub(super) run_as: RunAs,
    pub(super) deadline: RequestDeadline,
}

impl CallOptions {
    /// Whether it may change something.
    pub(super) fn is_mutation(&self) -> bool {
        self.change.is_some()
    }

    /// Whether it is short, and competes with others of this kind for a replica's threads.
    pub(super) fn is_short(&self) -> bool {
        self.lane == Lane::Metadata && !self.is_long && self.change != Some(ChangeClass::Long)
    }

    /// The options of a call about `target` that changes nothing.
    pub(super) fn query(target: CallTarget, run_as: RunAs, deadline: RequestDeadline) -> Self {
        Self {
            change: None,
            pin: target.pin,
            path_key: target.path_key,
            is_known_to_exist: target.is_known_to_exist,
            is_long: target.is_long,
            lane: Lane::Metadata,
            run_as,
            deadline,
        }
    }
}
