//! A replica's root: its descriptor, and how a replica gets a new root after its mount has gone.
//!
//! At first there is no root, and every call fails with [`BackendError::Absent`]. An open
//! root stays the same mount, even if another mount covers its path or the path is
//! unmounted. When the mount has gone, or the server no longer knows its file handle
//! (ESTALE), [`RootSlot::check_mount`] examines the path again.
//!
//! When the mount goes, the replica leaves service ([`RootSlot::handle_unmount`]). The mounts
//! inside it have gone too. A root that stayed open would report names in them as missing, and
//! writes would go to the directories below them.
//!
//! *Invariant:* no root stays in service after its mount is known to have gone.
//! [`RootSlot::enter_service`] publishes the root first and reads the mount table afterwards. So
//! either this function or the watcher of the mount table notices a mount that goes in between.
//!
//! *Invariant:* every root comes from an [`crate::survey::AdmittedRoot`], so it has
//! passed the roster's checks ([`crate::survey::RosterEntry::examine`]). The empty
//! directory under a missing mount never becomes a root.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;

use super::RootDevice;
use crate::backend::file_closer::DeferredCloseFd;
use crate::backend::{BackendError, Result};
use crate::mount_table::MountTable;
use crate::survey::{AdmissionRefusal, OpenRoot, RootRecord, RosterEntry};

/// The open root. Closing the last descriptor of a detached mount may block, and an inline caller
/// may drop it last, so a dedicated thread closes it.
pub(super) struct Root {
    pub(super) fd: DeferredCloseFd,
    pub(super) device: RootDevice,
    record: RootRecord,
}

impl Root {
    pub(super) fn is_nfs(&self) -> bool {
        self.record.is_nfs()
    }

    /// The mount that contains it, if that is in this process's mount table.
    pub(super) fn watched_mount(&self) -> Option<u64> {
        self.record.mount.filter(|_| self.record.is_in_mount_table())
    }

    /// Returns once the server lets clients open files. After a restart an NFSv4 server answers
    /// other requests but refuses opens, by default for 90 s (its grace period). It refuses before
    /// it looks up the name. The name is new each time, because the client caches missing names.
    fn wait_for_grace_period(&self) {
        if !self.is_nfs() {
            return;
        }
        static NAMES: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!(".fanfs-{:016x}-{number}", *NAMES);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let _ = openat(self.fd.as_fd(), name, flags, Mode::empty());
    }

    /// Whether its mount is still in the mount table. True if no mount is watched.
    fn is_mounted(&self) -> std::result::Result<bool, Errno> {
        let Some(mount) = self.watched_mount() else { return Ok(true) };
        let table = MountTable::read();
        let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(table.by_id(mount).is_some())
    }
}

/// A replica's roster entry, and its open root if it is in service.
pub(super) struct RootSlot {
    roster_entry: RosterEntry,
    root: RwLock<Option<Arc<Root>>>,
    /// The device of the last root that came into service.
    device: RwLock<Option<RootDevice>>,
}

impl RootSlot {
    pub(super) fn absent(seat: RosterEntry) -> Self {
        Self { roster_entry: seat, root: RwLock::default(), device: RwLock::default() }
    }

    /// The current root.
    ///
    /// # Errors
    /// [`BackendError::Absent`] if the replica is not in service.
    pub(super) fn root(&self) -> Result<Arc<Root>> {
        self.root.read().clone().ok_or(BackendError::Absent)
    }

    /// The root's device; out of service, the device of the last admitted root.
    pub(super) fn device(&self) -> Option<RootDevice> {
        match self.root() {
            Ok(root) => Some(root.device),
            // A previous daemon may have admitted that root.
            Err(_) => (*self.device.read())
                .or_else(|| self.roster_entry.record().map(RootDevice::from_record)),
        }
    }

    /// Brings the replica into service if it passes the checks.
    pub(super) fn enter_service(&self) -> std::result::Result<(), AdmissionRefusal> {
        let (root, record) = self.roster_entry.examine()?.into_parts();
        let OpenRoot::Directory(fd) = root else {
            return Err(AdmissionRefusal::Unreachable(Errno::NOTSUP));
        };
        let device = RootDevice::from_root(fd.as_fd(), &record);
        *self.device.write() = Some(device);
        let root = Arc::new(Root { fd: fd.into(), device, record });
        *self.root.write() = Some(Arc::clone(&root));
        // The watcher of the mount table may have read it before this root was visible.
        let why = match root.is_mounted() {
            Ok(true) => return Ok(()),
            Ok(false) => Errno::STALE,
            Err(errno) => errno,
        };
        self.leave_service(&root);
        Err(AdmissionRefusal::Unreachable(why))
    }

    /// See [`crate::backend::Backend::handle_unmount`].
    pub(super) fn handle_unmount(&self, mount: u64) {
        let root = self.root().ok().filter(|root| root.watched_mount() == Some(mount));
        root.iter().for_each(|root| self.leave_service(root));
    }

    /// Leaves service if `root` is still the current one.
    fn leave_service(&self, root: &Arc<Root>) {
        self.root.write().take_if(|now| Arc::ptr_eq(now, root));
    }

    /// See [`crate::backend::Backend::check_mount`].
    pub(super) fn check_mount(&self) -> Result<bool> {
        let before = self.root().ok();
        if let Some(root) = &before {
            // Attributes from the kernel's cache do not prove that the server answers.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            match root.is_mounted()? {
                true => match statx(root.fd.as_fd(), "", flags, StatxFlags::BASIC_STATS) {
                    Ok(s) if s.stx_ino == root.record.ino => {
                        root.wait_for_grace_period();
                        return Ok(true);
                    }
                    Ok(_) => self.leave_service(root),
                    Err(Errno::STALE) => {}
                    Err(errno) => return Err(errno.into()),
                },
                false => self.leave_service(root),
            }
        }
        match self.enter_service() {
            Ok(()) => Ok(true),
            Err(AdmissionRefusal::Unreachable(errno))
                if !BackendError::from(errno).is_definite() =>
            {
                Err(errno.into())
            }
            Err(_) => {
                before.iter().for_each(|root| self.leave_service(root));
                Ok(false)
            }
        }
    }
}
