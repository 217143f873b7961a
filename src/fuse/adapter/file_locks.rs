//! The requests that test and set record locks of fcntl(2). A type of lock that fcntl(2)
//! does not have gets EINVAL.

use std::sync::Arc;

use fuser::{INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};

use super::Adapter;
use crate::backend::{Lock, LockKind};
use crate::fs::{Errno, HandleId, LockWait, run_on_session_thread};
use crate::fuse::convert::{errno, lock_owner};
use crate::fuse::replies::{reply_empty, reply_getlk};

/// A request to set a lock.
pub(super) struct LockCall {
    pub(super) handle: HandleId,
    pub(super) owner: LockOwner,
    pub(super) waiting: LockWait,
}

impl Adapter {
    pub(super) fn test_lock(
        &self,
        req: &Request,
        handle: HandleId,
        owner: LockOwner,
        lock: Option<Lock>,
        reply: ReplyLock,
    ) {
        let Some(lock) = lock else { return reply.error(errno(Errno::INVAL)) };
        let fs = self.fs_for(req);
        run_on_session_thread(async move {
            reply_getlk(reply, fs.locks.test_lock(handle, lock_owner(owner), lock).await);
        });
    }

    pub(super) fn set_lock(
        &self,
        req: &Request,
        call: LockCall,
        lock: Option<Lock>,
        reply: ReplyEmpty,
    ) {
        let Some(lock) = lock else { return reply.error(errno(Errno::INVAL)) };
        let LockCall { handle, owner, waiting } = call;
        let fs = self.fs_for(req);
        let kernel = Arc::clone(&self.notifier);
        run_on_session_thread(async move {
            let answer = fs.locks.set_lock(handle, lock_owner(owner), lock, waiting).await;
            if answer.is_ok() && lock.kind != LockKind::None {
                // The owner of a lock sees what others wrote before they released it.
                kernel.invalidate_attrs(INodeNo(handle.ino.0));
            }
            reply_empty(reply, answer);
        });
    }
}
