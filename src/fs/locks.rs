//! Locks of fcntl(2) and flock(2), kept by the write replica.
//!
//! Every owner (a process, or for flock an open file) locks through its own descriptor on that
//! replica, by open file description locks. So the owners of this mount exclude each other, other
//! programs on that machine and, over NFS, other clients. As on NFS, flock(2) is a lock of the
//! whole file that conflicts with all others. The FUSE library does not say which of the two calls
//! it was.
//!
//! No call on the replica waits for a lock. Waiting calls could hold all of a replica's threads,
//! and the owner that releases the lock would find none. A lock that is taken is requested again,
//! soon after an owner on this mount releases a lock of that file, and at intervals besides. A
//! signal ends the wait. The FUSE library does not pass the kernel's interrupt on, so fanfs reads
//! pending signals in /proc.

mod lock_memory;
mod owners;
mod snapshot;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};

use super::error::{Errno, FsResult};
use super::handle_id::HandleId;
use super::ino::Ino;
use super::replica_calls::ReplicaCalls;
use super::tables::Tables;
use crate::backend::{
    Backend, BackendError, BackendFile, Credentials, Lane, Lock, LockKind, LockRequest, OpenAccess,
    RequestingThread, SyncMode, WriteOpenOptions,
};
use crate::buffer::Budget;
use crate::read::OpenFile;
use crate::replicas::metadata_client::{ChangeClass, RunAs, SingleCall};
use crate::replicas::request_deadline::{Deadlines, RequestDeadline};
use crate::replicas::task;
use crate::sync::{LockRank, RankedMutex};
use lock_memory::{LockMemory, LockSlot};
use owners::OwnerTable;

/// The owner of a lock, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// Whether to wait for a lock that another owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// Fail at once.
    NoWait,
    /// Wait for this thread, by its number in the daemon's PID namespace; 0 if it is not visible
    /// there.
    Thread(u32),
}

/// Settles a lock whose call the replica may answer after the call has failed. Either the caller
/// has the lock, or the replica's thread releases it again. The first to settle it decides.
#[derive(Default)]
struct LockOutcome(OnceLock<Option<Lock>>);

impl LockOutcome {
    /// Whether the call has failed, without an answer.
    fn is_given_up(&self) -> bool {
        self.0.get().is_some_and(Option::is_none)
    }

    /// The replica has answered. False if the caller gets an error.
    fn keep(&self, answer: Lock) -> bool {
        self.0.get_or_init(|| Some(answer)).is_some()
    }

    /// The call has failed. Returns the replica's answer, if it came first.
    fn give_up(&self) -> Option<Lock> {
        *self.0.get_or_init(|| None)
    }
}

/// All locks that were taken through this mount.
pub struct Locks {
    tables: Arc<Tables>,
    calls: Arc<ReplicaCalls>,
    owners: RankedMutex<OwnerTable>,
    memory: LockMemory,
    /// Files with waiters.
    waiters: Mutex<HashMap<Ino, Arc<Notify>>>,
}

/// A request that waits for a lock.
struct LockWaiter {
    handle: HandleId,
    ino: Ino,
    owner: LockOwner,
    lock: Lock,
    /// The thread that waits, in the daemon's PID namespace.
    thread: u32,
    /// Memory for the wait.
    _slot: LockSlot,
}

#[derive(Default)]
struct OwnerDescriptor {
    /// The descriptor of this owner only; locked while it is opened.
    file: Mutex<Option<Arc<dyn BackendFile>>>,
    /// Held during each call that sets a lock, also while it hangs after its caller has given up.
    /// So such a call has ended, and its lock is released, before the owner's next one begins.
    order: Arc<AsyncMutex<OwnedLocks>>,
    /// Memory for the owner.
    _slot: Option<LockSlot>,
}

/// The locks of an owner, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OwnedLocks {
    /// It has none.
    #[default]
    None,
    /// It has none outside the range from the first to the last of these bytes.
    Within(u64, u64),
}

impl OwnedLocks {
    /// After the replica has set `lock`.
    fn after(self, lock: Lock) -> Self {
        match self {
            Self::Within(start, end) if lock.kind == LockKind::None => {
                let is_rest_released = lock.start <= start && end <= lock.end;
                if is_rest_released { Self::None } else { self }
            }
            _ if lock.kind == LockKind::None => self,
            Self::None => Self::Within(lock.start, lock.end),
            Self::Within(start, end) => Self::Within(start.min(lock.start), end.max(lock.end)),
        }
    }

    /// Whether it may have a lock in the range of `lock`.
    fn may_intersect(self, lock: Lock) -> bool {
        matches!(self, Self::Within(start, end) if lock.start <= end && start <= lock.end)
    }
}

/// The intervals between requests for a lock: the first one, and the longest.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(200);

impl Locks {
    /// No locks; their memory comes from `budget`.
    pub(super) fn new(tables: Arc<Tables>, calls: Arc<ReplicaCalls>, budget: Budget) -> Self {
        Self {
            tables,
            calls,
            memory: LockMemory::new(budget),
            owners: RankedMutex::new(LockRank::LockOwners, OwnerTable::default()),
            waiters: Mutex::default(),
        }
    }

    /// The owner of a lock that will be taken through `handle`; `None` if its user has too many.
    fn owner_for_lock(
        &self,
        key: (Ino, LockOwner),
        handle: u64,
        who: &Credentials,
    ) -> Option<Arc<OwnerDescriptor>> {
        let mut owners = self.owners.lock();
        if !owners.contains(key) {
            let place = Some(self.memory.reserve(who.uid())?);
            owners.insert(key, OwnerDescriptor { _slot: place, ..OwnerDescriptor::default() });
        }
        Some(owners.add_handle(key, handle))
    }

    /// A handle was closed: owners that took locks only through it lose them.
    pub(super) fn release_handle(&self, handle: u64) {
        let over = self.owners.lock().remove_handle(handle);
        for (ino, owner) in over {
            // Closing its descriptor releases them.
            drop(owner);
            self.wake_waiters(ino);
        }
    }

    /// An owner on this mount has released a lock of this file.
    fn wake_waiters(&self, ino: Ino) {
        if let Some(waiting) = self.waiters.lock().get(&ino) {
            waiting.notify_waiters();
        }
    }

    fn add_waiter(&self, ino: Ino) -> Arc<Notify> {
        Arc::clone(self.waiters.lock().entry(ino).or_default())
    }

    /// Removes the waiters' entry of a file, if this was the last waiter.
    fn remove_waiter(&self, ino: Ino, own: Arc<Notify>) {
        let mut awaited = self.waiters.lock();
        drop(own);
        if awaited.get(&ino).is_some_and(|waiting| Arc::strong_count(waiting) == 1) {
            awaited.remove(&ino);
        }
    }
}

impl OwnerDescriptor {
    /// Sets a lock, after the owner's earlier calls. If the call was given up meanwhile, the caller
    /// gets an error and must not have the lock, so it is released. An owner that may have another
    /// lock in that range keeps it, because the release would take that away too.
    fn set_lock(
        owned: &mut OwnedLocks,
        file: &dyn BackendFile,
        lock: Lock,
        outcome: &LockOutcome,
    ) -> crate::backend::Result<Lock> {
        if outcome.is_given_up() {
            return Err(BackendError::Late);
        }
        let locked = file.lock(&LockRequest::Set(lock))?;
        let is_kept = outcome.keep(locked) || lock.kind == LockKind::None;
        if is_kept || owned.may_intersect(lock) {
            *owned = owned.after(lock);
        } else {
            file.lock(&LockRequest::Set(Lock { kind: LockKind::None, ..lock }))?;
        }
        Ok(locked)
    }

    /// The descriptor that this owner locks through. Blocks.
    fn get_or_open(
        &self,
        open: &OpenFile,
        for_write: bool,
        backend: &dyn Backend,
    ) -> crate::backend::Result<Arc<dyn BackendFile>> {
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let how = WriteOpenOptions {
            access: OpenAccess::ReadWrite,
            truncate: false,
            sync: SyncMode::No,
            expected: None,
        };
        use rustix::io::Errno as E;
        // An exclusive lock needs a descriptor that may write, a shared one does not.
        let opened = match for_write {
            true => backend.open_to_write(open.path(), &how),
            false => Err(E::ROFS.into()),
        };
        let (opened, attr) = match opened {
            Ok(opened) => (opened.file, opened.attr),
            Err(BackendError::Os(E::ACCESS | E::PERM | E::ROFS | E::TXTBSY)) => {
                backend.open(open.path())?
            }
            Err(error) => return Err(error),
        };
        if attr.id.ino != open.version().ino {
            // Another file has the name.
            return Err(BackendError::Os(E::NOLCK));
        }
        Ok(Arc::clone(file.insert(opened)))
    }
}

impl Locks {
    /// Sets a lock, or releases one.
    pub async fn set_lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        lock: Lock,
        waiting: LockWait,
    ) -> FsResult<()> {
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        let is_known = self.owners.lock().contains((file.ino, owner));
        if lock.kind == LockKind::None && !is_known {
            return Ok(());
        }
        let will_repeat = matches!(waiting, LockWait::Thread(_));
        let answer = self.try_lock(handle, owner, LockRequest::Set(lock), will_repeat).await;
        if !matches!(answer, Err(Errno::AGAIN)) {
            return answer.map(drop);
        }
        let thread = match waiting {
            LockWait::NoWait => return Err(Errno::AGAIN),
            // fanfs cannot see signals of a thread that is not visible to it, so the wait could not
            // be interrupted.
            LockWait::Thread(0) => return Err(Errno::NOLCK),
            LockWait::Thread(thread) => thread,
        };
        let slot = self.memory.reserve(file.credentials.uid()).ok_or(Errno::NOLCK)?;
        let wait = LockWaiter { handle, ino: file.ino, owner, lock, thread, _slot: slot };
        // The wait does not delay a handover.
        task::release_held();
        let waiting = Arc::clone(self).wait_for_lock(wait);
        // If the runtime does not finish it, the volume is being shut down.
        self.calls.runtime.spawn(waiting).await.unwrap_or(Err(Errno::IO))
    }

    /// The lock that conflicts with this one.
    pub async fn test_lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        lock: Lock,
    ) -> FsResult<Lock> {
        self.try_lock(handle, owner, LockRequest::Test(lock), false).await
    }

    /// `EAGAIN` also while an earlier call of the owner hangs, if the caller `will_repeat` the
    /// request.
    async fn try_lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        request: LockRequest,
        will_repeat: bool,
    ) -> FsResult<Lock> {
        let file = self.tables.handles.file(handle).ok_or(Errno::BADF)?;
        let replica = self.tables.policy.lock_replica.ok_or(Errno::NOSYS)?;
        let ino = file.ino;
        let descriptor = self
            .owner_for_lock((ino, owner), handle.number, &file.credentials)
            .ok_or(Errno::NOLCK)?;
        let deadlines =
            self.tables.policy.write.map_or(self.tables.policy.deadlines, |write| write.deadlines);
        let open = file.inode.current();
        let for_write = self.tables.policy.write.is_some();
        let turn = match request {
            LockRequest::Test(_) => None,
            LockRequest::Set(_) => Some(self.turn_of(&descriptor, deadlines, will_repeat).await?),
        };
        let turn = Mutex::new(turn);
        let once = SingleCall {
            replica,
            class: ChangeClass::Long,
            lane: Lane::Metadata,
            deadline: RequestDeadline::new(Instant::now(), deadlines),
            run_as: RunAs::Only(file.credentials.clone()),
        };
        let outcome = Arc::new(LockOutcome::default());
        let lock = {
            let outcome = Arc::clone(&outcome);
            move |backend: &dyn Backend| {
                let file = descriptor.get_or_open(&open, for_write, backend)?;
                match request {
                    LockRequest::Test(_) => file.lock(&request),
                    LockRequest::Set(lock) => {
                        let mut turn = turn.lock();
                        let owned = turn.as_mut().ok_or(BackendError::Late)?;
                        OwnerDescriptor::set_lock(owned, &*file, lock, &outcome)
                    }
                }
            }
        };
        let answer = match self.calls.client.call_once(once, lock).await {
            // The call was late, but the replica answered before it was given up.
            Err(error) => outcome.give_up().ok_or(error),
            answer => answer,
        };
        match (&answer, request) {
            (Ok(_), LockRequest::Set(Lock { kind: LockKind::None, .. })) => {
                self.wake_waiters(ino);
            }
            // The owner of a lock must see earlier writes of others.
            (Ok(_), LockRequest::Set(_)) if for_write => self.tables.record_inode_change(ino),
            _ => {}
        }
        Ok(answer?)
    }

    /// Waits until the earlier calls of the owner have ended, as long as any of them may take, or
    /// until the caller is killed.
    async fn turn_of(
        &self,
        descriptor: &OwnerDescriptor,
        deadlines: Deadlines,
        will_repeat: bool,
    ) -> FsResult<OwnedMutexGuard<OwnedLocks>> {
        let order = Arc::clone(&descriptor.order);
        if let Ok(turn) = Arc::clone(&order).try_lock_owned() {
            return Ok(turn);
        }
        task::hold_until_reply(self.calls.client.pending_changes.add_waiting());
        let limit = deadlines.while_responsive.max(deadlines.while_unresponsive);
        let caller = RequestingThread::current();
        let begun = Instant::now();
        let wait = async move {
            loop {
                let turn = Arc::clone(&order).lock_owned();
                if let Ok(turn) = tokio::time::timeout(MAX_RETRY_INTERVAL, turn).await {
                    return Ok(turn);
                }
                if will_repeat {
                    return Err(Errno::AGAIN);
                }
                if caller.is_killed() {
                    return Err(Errno::INTR);
                }
                if begun.elapsed() >= limit {
                    return Err(Errno::TIMEDOUT);
                }
            }
        };
        // If the runtime does not finish it, the volume is being shut down.
        self.calls.runtime.spawn(wait).await.unwrap_or(Err(Errno::IO))
    }

    /// Repeats the request until the lock is taken, or a signal ends the wait. Runs on the runtime.
    async fn wait_for_lock(self: Arc<Self>, waiter: LockWaiter) -> FsResult<()> {
        let LockWaiter { handle, ino, owner, lock, thread, _slot } = waiter;
        let released = self.add_waiter(ino);
        let mut pause = MIN_RETRY_INTERVAL;
        let answer = loop {
            if tokio::time::timeout(pause, released.notified()).await.is_err() {
                pause = (pause * 2).min(MAX_RETRY_INTERVAL);
            }
            if has_pending_signal(thread) {
                break Err(Errno::INTR);
            }
            match self.try_lock(handle, owner, LockRequest::Set(lock), true).await {
                Err(Errno::AGAIN) => {}
                answer => break answer.map(drop),
            }
        };
        self.remove_waiter(ino, released);
        answer
    }

    /// Whether an owner may have locks on a file.
    pub(super) fn may_have_locks(&self, ino: Ino, owner: LockOwner) -> bool {
        self.owners.lock().contains((ino, owner))
    }

    /// Releases all locks of an owner on a file.
    pub(super) async fn release_locks(&self, ino: Ino, owner: LockOwner) {
        let descriptor = self.owners.lock().remove((ino, owner));
        let (Some(descriptor), Some(replica)) = (descriptor, self.tables.policy.lock_replica)
        else {
            return;
        };
        let once = SingleCall {
            replica,
            class: ChangeClass::Long,
            lane: Lane::Metadata,
            deadline: RequestDeadline::new(Instant::now(), self.tables.policy.deadlines),
            run_as: RunAs::DAEMON,
        };
        let unlock = move |_: &dyn Backend| {
            let all = Lock { kind: LockKind::None, start: 0, end: Lock::TO_EOF };
            match &*descriptor.file.lock() {
                Some(file) => file.lock(&LockRequest::Set(all)).map(drop),
                None => Ok(()),
            }
        };
        // If this fails, closing the descriptor releases the locks.
        let _ = self.calls.client.call_once(once, unlock).await;
        self.wake_waiters(ino);
    }
}

/// Whether a signal is pending for a thread that waits for this daemon.
fn has_pending_signal(thread: u32) -> bool {
    let Ok(status) = crate::capabilities::proc_status(thread) else {
        return true;
    };
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = |name: &str| u64::from_str_radix(value(name).unwrap_or_default(), 16).unwrap_or(0);
    /// SIGKILL among the signals of a mask.
    const KILL: u64 = 1 << 8;
    let own = mask("SigPnd:");
    let shared = mask("ShdPnd:");
    // A signal to the process may be for another of its threads. This thread would then see an
    // errno that is internal to the kernel.
    let is_alone = value("Threads:") == Some("1");
    let pending = own | if is_alone { shared } else { shared & KILL };
    pending & !mask("SigBlk:") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: Lock = Lock { kind: LockKind::Exclusive, start: 0, end: Lock::TO_EOF };

    #[test]
    fn a_lock_granted_too_late_is_released() {
        let late = LockOutcome::default();
        assert_eq!(late.give_up(), None);
        assert!(!late.keep(LOCK));
        let in_time = LockOutcome::default();
        assert!(in_time.keep(LOCK));
        assert_eq!(in_time.give_up(), Some(LOCK));
    }
}
