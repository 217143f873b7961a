//! The state that all operations share: the inodes and handles that the kernel knows, recent
//! changes, and the comparison of replicas' answers with them.
//!
//! Nothing here waits: a table is locked briefly, in the order of [`crate::sync::LockRank`]. The
//! functions that access a replica ([`revalidation`], [`file_replacement`]) say so. They run on
//! that replica's threads.
//!
//! *Invariant:* when the kernel gets attributes of an open file, its handles read that version from
//! then on. So no read is cut at an older size than the kernel knows ([`versions`]).

mod entry_ref;
mod file_replacement;
mod handover;
mod inode_ref;
mod revalidation;
mod versions;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::error::{Errno, FsResult};
use super::handles::Handles;
use super::ino::Ino;
use super::inode_barrier::InodeBarrier;
use super::inodes::InodeTable;
use super::name_freshness::NameFreshness;
use super::policy::{FsPolicy, WritePolicy};
use super::recent_changes::{ChangeMarks, ChangeScope, RecentChanges};
use super::stale_pages::KernelPages;
use super::step_log::StepLog;
use crate::read::Reader;
use crate::volume::ReplicaId;

pub(super) use entry_ref::DirEntryRef;
pub(super) use file_replacement::{AttrOwner, OpenFileCheck};
pub(super) use inode_ref::InodeRef;
pub(super) use revalidation::ReplicaPath;

pub(super) struct Tables {
    pub(super) policy: FsPolicy,
    pub(super) inodes: InodeTable,
    pub(super) handles: Handles,
    /// Recent changes through this mount.
    pub(super) recent_changes: RecentChanges,
    pub(super) name_freshness: NameFreshness,
    /// The kernel's page cache.
    pub(super) kernel_pages: OnceLock<Arc<dyn KernelPages>>,
    /// Held while the kernel drops pages of the inode at fanfs's request. Replies with its
    /// attributes wait.
    pub(super) page_drops: Arc<InodeBarrier>,
    /// Held while an open of the inode gives the kernel its pages. Replies to other opens wait.
    pub(super) page_stores: Arc<InodeBarrier>,
    /// Count of changes to files. It tells answers from before a change from later ones.
    change_seq: AtomicU64,
    /// Records the steps of the tables.
    pub(super) log: Arc<StepLog>,
    /// Makes and retires the versions of open files.
    pub(super) reader: Arc<Reader>,
}

impl Tables {
    pub(super) fn new(policy: FsPolicy, reader: Arc<Reader>) -> Arc<Self> {
        let log = Arc::<StepLog>::default();
        let lag = policy.write.map_or(Duration::ZERO, |write| write.lag);
        Arc::new(Self {
            inodes: InodeTable::new(policy.mode, Arc::clone(&log)),
            handles: Handles::new(Arc::clone(&log)),
            recent_changes: RecentChanges::new(lag, Arc::clone(&log)),
            name_freshness: NameFreshness::default(),
            kernel_pages: OnceLock::new(),
            page_drops: Arc::default(),
            page_stores: Arc::default(),
            change_seq: AtomicU64::new(0),
            log,
            reader,
            policy,
        })
    }

    /// The path of an inode.
    ///
    /// # Errors ESTALE if it has no known name.
    pub(super) fn path(&self, ino: Ino) -> FsResult<PathBuf> {
        self.inodes.lock().path(ino).ok_or(Errno::STALE)
    }

    /// Whether the volume accepts changes.
    pub(super) fn can_write(&self) -> bool {
        self.policy.write.is_some()
    }

    /// The rules for changes.
    ///
    /// # Errors EROFS on a read-only volume.
    pub(super) fn write_policy(&self) -> FsResult<WritePolicy> {
        self.policy.write.ok_or(Errno::ROFS)
    }

    /// Whether any handle may write the file.
    pub(super) fn is_open_for_write(&self, ino: Ino) -> bool {
        self.can_write() && self.handles.find_inode(ino).is_some_and(|open| open.has_writers())
    }

    /// Whether the inode itself was changed through this mount recently, or a handle may write it.
    pub(super) fn is_recently_changed(&self, ino: Ino) -> bool {
        self.recent_changes.has_inode_changed(ino, Instant::now()) || self.is_open_for_write(ino)
    }

    /// The number of changes so far.
    pub(super) fn change_seq(&self) -> u64 {
        self.change_seq.load(Ordering::Acquire)
    }

    /// Counts one more change; returns its number.
    pub(super) fn next_change_seq(&self) -> u64 {
        self.change_seq.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether an answer of `replica` may be older than a recent change. The change may have been
    /// made while the answer was on its way, or the replica may not know of it.
    pub(super) fn is_possibly_stale(&self, replica: ReplicaId, path: &Path, ino: Ino) -> bool {
        let has_path_changed = || self.recent_changes.has_path_changed(path, Instant::now());
        self.may_lag(replica) && (has_path_changed() || self.is_recently_changed(ino))
    }

    /// The same for changes of the inode itself.
    pub(super) fn is_inode_possibly_stale(&self, replica: ReplicaId, ino: Ino) -> bool {
        self.may_lag(replica) && self.is_recently_changed(ino)
    }

    /// Whether changes are made through another replica.
    fn may_lag(&self, replica: ReplicaId) -> bool {
        self.policy.write.is_some_and(|write| write.replica != replica)
    }

    /// Notes a change of a name, and with it of the directory that it is in.
    pub(super) fn record_name_change(&self, path: &Path, scope: ChangeScope) {
        let mut marks = ChangeMarks::default();
        marks.add_path(path, scope);
        marks.add_path(path.parent().unwrap_or(Path::new("")), ChangeScope::Listing);
        self.recent_changes.record(&marks, Instant::now());
    }

    /// Notes a change of an inode's data or attributes: all its names show other attributes, and so
    /// do the listings that they are in.
    pub(super) fn record_inode_change(&self, ino: Ino) {
        let paths = self.inodes.lock().paths(ino);
        let mut marks = ChangeMarks::default();
        for path in &paths {
            marks.add_path(path, ChangeScope::Object);
            if let Some(dir) = path.parent() {
                marks.add_path(dir, ChangeScope::Listing);
            }
        }
        marks.add_inode(ino);
        self.recent_changes.record(&marks, Instant::now());
    }
}
