//! Requests that come a second time.
//!
//! After a daemon was killed, or has handed over, the kernel sends the requests again that
//! it had not answered. A look can be done again, and so can a change that comes to the
//! same done twice, such as a write to a place in a file: the kernel has kept others from
//! that place meanwhile. A change of names would fail the second time, or hit something
//! else; nothing tells whether the first was made.

use std::sync::Arc;

use fuser::{INodeNo, ReplyEmpty, ReplyEntry, Request, RequestId};

use super::convert::{errno, ino, is_resent, request_number};
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

/// Takes back what an earlier try of the request has entered: the kernel does not know
/// of it.
pub(super) fn revert_earlier_try(fs: &Arc<Fs>, id: RequestId) {
    if is_resent(id) {
        fs.open_files.roll_back_request(request_number(id));
    }
}

/// Whether a change of a file comes again. An earlier daemon may be making it.
pub(super) fn is_resent_change(fs: &Arc<Fs>, req: &Request, file: INodeNo) -> bool {
    let again = is_resent(req.unique());
    if again {
        fs.add_resent_change(ino(file));
    }
    again
}

/// The reply to a change that cannot be made twice, where the request comes for the first
/// time. Else its caller gets an error that says that the change may have been made.
pub(super) fn reject_if_resent<R: Refusable>(fs: &Arc<Fs>, req: &Request, reply: R) -> Option<R> {
    reject_if_resent_when(true, fs, req, reply)
}

/// The same for a change that cannot be made twice where it is `such`.
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
