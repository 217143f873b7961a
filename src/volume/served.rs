//! fanfs's own mounts in the kernel's mount table, and whether a daemon serves them.
//!
//! A killed daemon leaves its mount, and a control socket that refuses or is gone. So
//! only the mount table still shows the volume.
//!
//! *Invariant:* nothing here waits for a mount longer than its limit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;

use super::mounts::{Mount, MountTable};
use super::survey::within;

/// The file system type of fanfs's mounts in the mount table.
pub const FS_TYPE: &str = "fuse.fanfs";

/// A mount of fanfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The volume's name.
    pub volume: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Uid of the user that mounted it.
    pub user: u32,
}

impl Served {
    /// The mount, if it is one of fanfs's.
    pub fn of(mount: &Mount) -> Option<Self> {
        let source = mount.source.to_string_lossy();
        let user = mount.option("user_id").and_then(|user| user.to_str()?.parse().ok());
        (mount.fs_type == FS_TYPE).then(|| Self {
            volume: source.strip_prefix("fanfs:").unwrap_or(&source).to_owned(),
            mount_point: mount.mount_point.clone(),
            user: user.unwrap_or_default(),
        })
    }

    /// All of fanfs's mounts that no other mount covers.
    pub fn all(table: &MountTable) -> Vec<Self> {
        let seen =
            |mount: &&Mount| table.at(&mount.mount_point).is_some_and(|at| at.id == mount.id);
        table.iter().filter(seen).filter_map(Self::of).collect()
    }

    /// Whether a daemon serves it. Takes at most `limit`.
    pub fn life(&self, limit: Duration) -> Life {
        let path = self.mount_point.clone();
        match within(limit, move || look(&path)) {
            None => Life::Silent,
            Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Life::Dead,
            // EACCES: another user's mount, without `allow_other`.
            Some(_) => Life::Served,
        }
    }
}

/// Asks the daemon and not the kernel's attribute cache.
fn look(path: &Path) -> Result<(), Errno> {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::BASIC_STATS).map(drop)
}

/// Whether a mount is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// A daemon answers, or the kernel denies access.
    Served,
    /// The daemon has died and left its mount.
    Dead,
    /// The daemon does not answer in time.
    Silent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_fanfs_are_told_with_volume_and_user_and_covered_ones_are_not() {
        let table = "20 1 0:1 / / rw - ext4 /dev/a rw\n\
            30 20 0:40 / /data ro - fuse.fanfs fanfs:genomes ro,user_id=0,group_id=0\n\
            31 20 0:41 / /home/a/d ro - fuse.fanfs fanfs:own ro,user_id=1000,group_id=9\n\
            32 20 0:42 / /other ro - fuse.sshfs host:/ ro,user_id=1000\n\
            33 20 0:43 / /twice ro - fuse.fanfs fanfs:below ro,user_id=0\n\
            34 33 0:44 / /twice ro - fuse.fanfs fanfs:above ro,user_id=0\n";
        let all = Served::all(&MountTable::parse(table.as_bytes()));
        let all: Vec<_> = all.iter().map(|one| (one.volume.as_str(), one.user)).collect();
        assert_eq!(all, [("genomes", 0), ("own", 1000), ("above", 0)]);
    }
}
