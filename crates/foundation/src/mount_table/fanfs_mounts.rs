//! fanfs's own mounts in the kernel's mount table, and whether a daemon serves them.
//!
//! A killed daemon leaves its mount; its control socket refuses connections or is gone. So only the
//! mount table still shows the volume.
//!
//! *Invariant:* no call here waits for a mount longer than its limit.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use super::{Mount, MountTable};
use crate::timeout::run_with_timeout;

/// The file system type of fanfs's mounts in the mount table.
pub const FS_TYPE: &str = "fuse.fanfs";

/// The prefix of the volume's name in the mount table.
pub const SOURCE_PREFIX: &str = "fanfs:";

/// The same for a mount without a control socket, which serves only one command, such as
/// `fanfs bench`.
pub const PRIVATE_SOURCE_PREFIX: &str = "fanfs-private:";

/// A fanfs mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FanfsMount {
    /// The volume's name.
    pub volume: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Uid of the user that mounted it.
    pub uid: u32,
    /// Gid of the user that mounted it.
    pub gid: u32,
    /// Whether it serves only one command, without a control socket.
    pub is_private: bool,
}

impl FanfsMount {
    /// The mount, if it is a fanfs mount.
    pub fn from_mount(mount: &Mount) -> Option<Self> {
        let source = mount.source.to_string_lossy();
        let id = |key| mount.option(key).and_then(|id| id.to_str()?.parse().ok());
        let private = source.strip_prefix(PRIVATE_SOURCE_PREFIX);
        let volume = private.or(source.strip_prefix(SOURCE_PREFIX)).unwrap_or(&source);
        (mount.fs_type == FS_TYPE).then(|| Self {
            volume: volume.to_owned(),
            mount_point: mount.mount_point.clone(),
            uid: id("user_id").unwrap_or_default(),
            gid: id("group_id").unwrap_or_default(),
            is_private: private.is_some(),
        })
    }

    /// All fanfs mounts that no other mount covers.
    pub fn all_visible(table: &MountTable) -> Vec<Self> {
        let seen = |mount: &&Mount| {
            table.top_mount_at(&mount.mount_point).is_some_and(|at| at.id == mount.id)
        };
        table.iter().filter(seen).filter_map(Self::from_mount).collect()
    }

    /// Whether a daemon serves it. Waits at most `limit`.
    pub fn daemon_state(&self, limit: Duration) -> DaemonState {
        let path = self.mount_point.clone();
        let user = self.uid;
        let group = self.gid;
        let look = move || match stat_uncached(&path) {
            Err(Errno::ACCESS) if geteuid().is_root() && user != 0 => {
                stat_uncached_as(&path, Uid::from_raw(user), Gid::from_raw(group))
            }
            seen => seen,
        };
        match run_with_timeout(limit, look) {
            None => DaemonState::Unresponsive,
            Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => DaemonState::Dead,
            // EACCES: another user's mount, without `allow_other`.
            Some(_) => DaemonState::Serving,
        }
    }
}

/// Asks the daemon, not the kernel's attribute cache.
fn stat_uncached(path: &Path) -> Result<(), Errno> {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(CWD, path, flags, StatxFlags::BASIC_STATS).map(drop)
}

/// The same with the credentials of the mounting user: the kernel denies root access to another
/// user's mount, with a live or a dead daemon. The calling thread keeps these credentials and must
/// end afterwards.
fn stat_uncached_as(path: &Path, user: Uid, group: Gid) -> Result<(), Errno> {
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    stat_uncached(path)
}

/// Whether a daemon serves a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonState {
    /// A daemon answers, or the kernel denies access.
    Serving,
    /// The daemon died and left its mount.
    Dead,
    /// The daemon does not answer in time.
    Unresponsive,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fanfs_mounts_are_listed_with_volume_and_user() {
        let table = "20 1 0:1 / / rw - ext4 /dev/a rw\n\
            30 20 0:40 / /data ro - fuse.fanfs fanfs:genomes ro,user_id=0,group_id=0\n\
            31 20 0:41 / /home/a/d ro - fuse.fanfs fanfs:own ro,user_id=1000,group_id=9\n\
            32 20 0:42 / /other ro - fuse.sshfs host:/ ro,user_id=1000\n\
            33 20 0:43 / /twice ro - fuse.fanfs fanfs:below ro,user_id=0\n\
            34 33 0:44 / /twice ro - fuse.fanfs fanfs:above ro,user_id=0\n\
            35 20 0:45 / /tmp/b ro - fuse.fanfs fanfs-private:genomes ro,user_id=0\n";
        let all = FanfsMount::all_visible(&MountTable::parse(table.as_bytes()));
        let one = |one: &FanfsMount| (one.volume.clone(), one.uid, one.gid, one.is_private);
        let named = |name: &str, user, group, private| (name.to_owned(), user, group, private);
        assert_eq!(
            all.iter().map(one).collect::<Vec<_>>(),
            [
                named("genomes", 0, 0, false),
                named("own", 1000, 9, false),
                named("above", 0, 0, false),
                named("genomes", 0, 0, true)
            ]
        );
    }
}
