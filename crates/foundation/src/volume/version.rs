//! The version of a file: when two opens show the same file in the same state.
//!
//! A handle is pinned to the [`FileVersion`] at its open, and a replica serves the handle only
//! after its own open showed the same version. The comparison depends on the volume's
//! [`VolumeMode`]. Replicas of a `shared` volume are one file system, so inode numbers and change
//! times agree. The trees of a `copies` volume were written separately, so only size and
//! modification time can agree.

use serde::{Deserialize, Serialize};

/// How the replicas of a volume relate to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VolumeMode {
    /// All replicas are one file system seen through several paths.
    Shared,
    /// The replicas are independent trees with the same content.
    Copies,
}

/// A file's identity within one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// [`FileId::ROOT_DEV`] on the file system of the replica's root, otherwise the device number
    /// of a file system mounted below it, as this replica shows it. Two mounts of one export have
    /// different numbers, so compare it only within one replica.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

impl FileId {
    /// The device of a replica's root. No file system has this number.
    pub const ROOT_DEV: u64 = 0;
}

/// The file and its state at an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// Inode number on the replica.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time: seconds and nanoseconds since the epoch.
    pub mtime: (i64, u32),
    /// Change time: seconds and nanoseconds since the epoch.
    pub ctime: (i64, u32),
}

impl FileVersion {
    /// Whether a replica that shows `other` may serve a handle pinned to `self`.
    ///
    /// In `copies` mode, modification times are compared in seconds if either has no nanoseconds
    /// (0), because some archivers and file systems store whole seconds.
    pub fn is_same_version(&self, other: &FileVersion, mode: VolumeMode) -> bool {
        match mode {
            VolumeMode::Shared => self == other,
            VolumeMode::Copies => {
                let whole_seconds = self.mtime.1 == 0 || other.mtime.1 == 0;
                self.size == other.size
                    && self.mtime.0 == other.mtime.0
                    && (whole_seconds || self.mtime.1 == other.mtime.1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: FileVersion = FileVersion { ino: 7, size: 10, mtime: (100, 5), ctime: (101, 6) };

    #[test]
    fn shared_replicas_must_agree_on_everything() {
        assert!(V.is_same_version(&V, VolumeMode::Shared));
        assert!(!V.is_same_version(&FileVersion { ino: 8, ..V }, VolumeMode::Shared));
        assert!(!V.is_same_version(&FileVersion { ctime: (101, 7), ..V }, VolumeMode::Shared));
    }

    #[test]
    fn copies_agree_on_size_and_modification_time() {
        let copy = FileVersion { ino: 8, ctime: (999, 0), ..V };
        assert!(V.is_same_version(&copy, VolumeMode::Copies));
        assert!(V.is_same_version(&FileVersion { mtime: (100, 0), ..copy }, VolumeMode::Copies));
        assert!(!V.is_same_version(&FileVersion { mtime: (100, 4), ..copy }, VolumeMode::Copies));
        assert!(!V.is_same_version(&FileVersion { size: 11, ..copy }, VolumeMode::Copies));
    }
}
