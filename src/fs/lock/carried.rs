//! Locks that another daemon goes on keeping.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{LockOwner, Locks, Owner};
use crate::fs::Ino;
use crate::fs::carried::{Inheritance, Sheet};
use crate::volume::ReplicaId;

/// An owner of locks.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct OwnerRecord {
    ino: u64,
    owner: u64,
    handles: BTreeSet<u64>,
    file: u32,
}

impl Locks {
    /// Whether anybody waits for one.
    pub(in crate::fs) fn is_awaited(&self) -> bool {
        !self.awaited.lock().is_empty()
    }

    /// Writes down who has locks, and sends along what keeps them.
    ///
    /// # Errors
    /// Where one cannot be sent.
    pub(in crate::fs) fn carry(&self, sheet: &mut Sheet) -> Result<(), String> {
        for ((ino, owner), taken, handles) in self.owners.lock().iter() {
            let Some(file) = taken.file.try_lock() else {
                return Err("a lock is being waited for on a replica that does not answer".into());
            };
            // Who has no descriptor has no lock.
            let Some(file) = &*file else { continue };
            let Some(file) = sheet.send(file) else {
                return Err("a lock could not be handed over".into());
            };
            let handles = handles.clone();
            let record = OwnerRecord { ino: ino.0, owner: owner.0, handles, file };
            sheet.carried.owners.push(record);
        }
        Ok(())
    }

    /// Goes on with what was written down.
    pub(in crate::fs) fn restore(
        &self,
        replica: ReplicaId,
        records: Vec<OwnerRecord>,
        heir: &mut Inheritance<'_>,
    ) {
        let mut owners = self.owners.lock();
        for OwnerRecord { ino, owner, handles, file } in records {
            let file = Mutex::new(heir.file(replica, Some(file)));
            let place = Some(self.room.place_again());
            owners.restore((Ino(ino), LockOwner(owner)), Owner { file, _place: place }, handles);
        }
    }
}
