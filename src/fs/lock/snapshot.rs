//! Locks that another daemon goes on keeping.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{LockOwner, Locks, OwnerDescriptor};
use crate::fs::Ino;
use crate::fs::snapshot::{RestoreContext, SnapshotBuilder, SnapshotError};
use crate::volume::ReplicaId;

/// An owner of locks.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct LockOwnerRecord {
    ino: u64,
    owner: u64,
    handles: BTreeSet<u64>,
    file: u32,
}

impl Locks {
    /// Whether anybody waits for one.
    pub(in crate::fs) fn has_waiters(&self) -> bool {
        !self.waiters.lock().is_empty()
    }

    /// Writes down who has locks, and sends along what keeps them.
    ///
    /// # Errors
    /// Where one cannot be sent.
    pub(in crate::fs) fn snapshot(&self, sheet: &mut SnapshotBuilder) -> Result<(), SnapshotError> {
        for ((ino, owner), taken, handles) in self.owners.lock().iter() {
            let Some(file) = taken.file.try_lock() else {
                return Err(SnapshotError::LockWait);
            };
            // Who has no descriptor has no lock.
            let Some(file) = &*file else { continue };
            let Some(file) = sheet.attach_file(file) else {
                return Err(SnapshotError::Lock);
            };
            let handles = handles.clone();
            let record = LockOwnerRecord { ino: ino.0, owner: owner.0, handles, file };
            sheet.snapshot.owners.push(record);
        }
        Ok(())
    }

    /// Goes on with what was written down.
    pub(in crate::fs) fn restore(
        &self,
        replica: ReplicaId,
        records: Vec<LockOwnerRecord>,
        heir: &mut RestoreContext<'_>,
    ) {
        let mut owners = self.owners.lock();
        for LockOwnerRecord { ino, owner, handles, file } in records {
            let file = Mutex::new(heir.adopt_file(replica, Some(file)));
            let place = Some(self.memory.reserve_restored());
            owners.restore(
                (Ino(ino), LockOwner(owner)),
                OwnerDescriptor { file, _slot: place },
                handles,
            );
        }
    }
}
