//! What the daemon knows of the volume, and that all operations share: the inodes and handles
//! that the kernel knows, what was changed lately, and how answers of replicas compare with
//! that.
//!
//! Nothing here waits: a table is locked for a moment, in the order of
//! [`crate::sync::LockRank`]. The functions that look at a replica ([`revalidation`],
//! [`file_replacement`]) say so; they run on that replica's threads.
//!
//! *Invariant:* whenever the kernel is given attributes of an open file, its handles read
//! that version from then on: a read is never cut at an older size than the kernel believes
//! in ([`versions`]).

mod entry_ref;
mod file_replacement;
mod handover;
mod inode_ref;
mod revalidation;
mod versions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::error::{Errno, FsResult};
use super::handles::Handles;
use super::ino::Ino;
use super::inodes::InodeTable;
use super::name_freshness::NameFreshness;
use super::policy::{FsPolicy, WritePolicy};
use super::recent_changes::{ChangeScope, RecentChanges};
use super::step_log::StepLog;
use crate::read::Reader;
use crate::volume::ReplicaId;

pub(super) use entry_ref::DirEntryRef;
pub(super) use file_replacement::{AttrOwner, OpenFileCheck};
pub(super) use inode_ref::InodeRef;
pub(super) use revalidation::ReplicaPath;

/// The tables.
pub(super) struct Tables {
    pub(super) policy: FsPolicy,
    pub(super) inodes: InodeTable,
    pub(super) handles: Handles,
    /// What was changed a short while ago.
    pub(super) recent_changes: RecentChanges,
    pub(super) name_freshness: NameFreshness,
    /// Changes of files so far: tells answers from before one from those after it.
    change_seq: AtomicU64,
    /// Where the tables write their steps down.
    pub(super) log: Arc<StepLog>,
    /// Makes the versions of open files, and retires them.
    pub(super) reader: Arc<Reader>,
}

impl Tables {
    /// Tables that know nothing yet.
    pub(super) fn new(policy: FsPolicy, reader: Arc<Reader>) -> Arc<Self> {
        let log = Arc::<StepLog>::default();
        let lag = policy.write.map_or(Duration::ZERO, |write| write.lag);
        Arc::new(Self {
            inodes: InodeTable::new(policy.mode, Arc::clone(&log)),
            handles: Handles::new(Arc::clone(&log)),
            recent_changes: RecentChanges::new(lag, Arc::clone(&log)),
            name_freshness: NameFreshness::default(),
            change_seq: AtomicU64::new(0),
            log,
            reader,
            policy,
        })
    }

    /// The path of an inode.
    ///
    /// # Errors
    /// ESTALE where it has no name that is known.
    pub(super) fn path(&self, ino: Ino) -> FsResult<PathBuf> {
        self.inodes.lock().path(ino).ok_or(Errno::STALE)
    }

    /// Whether anything can be changed.
    pub(super) fn can_write(&self) -> bool {
        self.policy.write.is_some()
    }

    /// How changes are carried out.
    ///
    /// # Errors
    /// EROFS on a volume that is only read.
    pub(super) fn write_policy(&self) -> FsResult<WritePolicy> {
        self.policy.write.ok_or(Errno::ROFS)
    }

    /// Whether any handle may write the file.
    pub(super) fn is_open_for_write(&self, ino: Ino) -> bool {
        self.can_write() && self.handles.find_inode(ino).is_some_and(|open| open.has_writers())
    }

    /// Whether the inode itself was changed through this mount lately, or may be right now.
    pub(super) fn is_recently_changed(&self, ino: Ino) -> bool {
        self.recent_changes.has_inode_changed(ino, Instant::now()) || self.is_open_for_write(ino)
    }

    /// The number of changes before a question.
    pub(super) fn change_seq(&self) -> u64 {
        self.change_seq.load(Ordering::Acquire)
    }

    /// The number of one more change.
    pub(super) fn next_change_seq(&self) -> u64 {
        self.change_seq.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether an answer of `replica` may be from before a change that was made
    /// while it was on its way, or that it does not know of.
    pub(super) fn is_possibly_stale(&self, replica: ReplicaId, path: &Path, ino: Ino) -> bool {
        let now = Instant::now();
        let is_recent = || {
            self.recent_changes.has_path_changed(path, now)
                || self.recent_changes.has_inode_changed(ino, now)
                || self.is_open_for_write(ino)
        };
        self.policy.write.is_some_and(|write| write.replica != replica && is_recent())
    }

    /// A name is changed, and with it the directory that it is in.
    pub(super) fn record_name_change(&self, path: &Path, scope: ChangeScope) {
        let now = Instant::now();
        let dir = path.parent().unwrap_or(Path::new(""));
        self.recent_changes.record_path(path, scope, now);
        self.recent_changes.record_path(dir, ChangeScope::Listing, now);
    }

    /// Data or attributes of an inode are changed: whatever names it has show
    /// others, and so do the listings that they are in.
    pub(super) fn record_inode_change(&self, ino: Ino) {
        let paths = self.inodes.lock().paths(ino);
        let now = Instant::now();
        for path in &paths {
            self.recent_changes.record_path(path, ChangeScope::Object, now);
            if let Some(dir) = path.parent() {
                self.recent_changes.record_path(dir, ChangeScope::Listing, now);
            }
        }
        self.recent_changes.record_inode(ino, now);
    }
}
