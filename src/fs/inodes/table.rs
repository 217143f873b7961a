//! The table of inodes behind its lock.
//!
//! Every request needs it for a moment, so nothing slow happens under the lock: no system call, and
//! no write of the journal. When the lock is released, the steps taken under it are flushed to the
//! journal's file, before its holder can answer the kernel.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::Inodes;
use crate::fs::step_log::StepLog;
use crate::sync::{LockRank, RankedMutex, RankedMutexGuard};
use crate::volume::VolumeMode;

/// The table of inodes, and the log of its steps.
pub(in crate::fs) struct InodeTable {
    inodes: RankedMutex<Inodes>,
    log: Arc<StepLog>,
}

/// The table, locked until this is dropped.
pub(in crate::fs) struct InodesGuard<'a> {
    /// `None` only while the guard is dropped.
    inodes: Option<RankedMutexGuard<'a, Inodes>>,
    log: &'a StepLog,
}

impl InodeTable {
    /// An empty table that writes its steps to `log`.
    pub(in crate::fs) fn new(mode: VolumeMode, log: Arc<StepLog>) -> Self {
        let inodes = Inodes { log: Arc::clone(&log), ..Inodes::new(mode) };
        Self { inodes: RankedMutex::new(LockRank::Inodes, inodes), log }
    }

    #[cfg_attr(debug_assertions, track_caller)]
    pub(in crate::fs) fn lock(&self) -> InodesGuard<'_> {
        InodesGuard { inodes: Some(self.inodes.lock()), log: &self.log }
    }

    /// Replaces the whole table.
    pub(in crate::fs) fn replace(&self, inodes: Inodes) {
        *self.inodes.lock() = Inodes { log: Arc::clone(&self.log), ..inodes };
    }
}

/// The reason why the guard always has the table.
const LOCKED: &str = "the table is locked until its guard is dropped";

impl Deref for InodesGuard<'_> {
    type Target = Inodes;

    fn deref(&self) -> &Inodes {
        self.inodes.as_ref().expect(LOCKED)
    }
}

impl DerefMut for InodesGuard<'_> {
    fn deref_mut(&mut self) -> &mut Inodes {
        self.inodes.as_mut().expect(LOCKED)
    }
}

impl Drop for InodesGuard<'_> {
    fn drop(&mut self) {
        let Some(mut inodes) = self.inodes.take() else { return };
        let unflushed = std::mem::take(&mut inodes.unflushed);
        drop(inodes);
        self.log.flush(unflushed);
    }
}
