//! The requests that change the data of an open file: write(2), fallocate(2) and
//! copy_file_range(2). Each tells the kernel of attributes that it may have changed.

use fuser::{FileHandle, INodeNo, OpenFlags, ReplyEmpty, ReplyWrite, Request, WriteFlags};

use super::Adapter;
use crate::fs::WriteRequest;
use crate::fuse::convert::{FALLOC_SHIFT_MODES, MAX_COPY_BYTES, O_APPEND, O_DIRECT, handle_id};
use crate::fuse::replies::{reply_empty, reply_write};
use crate::fuse::resend::reject_if_resent_when;
use crate::volume::ByteRange;

impl Adapter {
    pub(super) fn write_data(
        &self,
        req: &Request,
        (number, handle): (INodeNo, FileHandle),
        (offset, data): (u64, &[u8]),
        (write_flags, flags): (WriteFlags, OpenFlags),
        reply: ReplyWrite,
    ) {
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let kills = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let (append, again) =
            (!cached && flags.0 & O_APPEND != 0, self.is_resent_change(req, number));
        let Some(reply) = reject_if_resent_when(append, &self.fs, req, reply) else { return };
        let request = WriteRequest {
            offset,
            data,
            // What is written back of a mapped file belongs where it says.
            append,
            is_part: flags.0 & O_DIRECT != 0,
            whole: cached,
            is_resent: again,
            caller: (kills && !cached).then(|| self.request_context(req)),
        };
        let done = move |answer| reply_write(reply, answer);
        self.fs_for(req).write(
            handle_id(number, handle),
            request,
            self.invalidating_attrs_if(kills, number, done),
        );
    }

    pub(super) fn allocate(
        &self,
        req: &Request,
        (number, handle): (INodeNo, FileHandle),
        range: ByteRange,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (moves, again) =
            (mode as u32 & FALLOC_SHIFT_MODES != 0, self.is_resent_change(req, number));
        let Some(reply) = reject_if_resent_when(moves, &self.fs, req, reply) else { return };
        let how = (mode as u32, again);
        let done = self.invalidating_attrs(number, move |answer| reply_empty(reply, answer));
        self.fs_for(req).fallocate(
            self.request_context(req),
            handle_id(number, handle),
            range,
            how,
            done,
        );
    }

    pub(super) fn copy_range(
        &self,
        req: &Request,
        (source, from, offset): (INodeNo, FileHandle, u64),
        (target, to, start): (INodeNo, FileHandle, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let (len, again) = (len.min(MAX_COPY_BYTES), self.is_resent_change(req, target));
        let range = ByteRange::at(offset, len);
        let done = self.invalidating_attrs(target, move |answer| reply_write(reply, answer));
        let (from, to) = ((handle_id(source, from), range), (handle_id(target, to), start));
        self.fs_for(req).copy_file_range(self.request_context(req), from, to, again, done);
    }
}
