//! The journal from which the next daemon continues the mount of one that was killed.
//!
//! [`crate::fs`] writes its entries. Its head has the state that the next daemon needs besides
//! inodes and handles: the replicas, and the parameters agreed with the kernel.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::device_number::DeviceNumber;
use super::handover_error::{JournalError, TakeoverError};
use super::mount_snapshot::MountSnapshot;
use super::volume_core::VolumeCore;
use crate::control::{self, journal_path};
use crate::fs::{FsSnapshot, recover_journal};
use crate::fuse::InitParams;
use crate::mount_table::MountTable;
use crate::volume::VolumeMode;

/// The head of a journal.
#[derive(Serialize, Deserialize)]
struct JournalHead {
    connection: Option<DeviceNumber>,
    mount: MountSnapshot,
}

/// A journal as the next daemon reads it.
pub(super) struct RecoveredJournal {
    pub(super) mount: MountSnapshot,
    pub(super) tables: FsSnapshot,
}

impl RecoveredJournal {
    /// The journal of the mount at `mount_point`.
    ///
    /// # Errors
    /// [`TakeoverError::Journal`] if it cannot be used.
    pub(super) fn read(mount_point: &Path, mode: VolumeMode) -> Result<Self, TakeoverError> {
        let journal = journal_path(mount_point);
        let read = || {
            let (head, tables) = recover_journal(&journal, mode)?;
            let head: JournalHead = postcard::from_bytes(&head)?;
            Ok(Self { mount: head.snapshot_for(mount_point)?, tables })
        };
        read().map_err(|error| TakeoverError::Journal { journal: journal.clone(), error })
    }
}

impl JournalHead {
    /// The snapshot, if the journal belongs to the mount at `mount_point`. If none is visible
    /// there (`umount -l`), the journal's mount may still be in use.
    fn snapshot_for(self, mount_point: &Path) -> Result<MountSnapshot, JournalError> {
        match (self.connection, connection_number(mount_point)) {
            (Some(its), Some(now)) if its != now => Err(JournalError::OtherMount),
            _ => Ok(self.mount),
        }
    }

    /// The current head of `core`'s journal.
    fn encode(
        core: &VolumeCore,
        connection: Option<DeviceNumber>,
        agreed: &InitParams,
    ) -> io::Result<Vec<u8>> {
        let mount = MountSnapshot::new(core, agreed.clone(), false);
        postcard::to_stdvec(&Self { connection, mount }).map_err(io::Error::other)
    }
}

/// The device number of the FUSE mount at `mount_point`, which identifies its connection.
fn connection_number(mount_point: &Path) -> Option<DeviceNumber> {
    let table = MountTable::read().ok()?;
    table
        .top_mount_at(mount_point)
        .filter(|mount| mount.fs_type.starts_with("fuse"))
        .map(|mount| mount.dev.into())
}

/// Starts the journal that the next daemon needs if this one is killed. Does nothing unless
/// another process keeps the device.
pub(super) fn start_journal(core: &Arc<VolumeCore>, agreed: &InitParams) {
    if !core.overrides.is_supervised {
        return;
    }
    let connection = connection_number(&core.mount_point);
    let begin = || {
        control::make_runtime_dir()?;
        let head = JournalHead::encode(core, connection, agreed)?;
        core.fs.start_journal(&journal_path(&core.mount_point), head)
    };
    if let Err(error) = begin() {
        tracing::warn!(%error, "no journal; if this daemon is killed, the mount is lost");
        return;
    }
    // Weak, because the core owns the roster, which owns this closure.
    let weak = Arc::downgrade(core);
    let agreed = agreed.clone();
    core.roster.on_admission(move || {
        if let Some(core) = weak.upgrade() {
            core.fs.update_journal_head(|| JournalHead::encode(&core, connection, &agreed));
        }
    });
}
