//! Translates fuser's requests into calls of the file system, and the answers into fuser's
//! replies.

mod dir_entries;
mod file_locks;
mod file_opens;
mod file_reads;
mod file_writes;
mod filesystem;
mod listings;

use std::sync::Arc;
use std::time::Duration;

use fuser::Request;

use super::MountOptions;
use super::convert;
use super::features::InitFeatures;
use super::notifier::KernelNotifier;
use super::raw_reply::{RawReadReply, RawReplies};
use super::resend::revert_earlier_try;
use crate::backend::{RequestContext, RequestingThread};
use crate::fs::{Fs, SmallFileReads};

/// The file system, and the caller that it serves.
struct Call {
    fs: Arc<Fs>,
    caller: RequestContext,
}

/// The file system as fuser sees it.
pub(super) struct Adapter {
    fs: Arc<Fs>,
    features: InitFeatures,
    attr_ttl: Duration,
    missing_name_ttl: Duration,
    raw_replies: Arc<RawReplies>,
    small_reads: SmallFileReads<RawReadReply>,
    notifier: Arc<KernelNotifier>,
    /// Whether the kernel reads files without opening them.
    omits_opens: bool,
}

impl Adapter {
    pub(super) fn new(
        fs: Arc<Fs>,
        options: &MountOptions,
        replies: RawReplies,
        kernel: Arc<KernelNotifier>,
    ) -> Self {
        let attr_ttl = fs.attribute_ttl();
        let missing_name_ttl = fs.missing_name_ttl();
        fs.set_kernel_pages(Arc::new(replies.kernel_pages()));
        let replies = Arc::new(replies);
        let small_reads = fs.open_files.small_reads();
        Self {
            fs,
            features: InitFeatures::new(options),
            attr_ttl,
            missing_name_ttl,
            raw_replies: replies,
            small_reads,
            notifier: kernel,
            omits_opens: false,
        }
    }

    /// The file system. From now on this thread works for the caller of `req`.
    fn fs_for(&self, req: &Request) -> Arc<Fs> {
        RequestingThread::from_tid(req.pid()).set_current();
        Arc::clone(&self.fs)
    }

    /// The same, with the caller.
    fn call(&self, req: &Request) -> Call {
        Call { fs: self.fs_for(req), caller: self.request_context(req) }
    }

    /// The caller of `req`. Reverts the table entries of an earlier try of the same request.
    fn request_context(&self, req: &Request) -> RequestContext {
        revert_earlier_try(&self.fs, req.unique());
        convert::request_context(req)
    }
}
