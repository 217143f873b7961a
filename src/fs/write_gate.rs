//! Files that are open for writing, and what is read of them.
//!
//! As long as any handle may write a file, all of its handles read it from the
//! write replica, past everything that is kept of it here: what was written is
//! seen at once, and what another replica has of it by then is seen by nobody.
//!
//! *Invariants:*
//! - A read and a write of one file exclude each other, as on an NFS mount, so no
//!   answer is half of one write.
//! - A change that nobody got an answer to may still be under way. While it is,
//!   no other change of that file is begun: it could be overtaken. That holds for a
//!   change that an earlier daemon may be making, too ([`super::unsettled`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::append_queue::AppendQueue;
use super::error::Errno;
use super::ino::Ino;
use super::payload_budget::OnFull;
use super::pending_writes::PendingWrites;
use super::unsettled::UnsettledChanges;
use crate::backend::{BackendError, BackendFile, Credentials, SyncMode};
use crate::sync::{LockRank, RankedMutex};

/// A handle that may write.
pub(super) struct Writer {
    /// As the write replica has it open for this handle alone.
    pub(super) file: Arc<dyn BackendFile>,
    /// Whether it can be read through.
    pub(super) readable: bool,
    /// When a write through it is done.
    pub(super) sync: SyncMode,
    /// In whose name.
    pub(super) credentials: Credentials,
    /// What the next fsync(2) or close(2) is to say.
    deferred_error: Mutex<Option<Errno>>,
    /// When its last change was noted.
    last_recorded: Mutex<Option<Instant>>,
}

impl Writer {
    pub(super) fn new(
        file: Arc<dyn BackendFile>,
        readable: bool,
        sync: SyncMode,
        who: Credentials,
    ) -> Self {
        Self {
            file,
            readable,
            sync,
            credentials: who,
            deferred_error: Mutex::new(None),
            last_recorded: Mutex::new(None),
        }
    }

    /// A change may have been lost.
    pub(super) fn set_deferred_error(&self, errno: Errno) {
        *self.deferred_error.lock() = Some(errno);
    }

    /// What is to be said of changes before now, once.
    pub(super) fn take_deferred_error(&self) -> Option<Errno> {
        self.deferred_error.lock().take()
    }

    /// The same, and it still is to be said.
    pub(super) fn deferred_error(&self) -> Option<Errno> {
        *self.deferred_error.lock()
    }

    /// Whether a change at `now` has to be noted, as the last one was `often` ago.
    pub(super) fn should_record_change(&self, now: Instant, often: std::time::Duration) -> bool {
        let mut noted = self.last_recorded.lock();
        let due = noted.is_none_or(|at| now.saturating_duration_since(at) >= often);
        if due {
            *noted = Some(now);
        }
        due
    }
}

/// How often a change looks whether earlier daemons are through with its file.
const EARLIER_DAEMON_POLL: Duration = Duration::from_millis(10);

/// Keeps reads and changes of one file apart. It lives as long as the file is open, or
/// a change of it is under way.
pub(super) struct WriteGate {
    ino: Ino,
    unsettled: Arc<UnsettledChanges>,
    lock: RwLock<()>,
    /// Changes that have not come to an end.
    in_flight: AtomicUsize,
    /// Whether any of them was given up.
    has_abandoned: AtomicBool,
    /// O_DIRECT appends, which arrive in parts.
    pub(super) appends: RankedMutex<AppendQueue>,
    /// Writes that later reads wait for.
    pub(super) pending_writes: PendingWrites,
}

/// A change that is under way; it is not any more when this is dropped.
pub(super) struct MutationGuard {
    gate: Arc<WriteGate>,
    /// Whether who asked for it has been told that it did not end in time.
    is_abandoned: AtomicBool,
}

/// A write that has arrived. It ends when this is dropped.
pub(super) struct PendingWrite {
    gate: Arc<WriteGate>,
    number: u64,
}

/// A part that has arrived, before there is room for it.
pub(super) struct AnnouncedPart {
    pub(super) gate: Arc<WriteGate>,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) arrived_at: Instant,
    /// What the part does where there is no room.
    pub(super) on_full: OnFull,
}

impl WriteGate {
    pub(super) fn new(ino: Ino, unsettled: Arc<UnsettledChanges>) -> Self {
        Self {
            ino,
            unsettled,
            lock: RwLock::default(),
            in_flight: AtomicUsize::default(),
            has_abandoned: AtomicBool::default(),
            appends: RankedMutex::new(LockRank::Appends, AppendQueue::default()),
            pending_writes: PendingWrites::default(),
        }
    }

    /// A change begins; `None` where it could be overtaken by an older one. Of an earlier
    /// daemon's changes, only a change that came `again` may begin; [`MutationGuard::lock_exclusive`]
    /// then waits.
    pub(super) fn start_mutation(self: &Arc<Self>, again: bool) -> Option<Arc<MutationGuard>> {
        if again {
            self.unsettled.add_resent(self.ino);
        } else if self.unsettled.is_blocked(self.ino) {
            return None;
        }
        self.start_operation()
    }

    /// The same for what sets no data or attributes; earlier daemons do not matter to it.
    pub(super) fn start_operation(self: &Arc<Self>) -> Option<Arc<MutationGuard>> {
        let others = self.in_flight.fetch_add(1, Ordering::AcqRel);
        let under_way =
            MutationGuard { gate: Arc::clone(self), is_abandoned: AtomicBool::new(false) };
        if others == 0 {
            self.has_abandoned.store(false, Ordering::Release);
        }
        (!self.has_abandoned.load(Ordering::Acquire)).then(|| Arc::new(under_way))
    }

    /// A write through the kernel's page cache has arrived.
    pub(super) fn track_write(self: &Arc<Self>) -> PendingWrite {
        PendingWrite { gate: Arc::clone(self), number: self.pending_writes.add() }
    }

    /// A part of a write(2) has arrived.
    pub(super) fn announce_part(self: &Arc<Self>, offset: u64, len: u64) -> AnnouncedPart {
        AnnouncedPart {
            on_full: self.appends.lock().announce(offset),
            gate: Arc::clone(self),
            offset,
            len,
            arrived_at: Instant::now(),
        }
    }

    /// Whether a change is under way.
    pub(super) fn has_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    /// Waits until nothing is being changed. Blocks.
    pub(super) fn lock_shared(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }

    /// The same, if nothing is being changed now.
    pub(super) fn try_lock_shared(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.lock.try_read()
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.gate.pending_writes.remove(self.number);
    }
}

impl MutationGuard {
    /// Waits until nothing else is being read or changed. Blocks.
    ///
    /// # Errors
    /// [`BackendError::Late`] where nobody waits for it any more: it is not to be
    /// done after what was asked for later.
    pub(super) fn lock_exclusive(&self) -> crate::backend::Result<RwLockWriteGuard<'_, ()>> {
        while self.gate.unsettled.is_blocked(self.gate.ino) && !self.is_cancelled() {
            std::thread::sleep(EARLIER_DAEMON_POLL);
        }
        let alone = self.gate.lock.write();
        match self.is_cancelled() {
            true => Err(BackendError::Late),
            false => Ok(alone),
        }
    }

    /// Whether it is not to be begun any more.
    fn is_cancelled(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire) || self.gate.unsettled.is_handed_over()
    }

    /// Who asked for it is about to be told this.
    pub(super) fn finish<T>(&self, answer: &crate::backend::Result<T>) {
        if matches!(answer, Err(BackendError::Late))
            && !self.is_abandoned.swap(true, Ordering::AcqRel)
        {
            self.gate.has_abandoned.store(true, Ordering::Release);
            self.gate.unsettled.add_abandoned(self.gate.ino);
        }
    }
}

impl Drop for MutationGuard {
    fn drop(&mut self) {
        if *self.is_abandoned.get_mut() {
            self.gate.unsettled.remove_abandoned(self.gate.ino);
        }
        self.gate.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_while_something_given_up_is_under_way() {
        let gate =
            Arc::new(WriteGate::new(Ino(1), Arc::new(UnsettledChanges::new(Arc::default()))));
        let lost = gate.start_operation().unwrap();
        let other = gate.start_operation().unwrap();
        lost.finish::<()>(&Err(BackendError::Late));
        assert!(lost.lock_exclusive().is_err() && other.lock_exclusive().is_ok());
        drop(other);
        assert!(gate.start_operation().is_none());
        drop(lost);
        assert!(gate.start_operation().is_some());
    }
}
