//! Locks as records, from which the next daemon restores them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use super::{LockOwner, Locks, OwnedLocks, OwnerDescriptor};
use crate::backend::Lock;
use crate::fs::file_transfer::{FilesToSend, ReceivedFiles, SnapshotError};
use crate::fs::ino::Ino;
use crate::fs::records::LockOwnerRecord;
use crate::volume::ReplicaId;

impl Locks {
    /// Whether any caller waits for a lock.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.lock().is_empty()
    }

    /// Records the owners that have locks, and adds their descriptors to `files`.
    ///
    /// # Errors If a lock cannot be sent.
    pub(in crate::fs) fn snapshot(
        &self,
        files: &mut FilesToSend,
    ) -> Result<Vec<LockOwnerRecord>, SnapshotError> {
        let mut records = Vec::new();
        for ((ino, owner), taken, handles) in self.owners.lock().iter() {
            let Some(file) = taken.file.try_lock() else {
                return Err(SnapshotError::LockWait);
            };
            // An owner without a descriptor has no lock.
            let Some(file) = &*file else { continue };
            let Some(file) = files.add(file) else {
                return Err(SnapshotError::Lock);
            };
            let handles = handles.clone();
            records.push(LockOwnerRecord { ino: ino.0, owner: owner.0, handles, file });
        }
        Ok(records)
    }

    /// Restores the locks that the predecessor kept on `replica`.
    pub(in crate::fs) fn restore(
        &self,
        replica: ReplicaId,
        records: Vec<LockOwnerRecord>,
        received: &mut ReceivedFiles<'_>,
    ) {
        let mut owners = self.owners.lock();
        for LockOwnerRecord { ino, owner, handles, file } in records {
            let file = Mutex::new(received.take(replica, Some(file)));
            let place = Some(self.memory.reserve_restored());
            owners.restore(
                (Ino(ino), LockOwner(owner)),
                OwnerDescriptor {
                    file,
                    order: Arc::new(AsyncMutex::new(OwnedLocks::Within(0, Lock::TO_EOF))),
                    _slot: place,
                },
                handles,
            );
        }
    }
}
