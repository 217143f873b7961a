//! fuser's requests in, fuser's replies out.

mod dir_entries;
mod file_locks;
mod file_opens;
mod file_writes;
mod filesystem;
mod listings;

use std::sync::Arc;
use std::time::Duration;

use super::MountOptions;
use super::features::InitFeatures;
use super::notifier::KernelNotifier;
use super::raw_reply::RawReplies;
use crate::fs::Fs;

/// The file system as fuser sees it.
pub(super) struct Adapter {
    pub(super) fs: Arc<Fs>,
    features: InitFeatures,
    attr_ttl: Duration,
    raw_replies: Arc<RawReplies>,
    pub(super) notifier: Arc<KernelNotifier>,
}

impl Adapter {
    pub(super) fn new(
        fs: Arc<Fs>,
        options: &MountOptions,
        replies: RawReplies,
        kernel: Arc<KernelNotifier>,
    ) -> Self {
        let ttl = fs.attribute_ttl();
        let replies = Arc::new(replies);
        Self {
            fs,
            features: InitFeatures::new(options),
            attr_ttl: ttl,
            raw_replies: replies,
            notifier: kernel,
        }
    }
}
