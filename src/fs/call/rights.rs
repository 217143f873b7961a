//! In whose name, and how, a call is made.

use crate::backend::{BackendError, Identity, Lane, Requester, Result};
use crate::read::Term;
use crate::volume::ReplicaId;

/// In whose name a call is made.
#[derive(Clone, Debug)]
pub(in crate::fs) enum Rights {
    /// His. For what opens or changes something.
    Of(Identity),
    /// The daemon's, and his where those do not do: where the server maps root to
    /// nobody. For looking at what the kernel has checked that he may look at.
    Enough(Requester),
    /// His, and the daemon's where those do not do. For what he may have and could
    /// not get in his own name: a program that he may run and not read, a directory
    /// that he opened when he was allowed to.
    Granted(Identity),
}

impl Rights {
    /// The daemon's own.
    pub(in crate::fs) const DAEMON: Self = Self::Of(Identity::DAEMON);

    /// Makes a call with them.
    pub(super) fn exert<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        use rustix::io::Errno;
        let (first, second): (_, Option<&dyn Fn() -> Identity>) = match self {
            Self::Of(identity) => (identity, None),
            Self::Granted(identity) => (identity, Some(&|| Identity::DAEMON)),
            Self::Enough(requester) => (&Identity::DAEMON, Some(&|| requester.identity())),
        };
        let with = |identity: &Identity| {
            let _assumed = identity.assume()?;
            call()
        };
        match (with(first), second) {
            (Err(BackendError::Os(Errno::ACCESS | Errno::PERM)), Some(second)) => with(&second()),
            (answer, _) => answer,
        }
    }
}

/// How a call that changes something is made.
#[derive(Clone, Debug)]
pub(in crate::fs) struct Once {
    /// Who is asked.
    pub(in crate::fs) replica: ReplicaId,
    /// By which of its threads.
    pub(in crate::fs) lane: Lane,
    /// By when it ends.
    pub(in crate::fs) term: Term,
    /// In whose name.
    pub(in crate::fs) rights: Rights,
}
