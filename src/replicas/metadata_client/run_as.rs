//! The credentials of a call.

use crate::backend::{BackendError, Credentials, Lane, RequestContext, Result};
use crate::replicas::request_deadline::RequestDeadline;
use crate::volume::ReplicaId;

/// The credentials under which a call is made. A second try follows EACCES or EPERM only.
#[derive(Clone, Debug)]
pub enum RunAs {
    /// Only these, usually the caller's. For calls that open or change something.
    Only(Credentials),
    /// The daemon's, then the caller's if those are refused, such as where the server maps root to
    /// `nobody`. For reading objects that the kernel has already allowed the caller to read.
    DaemonThenCaller(RequestContext),
    /// The caller's, then the daemon's if those are refused. For data to which the caller is
    /// entitled although its own credentials do not open it. Examples are a program that it may
    /// execute but not read, and a directory that it opened while it was allowed to.
    CallerThenDaemon(Credentials),
}

impl RunAs {
    /// The daemon's own credentials.
    pub const DAEMON: Self = Self::Only(Credentials::DAEMON);

    /// Makes a call under these credentials.
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

/// How long a change usually takes. This decides which threads may make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeClass {
    /// A change of names, about as long as a lookup. A session thread may make it, and those of the
    /// next two classes, while the replica makes such changes quickly.
    Names,
    /// A write, of which a replica may only take note.
    Data,
    /// A flush, or a call that may need one: attributes of a file with unwritten data.
    Flush,
    /// It may wait for storage, for another change, or for a lock. Only the replica's own threads
    /// make it.
    Long,
}

/// The parameters of a call that changes something.
#[derive(Clone, Debug)]
pub struct SingleCall {
    /// The replica to ask.
    pub replica: ReplicaId,
    /// How long it usually takes.
    pub class: ChangeClass,
    /// The lane of the job.
    pub lane: Lane,
    /// Its time limit.
    pub deadline: RequestDeadline,
    /// Its credentials.
    pub run_as: RunAs,
}
