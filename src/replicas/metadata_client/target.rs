//! What a call is about.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Instant;

use super::RunAs;
use crate::backend::{Lane, PathKey};
use crate::placement::affinity::Pin;
use crate::replicas::request_deadline::RequestDeadline;
use crate::volume::{ReplicaId, ReplicaSet};

/// What a call is about, as far as it matters who is asked.
#[derive(Clone, Copy, Debug)]
pub struct CallTarget {
    /// The object, for the count of calls that hang on it.
    pub(super) path_key: PathKey,
    /// The same for all calls about one path.
    pub(super) path_hash: u64,
    /// The rule that pins it.
    pub(super) pin: Option<Pin>,
    /// The one replica that knows.
    pub(super) sole_replica: Option<ReplicaId>,
    /// Those that are asked where that one cannot answer.
    pub(super) fallback_replicas: ReplicaSet,
    /// The one that knows best.
    pub(super) preferred: Option<ReplicaId>,
    /// Whether the object is known to be there: that it is not is to be said by two.
    pub(super) is_known_to_exist: bool,
    /// When an application asked, where that was before this call.
    pub(super) requested_at: Option<Instant>,
    /// Whether it takes longer than others: see [`CallTarget::long`].
    pub(super) is_long: bool,
}

impl CallTarget {
    /// A call about `path`, which `pin` pins.
    pub fn new(path: &Path, pin: Option<Pin>) -> Self {
        let mut hasher = DefaultHasher::new();
        path.as_os_str().hash(&mut hasher);
        Self {
            path_key: PathKey::from_path(path),
            path_hash: hasher.finish(),
            pin,
            sole_replica: None,
            fallback_replicas: ReplicaSet::EMPTY,
            preferred: None,
            is_known_to_exist: false,
            requested_at: None,
            is_long: false,
        }
    }

    /// The same call, which may take long whatever others take: a listing. No session thread
    /// makes it.
    pub fn long(self) -> Self {
        Self { is_long: true, ..self }
    }

    /// The same call, whose deadline counts from `since`.
    pub fn requested_at(self, since: Instant) -> Self {
        Self { requested_at: Some(since), ..self }
    }

    /// The same call as a repetition of `before`, with the deadline of `before`.
    pub fn for_retry_of(self, before: Self) -> Self {
        Self { requested_at: before.requested_at, ..self }
    }

    /// The same call, which `replica` alone knows about.
    pub fn only_on(self, replica: ReplicaId) -> Self {
        Self { sole_replica: Some(replica), ..self }
    }

    /// The same call, which `others` answer as well where one replica alone knows and
    /// cannot answer.
    pub fn with_fallback_replicas(self, others: ReplicaSet) -> Self {
        Self { fallback_replicas: others, ..self }
    }

    /// The same call, about what is known to be there.
    pub fn known_to_exist(self) -> Self {
        Self { is_known_to_exist: true, ..self }
    }

    /// Whether one replica alone knows.
    pub fn has_sole_replica(self) -> bool {
        self.sole_replica.is_some()
    }

    /// The same call, which `replica` is asked before all others.
    pub fn preferring(self, replica: ReplicaId) -> Self {
        Self { preferred: Some(replica), ..self }
    }
}

/// How a call is made.
#[derive(Clone, Debug)]
pub(super) struct CallOptions {
    /// Whether it may change something.
    pub(super) is_mutation: bool,
    pub(super) pin: Option<Pin>,
    pub(super) path_key: PathKey,
    /// See [`CallTarget::is_known_to_exist`].
    pub(super) is_known_to_exist: bool,
    /// Whether a session thread may make it.
    pub(super) may_be_inline: bool,
    pub(super) lane: Lane,
    pub(super) run_as: RunAs,
    pub(super) deadline: RequestDeadline,
}

impl CallOptions {
    /// Of a call about `target`, which changes nothing.
    pub(super) fn query(target: CallTarget, run_as: RunAs, deadline: RequestDeadline) -> Self {
        Self {
            is_mutation: false,
            pin: target.pin,
            path_key: target.path_key,
            is_known_to_exist: target.is_known_to_exist,
            may_be_inline: !target.is_long,
            lane: Lane::Metadata,
            run_as,
            deadline,
        }
    }
}
