//! Errors of calls, and their errnos.

use std::io;
use std::sync::Arc;

use nfs3_types::nfs3::nfsstat3;
use rustix::io::Errno;
use thiserror::Error;

use crate::nfs::rpc::{Refusal, RpcError};
use crate::nfs::xdr::DecodeError;

/// A call that failed.
#[derive(Clone, Debug, Error)]
pub enum NfsError {
    /// The call has no results.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The server executed the call, which failed.
    #[error("{0}")]
    Status(Status),
    /// The object cannot be used so. No server was asked.
    #[error("{0}")]
    Object(Errno),
    /// No session with the NFSv4.1 server can carry the call now.
    #[error("the server has ended the session")]
    NoSession,
    /// This process can have no more threads or descriptors.
    #[error("cannot start a client: {0}")]
    Resources(Arc<io::Error>),
}

impl From<DecodeError> for NfsError {
    fn from(error: DecodeError) -> Self {
        Self::Rpc(error.into())
    }
}

impl NfsError {
    /// Whether the server cannot execute the call yet.
    pub fn is_jukebox(&self) -> bool {
        matches!(self, Self::Status(Status::JUKEBOX | Status::GRACE))
    }

    /// The errno that a program gets.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Object(errno) => *errno,
            Self::NoSession => Errno::TIMEDOUT,
            Self::Resources(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
            Self::Status(status) => status.errno(),
            Self::Rpc(
                RpcError::Late | RpcError::Unwanted | RpcError::Unreachable { .. } | RpcError::Lost,
            ) => Errno::TIMEDOUT,
            Self::Rpc(RpcError::Stopped) => Errno::NOTCONN,
            Self::Rpc(RpcError::NoMemory) => Errno::NOMEM,
            Self::Rpc(RpcError::Malformed(_)) => Errno::IO,
            Self::Rpc(RpcError::Refused(refusal)) => match refusal {
                Refusal::WeakCredentials | Refusal::Credentials(_) => Errno::ACCESS,
                Refusal::Program | Refusal::Version { .. } | Refusal::RpcVersion => {
                    Errno::PROTONOSUPPORT
                }
                Refusal::Procedure => Errno::OPNOTSUPP,
                Refusal::Arguments | Refusal::System => Errno::IO,
            },
        }
    }
}

/// A server's error (`nfsstat3`, RFC 1813, section 2.6; `nfsstat4`, RFC 8881, section 15). The two
/// have the same numbers for the same errors. Never `NFS3_OK`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(u32);

impl Status {
    pub(crate) const BAD_COOKIE: Self = Self(nfsstat3::NFS3ERR_BAD_COOKIE as u32);
    pub(crate) const JUKEBOX: Self = Self(nfsstat3::NFS3ERR_JUKEBOX as u32);
    pub(crate) const NOT_SUPPORTED: Self = Self(nfsstat3::NFS3ERR_NOTSUPP as u32);
    pub(crate) const EXPIRED: Self = Self(10_011);
    pub(crate) const GRACE: Self = Self(10_013);
    pub(crate) const WRONG_SECURITY: Self = Self(10_016);
    pub(crate) const MINOR_VERSION: Self = Self(10_021);
    pub(crate) const STALE_CLIENT: Self = Self(10_022);
    pub(crate) const BAD_SESSION: Self = Self(10_052);
    pub(crate) const BAD_SLOT: Self = Self(10_053);
    pub(crate) const CONNECTION_NOT_BOUND: Self = Self(10_055);
    pub(crate) const NOT_SAME: Self = Self(10_027);
    pub(crate) const SEQUENCE_MISORDERED: Self = Self(10_063);
    pub(crate) const RETRY_UNCACHED_REPLY: Self = Self(10_068);
    pub(crate) const SEQUENCE_FALSE_RETRY: Self = Self(10_076);
    pub(crate) const BAD_HIGH_SLOT: Self = Self(10_077);
    pub(crate) const DEAD_SESSION: Self = Self(10_078);

    /// Errors of NFSv4 alone.
    const OF_VERSION_4: &[(Self, Errno)] = &[
        (Self(10_012), Errno::ACCESS), // LOCKED
        (Self::GRACE, Errno::TIMEDOUT),
        (Self(10_014), Errno::STALE),  // FHEXPIRED
        (Self(10_015), Errno::ACCESS), // SHARE_DENIED
        (Self::WRONG_SECURITY, Errno::ACCESS),
        (Self(10_018), Errno::REMOTEIO), // RESOURCE
        (Self(10_019), Errno::REMOTE),   // MOVED
        (Self::MINOR_VERSION, Errno::PROTONOSUPPORT),
        (Self(10_029), Errno::LOOP),  // SYMLINK
        (Self(10_040), Errno::INVAL), // BADCHAR
        (Self(10_041), Errno::INVAL), // BADNAME
    ];

    /// Whether the server does not know the handle, or no longer. Its path may lead to another.
    pub fn is_stale(self) -> bool {
        self.errno() == Errno::STALE
    }

    /// The result of a call whose status this is.
    pub(crate) fn check(number: u32) -> Result<(), NfsError> {
        match number {
            0 => Ok(()),
            number => Err(NfsError::Status(Self(number))),
        }
    }

    /// The errno that a program gets.
    pub fn errno(self) -> Errno {
        const KNOWN: &[(nfsstat3, Errno)] = &[
            (nfsstat3::NFS3ERR_PERM, Errno::PERM),
            (nfsstat3::NFS3ERR_NOENT, Errno::NOENT),
            (nfsstat3::NFS3ERR_IO, Errno::IO),
            (nfsstat3::NFS3ERR_NXIO, Errno::NXIO),
            (nfsstat3::NFS3ERR_ACCES, Errno::ACCESS),
            (nfsstat3::NFS3ERR_EXIST, Errno::EXIST),
            (nfsstat3::NFS3ERR_XDEV, Errno::XDEV),
            (nfsstat3::NFS3ERR_NODEV, Errno::NODEV),
            (nfsstat3::NFS3ERR_NOTDIR, Errno::NOTDIR),
            (nfsstat3::NFS3ERR_ISDIR, Errno::ISDIR),
            (nfsstat3::NFS3ERR_INVAL, Errno::INVAL),
            (nfsstat3::NFS3ERR_FBIG, Errno::FBIG),
            (nfsstat3::NFS3ERR_NOSPC, Errno::NOSPC),
            (nfsstat3::NFS3ERR_ROFS, Errno::ROFS),
            (nfsstat3::NFS3ERR_MLINK, Errno::MLINK),
            (nfsstat3::NFS3ERR_NAMETOOLONG, Errno::NAMETOOLONG),
            (nfsstat3::NFS3ERR_NOTEMPTY, Errno::NOTEMPTY),
            (nfsstat3::NFS3ERR_DQUOT, Errno::DQUOT),
            (nfsstat3::NFS3ERR_STALE, Errno::STALE),
            (nfsstat3::NFS3ERR_REMOTE, Errno::REMOTE),
            // A handle of a server that has forgotten it; looking the path up again helps.
            (nfsstat3::NFS3ERR_BADHANDLE, Errno::STALE),
            (nfsstat3::NFS3ERR_NOTSUPP, Errno::OPNOTSUPP),
            (nfsstat3::NFS3ERR_SERVERFAULT, Errno::REMOTEIO),
            // Of EAGAIN a program would think that it can wait for the file with poll(2).
            (nfsstat3::NFS3ERR_JUKEBOX, Errno::TIMEDOUT),
        ];
        let known = KNOWN.iter().map(|(status, errno)| (Self(*status as u32), *errno));
        let mut known = known.chain(Self::OF_VERSION_4.iter().copied());
        // The others are of calls that a reader does not make, or that it should not have made.
        known.find(|(status, _)| *status == self).map_or(Errno::IO, |(_, errno)| errno)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the server answers: {} (NFS status {})", self.errno(), self.0)
    }
}

impl std::fmt::Debug for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
