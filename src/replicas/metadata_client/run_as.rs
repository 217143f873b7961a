//! In whose name, and how, a call is made.

use crate::backend::{BackendError, Credentials, Lane, RequestContext, Result};
use crate::replicas::request_deadline::RequestDeadline;
use crate::volume::ReplicaId;

/// In whose name a call is made.
#[derive(Clone, Debug)]
pub enum RunAs {
    /// His. For what opens or changes something.
    Only(Credentials),
    /// The daemon's, and his where those do not do: where the server maps root to
    /// nobody. For looking at what the kernel has checked that he may look at.
    DaemonThenCaller(RequestContext),
    /// His, and the daemon's where those do not do. For what he may have and could
    /// not get in his own name: a program that he may run and not read, a directory
    /// that he opened when he was allowed to.
    CallerThenDaemon(Credentials),
}

impl RunAs {
    /// The daemon's own.
    pub const DAEMON: Self = Self::Only(Credentials::DAEMON);

    /// Makes a call with them.
    pub(super) fn run<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        use rustix::io::Errno;
        let caller;
        let (first, second): (_, Option<&dyn Fn() -> Credentials>) = match self {
            Self::Only(identity) => (identity, None),
            Self::CallerThenDaemon(identity) => (identity, Some(&|| Credentials::DAEMON)),
            Self::DaemonThenCaller(requester) => {
                caller = || requester.credentials();
                (&Credentials::DAEMON, Some(&caller))
            }
        };
        let with = |identity: &Credentials| {
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
pub struct SingleCall {
    /// Who is asked.
    pub replica: ReplicaId,
    /// By which of its threads.
    pub lane: Lane,
    /// By when it ends.
    pub deadline: RequestDeadline,
    /// In whose name.
    pub run_as: RunAs,
}
