//! The first open of a small file also reads it, and gives the kernel the bytes before its reply
//! ([`crate::read::FileContent`]). So the kernel sends no READ for them.
//!
//! The kernel must not get them after newer ones. So the inode is held from the entry of the open
//! into the tables until the kernel has the bytes, and replies to other opens of it wait
//! ([`Tables::page_stores`]). Until then no program can read the file: it has never been open. For
//! the same reason no READ has its pages locked, so the kernel takes the bytes at once.
//!
//! Meanwhile the kernel may receive attributes of a newer version. Then this open makes it drop its
//! pages, and so does each open that has waited.
//!
//! The file is open before it is read, and is answered as open if the read is late
//! ([`EarlyAnswer`](crate::replicas::metadata_client::EarlyAnswer)).
//!
//! *Invariant:* when an open is answered, the kernel has no pages of an older version, or drops them
//! at the reply.
//!
//! This is done only in volumes that do not change files: a write would need the same care.

use super::OpenFiles;
use crate::fs::cache_mode::CacheMode;
use crate::fs::ino::Ino;
use crate::fs::inode_barrier::InodeHold;
use crate::fs::inodes::Inodes;
use crate::fs::tables::Tables;
use crate::read::{FileContent, MAX_READ_AT_OPEN};
use crate::replicas::task;
use crate::volume::{FileVersion, ReplicaId, VolumeMode};

/// The bytes of an open file that the kernel will get.
pub(super) struct PageStore {
    content: FileContent,
    version: FileVersion,
    _hold: InodeHold,
}

impl OpenFiles {
    /// The version of the file, if its open should read it: it is small, and the kernel would cache
    /// its pages and has none.
    pub(super) fn wants_content(&self, ino: Ino) -> Option<FileVersion> {
        let policy = &self.tables.policy;
        if policy.write.is_some()
            || policy.mode != VolumeMode::Shared
            || self.passthrough.is_wanted()
            || !self.tables.reader.may_read_at_open()
        {
            return None;
        }
        let inodes = self.tables.inodes.lock();
        let version = inodes.sole_kernel_version(ino)?;
        let is_wanted = (1..=MAX_READ_AT_OPEN).contains(&version.size)
            && inodes.is_never_opened(ino)
            && self.choose_cache_mode(&inodes, ino, version.size) == CacheMode::Kernel;
        is_wanted.then_some(version)
    }

    /// Call this with the table locked, before the open is recorded in it. `None`: the kernel asks
    /// for the bytes.
    pub(super) fn prepare_store(
        &self,
        inodes: &Inodes,
        ino: Ino,
        content: Option<FileContent>,
    ) -> Option<PageStore> {
        let version = inodes.sole_kernel_version(ino)?;
        let content = content.filter(|content| content.version() == version)?;
        // A replica's thread must not wait for the kernel.
        let can_store = inodes.is_never_opened(ino)
            && self.tables.handles.find_inode(ino).is_none()
            && task::is_on_session_thread();
        can_store.then(|| PageStore { content, version, _hold: self.tables.page_stores.hold(ino) })
    }

    /// Gives the kernel the bytes. Returns whether it may keep its pages of the file.
    pub(super) fn store_pages(&self, ino: Ino, store: PageStore) -> bool {
        let PageStore { content, version, _hold } = store;
        if let Some(kernel) = self.tables.kernel_pages.get() {
            self.tables.reader.deliver_content(content, |bytes| kernel.store(ino, bytes));
        }
        self.tables.inodes.lock().sole_kernel_version(ino) == Some(version)
    }
}

impl Tables {
    /// Whether an operation of this thread may read a file that the replica has opened. A replica's
    /// thread could not give the kernel the bytes.
    pub(super) fn can_read_at_open(&self, replica: ReplicaId) -> bool {
        task::is_on_session_thread() && self.reader.is_quick(replica)
    }
}
