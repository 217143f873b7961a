//! What an open is answered with.

use std::os::fd::BorrowedFd;

use fuser::{FileHandle, FopenFlags, ReplyOpen};

use super::adapter::errno;
use crate::fs::{Answer, Caching, Lent, OpenReply, Opened};

/// The reply to an open.
pub(super) struct Opening(pub(super) ReplyOpen);

impl OpenReply for Opening {
    fn lend(&self, file: BorrowedFd<'_>) -> std::io::Result<Lent> {
        Ok(Box::new(self.0.open_backing(file)?))
    }

    fn answer(self, answer: Answer<Opened>) {
        let opened = match answer {
            Ok(opened) => opened,
            Err(error) => return self.0.error(errno(error)),
        };
        let mut flags = FopenFlags::FOPEN_NOFLUSH;
        let handle = FileHandle(opened.handle);
        let id = opened
            .backing
            .as_ref()
            .and_then(|backing| backing.lent().downcast_ref::<fuser::BackingId>());
        if let Some(id) = id {
            // With "keep what you have" the kernel would refuse it.
            return self.0.opened_passthrough(handle, flags, id);
        }
        flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.unchanged);
        flags.set(FopenFlags::FOPEN_DIRECT_IO, opened.caching == Caching::Direct);
        self.0.opened(handle, flags);
    }
}
