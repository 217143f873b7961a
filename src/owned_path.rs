//! Files and sockets at paths that other processes use too. A process removes or replaces only its
//! own: one that serves a detached mount may end long after another one has taken the paths.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies a file or socket: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DevIno(u64, u64);

impl DevIno {
    /// The one at `path`.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        std::fs::symlink_metadata(path).map(|meta| Self(meta.dev(), meta.ino()))
    }

    /// The open one.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|meta| Self(meta.dev(), meta.ino()))
    }

    /// Whether it is the one at `path`.
    pub(crate) fn is_at(self, path: &Path) -> bool {
        Self::at(path).is_ok_and(|found| found == self)
    }

    /// Removes it from `path`, unless another one is there.
    ///
    /// # Errors
    /// If it is there and stays there.
    pub(crate) fn remove_from(self, path: &Path) -> io::Result<()> {
        if self.is_at(path) { std::fs::remove_file(path) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_process_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let first = File::create(&path).unwrap();
        let own = DevIno::of(&first).unwrap();
        let next = dir.path().join("next");
        std::fs::write(&next, "second").unwrap();
        std::fs::rename(&next, &path).unwrap();
        own.remove_from(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
        DevIno::at(&path).unwrap().remove_from(&path).unwrap();
        assert!(!path.exists());
        own.remove_from(&path).unwrap();
    }
}
