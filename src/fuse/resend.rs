//! Requests that the kernel resends.
//!
//! After a daemon was killed, or has handed over, the kernel resends the requests that it had
//! not answered. A query can be repeated. So can a change whose repetition has the same result,
//! such as a write at an offset in a file. The kernel has kept other writers from that range
//! meanwhile. A change of names would fail the second time, or affect another object, and
//! nothing shows whether the first try succeeded.

use std::sync::Arc;

use fuser::{INodeNo, ReplyEmpty, ReplyEntry, Request, RequestId};

use super::convert::{errno, ino, is_resent, request_number};
use crate::fs::{Errno, Fs};

/// A reply that can be an error.
pub(super) trait Refusable {
    /// Replies with `error`.
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

/// Reverts the table entries of an earlier try of the request: the kernel does not know about
/// it.
pub(super) fn revert_earlier_try(fs: &Arc<Fs>, id: RequestId) {
    if is_resent(id) {
        fs.open_files.roll_back_request(request_number(id));
    }
}

/// Whether a change of a file is resent. If so, this records that an earlier daemon may be
/// making it.
pub(super) fn is_resent_change(fs: &Arc<Fs>, req: &Request, file: INodeNo) -> bool {
    let again = is_resent(req.unique());
    if again {
        fs.add_resent_change(ino(file));
    }
    again
}

/// The reply to a change that cannot be made twice, if the request is not resent. Otherwise its
/// caller gets an error that says that the change may have been made.
pub(super) fn reject_if_resent<R: Refusable>(fs: &Arc<Fs>, req: &Request, reply: R) -> Option<R> {
    reject_if_resent_when(true, fs, req, reply)
}

/// The same for a change that cannot be made twice if `such` is true.
pub(super) fn reject_if_resent_when<R: Refusable>(
    such: bool,
    fs: &Arc<Fs>,
    req: &Request,
    reply: R,
) -> Option<R> {
    if such && is_resent(req.unique()) {
        revert_earlier_try(fs, req.unique());
        reply.refuse(Errno::TIMEDOUT);
        return None;
    }
    Some(reply)
}
