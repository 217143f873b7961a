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

pub(super) mod carried;
mod owners;
pub(super) mod room;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::call::{Once, Rights};
use super::{Answer, Errno, Fs, HandleId, Ino};
use crate::backend::{
    Backend, BackendError, BackendFile, Identity, Lane, Lock, LockKind, LockRequest, OpenAccess,
    SyncMode, WriteOpen,
};
use crate::buffer::Budget;
use crate::read::{OpenFile, Term};
use owners::Owners;
use room::{Place, Room};

/// Who owns a lock, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner(pub u64);

/// Whether to wait for a lock that somebody else has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// No.
    Not,
    /// This thread does, as this process sees it; 0 where it does not.
    Thread(u32),
}

/// All locks that were taken through this mount.
pub(super) struct Locks {
    runtime: tokio::runtime::Handle,
    owners: Mutex<Owners>,
    room: Room,
    /// Files that somebody waits for.
    awaited: Mutex<HashMap<Ino, Arc<Notify>>>,
}

#[derive(Default)]
struct Owner {
    /// Opened for this owner alone; locked while it is opened.
    file: Mutex<Option<Arc<dyn BackendFile>>>,
    /// Pays for it.
    _place: Option<Place>,
}

/// How often a lock is asked for again: at first, and at most.
const SOON: Duration = Duration::from_millis(10);
const SELDOM: Duration = Duration::from_millis(200);

impl Locks {
    pub(super) fn new(runtime: tokio::runtime::Handle, budget: Budget) -> Self {
        let room = Room::new(budget);
        Self { runtime, room, owners: Mutex::default(), awaited: Mutex::default() }
    }

    /// Where whoever has to wait for something does so.
    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// An owner that is about to take a lock through `handle`; `None` where its user has
    /// too many.
    fn owner(&self, key: (Ino, LockOwner), handle: u64, who: &Identity) -> Option<Arc<Owner>> {
        let mut owners = self.owners.lock();
        if !owners.has(key) {
            let place = Some(self.room.place(who.uid())?);
            owners.enter(key, Owner { file: Mutex::default(), _place: place });
        }
        Some(owners.takes(key, handle))
    }

    /// A handle is closed: owners that took locks through it alone have none left.
    pub(super) fn released(&self, handle: u64) {
        let over = self.owners.lock().released(handle);
        for (ino, owner) in over {
            // Closing its descriptor gives them up.
            drop(owner);
            self.given_up(ino);
        }
    }

    /// Somebody here gave up a lock of this file.
    fn given_up(&self, ino: Ino) {
        if let Some(waiting) = self.awaited.lock().get(&ino) {
            waiting.notify_waiters();
        }
    }

    fn waits(&self, ino: Ino) -> Arc<Notify> {
        Arc::clone(self.awaited.lock().entry(ino).or_default())
    }

    /// Forgets that a file is waited for, if nobody else does.
    fn waits_no_more(&self, ino: Ino, own: Arc<Notify>) {
        let mut awaited = self.awaited.lock();
        drop(own);
        if awaited.get(&ino).is_some_and(|waiting| Arc::strong_count(waiting) == 1) {
            awaited.remove(&ino);
        }
    }
}

impl Owner {
    /// The descriptor that this owner locks through. Blocks.
    fn file(
        &self,
        open: &OpenFile,
        for_write: bool,
        backend: &dyn Backend,
    ) -> crate::backend::Result<Arc<dyn BackendFile>> {
        let mut file = self.file.lock();
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        let how = WriteOpen {
            access: OpenAccess::Both,
            truncate: false,
            sync: SyncMode::No,
            known: None,
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
    pub fn lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        lock: Lock,
        waiting: Waiting,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let (ino, user) = (file.ino, file.who.uid());
        let is_known = self.locks.owners.lock().has((ino, owner));
        if lock.kind == LockKind::None && !is_known {
            return done(Ok(()));
        }
        let fs = Arc::clone(self);
        self.try_lock(handle, owner, LockRequest::Set(lock), move |answer| match answer {
            Err(Errno::AGAIN) => match waiting {
                Waiting::Not => done(Err(Errno::AGAIN)),
                // Somebody who cannot be seen could not be interrupted.
                Waiting::Thread(0) => done(Err(Errno::NOLCK)),
                Waiting::Thread(thread) => match fs.locks.room.place(user) {
                    Some(place) => {
                        let key = (ino, owner);
                        let wait = Arc::clone(&fs).wait_for(handle, key, lock, thread, done);
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
        done: impl FnOnce(Answer<Lock>) + Send + 'static,
    ) {
        self.try_lock(handle, owner, LockRequest::Test(lock), done);
    }

    fn try_lock(
        self: &Arc<Self>,
        handle: HandleId,
        owner: LockOwner,
        request: LockRequest,
        done: impl FnOnce(Answer<Lock>) + Send + 'static,
    ) {
        let Some(file) = self.handles.file(handle) else { return done(Err(Errno::BADF)) };
        let Some(replica) = self.policy.locks else { return done(Err(Errno::NOSYS)) };
        let (open, ino) = (file.inode.current(), file.ino);
        let Some(taken) = self.locks.owner((ino, owner), handle.number, &file.who) else {
            return done(Err(Errno::NOLCK));
        };
        let who = file.who.clone();
        let deadlines = self.policy.write.map_or(self.policy.deadlines, |write| write.deadlines);
        let term = Term::new(Instant::now(), deadlines);
        let once = Once { replica, lane: Lane::Metadata, term, rights: Rights::Of(who) };
        let (for_write, told) = (self.policy.write.is_some(), Arc::new(AtomicBool::new(false)));
        let is_told = Arc::clone(&told);
        let op = move |backend: &dyn Backend| {
            let file = taken.file(&open, for_write, backend)?;
            let locked = file.lock(&request)?;
            if let (LockRequest::Set(lock), true) = (request, is_told.load(Ordering::Acquire)) {
                // Who asked has been told that he has none.
                file.lock(&LockRequest::Set(Lock { kind: LockKind::None, ..lock }))?;
            }
            Ok(locked)
        };
        let fs = Arc::clone(self);
        self.caller.call_once(once, op, move |answer| {
            told.store(answer.is_err(), Ordering::Release);
            match (&answer, request) {
                (Ok(_), LockRequest::Set(Lock { kind: LockKind::None, .. })) => {
                    fs.locks.given_up(ino);
                }
                // Whoever has a lock is to see what others wrote before.
                (Ok(_), LockRequest::Set(_)) if fs.policy.write.is_some() => fs.note_inode(ino),
                _ => {}
            }
            done(answer.map_err(Errno::from));
        });
    }

    async fn wait_for(
        self: Arc<Self>,
        handle: HandleId,
        (ino, owner): (Ino, LockOwner),
        lock: Lock,
        thread: u32,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let waiting = self.locks.waits(ino);
        let mut pause = SOON;
        let answer = loop {
            let given_up = waiting.notified();
            if tokio::time::timeout(pause, given_up).await.is_err() {
                pause = (pause * 2).min(SELDOM);
            }
            if is_interrupted(thread) {
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
        self.locks.waits_no_more(ino, waiting);
        done(answer);
    }

    /// Gives up all locks of an owner on a file, and then does the rest.
    pub(super) fn give_up_locks(
        self: &Arc<Self>,
        ino: Ino,
        owner: LockOwner,
        then: impl FnOnce() + Send + 'static,
    ) {
        let taken = self.locks.owners.lock().remove((ino, owner));
        let (Some(owner), Some(replica)) = (taken, self.policy.locks) else { return then() };
        let term = Term::new(Instant::now(), self.policy.deadlines);
        let rights = Rights::Of(Identity::DAEMON);
        let once = Once { replica, lane: Lane::Metadata, term, rights };
        let unlock = move |_: &dyn Backend| {
            let all = Lock { kind: LockKind::None, start: 0, end: Lock::TO_THE_END };
            match &*owner.file.lock() {
                Some(file) => file.lock(&LockRequest::Set(all)).map(drop),
                None => Ok(()),
            }
        };
        let fs = Arc::clone(self);
        self.caller.call_once(once, unlock, move |_| {
            fs.locks.given_up(ino);
            then();
        });
    }
}

/// Whether a signal waits for a thread, which waits for us.
fn is_interrupted(thread: u32) -> bool {
    let Ok(status) = crate::privilege::status_of(thread) else {
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
