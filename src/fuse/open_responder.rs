//! The reply to an open, and the preceding calls to the kernel.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fuser::{FileHandle, FopenFlags, INodeNo, ReplyOpen};

use super::convert::errno;
use super::notifier::KernelNotifier;
use crate::capabilities;
use crate::fs::{BackingId, CacheMode, FsResult, KernelOpen, OpenedFile};

/// The reply to an open.
pub(super) struct FuseOpenResponder {
    pub(super) reply: ReplyOpen,
    /// The file that is opened.
    pub(super) number: INodeNo,
    pub(super) notifier: Arc<KernelNotifier>,
    /// Whether the kernel must send FLUSH when descriptors are closed, written or not.
    pub(super) needs_flush: bool,
    /// Whether the kernel must send the parts of a write(2) one by one.
    pub(super) serial_writes: bool,
}

/// The kernel's side of the open of a file that the kernel reads without opening it.
pub(super) struct UnopenedFile {
    pub(super) number: INodeNo,
    pub(super) notifier: Arc<KernelNotifier>,
}

impl KernelOpen for UnopenedFile {
    fn register_backing(&self, _: BorrowedFd<'_>) -> std::io::Result<BackingId> {
        Err(rustix::io::Errno::OPNOTSUPP.into())
    }

    fn invalidate_attrs(&self) {
        self.notifier.invalidate_attrs(self.number);
    }
}

/// The kernel's id of a backing file.
struct KernelBacking(Option<fuser::BackingId>);

impl Drop for KernelBacking {
    fn drop(&mut self) {
        // Only a privileged process may make the kernel release it.
        let _raised = capabilities::raise(capabilities::ADMIN);
        self.0 = None;
    }
}

/// The flags of an open file for the kernel.
pub(super) fn open_flags(opened: &OpenedFile, flush: bool, one_by_one: bool) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_NOFLUSH, !flush);
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, one_by_one || opened.cache_mode == CacheMode::Direct);
    flags
}

impl KernelOpen for FuseOpenResponder {
    fn register_backing(&self, file: BorrowedFd<'_>) -> std::io::Result<BackingId> {
        let _raised = capabilities::raise(capabilities::ADMIN);
        Ok(Box::new(KernelBacking(Some(self.reply.open_backing(file)?))))
    }

    fn invalidate_attrs(&self) {
        self.notifier.invalidate_attrs(self.number);
    }
}

impl FuseOpenResponder {
    pub(super) fn send(self, answer: FsResult<OpenedFile>) {
        let opened = match answer {
            Ok(opened) => opened,
            Err(error) => return self.reply.error(errno(error)),
        };
        let flush = self.needs_flush || opened.is_writable;
        let handle = FileHandle(opened.handle.number);
        let id = opened
            .backing
            .as_ref()
            .and_then(|backing| backing.backing_id().downcast_ref::<KernelBacking>()?.0.as_ref());
        if let Some(id) = id {
            // With FOPEN_KEEP_CACHE the kernel would refuse passthrough.
            let mut flags = FopenFlags::empty();
            flags.set(FopenFlags::FOPEN_NOFLUSH, !flush);
            return self.reply.opened_passthrough(handle, flags, id);
        }
        self.reply.opened(handle, open_flags(&opened, flush, self.serial_writes));
    }
}
