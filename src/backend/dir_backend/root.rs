//! A replica's root: its descriptor, and the search for it after its mount has gone.
//!
//! At first there is no root, and every call fails with [`BackendError::Absent`]. An open
//! root stays the same mount, even if another mount covers its path or the path is
//! unmounted. When the mount has gone, or the server no longer knows its file handle
//! (ESTALE), [`RootSlot::check_mount`] examines the path again.
//!
//! When the mount goes, the replica leaves service ([`RootSlot::handle_unmount`]). The mounts inside
//! it have gone too. A root that stayed open would report names in them as missing, and
//! would write below them.
//!
//! *Invariant:* no root is in service whose mount is known to have gone.
//! [`RootSlot::enter_service`] publishes the root first and reads the mount table afterwards, so a
//! mount that goes in between is noticed here or by the watcher of the table.
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
use crate::survey::{AdmissionRefusal, RootRecord, RosterEntry};

/// The open root. Closing the last descriptor of a detached mount may block, and a guest
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

    /// The mount that it lies in, if that is in this process's mount table.
    pub(super) fn watched_mount(&self) -> Option<u64> {
        self.record.mount.filter(|_| self.record.is_in_mount_table())
    }

    /// Returns once its server opens files. After a restart an NFSv4 server answers and
    /// opens nothing, by default for 90 s (its grace period). It says so before it looks
    /// for the name. That name is new, since the client would not ask for it twice.
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

    /// Whether the mount table still has its mount.
    fn is_mounted(&self) -> std::result::Result<bool, Errno> {
        let Some(mount) = self.watched_mount() else { return Ok(true) };
        let table = MountTable::read();
        let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(table.by_id(mount).is_some())
    }
}

/// The place of a replica, and what is open of it.
pub(super) struct RootSlot {
    roster_entry: RosterEntry,
    root: RwLock<Option<Arc<Root>>>,
    /// That of the root that came into service last.
    device: RwLock<Option<RootDevice>>,
}

impl RootSlot {
    /// A replica that is not in service.
    pub(super) fn absent(seat: RosterEntry) -> Self {
        Self { roster_entry: seat, root: RwLock::default(), device: RwLock::default() }
    }

    /// The root as it is open now.
    ///
    /// # Errors
    /// [`BackendError::Absent`] where the replica is not in service.
    pub(super) fn root(&self) -> Result<Arc<Root>> {
        self.root.read().clone().ok_or(BackendError::Absent)
    }

    /// The root's device; out of service, the device of the root that was admitted last.
    pub(super) fn device(&self) -> Option<RootDevice> {
        match self.root() {
            Ok(root) => Some(root.device),
            // Another daemon may have been the one that admitted it.
            Err(_) => (*self.device.read())
                .or_else(|| self.roster_entry.record().map(RootDevice::from_record)),
        }
    }

    /// Brings it into service if it passes the checks.
    pub(super) fn enter_service(&self) -> std::result::Result<(), AdmissionRefusal> {
        let (fd, record) = self.roster_entry.examine()?.into_parts();
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
