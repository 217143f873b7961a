//! A replica's root: held open, and looked for again where its mount has gone.
//!
//! There is none at first, and every call fails with [`BackendError::Absent`]. What is
//! held open stays the mount that it was, whatever is mounted over its path or unmounted
//! from it. Where that mount has gone, or its server has forgotten it, the path is
//! examined again.
//!
//! *Invariant:* a root is taken only from an [`Admitted`], so only from the roster's
//! checks ([`crate::volume::survey::Seat::examine`]). The empty directory under a mount
//! that has gone, which is all that its path leads to, never becomes one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::Device;
use crate::backend::{BackendError, Result};
use crate::volume::mounts::MountTable;
use crate::volume::survey::{Admitted, Record, Refusal, Seat};

/// The root as it is open now.
pub(super) struct Root {
    pub(super) fd: OwnedFd,
    pub(super) device: Device,
    record: Record,
}

impl Root {
    /// Whether it is an NFS mount.
    pub(super) fn is_nfs(&self) -> bool {
        self.record.is_nfs()
    }

    /// The mount that it lies in, if that is in this process's mount table.
    pub(super) fn watched_mount(&self) -> Option<u64> {
        self.record.mount.filter(|_| self.record.is_in_table())
    }
}

/// The place of a replica, and what is open of it.
pub(super) struct Place {
    seat: Seat,
    root: RwLock<Option<Arc<Root>>>,
}

impl Place {
    /// A replica that is not in service.
    pub(super) fn absent(seat: Seat) -> Self {
        Self { seat, root: RwLock::default() }
    }

    /// The root as it is open now.
    ///
    /// # Errors
    /// [`BackendError::Absent`] where the replica has not been brought into service.
    pub(super) fn root(&self) -> Result<Arc<Root>> {
        self.root.read().clone().ok_or(BackendError::Absent)
    }

    /// The device of the root, also of one that only the daemon before had open.
    pub(super) fn device(&self) -> Option<Device> {
        match self.root() {
            Ok(root) => Some(root.device),
            Err(_) => self.seat.record().map(|record| Device(record.dev.0, record.dev.1)),
        }
    }

    /// Brings the replica into service.
    fn admit(&self, admitted: Admitted) {
        let (fd, record) = admitted.into_parts();
        let device = Device(record.dev.0, record.dev.1);
        *self.root.write() = Some(Arc::new(Root { fd, device, record }));
    }

    /// Brings it into service if it passes the checks.
    pub(super) fn enter(&self) -> std::result::Result<(), Refusal> {
        self.seat.examine().map(|admitted| self.admit(admitted))
    }

    /// See [`crate::backend::Backend::prove`].
    pub(super) fn prove(&self) -> Result<bool> {
        if let Ok(root) = self.root() {
            let is_mounted = match root.watched_mount() {
                Some(id) => MountTable::read().is_ok_and(|table| table.by_id(id).is_some()),
                None => true,
            };
            // What is remembered of it is no proof that its server answers.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            match statx(root.fd.as_fd(), "", flags, StatxFlags::BASIC_STATS) {
                Ok(s) if is_mounted => return Ok(s.stx_ino == root.record.ino),
                Ok(_) | Err(Errno::STALE) => {}
                Err(_) if !is_mounted => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        match self.enter() {
            Ok(()) => Ok(true),
            Err(Refusal::Unreachable(errno)) if !BackendError::from(errno).is_definite() => {
                Err(errno.into())
            }
            Err(_) => Ok(false),
        }
    }
}
