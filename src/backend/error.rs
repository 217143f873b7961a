//! What a backend call can fail with, and what follows from it. All that fanfs
//! makes of an errno is here, but what the application is told, which is in
//! [`crate::fs::Errno`]:
//!
//! | from a replica | another one is asked | counts against the replica | besides |
//! |---|---|---|---|
//! | EIO, errnos that applications do not know | yes | once for each file | a read: that file is read from others for a second |
//! | ETIMEDOUT, EHOSTDOWN and its like; silence | yes | yes | |
//! | ESTALE of an open file | after it | no | it is opened anew once, and has to show the same inode and version |
//! | EMFILE, ENFILE, ENOMEM, EAGAIN, EINTR | yes | no | |
//! | ENOENT and others that say something of the object | no | no | of what the kernel was shown before: a second one has to agree |
//! | it is absent: not in service yet | yes | yes | |
//! | too few bytes, an end before the size | yes | no | that file is read from others for 3 s |
//! | another version, or none | yes | no | the same |

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
    /// The replica has not been brought into service.
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

    /// Whether the error is a mark against the replica's health. A full queue, and
    /// what this process has run out of, is our own doing; another version is a
    /// matter of that one file.
    pub fn is_replica_fault(&self) -> bool {
        match self {
            Self::Os(_) => !self.is_definite() && !self.is_our_own(),
            Self::Late | Self::Absent => true,
            Self::Version | Self::Short | Self::Busy => false,
        }
    }

    /// Whether this process, or this machine, has run out of something.
    pub fn is_our_own(&self) -> bool {
        use rustix::io::Errno as E;
        matches!(self, Self::Os(E::MFILE | E::NFILE | E::NOMEM | E::INTR | E::AGAIN) | Self::Busy)
    }

    /// Whether a read that failed so may have failed for the one file's sake: for a
    /// bad block, or because the server does not know the file any more. Not where
    /// the replica as a whole does not answer.
    pub fn may_be_the_files(&self) -> bool {
        use rustix::io::Errno as E;
        let networks = [
            E::TIMEDOUT,
            E::CONNREFUSED,
            E::CONNRESET,
            E::CONNABORTED,
            E::HOSTDOWN,
            E::HOSTUNREACH,
            E::NETDOWN,
            E::NETUNREACH,
            E::NOTCONN,
            E::SHUTDOWN,
            E::PIPE,
            E::REMOTEIO,
        ];
        matches!(self, Self::Os(errno) if !networks.contains(errno)) && self.is_replica_fault()
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
    fn what_we_have_run_out_of_is_no_fault_of_the_replica() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let e = BackendError::Os(errno);
            assert!(!e.is_definite() && !e.is_replica_fault(), "another may have it open");
        }
    }

    #[test]
    fn a_bad_block_is_the_files_and_a_dead_server_is_not() {
        assert!(BackendError::Os(Errno::IO).may_be_the_files());
        assert!(BackendError::Os(Errno::from_raw_os_error(512)).may_be_the_files());
        assert!(!BackendError::Os(Errno::TIMEDOUT).may_be_the_files());
        assert!(
            !BackendError::Late.may_be_the_files() && !BackendError::Version.may_be_the_files()
        );
    }

    #[test]
    fn an_io_error_is_worth_another_replica() {
        for errno in [Errno::IO, Errno::STALE, Errno::TIMEDOUT, Errno::from_raw_os_error(512)] {
            let e = BackendError::Os(errno);
            assert!(!e.is_definite() && e.is_replica_fault(), "{errno:?}");
        }
    }
}
