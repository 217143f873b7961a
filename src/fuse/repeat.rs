//! Requests that come a second time.
//!
//! After a daemon was killed, or has handed over, the kernel sends the requests again that
//! it had not answered. A look can be done again, and so can a change that comes to the
//! same done twice, such as a write to a place in a file: the kernel has kept others from
//! that place meanwhile. A change of names would fail the second time, or hit something
//! else; nothing tells whether the first was made.

use std::sync::Arc;

use fuser::{INodeNo, ReplyEmpty, ReplyEntry, Request, RequestId};

use super::adapter::Adapter;
use super::answers::errno;
use super::wire::{ino, is_again, number, who};
use crate::backend::{Asker, Requester};
use crate::fs::{Errno, Fs};

/// What can be answered with an error.
pub(super) trait Refusable {
    /// Answers with it.
    fn refuse(self, error: Errno);
}

macro_rules! refusable {
    ($($reply:ty),*) => {
        $(impl Refusable for $reply {
            fn refuse(self, error: Errno) {
                self.error(errno(error));
            }
        })*
    };
}

refusable!(ReplyEmpty, ReplyEntry, fuser::ReplyCreate, fuser::ReplyWrite);

impl Adapter {
    /// The file system, as it serves the caller of `req`.
    pub(super) fn fs(&self, req: &Request) -> &Arc<Fs> {
        Asker::thread(req.pid()).enter();
        &self.fs
    }

    /// The caller. What an earlier try of its request has entered is taken back.
    pub(super) fn who(&self, req: &Request) -> Requester {
        take_back(&self.fs, req.unique());
        who(req)
    }

    /// Whether a change of a file comes again. An earlier daemon may be making it.
    pub(super) fn is_again(&self, req: &Request, file: INodeNo) -> bool {
        let again = is_again(req.unique());
        if again {
            self.fs.is_changed_again(ino(file));
        }
        again
    }
}

/// Takes back what an earlier try of the request has entered: the kernel does not know
/// of it.
fn take_back(fs: &Arc<Fs>, id: RequestId) {
    if is_again(id) {
        fs.take_back(number(id));
    }
}

/// The reply, where a change that cannot be made twice has not been made; else whoever
/// asked is told that nobody knows.
pub(super) fn once<R: Refusable>(fs: &Arc<Fs>, req: &Request, reply: R) -> Option<R> {
    once_if(true, fs, req, reply)
}

/// The same for a change that cannot be made twice where it is `such`.
pub(super) fn once_if<R: Refusable>(
    such: bool,
    fs: &Arc<Fs>,
    req: &Request,
    reply: R,
) -> Option<R> {
    if such && is_again(req.unique()) {
        take_back(fs, req.unique());
        reply.refuse(Errno::TIMEDOUT);
        return None;
    }
    Some(reply)
}
