//! What a backend call can fail with, and what follows from it.

use rustix::io::Errno;

/// Why a call on one replica failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The replica answered with an errno.
    #[error("{0}")]
    Os(Errno),
    /// The replica shows another version of the file than the handle's.
    #[error("it shows another version of the file")]
    Version,
    /// The file ended before the size that its version promised.
    #[error("the file ended early")]
    Short,
    /// The replica's pool has no room.
    #[error("its queue is full")]
    Busy,
    /// No answer came in time.
    #[error("it did not answer in time")]
    Late,
}

impl BackendError {
    /// Whether the error says something about the object asked for rather than
    /// about the replica, so that another replica of the same tree would say
    /// the same.
    pub fn is_definite(&self) -> bool {
        use rustix::io::Errno as E;
        let Self::Os(errno) = *self else { return false };
        matches!(
            errno,
            E::NOENT
                | E::NOTDIR
                | E::ISDIR
                | E::ACCESS
                | E::PERM
                | E::LOOP
                | E::NAMETOOLONG
                | E::INVAL
                | E::NODATA
                | E::OPNOTSUPP
                | E::RANGE
                | E::TOOBIG
                | E::NXIO
                | E::XDEV
                | E::OVERFLOW
                | E::EXIST
                | E::NOTEMPTY
                | E::NOSPC
                | E::DQUOT
                | E::ROFS
                | E::MLINK
                | E::FBIG
                | E::TXTBSY
        )
    }

    /// Whether it says something about a change or a lock rather than about the
    /// replica. Of a read the same errno would be worth asking somebody else.
    pub fn is_refusal(&self) -> bool {
        use rustix::io::Errno as E;
        let refusals = [E::BUSY, E::AGAIN, E::DEADLK, E::NOLCK, E::BADF, E::STALE];
        matches!(self, Self::Os(errno) if refusals.contains(errno)) || self.is_definite()
    }

    /// Whether the error is a mark against the replica's health. A full queue
    /// is our own doing, and another version is a matter of that one file.
    pub fn is_replica_fault(&self) -> bool {
        match self {
            Self::Os(_) => !self.is_definite(),
            Self::Late => true,
            Self::Version | Self::Short | Self::Busy => false,
        }
    }
}

impl From<Errno> for BackendError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_definite_and_no_fault_of_the_replica() {
        let e = BackendError::Os(Errno::NOENT);
        assert!(e.is_definite() && !e.is_replica_fault());
    }

    #[test]
    fn an_io_error_is_worth_another_replica() {
        for errno in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::from_raw_os_error(512)] {
            let e = BackendError::Os(errno);
            assert!(!e.is_definite() && e.is_replica_fault(), "{errno:?}");
        }
    }
}
