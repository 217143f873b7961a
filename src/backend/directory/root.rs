//! A replica's root: held open, and looked for again where its mount has gone.
//!
//! There is none at first, and every call fails with [`BackendError::Absent`]. What is
//! held open stays the mount that it was, whatever is mounted over its path or unmounted
//! from it. Where that mount has gone, or its server has forgotten it, the path is
//! examined again.
//!
//! A mount that has gone leaves service ([`Place::leave`]): the mounts inside it have
//! gone with it, so that a root that is kept would say of what lies there that it is
//! missing, and would take changes below them.
//!
//! *Invariant:* no root is in service whose mount is known to have gone. Whatever comes
//! into service is looked for in the mount table once more, after anything that watches
//! the table can see it.
//!
//! *Invariant:* a root is taken only from an [`crate::volume::survey::Admitted`], so
//! only from the roster's checks ([`crate::volume::survey::Seat::examine`]). The empty directory under a mount
//! that has gone, which is all that its path leads to, never becomes one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::RwLock;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;

use super::Device;
use crate::backend::{BackendError, Left, Result};
use crate::volume::mounts::MountTable;
use crate::volume::survey::{Record, Refusal, Seat};

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

    /// Whether its mount is in the mount table still.
    fn is_mounted(&self) -> std::result::Result<bool, Errno> {
        let Some(mount) = self.watched_mount() else { return Ok(true) };
        let table = MountTable::read();
        let table = table.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(table.by_id(mount).is_some())
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
    /// [`BackendError::Absent`] where the replica is not in service.
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

    /// Brings it into service if it passes the checks.
    pub(super) fn enter(&self) -> std::result::Result<(), Refusal> {
        let (fd, record) = self.seat.examine()?.into_parts();
        let device = Device(record.dev.0, record.dev.1);
        let root = Arc::new(Root { fd, device, record });
        let before = self.root.write().replace(Arc::clone(&root));
        // Not under the lock: the last one that closes a detached mount may wait.
        drop(before);
        // What watches the mount table may have looked before it could see this root.
        let why = match root.is_mounted() {
            Ok(true) => return Ok(()),
            Ok(false) => Errno::STALE,
            Err(errno) => errno,
        };
        drop(self.leave_as(&root));
        Err(Refusal::Unreachable(why))
    }

    /// Leaves service if the root lies in `mount`; see
    /// [`crate::backend::Backend::leave`].
    pub(super) fn leave(&self, mount: u64) -> Option<Left> {
        let root = self.root().ok().filter(|root| root.watched_mount() == Some(mount))?;
        self.leave_as(&root)
    }

    /// The same, if that is the root still.
    fn leave_as(&self, root: &Arc<Root>) -> Option<Left> {
        let left = self.root.write().take_if(|now| Arc::ptr_eq(now, root))?;
        Some(Box::new(left))
    }

    /// See [`crate::backend::Backend::prove`].
    pub(super) fn prove(&self) -> Result<bool> {
        let before = self.root().ok();
        if let Some(root) = &before {
            // What is remembered of it is no proof that its server answers.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            match root.is_mounted()? {
                true => match statx(root.fd.as_fd(), "", flags, StatxFlags::BASIC_STATS) {
                    Ok(s) if s.stx_ino == root.record.ino => return Ok(true),
                    Ok(_) => drop(self.leave_as(root)),
                    Err(Errno::STALE) => {}
                    Err(errno) => return Err(errno.into()),
                },
                false => drop(self.leave_as(root)),
            }
        }
        match self.enter() {
            Ok(()) => Ok(true),
            Err(Refusal::Unreachable(errno)) if !BackendError::from(errno).is_definite() => {
                Err(errno.into())
            }
            Err(_) => {
                before.iter().for_each(|root| drop(self.leave_as(root)));
                Ok(false)
            }
        }
    }
}
