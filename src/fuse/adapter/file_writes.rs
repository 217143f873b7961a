//! The requests that change data or attributes of a file: write(2), fallocate(2),
//! copy_file_range(2), SETATTR, setxattr(2) and removexattr(2). Each but SETATTR, whose reply
//! has the new attributes, invalidates the attributes that it may have changed.

use std::ffi::OsStr;

use fuser::{INodeNo, ReplyAttr, ReplyEmpty, ReplyWrite, Request};

use super::{Adapter, Call};
use crate::backend::SetAttr;
use crate::fs::{CopyRequest, FallocateRequest, HandleId, WriteRequest, run_on_session_thread};
use crate::fuse::attr_invalidation::{AttrInvalidation, is_acl};
use crate::fuse::convert::{FALLOC_SHIFT_MODES, ino};
use crate::fuse::replies::{reply_attr, reply_empty, reply_write};
use crate::fuse::resend::reject_if_resent_when;

impl Adapter {
    /// Writes data. `kills` says whether the write removes set-id bits.
    pub(super) fn write_data(
        &self,
        req: &Request,
        handle: HandleId,
        mut request: WriteRequest<'_>,
        kills: bool,
        reply: ReplyWrite,
    ) {
        let reply = reject_if_resent_when(request.append, &self.fs, req, reply);
        let Some(reply) = reply else { return };
        let fs = self.fs_for(req);
        if kills && !request.whole {
            request.caller = Some(self.request_context(req));
        }
        let invalidation = AttrInvalidation::new_if(kills, &self.notifier, handle.ino);
        let write = fs.mutations.write(handle, request);
        run_on_session_thread(async move {
            let answer = write.await;
            invalidation.send();
            reply_write(reply, answer);
        });
    }

    pub(super) fn allocate(
        &self,
        req: &Request,
        handle: HandleId,
        request: FallocateRequest,
        reply: ReplyEmpty,
    ) {
        let is_shift = request.mode & FALLOC_SHIFT_MODES != 0;
        let Some(reply) = reject_if_resent_when(is_shift, &self.fs, req, reply) else { return };
        let Call { fs, caller } = self.call(req);
        let invalidation = AttrInvalidation::new(&self.notifier, handle.ino);
        run_on_session_thread(async move {
            let answer = fs.mutations.fallocate(caller, handle, request).await;
            invalidation.send();
            reply_empty(reply, answer);
        });
    }

    pub(super) fn copy_range(&self, req: &Request, request: CopyRequest, reply: ReplyWrite) {
        let Call { fs, caller } = self.call(req);
        let invalidation = AttrInvalidation::new(&self.notifier, request.target.ino);
        run_on_session_thread(async move {
            let answer = fs.mutations.copy_file_range(caller, request).await;
            invalidation.send();
            reply_write(reply, answer);
        });
    }

    /// Sets an extended attribute, or removes it if there is no value.
    pub(super) fn set_xattr(
        &self,
        req: &Request,
        number: INodeNo,
        name: &OsStr,
        value: Option<(&[u8], u32)>,
        reply: ReplyEmpty,
    ) {
        let Call { fs, caller } = self.call(req);
        let invalidation = AttrInvalidation::new_if(is_acl(name), &self.notifier, ino(number));
        let set = fs.mutations.setxattr(caller, ino(number), name, value);
        run_on_session_thread(async move {
            let answer = set.await;
            invalidation.send();
            reply_empty(reply, answer);
        });
    }

    pub(super) fn set_attr(
        &self,
        req: &Request,
        number: INodeNo,
        handle: Option<HandleId>,
        attributes: SetAttr,
        reply: ReplyAttr,
    ) {
        let Call { fs, caller } = self.call(req);
        let ttl = self.attr_ttl;
        run_on_session_thread(async move {
            reply_attr(
                reply,
                ttl,
                fs.mutations.setattr(caller, ino(number), handle, attributes).await,
            );
        });
    }
}
