//! The comparison's scratch space: its own tmpfs with the replicas, and the mount points beside it.
//! All are removed at the end.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

use super::Failure;
use super::null::FILE;

/// Memory for the kernel and the daemons, besides the replicas and one more copy of the file in the
/// page cache.
const SPARE: u64 = 1 << 30;

/// The directories; removed on drop.
pub(super) struct Room {
    dir: tempfile::TempDir,
}

impl Room {
    /// Mounts a tmpfs with room for `replicas` files of `size` bytes and any number of links.
    /// `copies` more copies of the file must fit into memory: one in the page cache, and those that
    /// servers keep.
    pub(super) fn new(replicas: usize, size: u64, copies: u64) -> Result<Self, Failure> {
        let needed = replicas as u64 * size;
        let free = available_memory()?;
        if needed + copies * size + SPARE > free {
            return Err(Failure(format!(
                "{replicas} replicas of {} MiB do not fit into {} MiB of free memory; give a \
                 smaller --size or fewer --replicas",
                size >> 20,
                free >> 20
            )));
        }
        let dir = tempfile::Builder::new().prefix("fanfs-compare-").tempdir()?;
        let tmpfs = dir.path().join("tmpfs");
        fs::create_dir(&tmpfs)?;
        let room = Self { dir };
        let options = std::ffi::CString::new(format!("size={}", needed + SPARE)).expect("digits");
        rustix::mount::mount(
            "compare",
            &tmpfs,
            "tmpfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            Some(options.as_c_str()),
        )
        .map_err(|errno| Failure(format!("cannot mount a tmpfs: {errno}")))?;
        Ok(room)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of replica `i`.
    pub(super) fn replica(&self, i: usize) -> PathBuf {
        self.dir.path().join("tmpfs").join(format!("r{}", i + 1))
    }

    /// Makes `count` replicas, each with a copy of the same file.
    pub(super) fn fill(&self, count: usize, size: u64) -> Result<Vec<PathBuf>, Failure> {
        let dirs: Vec<PathBuf> = (0..count).map(|i| self.replica(i)).collect();
        for (i, dir) in dirs.iter().enumerate() {
            fs::create_dir(dir)?;
            if i == 0 {
                write_noise(&dir.join(FILE), size)?;
            } else {
                fs::copy(dirs[0].join(FILE), dir.join(FILE))?;
                let modified = fs::metadata(dirs[0].join(FILE))?.modified()?;
                File::options().write(true).open(dir.join(FILE))?.set_modified(modified)?;
            }
        }
        Ok(dirs)
    }

    /// Makes `count` directories with links to the same file: replicas whose rate is not limited by
    /// memory.
    pub(super) fn fill_with_links(&self, count: usize, size: u64) -> Result<Vec<PathBuf>, Failure> {
        let mut dirs = self.fill(1, size)?;
        for i in 1..count {
            let dir = self.replica(i);
            fs::create_dir(&dir)?;
            fs::hard_link(dirs[0].join(FILE), dir.join(FILE))?;
            dirs.push(dir);
        }
        Ok(dirs)
    }

    /// An empty directory to mount on.
    pub(super) fn mount_point(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path().join("tmpfs"), UnmountFlags::DETACH);
    }
}

/// Content that no file system can compress or share.
fn write_noise(path: &Path, size: u64) -> Result<(), Failure> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut noise = blake3::Hasher::new().finalize_xof();
    let mut block = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let len = left.min(block.len() as u64) as usize;
        noise.fill(&mut block[..len]);
        file.write_all(&block[..len])?;
        left -= len as u64;
    }
    Ok(file.flush()?)
}

fn available_memory() -> Result<u64, Failure> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| Failure("no MemAvailable in /proc/meminfo".to_owned()))
}
