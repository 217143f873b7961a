//! The file that is read where a user names none: of a tree, the one with the most data.
//!
//! Files are ranked by their allocated blocks. A large sparse file has few, and reads of its
//! holes measure no disk.
//!
//! *Invariant:* [`find`] returns soon after its limits, with what the walk has found until
//! then, also where a directory hangs.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::timeout::run_with_timeout;

/// Entries that are looked at.
pub const MAX_ENTRIES: usize = 20_000;

/// Bytes of a block in `st_blocks` (stat(2)).
const BLOCK_SIZE: u64 = 512;

/// A regular file that may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleFile {
    /// Relative to the tree's root.
    pub path: PathBuf,
    /// Its size, bytes.
    pub size: u64,
    /// Bytes of it that have blocks; 0 for all files where a file system does not count them.
    pub allocated: u64,
}

/// An object that a search meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleObject {
    /// A directory, which is searched too.
    Directory,
    /// A regular file.
    File {
        /// Its size, bytes.
        size: u64,
        /// Its blocks of 512 bytes; 0 where a file system does not count them.
        blocks: u64,
    },
    /// Anything else, such as a symbolic link.
    Other,
}

/// A tree that is searched. Its paths are relative to its root.
pub trait SampleTree: Send + 'static {
    /// Calls `each` with the names in a directory and their objects until it says `Break`. An object
    /// is `None` if the caller may not see it, or it is gone. False if the directory cannot be
    /// listed.
    fn list(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&OsStr, Option<SampleObject>) -> ControlFlow<()>,
    ) -> bool;

    /// Whether the caller may read the file.
    fn can_open(&self, file: &Path) -> bool;
}

impl SampleFile {
    fn new(path: PathBuf, size: u64, blocks: u64) -> Self {
        // Blocks that were allocated beyond the end hold nothing that is read.
        let allocated = blocks.saturating_mul(BLOCK_SIZE).min(size);
        Self { path, size, allocated }
    }

    fn rank(&self) -> (u64, u64) {
        (self.allocated, self.size)
    }
}

/// The result of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampleSearch {
    /// The file with the most data.
    pub best: Option<SampleFile>,
    /// How many entries were looked at.
    pub entries: usize,
    /// Whether the root can be listed.
    pub is_root_listable: bool,
}

/// Walks the tree at `root` for at most `time`, and waits for `patience` longer for a call
/// that hangs.
pub fn find(root: &Path, time: Duration, patience: Duration) -> SampleSearch {
    find_in(DirectoryTree(root.to_owned()), time, patience)
}

/// The same in any tree.
pub fn find_in(tree: impl SampleTree, time: Duration, patience: Duration) -> SampleSearch {
    let found = Arc::new(Mutex::new(SampleSearch::default()));
    let seen = Arc::clone(&found);
    let _ = run_with_timeout(time + patience, move || walk(&tree, time, &seen));
    let found = found.lock().expect("no panic");
    found.clone()
}

/// Level by level. Symbolic links are not followed.
fn walk(tree: &impl SampleTree, time: Duration, found: &Mutex<SampleSearch>) {
    let until = Instant::now() + time;
    let mut directories = VecDeque::from([PathBuf::new()]);
    let mut is_over = false;
    while let Some(directory) = directories.pop_front().filter(|_| !is_over) {
        let mut look = |name: &OsStr, object: Option<SampleObject>| {
            let best = {
                let mut found = found.lock().expect("no panic");
                // Here too: a later entry may hang.
                found.is_root_listable = true;
                if found.entries == MAX_ENTRIES || Instant::now() > until {
                    is_over = true;
                    return ControlFlow::Break(());
                }
                found.entries += 1;
                found.best.as_ref().map(SampleFile::rank)
            };
            let path = directory.join(name);
            match object {
                Some(SampleObject::Directory) => directories.push_back(path),
                Some(SampleObject::File { size, blocks }) => {
                    let sample = SampleFile::new(path, size, blocks);
                    let is_better = best.is_none_or(|best| best < sample.rank());
                    // Another user's file may not be readable. Without the lock: the open may hang.
                    if is_better && tree.can_open(&sample.path) {
                        found.lock().expect("no panic").best = Some(sample);
                    }
                }
                Some(SampleObject::Other) | None => {}
            }
            ControlFlow::Continue(())
        };
        // Another user's directory, or one that is gone, is passed over.
        if tree.list(&directory, &mut look) {
            found.lock().expect("no panic").is_root_listable = true;
        }
    }
}

/// The tree of a directory.
struct DirectoryTree(PathBuf);

impl SampleTree for DirectoryTree {
    fn list(
        &self,
        directory: &Path,
        each: &mut dyn FnMut(&OsStr, Option<SampleObject>) -> ControlFlow<()>,
    ) -> bool {
        let Ok(listing) = std::fs::read_dir(self.0.join(directory)) else { return false };
        let _ = listing.flatten().try_for_each(|entry| {
            // The object itself, symbolic links included.
            let stat = entry.metadata().ok();
            let object = stat.map(|stat| match stat.file_type() {
                kind if kind.is_dir() => SampleObject::Directory,
                kind if kind.is_file() => {
                    SampleObject::File { size: stat.len(), blocks: stat.blocks() }
                }
                _ => SampleObject::Other,
            });
            each(&entry.file_name(), object)
        });
        true
    }

    fn can_open(&self, file: &Path) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::open(self.0.join(file), flags, Mode::empty());
        opened.map(File::from).map_err(io::Error::from).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    fn best(root: &Path) -> Option<(PathBuf, u64)> {
        find(root, TIME, TIME).best.map(|best| (best.path, best.size))
    }

    #[test]
    fn the_sample_is_the_file_with_the_most_data_and_no_link() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("small"), [0; 10]).unwrap();
        fs::write(at("a/b/large"), vec![7; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/proc/kcore", at("a/link")).unwrap();
        let found = find(root.path(), TIME, TIME);
        assert_eq!(best(root.path()), Some((PathBuf::from("a/b/large"), 1 << 20)));
        assert_eq!((found.entries, found.is_root_listable), (5, true));
        // A hole of 1 TiB, with a few bytes behind it.
        let sparse = File::create(at("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", (1 << 40) - 3).unwrap();
        assert_eq!(best(root.path()), Some((PathBuf::from("a/b/large"), 1 << 20)));
        fs::remove_file(at("a/b/large")).unwrap();
        fs::remove_file(at("small")).unwrap();
        assert_eq!(best(root.path()), Some((PathBuf::from("sparse"), 1 << 40)));
        assert_eq!(find(&at("nowhere"), TIME, TIME), SampleSearch::default());
    }

    #[test]
    fn an_unreadable_file_is_never_sampled() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("data"), vec![7; 1 << 20]).unwrap();
        fs::write(root.path().join("small"), "x").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(root.path(), 0o755);
        mode(&root.path().join("data"), 0o000);
        let path = root.path().to_owned();
        let as_other_user = std::thread::spawn(move || {
            // Of this thread alone; root's powers over files go with it.
            nix::unistd::setfsuid(65534.into());
            let found = Mutex::default();
            walk(&DirectoryTree(path), TIME, &found);
            found.into_inner().expect("no panic").best
        });
        assert_eq!(as_other_user.join().unwrap().unwrap().path, Path::new("small"));
    }
}
