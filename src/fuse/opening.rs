//! What an open is answered with.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fuser::{FileHandle, FopenFlags, INodeNo, ReplyOpen};

use super::answers::errno;
use super::kernel::Kernel;
use crate::fs::{Answer, Caching, Lent, OpenReply, Opened};
use crate::privilege;

/// The reply to an open.
pub(super) struct Opening {
    pub(super) reply: ReplyOpen,
    /// What is opened.
    pub(super) number: INodeNo,
    pub(super) kernel: Arc<Kernel>,
    /// Whether closing its descriptors has to be heard of, written or not.
    pub(super) flush: bool,
    /// Whether the kernel is to send the parts of a write(2) one by one.
    pub(super) one_by_one: bool,
}

/// What names a lent file to the kernel.
struct Backed(Option<fuser::BackingId>);

impl Drop for Backed {
    fn drop(&mut self) {
        // The kernel takes it back from the privileged only.
        let _raised = privilege::raise(privilege::ADMIN);
        self.0 = None;
    }
}

/// What the kernel is to do with an open file.
pub(super) fn flags(opened: &Opened, flush: bool, one_by_one: bool) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_NOFLUSH, !flush);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.unchanged);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, one_by_one || opened.caching == Caching::Direct);
    flags
}

impl OpenReply for Opening {
    fn lend(&self, file: BorrowedFd<'_>) -> std::io::Result<Lent> {
        let _raised = privilege::raise(privilege::ADMIN);
        Ok(Box::new(Backed(Some(self.reply.open_backing(file)?))))
    }

    fn forget_attributes(&self) {
        self.kernel.forget_attributes(self.number);
    }

    fn answer(self, answer: Answer<Opened>) {
        let opened = match answer {
            Ok(opened) => opened,
            Err(error) => return self.reply.error(errno(error)),
        };
        let flush = self.flush || opened.writes;
        let handle = FileHandle(opened.handle.number);
        let id = opened
            .backing
            .as_ref()
            .and_then(|backing| backing.lent().downcast_ref::<Backed>()?.0.as_ref());
        if let Some(id) = id {
            // With "keep what you have" the kernel would refuse it.
            let mut flags = FopenFlags::empty();
            flags.set(FopenFlags::FOPEN_NOFLUSH, !flush);
            return self.reply.opened_passthrough(handle, flags, id);
        }
        self.reply.opened(handle, flags(&opened, flush, self.one_by_one));
    }
}
