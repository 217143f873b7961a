//! The root's attributes, and the size of the volume, which are known even if no replica answers.
//!
//! Programs that check whether the mount is there (df, a shell's prompt, a service manager) look at
//! the root, and umount(8) asks for the size, too. If no replica answers in a call's usual time, they
//! get the last known attributes and the last known size.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Namespace;
use crate::backend::{Attr, Backend, FileKind, StatFs};
use crate::fs::entry_name::InodeAttr;
use crate::fs::error::{Errno, FsResult};
use crate::fs::ino::ROOT;
use crate::fs::tables::OpenFileCheck;
use crate::replicas::metadata_client::{Fallback, RunAs};
use crate::volume::ReplicaId;

/// How long the size may take: some file systems ask all their servers for it.
const SIZE_DELAY: Duration = Duration::from_secs(1);

/// The size of a volume before any replica has shown it.
const UNKNOWN_SIZE: StatFs = StatFs {
    blocks: 0,
    bfree: 0,
    bavail: 0,
    files: 0,
    ffree: 0,
    bsize: 4096,
    frsize: 4096,
    namelen: 255,
};

impl Namespace {
    /// Looks up the root's attributes. Call it once, before any other operation.
    pub async fn init_root(&self) -> FsResult<InodeAttr> {
        self.getattr_root(RunAs::DAEMON, Instant::now()).await
    }

    pub(in crate::fs) async fn getattr_root(
        &self,
        run_as: RunAs,
        since: Instant,
    ) -> FsResult<InodeAttr> {
        let path = Path::new("");
        loop {
            let asked = self.tables.change_seq();
            let target = self.calls.target_of_inode(ROOT, path).requested_at(since);
            // After a recent change through this mount, older attributes would hide it.
            let known = if target.has_sole_replica() { None } else { *self.last_root_attr.lock() };
            let stat = |_: ReplicaId, backend: &dyn Backend| backend.stat(Path::new(""));
            let known = known.map(|(replica, attr)| Fallback::Known(replica, attr));
            let call = self.calls.client.call_with_fallback(known, target, run_as.clone(), stat);
            let found = call.await?;
            if !self.tables.is_possibly_stale(found.0, path, ROOT) {
                return self.root_attr_reply(found, asked);
            }
        }
    }

    /// Size and use of the volume: one replica's, never their sum. Zero if no replica has ever
    /// answered in time.
    pub async fn statfs(&self) -> FsResult<StatFs> {
        let target = self.calls.target_of_inode(ROOT, Path::new(""));
        let known = self.last_stat_fs.lock().unwrap_or(UNKNOWN_SIZE);
        let known = Fallback::KnownAfter(SIZE_DELAY, ReplicaId::new(0), known);
        let last = Arc::clone(&self.last_stat_fs);
        let stat = move |_: ReplicaId, backend: &dyn Backend| {
            let found = backend.stat_fs()?;
            // Also an answer that comes too late for this call.
            *last.lock() = Some(found);
            Ok(found)
        };
        let client = &self.calls.client;
        let found = client.call_with_fallback(Some(known), target, RunAs::DAEMON, stat).await?;
        Ok(found.1)
    }

    fn root_attr_reply(&self, found: (ReplicaId, Attr), asked: u64) -> FsResult<InodeAttr> {
        if found.1.kind != FileKind::Directory {
            return Err(Errno::STALE);
        }
        *self.last_root_attr.lock() = Some(found);
        Ok(self.tables.attr_reply(ROOT, found.1, &OpenFileCheck::default(), asked))
    }
}
