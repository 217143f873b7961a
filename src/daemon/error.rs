//! Why a volume cannot be mounted, or a mount cannot be continued.

use std::io;
use std::path::PathBuf;

use super::handover_error::TakeoverError;
use crate::fuse::MountError;
use crate::metrics::MetricsError;
use crate::placement::PlacementError;

/// Why a volume could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The volume cannot be mounted on the mount point.
    #[error("mount point {}: {error}", .path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The cause.
        error: MountPointError,
    },
    /// The configuration can never be right, or too few replicas can come into service.
    #[error(transparent)]
    Refused(#[from] AdmissionError),
    /// No replica's root can be read.
    #[error("cannot read the root directory of any replica: {0}")]
    Root(io::Error),
    /// The mount itself failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The placement provider cannot be used as it is configured.
    #[error("{}: [placement]: {error}", .source_file.display())]
    Placement {
        /// The volume's configuration.
        source_file: PathBuf,
        /// The cause.
        error: PlacementError,
    },
    /// Metrics cannot be published where the configuration says.
    #[error("{}: {error}", .source_file.display())]
    Metrics {
        /// The volume's configuration.
        source_file: PathBuf,
        /// The cause.
        error: MetricsError,
    },
    /// The mount of another daemon cannot be continued.
    #[error("{operation}: {error}")]
    Takeover {
        /// The failed operation: to take a mount over, or to continue the mount of a killed
        /// daemon.
        operation: &'static str,
        /// The cause.
        error: TakeoverError,
    },
    /// The runtime's threads cannot be started.
    #[error("cannot start the daemon's threads: {0}")]
    Runtime(io::Error),
}

/// Why too few replicas are in service for a mount. The texts name the replicas.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The configuration can never be right.
    #[error("{0}")]
    Configuration(String),
    /// The only replica is out of service.
    #[error("{0}")]
    OnlyReplica(String),
    /// The write replica is out of service.
    #[error("the write replica is not usable: {0}")]
    WriteReplica(String),
    /// All replicas are out of service.
    #[error("no replica is usable: {0}")]
    NoReplica(String),
    /// Fewer replicas are in service than the configuration requires.
    #[error(
        "{in_service} of {all} replicas are usable, and [volume] min_replicas is {required}: \
         {reasons}"
    )]
    TooFew {
        /// Replicas in service.
        in_service: usize,
        /// Replicas of the volume.
        all: usize,
        /// `[volume] min_replicas`.
        required: usize,
        /// Why each of the others is out of service.
        reasons: String,
    },
}

/// Why a directory cannot be mounted on.
#[derive(Debug, thiserror::Error)]
pub enum MountPointError {
    /// It cannot be examined.
    #[error(transparent)]
    Look(#[from] io::Error),
    /// It is not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The mount table cannot be read.
    #[error("cannot read the mount table: {0}")]
    MountTable(io::Error),
    /// A dead mount of another FUSE file system.
    #[error("a dead mount of another FUSE file system is there; unmount it")]
    ForeignDeadMount,
    /// More dead mounts than fanfs cleans up.
    #[error("too many dead fanfs mounts are stacked there; unmount them")]
    DeadMounts,
    /// The dead mount that was to be replaced is gone.
    #[error("the dead mount to replace was unmounted meanwhile")]
    DeadMountGone,
    /// A dead mount cannot be unmounted.
    #[error(transparent)]
    Unmount(#[from] MountError),
    /// A mount of another file system.
    #[error("already a mount point; unmount it, or choose another mount point")]
    Occupied,
    /// A mount of this volume.
    #[error("already a mount point, of volume {0}; run `fanfs status`")]
    OccupiedByVolume(String),
    /// A mount of a volume whose daemon does not answer.
    #[error(
        "already a mount point, of a fanfs volume whose daemon does not answer; the daemon \
         belongs to another user, or has no control socket"
    )]
    OccupiedBySilentVolume,
}
