//! The file that is read where a user names none: of a tree, the one with the most data.
//!
//! Files are ranked by their allocated blocks. A large sparse file has few, and reads of its
//! holes measure no disk.
//!
//! *Invariant:* [`find`] returns soon after its limits, with what the walk has found until
//! then, also where a directory hangs.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
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

impl SampleFile {
    fn new(path: &Path, stat: &Metadata) -> Self {
        // Blocks that were allocated beyond the end hold nothing that is read.
        let allocated = (stat.blocks().saturating_mul(BLOCK_SIZE)).min(stat.len());
        Self { path: path.to_owned(), size: stat.len(), allocated }
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
    let found = Arc::new(Mutex::new(SampleSearch::default()));
    let seen = Arc::clone(&found);
    let root = root.to_owned();
    let _ = run_with_timeout(time + patience, move || walk(&root, time, &seen));
    let found = found.lock().expect("no panic");
    found.clone()
}

/// Level by level. Symbolic links are not followed.
fn walk(root: &Path, time: Duration, found: &Mutex<SampleSearch>) {
    let until = Instant::now() + time;
    let mut directories = VecDeque::from([root.to_owned()]);
    while let Some(directory) = directories.pop_front() {
        // Another user's, or gone.
        let Ok(listing) = std::fs::read_dir(directory) else { continue };
        found.lock().expect("no panic").is_root_listable = true;
        for entry in listing.flatten() {
            let best = {
                let mut found = found.lock().expect("no panic");
                if found.entries == MAX_ENTRIES || Instant::now() > until {
                    return;
                }
                found.entries += 1;
                found.best.as_ref().map(SampleFile::rank)
            };
            let path = entry.path();
            let stat = entry.metadata();
            let (Ok(stat), Ok(name)) = (stat, path.strip_prefix(root)) else { continue };
            if stat.is_dir() {
                directories.push_back(path);
                continue;
            }
            let sample = SampleFile::new(name, &stat);
            // Another user's file may not be readable. Without the lock: the open may hang.
            if stat.is_file() && best.is_none_or(|best| best < sample.rank()) && can_open(&path) {
                found.lock().expect("no panic").best = Some(sample);
            }
        }
    }
}

fn can_open(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(File::from).map_err(io::Error::from).is_ok()
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
            walk(&path, TIME, &found);
            found.into_inner().expect("no panic").best
        });
        assert_eq!(as_other_user.join().unwrap().unwrap().path, Path::new("small"));
    }
}
