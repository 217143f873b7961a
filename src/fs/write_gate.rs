//! Separates reads and changes of a file, and keeps its changes in order.
//!
//! While any handle may write a file, all its handles read it from the write replica, past all
//! segments kept here. So readers see written data at once, and never the state of another replica.
//!
//! *Invariants:*
//! - A read and a write of one file exclude each other, as on an NFS mount, so no answer has half
//!   of one write.
//! - A change without an answer in time may still be in flight. While it is, no other change of
//!   that file begins: the older change could overwrite it. That also holds for a change that an
//!   earlier daemon may be making ([`super::unsettled`]).

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
use crate::replicas::metadata_client::ChangeClass;
use crate::sync::{LockRank, RankedMutex};
use crate::volume::ByteRange;

/// A handle that may write.
pub(super) struct Writer {
    /// The write replica's descriptor, opened for this handle only.
    pub(super) file: Arc<dyn BackendFile>,
    /// Whether the descriptor can be read.
    pub(super) readable: bool,
    /// When a write through it counts as done.
    pub(super) sync: SyncMode,
    /// The credentials of its calls.
    pub(super) credentials: Credentials,
    /// The error that the next fsync(2) or close(2) reports.
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

    /// Records that a change may have been lost.
    pub(super) fn set_deferred_error(&self, errno: Errno) {
        *self.deferred_error.lock() = Some(errno);
    }

    /// Takes the error of earlier changes, to be reported once.
    pub(super) fn take_deferred_error(&self) -> Option<Errno> {
        self.deferred_error.lock().take()
    }

    /// The error of earlier changes, which is kept.
    pub(super) fn deferred_error(&self) -> Option<Errno> {
        *self.deferred_error.lock()
    }

    /// Whether a change at `now` must be noted, because the last note is at least `often` old.
    pub(super) fn should_record_change(&self, now: Instant, often: std::time::Duration) -> bool {
        let mut noted = self.last_recorded.lock();
        let due = noted.is_none_or(|at| now.saturating_duration_since(at) >= often);
        if due {
            *noted = Some(now);
        }
        due
    }
}

/// How often a change checks whether earlier daemons have finished with its file.
const EARLIER_DAEMON_POLL: Duration = Duration::from_millis(10);

/// Separates reads and changes of one file. It lives as long as the file is open or a change of it
/// is in flight.
pub(super) struct WriteGate {
    ino: Ino,
    unsettled: Arc<UnsettledChanges>,
    lock: RwLock<()>,
    /// Changes that have not ended.
    in_flight: AtomicUsize,
    /// Whether any of them was given up.
    has_abandoned: AtomicBool,
    /// O_DIRECT appends, which arrive in parts.
    pub(super) appends: RankedMutex<AppendQueue>,
    /// Writes that later reads wait for.
    pub(super) pending_writes: PendingWrites,
}

/// A change in flight; dropping it ends the change.
pub(super) struct MutationGuard {
    gate: Arc<WriteGate>,
    /// Whether its caller was answered because the change did not end in time.
    is_abandoned: AtomicBool,
}

/// A write that has arrived. Dropping it ends the write.
pub(super) struct PendingWrite {
    gate: Arc<WriteGate>,
    number: u64,
    /// The range of the write, if a read may have overtaken it.
    overtaken: Option<ByteRange>,
}

/// A part of an append that has arrived and has no room yet.
pub(super) struct AnnouncedPart {
    pub(super) gate: Arc<WriteGate>,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) arrived_at: Instant,
    /// How the part proceeds if there is no room.
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

    /// Begins a change; `None` if an older change could overwrite it. While an earlier daemon may
    /// be changing the file, only a change that the kernel sends `again` may begin;
    /// [`MutationGuard::lock_exclusive`] then waits.
    pub(super) fn start_mutation(self: &Arc<Self>, again: bool) -> Option<Arc<MutationGuard>> {
        if again {
            self.unsettled.add_resent(self.ino);
        } else if self.unsettled.is_blocked(self.ino) {
            return None;
        }
        self.start_operation()
    }

    /// The same for an operation that sets no data or attributes; earlier daemons do not matter to
    /// it.
    pub(super) fn start_operation(self: &Arc<Self>) -> Option<Arc<MutationGuard>> {
        let others = self.in_flight.fetch_add(1, Ordering::AcqRel);
        let under_way =
            MutationGuard { gate: Arc::clone(self), is_abandoned: AtomicBool::new(false) };
        if others == 0 {
            self.has_abandoned.store(false, Ordering::Release);
        }
        (!self.has_abandoned.load(Ordering::Acquire)).then(|| Arc::new(under_way))
    }

    /// Registers a write through the kernel's page cache. `copied` is the range that the kernel has
    /// copied into its pages for it, if any.
    pub(super) fn track_write(self: &Arc<Self>, copied: Option<ByteRange>) -> PendingWrite {
        let (number, is_overtaken) = self.pending_writes.add(copied);
        let overtaken = copied.filter(|_| is_overtaken);
        PendingWrite { gate: Arc::clone(self), number, overtaken }
    }

    /// Registers a part of a write(2).
    pub(super) fn announce_part(self: &Arc<Self>, offset: u64, len: u64) -> AnnouncedPart {
        AnnouncedPart {
            on_full: self.appends.lock().announce(offset),
            gate: Arc::clone(self),
            offset,
            len,
            arrived_at: Instant::now(),
        }
    }

    pub(super) fn has_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) > 0
    }

    /// Waits until no change is running. Blocks.
    pub(super) fn lock_shared(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }

    /// The same if no change is running now; else `None`.
    pub(super) fn try_lock_shared(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.lock.try_read()
    }
}

impl PendingWrite {
    /// Ends it. Returns its range, if the kernel's pages there may be older than the write.
    pub(super) fn end(self) -> Option<ByteRange> {
        self.overtaken
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.gate.pending_writes.remove(self.number);
    }
}

impl MutationGuard {
    /// Waits until no other read or change is running. Blocks.
    ///
    /// # Errors [`BackendError::Late`] if its caller was answered already, or the daemon has handed
    /// over: it must not run after later requests.
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

    /// The class of this change, which is otherwise of `class`. It may have to wait for another change
    /// of the file, also of an earlier daemon, or for a read.
    pub(super) fn class(&self, class: ChangeClass) -> ChangeClass {
        let gate = &self.gate;
        let may_wait = gate.in_flight.load(Ordering::Acquire) > 1
            || gate.lock.is_locked()
            || gate.unsettled.is_blocked(gate.ino);
        match may_wait {
            true => ChangeClass::Long,
            false => class,
        }
    }

    /// Whether the change must not begin any more.
    fn is_cancelled(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire) || self.gate.unsettled.is_handed_over()
    }

    /// Call this before the caller gets `answer`.
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
    fn no_call_starts_while_an_abandoned_one_runs() {
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
