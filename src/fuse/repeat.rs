//! Requests that come a second time.
//!
//! After a daemon was killed the kernel sends again what it has not answered. What
//! only looks can be done again, and so can a change that comes to the same done
//! twice, such as a write to a place in a file: the kernel has kept others from that
//! place meanwhile. A change of names would fail the second time, or hit something
//! else; nobody knows whether the first was made.

use fuser::{ReplyEmpty, ReplyEntry, RequestId};

use super::answers::errno;
use crate::fs::Errno;

/// `FUSE_UNIQUE_RESEND`: marks the numbers of such requests.
const AGAIN: u64 = 1 << 63;

/// Whether the request may have been carried out before.
fn is_again(id: RequestId) -> bool {
    id.0 & AGAIN != 0
}

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

/// The reply, where a change that cannot be made twice has not been made; else whoever
/// asked is told that nobody knows.
pub(super) fn once<R: Refusable>(id: RequestId, reply: R) -> Option<R> {
    once_if(true, id, reply)
}

/// The same for a change that cannot be made twice where it is `such`.
pub(super) fn once_if<R: Refusable>(such: bool, id: RequestId, reply: R) -> Option<R> {
    if such && is_again(id) {
        reply.refuse(Errno::TIMEDOUT);
        return None;
    }
    Some(reply)
}
