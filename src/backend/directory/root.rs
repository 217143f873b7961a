//! A replica's root: held open, and looked for anew where its mount has gone.
//!
//! What is held open stays the mount that it was, whatever is mounted over its path
//! or unmounted from it. Somebody who unmounts it by force and mounts it again
//! leaves fanfs with a descriptor that is good for nothing; so the root is opened
//! by its path once more then, and taken only if that leads to the same file
//! system: of the same type, with the same root directory, and from the same
//! source or with the same id. The empty directory under a mount that has gone,
//! which is all that its path leads to, is none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstatfs, fstatvfs, openat, statx};
use rustix::io::Errno;

use super::{Device, NFS_MAGIC};
use crate::backend::Result;
use crate::volume::mounts::MountTable;

/// The root as it is open now.
pub(super) struct Root {
    pub(super) fd: OwnedFd,
    pub(super) device: Device,
    pub(super) is_nfs: bool,
    /// The mount that it lies in; `None` before Linux 5.8.
    mount: Option<u64>,
    identity: Identity,
}

/// What tells a file system from others after it was mounted anew.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    /// Of its root directory.
    ino: u64,
    /// `f_type` of statfs(2).
    magic: u64,
    /// `f_fsid` of statvfs(3): made from the UUID on most local file systems, 0 on NFS.
    id: u64,
    /// What the mount table says of it; `None` where it is not in there.
    source: Option<(std::ffi::OsString, PathBuf)>,
}

impl Identity {
    fn is_same(&self, other: &Self) -> bool {
        let has_id = self.id != 0 && other.id != 0;
        let is_from_there = match has_id {
            true => self.id == other.id,
            false => self.source == other.source,
        };
        self.ino == other.ino && self.magic == other.magic && is_from_there
    }
}

impl Root {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(rustix::fs::CWD, path, flags, Mode::empty())?;
        let asked = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let s = statx(&fd, "", AtFlags::EMPTY_PATH, asked)?;
        let has_mount = StatxFlags::from_bits_retain(s.stx_mask).contains(StatxFlags::MNT_ID);
        let mount = has_mount.then_some(s.stx_mnt_id);
        let magic = fstatfs(&fd)?.f_type as u64;
        let id = fstatvfs(&fd)?.f_fsid;
        let table = MountTable::read().unwrap_or_default();
        let source = mount.and_then(|id| table.by_id(id));
        let source = source.map(|mount| (mount.source.clone(), mount.root.clone()));
        Ok(Self {
            fd,
            device: Device(s.stx_dev_major, s.stx_dev_minor),
            is_nfs: magic == NFS_MAGIC,
            mount,
            identity: Identity { ino: s.stx_ino, magic, id, source },
        })
    }

    /// The mount that it lies in, if that is in this process's mount table.
    pub(super) fn watched_mount(&self) -> Option<u64> {
        self.identity.source.as_ref()?;
        self.mount
    }
}

/// The place of a replica, and what is open of it.
pub(super) struct Place {
    path: PathBuf,
    root: RwLock<Arc<Root>>,
}

impl Place {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let root = Root::open(path)?;
        // A daemon changes its working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path, root: RwLock::new(Arc::new(root)) })
    }

    /// The root as it is open now.
    pub(super) fn root(&self) -> Arc<Root> {
        Arc::clone(&self.root.read())
    }

    /// See [`crate::backend::Backend::prove`].
    pub(super) fn prove(&self) -> Result<bool> {
        let root = self.root();
        let is_mounted = match root.watched_mount() {
            Some(id) => MountTable::read().is_ok_and(|table| table.by_id(id).is_some()),
            None => true,
        };
        // What is remembered of it is no proof that its server answers.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        match statx(root.fd.as_fd(), "", flags, StatxFlags::BASIC_STATS) {
            Ok(s) if is_mounted => return Ok(s.stx_ino == root.identity.ino),
            Ok(_) | Err(Errno::STALE) => {}
            Err(_) if !is_mounted => {}
            Err(errno) => return Err(errno.into()),
        }
        let again = match Root::open(&self.path) {
            Ok(again) => again,
            Err(error) if error.is_definite() => return Ok(false),
            Err(error) => return Err(error),
        };
        if !again.identity.is_same(&root.identity) {
            return Ok(false);
        }
        *self.root.write() = Arc::new(again);
        Ok(true)
    }
}
