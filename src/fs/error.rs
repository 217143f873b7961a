//! Chooses the errno that an application gets. No other module does.

use crate::backend::BackendError;
use crate::read::ReadError;

/// An errno that an application gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// The caller has no right to the object.
    pub const ACCES: Self = Self(rustix::io::Errno::ACCESS.raw_os_error());
    /// The operation is not permitted.
    pub const PERM: Self = Self(rustix::io::Errno::PERM.raw_os_error());
    /// The handle is not open, or is closed by now.
    pub const BADF: Self = Self(rustix::io::Errno::BADF.raw_os_error());
    /// The inode has no known name any more.
    pub const STALE: Self = Self(rustix::io::Errno::STALE.raw_os_error());
    /// There is no object by that name.
    pub const NOENT: Self = Self(rustix::io::Errno::NOENT.raw_os_error());
    /// The volume is read-only.
    pub const ROFS: Self = Self(rustix::io::Errno::ROFS.raw_os_error());
    /// fanfs does not have the operation.
    pub const NOSYS: Self = Self(rustix::io::Errno::NOSYS.raw_os_error());
    /// An argument is invalid.
    pub const INVAL: Self = Self(rustix::io::Errno::INVAL.raw_os_error());
    /// There is neither data nor a hole at or after that offset.
    pub const NXIO: Self = Self(rustix::io::Errno::NXIO.raw_os_error());
    /// The caller's buffer is too small.
    pub const RANGE: Self = Self(rustix::io::Errno::RANGE.raw_os_error());
    /// Another owner holds the lock.
    pub const AGAIN: Self = Self(rustix::io::Errno::AGAIN.raw_os_error());
    /// This kind of lock is not available, or its user has too many locks.
    pub const NOLCK: Self = Self(rustix::io::Errno::NOLCK.raw_os_error());
    /// A signal interrupted the operation.
    pub const INTR: Self = Self(rustix::io::Errno::INTR.raw_os_error());
    /// The daemon has no memory for the operation.
    pub const NOMEM: Self = Self(rustix::io::Errno::NOMEM.raw_os_error());
    /// There is no such extended attribute.
    pub const NODATA: Self = Self(rustix::io::Errno::NODATA.raw_os_error());
    /// The replica's file system does not support the operation.
    pub const OPNOTSUPP: Self = Self(rustix::io::Errno::OPNOTSUPP.raw_os_error());
    /// A failure that no other errno describes.
    pub const IO: Self = Self(rustix::io::Errno::IO.raw_os_error());
    /// No answer came in time: the operation may or may not have been carried out.
    pub const TIMEDOUT: Self = Self(rustix::io::Errno::TIMEDOUT.raw_os_error());

    /// The errno with this number, which [`Errno::raw`] returned.
    pub(super) fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// The errno of an open of an inode that the kernel knows. If the path of the inode leads
    /// nowhere any more, ESTALE makes the kernel look the name up again. The kernel then creates
    /// the file for open(2) with O_CREAT, and otherwise returns ENOENT.
    pub(super) fn of_known_inode(error: BackendError) -> Self {
        use rustix::io::Errno as E;
        match error {
            BackendError::Os(E::NOENT | E::NOTDIR) => Self::STALE,
            error => error.into(),
        }
    }

    /// The errno's number; always positive.
    pub fn raw(self) -> i32 {
        self.0
    }
}

/// The result of an operation.
pub type FsResult<T> = Result<T, Errno>;

/// Errnos above this are internal to the kernel (512 is ERESTARTSYS, and some NFS servers let such
/// numbers through). No application expects them.
const MAX_ERRNO: i32 = 133;

impl From<BackendError> for Errno {
    fn from(error: BackendError) -> Self {
        match error {
            // A component of the path became a symbolic link: the kernel's view of the path is out
            // of date.
            BackendError::Os(rustix::io::Errno::LOOP) => Self::STALE,
            BackendError::Os(errno) => match errno.raw_os_error() {
                raw @ 1..=MAX_ERRNO => Self(raw),
                _ => Self::IO,
            },
            BackendError::VersionMismatch | BackendError::WrongObject => Self::STALE,
            BackendError::Truncated | BackendError::QueueFull | BackendError::Absent => Self::IO,
            BackendError::Late => Self::TIMEDOUT,
        }
    }
}

impl From<ReadError> for Errno {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Failed(error) => error.into(),
            ReadError::Deadline => Self::TIMEDOUT,
            ReadError::Stopped => Self::IO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_errnos_become_eio() {
        let odd = BackendError::Os(rustix::io::Errno::from_raw_os_error(512));
        assert_eq!(Errno::from(odd), Errno::IO);
        assert_eq!(Errno::from(BackendError::Os(rustix::io::Errno::NOENT)).raw(), 2);
    }

    #[test]
    fn a_timeout_becomes_etimedout() {
        assert_eq!(Errno::from(ReadError::Deadline), Errno::TIMEDOUT);
        assert_eq!(Errno::from(ReadError::Failed(BackendError::Late)), Errno::TIMEDOUT);
    }
}
