//! What makes two opens of a file the same file at the same moment.
//!
//! A handle is pinned to the [`FileVersion`] seen when it was opened, and a
//! replica serves that handle only after its own open showed the same version.
//! What can be compared depends on the volume's [`Mode`]: replicas of a
//! `shared` volume are one file system, so file ids and change times agree;
//! the trees of a `copies` volume were written one after the other, so only
//! size and modification time can.

use serde::{Deserialize, Serialize};

/// How the replicas of a volume relate to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All replicas are one file system seen through several paths.
    Shared,
    /// The replicas are independent trees with the same content.
    Copies,
}

/// A file's identity within one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// [`FileId::HOME`] on the file system of the replica's root, else the device
    /// number of the one mounted below it, as this replica shows it. Two mounts of
    /// one export have different ones, so it is compared only within one replica.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

impl FileId {
    /// Stands for the device of a replica's root. No file system has this number.
    pub const HOME: u64 = 0;
}

/// Which state of which file an open saw.
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
    /// In `copies` mode a modification time whose nanoseconds one side does not
    /// keep (0: some archivers and file systems store whole seconds) is compared
    /// in seconds.
    pub fn agrees(&self, other: &FileVersion, mode: Mode) -> bool {
        match mode {
            Mode::Shared => self == other,
            Mode::Copies => {
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
        assert!(V.agrees(&V, Mode::Shared));
        assert!(!V.agrees(&FileVersion { ino: 8, ..V }, Mode::Shared));
        assert!(!V.agrees(&FileVersion { ctime: (101, 7), ..V }, Mode::Shared));
    }

    #[test]
    fn copies_agree_on_size_and_modification_time() {
        let copy = FileVersion { ino: 8, ctime: (999, 0), ..V };
        assert!(V.agrees(&copy, Mode::Copies));
        assert!(V.agrees(&FileVersion { mtime: (100, 0), ..copy }, Mode::Copies));
        assert!(!V.agrees(&FileVersion { mtime: (100, 4), ..copy }, Mode::Copies));
        assert!(!V.agrees(&FileVersion { size: 11, ..copy }, Mode::Copies));
    }
}
