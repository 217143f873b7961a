//! Why a handover fails, on either side.

use std::io;
use std::path::PathBuf;

use crate::control;
use crate::fs::SnapshotError;

/// Why a mount is not handed over; the predecessor serves it as before.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The process was not started by `fanfs mount`.
    #[error("nobody knows how to")]
    NoRespawnCommand,
    /// The mount is about to end.
    #[error("it is being unmounted")]
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
    #[error("the successor ended")]
    SuccessorEnded,
    /// The successor does not answer in time.
    #[error("the successor takes too long")]
    SuccessorLate,
    /// The successor refuses the mount, for this reason.
    #[error("{0}")]
    Refused(String),
    /// A request waits for a lock, and the kernel would not resend it.
    #[error("somebody waits for a lock")]
    LockWaiter,
    /// Changes in flight would be made twice or not at all.
    #[error(
        "changes are under way on the write replica and do not end within 5 s, although it \
         answers; try again when fewer of them are under way"
    )]
    ChangesInFlight,
    /// A change hangs, and the kernel would not resend it.
    #[error(
        "a change is under way on the write replica and does not end, and before Linux 6.9 it \
         cannot be left to a successor; repair the replica, or wait for [write] deadline"
    )]
    ChangeHangs,
    /// A read hangs, and the kernel would not resend it.
    #[error("a read is under way that does not end")]
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
    #[error("the other process says something else")]
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
    #[error("the journal is another mount's")]
    OtherMount,
}

/// Why a daemon cannot continue a mount with its program or configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IncompatibleMount {
    /// The two programs hand over in different formats.
    #[error(
        "this version hands over in form {theirs}, that one takes form {ours}; unmount and mount \
         again"
    )]
    Format {
        /// The predecessor's format.
        theirs: u32,
        /// The successor's format.
        ours: u32,
    },
    /// `[volume] mode` differs.
    #[error("`mode` cannot be changed while mounted")]
    Mode,
    /// An option of the mount differs.
    #[error("{0} cannot be changed while mounted")]
    Option(&'static str),
}
