//! The requests that test and set record locks of fcntl(2). A type of lock that fcntl(2)
//! does not have gets EINVAL.

use std::sync::Arc;

use fuser::{FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};

use super::Adapter;
use crate::backend::{Lock, LockKind};
use crate::fs::{Errno, LockWait};
use crate::fuse::convert::{handle_id, lock_owner};
use crate::fuse::replies::{errno, reply_empty, reply_getlk};

impl Adapter {
    pub(super) fn test_lock(
        &self,
        req: &Request,
        (number, handle): (INodeNo, FileHandle),
        owner: LockOwner,
        lock: Option<Lock>,
        reply: ReplyLock,
    ) {
        let Some(lock) = lock else { return reply.error(errno(Errno::INVAL)) };
        let done = move |answer| reply_getlk(reply, answer);
        self.fs_for(req).test_lock(handle_id(number, handle), lock_owner(owner), lock, done);
    }

    pub(super) fn set_lock(
        &self,
        req: &Request,
        (number, handle): (INodeNo, FileHandle),
        owner: LockOwner,
        lock: Option<Lock>,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some(lock) = lock else { return reply.error(errno(Errno::INVAL)) };
        let waiting = if sleep { LockWait::Thread(req.pid()) } else { LockWait::NoWait };
        let kernel = Arc::clone(&self.notifier);
        self.fs_for(req).set_lock(
            handle_id(number, handle),
            lock_owner(owner),
            lock,
            waiting,
            move |answer| {
                if answer.is_ok() && lock.kind != LockKind::None {
                    // Who has a lock sees what others wrote before they gave it up.
                    kernel.invalidate_attrs(number);
                }
                reply_empty(reply, answer);
            },
        );
    }
}
