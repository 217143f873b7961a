//! What a call is about.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Instant;

use crate::backend::{About, Lane};
use crate::placement::affinity::Pin;
use crate::volume::{ReplicaId, ReplicaSet};

/// What a call is about, as far as it matters who is asked.
#[derive(Clone, Copy, Debug)]
pub(in crate::fs) struct Spot {
    /// The object, for the count of calls that hang on it.
    pub(super) about: About,
    /// The same for all calls about one path.
    pub(super) affinity: u64,
    /// The rule that pins it.
    pub(super) pin: Option<Pin>,
    /// The one replica that knows.
    pub(super) only: Option<ReplicaId>,
    /// Those that are asked where that one cannot answer.
    pub(super) otherwise: ReplicaSet,
    /// The one that knows best.
    pub(super) first: Option<ReplicaId>,
    /// Whether the object is known to be there: that it is not is to be said by two.
    pub(super) known: bool,
    /// When an application asked, where that was before this call.
    pub(super) since: Option<Instant>,
}

impl Spot {
    /// A call about `path`, which `pin` pins.
    pub(in crate::fs) fn new(path: &Path, pin: Option<Pin>) -> Self {
        let mut hasher = DefaultHasher::new();
        path.as_os_str().hash(&mut hasher);
        Self {
            about: About::path(path),
            affinity: hasher.finish(),
            pin,
            only: None,
            otherwise: ReplicaSet::EMPTY,
            first: None,
            known: false,
            since: None,
        }
    }

    /// The same call, whose deadline counts from `since`.
    pub(in crate::fs) fn since(self, since: Instant) -> Self {
        Self { since: Some(since), ..self }
    }

    /// The same call as a repetition of `before`, with the deadline of `before`.
    pub(in crate::fs) fn instead_of(self, before: Self) -> Self {
        Self { since: before.since, ..self }
    }

    /// The same call, which `replica` alone knows about.
    pub(in crate::fs) fn only(self, replica: ReplicaId) -> Self {
        Self { only: Some(replica), ..self }
    }

    /// The same call, which `others` answer as well where one replica alone knows and
    /// cannot answer.
    pub(in crate::fs) fn otherwise(self, others: ReplicaSet) -> Self {
        Self { otherwise: others, ..self }
    }

    /// The same call, about what is known to be there.
    pub(in crate::fs) fn known(self) -> Self {
        Self { known: true, ..self }
    }

    /// Whether one replica alone knows.
    pub(in crate::fs) fn is_only(self) -> bool {
        self.only.is_some()
    }

    /// The same call, which `replica` is asked before all others.
    pub(in crate::fs) fn first(self, replica: ReplicaId) -> Self {
        Self { first: Some(replica), ..self }
    }
}

/// The kind of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Whether it may change something.
    pub(super) once: bool,
    pub(super) pin: Option<Pin>,
    pub(super) about: About,
    /// See [`Spot::known`].
    pub(super) known: bool,
    pub(super) lane: Lane,
}

impl From<Spot> for Kind {
    fn from(spot: Spot) -> Self {
        Self {
            once: false,
            pin: spot.pin,
            about: spot.about,
            known: spot.known,
            lane: Lane::Metadata,
        }
    }
}
