//! Why a handover fails, on either side.

use std::io;
use std::path::PathBuf;

use crate::control;
use crate::fs::SnapshotError;

/// Why a mount is not handed over; the predecessor serves it as before.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The process was not started by `fanfs mount`.
    #[error("the daemon was not started by `fanfs mount` and cannot start a successor")]
    NoRespawnCommand,
    /// The mount is about to end.
    #[error("the mount is being unmounted")]
    Unmounting,
    /// The successor cannot be started.
    #[error("{}: {error}", .program.display())]
    Launch {
        /// The successor's program.
        program: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The successor has ended.
    #[error("the new daemon ended before it served the mount; its log may say why")]
    SuccessorEnded,
    /// The successor does not answer in time.
    #[error("the new daemon did not answer in time; try again")]
    SuccessorLate,
    /// The successor refuses the mount, for this reason.
    #[error("{0}")]
    Refused(String),
    /// A request waits for a lock, and the kernel would not resend it.
    #[error(
        "an application waits for a file lock, and before Linux 6.9 the kernel cannot resend that \
         request; try again when the application has the lock"
    )]
    LockWaiter,
    /// Changes in flight would be made twice or not at all.
    #[error(
        "changes on the write replica did not end within 5 s, although it answers; try again when \
         fewer of them are in flight"
    )]
    ChangesInFlight,
    /// A change hangs, and the kernel would not resend it.
    #[error(
        "a change on the write replica hangs, and before Linux 6.9 the new daemon cannot take it \
         over; repair the replica, or wait for [write] deadline"
    )]
    ChangeHangs,
    /// A read hangs, and the kernel would not resend it.
    #[error(
        "a read hangs, and before Linux 6.9 the new daemon cannot take it over; try again when it \
         has ended"
    )]
    ReadHangs,
    /// The file system's tables cannot be written down.
    #[error("{0}")]
    Tables(SnapshotError),
    /// Sockets, descriptors or the session.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Why a mount cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The predecessor sent a message out of turn.
    #[error("the other process sent an unexpected message")]
    OutOfTurn,
    /// The mount cannot have this daemon's options.
    #[error(transparent)]
    Incompatible(#[from] IncompatibleMount),
    /// The file system's tables cannot be restored.
    #[error("{0}")]
    Tables(SnapshotError),
    /// The journal of the daemon that was killed cannot be used.
    #[error(
        "journal {}: {error}; for the next daemon, make sure that {} has free space and that \
         nothing removes files there",
        .journal.display(),
        control::runtime_dir().display()
    )]
    Journal {
        /// The journal.
        journal: PathBuf,
        /// The cause.
        error: JournalError,
    },
    /// Sockets, descriptors or the session.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// Its head cannot be decoded.
    #[error(transparent)]
    Head(#[from] postcard::Error),
    /// It was written for another connection.
    #[error("the journal belongs to another mount")]
    OtherMount,
}

/// Why a daemon cannot continue a mount with its program or configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IncompatibleMount {
    /// The two programs hand over in different formats.
    #[error(
        "the previous daemon uses handover format {theirs}, the new one format {ours}; unmount \
         and mount again"
    )]
    Format {
        /// The predecessor's format.
        theirs: u32,
        /// The successor's format.
        ours: u32,
    },
    /// `[volume] mode` differs.
    #[error("`mode` cannot be changed while mounted; unmount and mount again")]
    Mode,
    /// An option of the mount differs.
    #[error("{0} cannot be changed while mounted; unmount and mount again")]
    Option(&'static str),
}
