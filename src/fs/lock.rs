//! Locks of fcntl(2) and flock(2), kept by the write replica.
//!
//! Every owner (a process, or for flock an open file) locks through a descriptor
//! of its own on the write replica, by open file description locks: there the
//! owners of this mount are in each other's way as they are in that of programs on
//! that machine and, over NFS, on other clients. As on NFS, flock(2) is a lock of
//! the whole file among all the others: the FUSE library does not say which of the
//! two was asked for.
//!
//! Nobody waits inside a call for a lock: all of a replica's threads could, and the
//! one who gives it up would find none. Who has to wait is asked for again, soon
//! after somebody here gave up a lock of that file, and now and then besides.
//! A signal ends the wait: the kernel does not tell this library of it, so it is
//! looked for in /proc.

pub(super) mod lock_memory;
mod owners;
pub(super) mod snapshot;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::metadata_client::{RunAs, SingleCall};
use super::{Errno, Fs, FsResult, HandleId, Ino};
use crate::backend::{
    Backend, BackendError, BackendFile, Credentials, Lane, Lock, LockKind, LockRequest, OpenAccess,
    SyncMode, WriteOpenOptions,
};
use crate::buffer::Budget;
use crate::read::{OpenFile, RequestDeadline};
use lock_memory::{LockMemory, LockSlot};
use owners::OwnerTable;

/// Who owns a lock, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// Whether to wait for a lock that somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// No.
    NoWait,
    /// This thread does, as this process sees it; 0 where it does not.
    Thread(u32),
}

/// All locks that were taken through this mount.
pub(super) struct Locks {
    runtime: tokio::runtime::Handle,
    owners: Mutex<OwnerTable>,
    memory: LockMemory,
    /// Files that somebody waits for.
    waiters: Mutex<HashMap<Ino, Arc<Notify>>>,
}

#[derive(Default)]
struct OwnerDescriptor {
    /// Opened for this owner alone; locked while it is opened.
    file: Mutex<Option<Arc<dyn BackendFile>>>,
    /// Pays for it.
    _slot: Option<LockSlot>,
}

/// How often a lock is asked for again: at first, and at most.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(10);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(200);

impl Locks {
    pub(super) fn new(runtime: tokio::runtime::Handle, budget: Budget) -> Self {
        let room = LockMemory::new(budget);
        Self { runtime, memory: room, owners: Mutex::default(), waiters: Mutex::default() }
    }

    /// Where whoever has to wait for something does so.
    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// An owner that is about to take a lock through `handle`; `None` where its user has
    /// too many.
    fn owner_for_lock(
        &self,
        key: (Ino, LockOwner),
        handle: u64,
        who: &Credentials,
    ) -> Option<Arc<OwnerDescriptor>> {
        let mut owners = self.owners.lock();
        if !owners.contains(key) {
            let place = Some(self.memory.reserve(who.uid())?);
            owners.insert(key, OwnerDescriptor { file: Mutex::default(), _slot: place });
        }
        Some(owners.add_handle(key, handle))
    }

    /// A handle is closed: owners that took locks through it alone have none left.
    pub(super) fn release_handle(&self, handle: u64) {
        let over = self.owners.lock().remove_handle(handle);
        for (ino, owner) in over {
            // Closing its descriptor gives them up.
            drop(owner);
            self.wake_waiters(ino);
        }
    }

    /// Somebody here gave up a lock of this file.
    fn wake_waiters(&self, ino: Ino) {
        if let Some(waiting) = self.waiters.lock().get(&ino) {
            waiting.notify_waiters();
        }
    }

    fn add_waiter(&self, ino: Ino) -> Arc<Notify> {
        Arc::clone(self.waiters.lock().entry(ino).or_default())
    }

    /// Forgets that a file is waited for, if nobody else does.
    fn remove_waiter(&self, ino: Ino, own: Arc<Notify>) {
        let mut awaited = self.waiters.lock();
        drop(own);
        if awaited.get(&ino).is_some_and(|waiting| Arc::strong_count(waiting) == 1) {
            awaited.remove(&ino);
        }
    }
}

impl OwnerDescriptor {
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
        // An exclusive lock wants a file that may be written, a shared one does not.
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
            // Another file has its name.
            return Err(BackendError::Os(E::NOLCK));
        }
        Ok(Arc::clone(file.insert(opened)))
    }
}

impl Fs {
    /// Sets a lock, or gives one up.
    pub fn set_lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        lock: Lock,
        waiting: LockWait,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let (ino, user) = (file.ino, file.credentials.uid());
        let is_known = self.locks.owners.lock().contains((ino, owner));
        if lock.kind == LockKind::None && !is_known {
            return done(Ok(()));
        }
        let fs = Arc::clone(self);
        self.try_lock(handle, owner, LockRequest::Set(lock), move |answer| match answer {
            Err(Errno::AGAIN) => match waiting {
                LockWait::NoWait => done(Err(Errno::AGAIN)),
                // Somebody who cannot be seen could not be interrupted.
                LockWait::Thread(0) => done(Err(Errno::NOLCK)),
                LockWait::Thread(thread) => match fs.locks.memory.reserve(user) {
                    Some(place) => {
                        let key = (ino, owner);
                        let wait = Arc::clone(&fs).wait_for_lock(handle, key, lock, thread, done);
                        fs.locks.runtime.spawn(async move {
                            wait.await;
                            drop(place);
                        });
                    }
                    None => done(Err(Errno::NOLCK)),
                },
            },
            answer => done(answer.map(drop)),
        });
    }

    /// The lock in the way of this one.
    pub fn test_lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        lock: Lock,
        done: impl FnOnce(FsResult<Lock>) + Send + 'static,
    ) {
        self.try_lock(handle, owner, LockRequest::Test(lock), done);
    }

    fn try_lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        request: LockRequest,
        done: impl FnOnce(FsResult<Lock>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let Some(replica) = self.policy.lock_replica else { return done(Err(Errno::NOSYS)) };
        let (open, ino) = (file.inode.current(), file.ino);
        let Some(taken) = self.locks.owner_for_lock((ino, owner), handle.number, &file.credentials)
        else {
            return done(Err(Errno::NOLCK));
        };
        let who = file.credentials.clone();
        let deadlines = self.policy.write.map_or(self.policy.deadlines, |write| write.deadlines);
        let term = RequestDeadline::new(Instant::now(), deadlines);
        let once =
            SingleCall { replica, lane: Lane::Metadata, deadline: term, run_as: RunAs::Only(who) };
        let (for_write, told) = (self.policy.write.is_some(), Arc::new(AtomicBool::new(false)));
        let is_told = Arc::clone(&told);
        let op = move |backend: &dyn Backend| {
            let file = taken.get_or_open(&open, for_write, backend)?;
            let locked = file.lock(&request)?;
            if let (LockRequest::Set(lock), true) = (request, is_told.load(Ordering::Acquire)) {
                // Who asked has been told that he has none.
                file.lock(&LockRequest::Set(Lock { kind: LockKind::None, ..lock }))?;
            }
            Ok(locked)
        };
        let fs = Arc::clone(self);
        self.client.call_once(once, op, move |answer| {
            told.store(answer.is_err(), Ordering::Release);
            match (&answer, request) {
                (Ok(_), LockRequest::Set(Lock { kind: LockKind::None, .. })) => {
                    fs.locks.wake_waiters(ino);
                }
                // Whoever has a lock is to see what others wrote before.
                (Ok(_), LockRequest::Set(_)) if fs.policy.write.is_some() => {
                    fs.record_inode_change(ino)
                }
                _ => {}
            }
            done(answer.map_err(Errno::from));
        });
    }

    async fn wait_for_lock(
        self: Arc<Self>,
        handle: HandleId,
        (ino, owner): (Ino, LockOwner),
        lock: Lock,
        thread: u32,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let waiting = self.locks.add_waiter(ino);
        let mut pause = MIN_RETRY_INTERVAL;
        let answer = loop {
            let given_up = waiting.notified();
            if tokio::time::timeout(pause, given_up).await.is_err() {
                pause = (pause * 2).min(MAX_RETRY_INTERVAL);
            }
            if has_pending_signal(thread) {
                break Err(Errno::INTR);
            }
            let (send, receive) = tokio::sync::oneshot::channel();
            self.try_lock(handle, owner, LockRequest::Set(lock), move |answer| {
                let _ = send.send(answer);
            });
            match receive.await {
                Ok(Err(Errno::AGAIN)) => {}
                Ok(answer) => break answer.map(drop),
                Err(_) => break Err(Errno::IO),
            }
        };
        self.locks.remove_waiter(ino, waiting);
        done(answer);
    }

    /// Gives up all locks of an owner on a file, and then does the rest.
    pub(super) fn release_locks(
        self: &Arc<Self>,
        ino: Ino,
        owner: LockOwner,
        then: impl FnOnce() + Send + 'static,
    ) {
        let taken = self.locks.owners.lock().remove((ino, owner));
        let (Some(owner), Some(replica)) = (taken, self.policy.lock_replica) else { return then() };
        let term = RequestDeadline::new(Instant::now(), self.policy.deadlines);
        let rights = RunAs::Only(Credentials::DAEMON);
        let once = SingleCall { replica, lane: Lane::Metadata, deadline: term, run_as: rights };
        let unlock = move |_: &dyn Backend| {
            let all = Lock { kind: LockKind::None, start: 0, end: Lock::TO_EOF };
            match &*owner.file.lock() {
                Some(file) => file.lock(&LockRequest::Set(all)).map(drop),
                None => Ok(()),
            }
        };
        let fs = Arc::clone(self);
        self.client.call_once(once, unlock, move |_| {
            fs.locks.wake_waiters(ino);
            then();
        });
    }
}

/// Whether a signal waits for a thread, which waits for us.
fn has_pending_signal(thread: u32) -> bool {
    let Ok(status) = crate::capabilities::proc_status(thread) else {
        return true;
    };
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mask = |name: &str| u64::from_str_radix(value(name).unwrap_or_default(), 16).unwrap_or(0);
    /// SIGKILL among the signals of a mask.
    const KILL: u64 = 1 << 8;
    let (own, shared) = (mask("SigPnd:"), mask("ShdPnd:"));
    // What the process got may be for another of its threads. This one would be told
    // of an errno that the kernel keeps to itself, if it were not for it.
    let is_alone = value("Threads:") == Some("1");
    let pending = own | if is_alone { shared } else { shared & KILL };
    pending & !mask("SigBlk:") != 0
}
