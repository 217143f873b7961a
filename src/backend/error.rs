//! The errors of backend calls, and how fanfs reacts to each. Only the choice of the application's
//! errno is elsewhere, in [`crate::fs::Errno`].
//!
//! | from a replica | [`ErrorOrigin`] | try another | counts against the replica |
//! |---|---|---|---|
//! | ENOENT and other answers about the object (1) | answer | no | no |
//! | EKEYEXPIRED, ENOKEY, EILSEQ and the like | object or caller | yes | no |
//! | EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR | this machine | yes | no |
//! | EIO, ENOTCONN, ESTALE, ETIMEDOUT and all other errnos (2) | unclear | yes | (3) |
//! | no answer in time, or not in service | replica | yes | yes |
//! | ESTALE of an open file | (4) | after (4) | no |
//! | too few bytes, or an end before the size (5) | object | yes | no |
//! | another version of the file, or none (5) | object | yes | no |
//! | another object at the path of a known one (6) | object | yes | no |
//!
//! 1. If the kernel has seen the object before, a second replica must agree.
//! 2. After a failed read, other replicas serve that file for a second.
//! 3. Only if the replica's root fails as well, or does not answer.
//! 4. fanfs reopens the file once; it must have the same inode and version.
//! 5. Other replicas serve that file for 3 s.
//! 6. Nothing was changed. The kernel looks the path up again.

use rustix::io::Errno;

/// Why a call on one replica failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The replica answered with an errno.
    #[error("{0}")]
    Os(Errno),
    /// The replica has another version of the file than the handle's.
    #[error("the replica has another version of the file")]
    VersionMismatch,
    /// The path leads to another object than the intended one. For the directory of a name, it may
    /// also lead to none.
    #[error("the path leads to another object")]
    WrongObject,
    /// The file ended before the size that its version promised.
    #[error("the file ended before its expected size")]
    Truncated,
    /// The replica's pool has no room.
    #[error("the replica's queue is full")]
    QueueFull,
    /// No answer came in time.
    #[error("the replica did not answer in time")]
    Late,
    /// The replica is not in service.
    #[error("the replica is absent")]
    Absent,
}

impl BackendError {
    /// Whether the error is an answer about the object rather than about the replica: another
    /// replica of the same tree would give the same answer.
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

    /// Whether the error of a change or a lock is an answer rather than a fault of the replica. For
    /// a read, fanfs would ask another replica after some of these errnos.
    pub fn is_refusal(&self) -> bool {
        use rustix::io::Errno as E;
        let refusals = [E::BUSY, E::AGAIN, E::DEADLK, E::NOLCK, E::BADF, E::STALE];
        let is_listed = matches!(self, Self::Os(errno) if refusals.contains(errno));
        is_listed || *self == Self::WrongObject || self.is_definite()
    }

    /// The cause of the error. This table alone decides it.
    pub fn origin(&self) -> ErrorOrigin {
        use rustix::io::Errno as E;
        match self {
            _ if self.is_definite() => ErrorOrigin::Answer,
            Self::VersionMismatch | Self::Truncated | Self::WrongObject => ErrorOrigin::Object,
            Self::QueueFull => ErrorOrigin::Machine,
            Self::Late | Self::Absent => ErrorOrigin::Replica,
            Self::Os(E::MFILE | E::NFILE | E::NOMEM | E::INTR | E::AGAIN) => ErrorOrigin::Machine,
            Self::Os(
                E::KEYEXPIRED
                | E::KEYREVOKED
                | E::KEYREJECTED
                | E::NOKEY
                | E::ILSEQ
                | E::BUSY
                | E::DEADLK
                | E::NOLCK
                | E::BADF
                | E::BADMSG
                | E::UCLEAN
                | E::NODEV
                | E::USERS,
            ) => ErrorOrigin::Object,
            // A server returns these for a single object (a bad block, a dead mount inside the
            // replica) and also when the whole server fails.
            Self::Os(_) => ErrorOrigin::Unclear,
        }
    }

    /// Whether this process or machine has no descriptor left.
    pub fn lacks_descriptors(&self) -> bool {
        matches!(self, Self::Os(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
    }

    /// Whether no path can be followed at present: there is no descriptor for it, or the replica is
    /// not in service. This says nothing about the object, and open files can still be used.
    pub fn prevents_lookups(&self) -> bool {
        self.lacks_descriptors() || matches!(self, Self::Absent)
    }

    /// Whether the error may count against the replica's health. A full queue or a lack of
    /// descriptors is a problem of this process; another version concerns one file.
    pub fn is_replica_fault(&self) -> bool {
        matches!(self.origin(), ErrorOrigin::Unclear | ErrorOrigin::Replica)
    }
}

/// The cause of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// None: the error is an answer about the object, and every replica would give the same.
    Answer,
    /// The object or the caller. Another replica may succeed.
    Object,
    /// This process or this machine lacks a resource.
    Machine,
    /// The object or the replica: a call on the replica's root tells which.
    Unclear,
    /// The replica.
    Replica,
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
    fn a_missing_file_does_not_count_against_the_replica() {
        let e = BackendError::Os(Errno::NOENT);
        assert!(e.is_definite() && !e.is_replica_fault());
    }

    #[test]
    fn running_out_of_local_resources_does_not_count() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let e = BackendError::Os(errno);
            assert!(!e.is_definite() && !e.is_replica_fault(), "another may have it open");
        }
    }

    #[test]
    fn errors_of_an_object_or_a_caller_never_count() {
        let keys = [Errno::KEYEXPIRED, Errno::KEYREVOKED, Errno::KEYREJECTED, Errno::NOKEY];
        for errno in keys.into_iter().chain([Errno::ILSEQ, Errno::BUSY, Errno::NOLCK]) {
            assert_eq!(BackendError::Os(errno).origin(), ErrorOrigin::Object, "{errno:?}");
            assert!(!BackendError::Os(errno).is_replica_fault());
        }
        assert_eq!(BackendError::Os(Errno::ACCESS).origin(), ErrorOrigin::Answer);
    }

    #[test]
    fn an_ambiguous_error_is_decided_by_the_root() {
        let either = [Errno::IO, Errno::NOTCONN, Errno::STALE, Errno::TIMEDOUT, Errno::HOSTDOWN];
        for errno in either.into_iter().chain([Errno::from_raw_os_error(512)]) {
            assert_eq!(BackendError::Os(errno).origin(), ErrorOrigin::Unclear, "{errno:?}");
        }
        assert_eq!(BackendError::Late.origin(), ErrorOrigin::Replica);
        assert_eq!(BackendError::VersionMismatch.origin(), ErrorOrigin::Object);
        assert_eq!(BackendError::WrongObject.origin(), ErrorOrigin::Object);
    }

    #[test]
    fn an_io_error_is_retried_on_another_replica() {
        for errno in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::from_raw_os_error(512)] {
            let e = BackendError::Os(errno);
            assert!(!e.is_definite() && e.is_replica_fault(), "{errno:?}");
        }
    }
}
