//! What a backend call can fail with, and what follows from it. All that fanfs
//! makes of an errno is here, but what the application is told, which is in
//! [`crate::fs::Errno`]:
//!
//! | from a replica | [`Origin`] | another one is asked | counts against the replica | besides |
//! |---|---|---|---|---|
//! | ENOENT and others that say something of the object | the answer | no | no | of an object that the kernel was shown before: a second replica has to agree |
//! | EKEYEXPIRED, ENOKEY, EILSEQ and their like | the object or the caller | yes | no | |
//! | EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR | this machine | yes | no | |
//! | EIO, ENOTCONN, ESTALE, ETIMEDOUT, EHOSTDOWN, errnos that applications do not know | unclear | yes | where the replica's root fails as well, or does not answer | a read: that file is read from others for a second |
//! | silence | the replica | yes | yes | |
//! | it is absent: not in service | the replica | yes | yes | |
//! | ESTALE of an open file | | after it | no | it is opened anew once, and has to show the same inode and version |
//! | too few bytes, an end before the size | | yes | no | that file is read from others for 3 s |
//! | another version, or none | | yes | no | the same |

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
    /// The replica is not in service.
    #[error("it is absent")]
    Absent,
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

    /// Whose trouble the error is. The one table of it.
    pub fn origin(&self) -> Origin {
        use rustix::io::Errno as E;
        match self {
            _ if self.is_definite() => Origin::Answer,
            Self::Version | Self::Short => Origin::Object,
            Self::Busy => Origin::Machine,
            Self::Late | Self::Absent => Origin::Replica,
            Self::Os(E::MFILE | E::NFILE | E::NOMEM | E::INTR | E::AGAIN) => Origin::Machine,
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
            ) => Origin::Object,
            // Servers answer so for one object (a bad block, a dead mount inside the
            // replica) and for all that they have.
            Self::Os(_) => Origin::Unclear,
        }
    }

    /// Whether the error may be a mark against the replica's health. A full queue, and
    /// what this process has run out of, is our own doing; another version is a
    /// matter of that one file.
    pub fn is_replica_fault(&self) -> bool {
        matches!(self.origin(), Origin::Unclear | Origin::Replica)
    }
}

/// Whose trouble an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody's: it says something of the object, and every replica would say the same.
    Answer,
    /// The object's or the caller's. Another replica may do better.
    Object,
    /// This process, or this machine, has run out of something.
    Machine,
    /// The object's or the replica's: the replica's root tells which.
    Unclear,
    /// The replica's.
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
    fn a_missing_file_is_definite_and_no_fault_of_the_replica() {
        let e = BackendError::Os(Errno::NOENT);
        assert!(e.is_definite() && !e.is_replica_fault());
    }

    #[test]
    fn what_we_have_run_out_of_is_no_fault_of_the_replica() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let e = BackendError::Os(errno);
            assert!(!e.is_definite() && !e.is_replica_fault(), "another may have it open");
        }
    }

    #[test]
    fn errors_of_an_object_or_a_caller_never_count() {
        let keys = [Errno::KEYEXPIRED, Errno::KEYREVOKED, Errno::KEYREJECTED, Errno::NOKEY];
        for errno in keys.into_iter().chain([Errno::ILSEQ, Errno::BUSY, Errno::NOLCK]) {
            assert_eq!(BackendError::Os(errno).origin(), Origin::Object, "{errno:?}");
            assert!(!BackendError::Os(errno).is_replica_fault());
        }
        assert_eq!(BackendError::Os(Errno::ACCESS).origin(), Origin::Answer);
    }

    #[test]
    fn what_may_be_either_is_for_the_root_to_tell() {
        let either = [Errno::IO, Errno::NOTCONN, Errno::STALE, Errno::TIMEDOUT, Errno::HOSTDOWN];
        for errno in either.into_iter().chain([Errno::from_raw_os_error(512)]) {
            assert_eq!(BackendError::Os(errno).origin(), Origin::Unclear, "{errno:?}");
        }
        assert_eq!(BackendError::Late.origin(), Origin::Replica);
        assert_eq!(BackendError::Version.origin(), Origin::Object);
    }

    #[test]
    fn an_io_error_is_worth_another_replica() {
        for errno in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::from_raw_os_error(512)] {
            let e = BackendError::Os(errno);
            assert!(!e.is_definite() && e.is_replica_fault(), "{errno:?}");
        }
    }
}
