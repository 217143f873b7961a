//! An open file, shared by all its handles. It keeps the version that they read and the handles
//! that may write, and moves all of them to another version at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLockReadGuard;

use crate::backend::{BackendFile, Credentials};
use crate::fs::error::Errno;
use crate::fs::passthrough::PassthroughFile;
use crate::fs::write_gate::{WriteGate, Writer};
use crate::read::OpenFile;
use crate::sync::{LockRank, RankedMutex};
use crate::volume::{FileVersion, ReplicaId, VolumeMode};

/// A regular file that is open. All its handles read the same version. While a handle may write,
/// they read what the write replica has.
pub(in crate::fs) struct OpenInode {
    state: RankedMutex<OpenInodeState>,
    /// Whether there is a reason to believe that the version may be out of date. Changes under the
    /// state's lock.
    is_unconfirmed: AtomicBool,
    /// How often the kernel got attributes of the file.
    kernel_attrs: AtomicU64,
    /// The file that the kernel reads by itself, for as long as any handle is open.
    backing: Option<Arc<PassthroughFile>>,
    /// Separates reads and changes of the file.
    pub(in crate::fs) gate: Arc<WriteGate>,
}

struct OpenInodeState {
    file: Arc<OpenFile>,
    /// When a replica was last asked for the version; `None` if it is to be asked now.
    checked_at: Option<Instant>,
    /// Handles that may write.
    writers: Vec<Arc<Writer>>,
    /// How often the file was opened for writing while it had no writer.
    write_epoch: u64,
}

/// Whether a version that is adopted is the latest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum VersionAge {
    Latest,
    /// There may be a later one.
    Unknown,
}

/// Where to read a file from now.
pub(in crate::fs) enum ReadSource {
    /// Any replica that has this version, and the epoch of the read.
    AnyReplica(Arc<OpenFile>, u64),
    /// The write replica, through this writer if there is one.
    WriteReplica(Option<Arc<Writer>>),
}

impl OpenInode {
    pub(super) fn new(
        file: OpenFile,
        backing: Option<Arc<PassthroughFile>>,
        gate: Arc<WriteGate>,
    ) -> Self {
        let file = Arc::new(file);
        let state = OpenInodeState {
            file,
            checked_at: Some(Instant::now()),
            writers: Vec::new(),
            write_epoch: 0,
        };
        Self {
            state: RankedMutex::new(LockRank::OpenInode, state),
            is_unconfirmed: AtomicBool::new(false),
            kernel_attrs: AtomicU64::new(0),
            backing,
            gate,
        }
    }

    /// The version to read now, unless the file has writers.
    pub(in crate::fs) fn current(&self) -> Arc<OpenFile> {
        Arc::clone(&self.state.lock().file)
    }

    /// Where a handle whose writer is `own` reads from now.
    pub(in crate::fs) fn read_source(&self, own: Option<&Arc<Writer>>) -> ReadSource {
        let state = self.state.lock();
        if state.writers.is_empty() {
            return ReadSource::AnyReplica(Arc::clone(&state.file), state.write_epoch);
        }
        let readable = own.into_iter().chain(&state.writers).find(|writer| writer.readable);
        ReadSource::WriteReplica(readable.cloned())
    }

    /// Whether no write epoch has begun since `epoch`: a read from then on was of one version.
    pub(in crate::fs) fn is_same_epoch(&self, epoch: u64) -> bool {
        self.state.lock().write_epoch == epoch
    }

    /// Prevents writes while the guard lives, if none has begun since `epoch`. Never waits.
    pub(in crate::fs) fn block_writes(&self, epoch: u64) -> Option<RwLockReadGuard<'_, ()>> {
        // A writer begins an epoch before it writes.
        self.gate.try_lock_shared().filter(|_| self.is_same_epoch(epoch))
    }

    pub(in crate::fs) fn any_writer(&self) -> Option<Arc<Writer>> {
        self.state.lock().writers.first().cloned()
    }

    /// A handle by which a caller with these credentials may write the file.
    pub(in crate::fs) fn writer_of(&self, who: &Credentials) -> Option<Arc<Writer>> {
        self.state.lock().writers.iter().find(|writer| writer.credentials == *who).cloned()
    }

    /// The error of a change through any of its handles, if the change may have been lost.
    pub(in crate::fs) fn deferred_error(&self) -> Option<Errno> {
        self.state.lock().writers.iter().find_map(|writer| writer.deferred_error())
    }

    pub(in crate::fs) fn has_writers(&self) -> bool {
        !self.state.lock().writers.is_empty()
    }

    /// Adds a handle that may write.
    pub(in crate::fs) fn add_writer(&self, writer: Arc<Writer>) {
        let mut state = self.state.lock();
        state.write_epoch += u64::from(state.writers.is_empty());
        state.writers.push(writer);
    }

    /// Whether no other handle may write.
    pub(in crate::fs) fn is_last_writer(&self, writer: &Arc<Writer>) -> bool {
        self.state.lock().writers.iter().all(|other| Arc::ptr_eq(other, writer))
    }

    /// Removes a handle that may write. If it was the last one, `make` makes the next version of
    /// the present one, and the present one is returned. `age` says whether that is the latest
    /// version.
    pub(in crate::fs) fn remove_writer(
        &self,
        writer: &Arc<Writer>,
        age: VersionAge,
        make: impl FnOnce(&OpenFile) -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        state.writers.retain(|other| !Arc::ptr_eq(other, writer));
        if !state.writers.is_empty() {
            return None;
        }
        self.set_age(&mut state, age);
        Some(state.replace(make))
    }

    /// Adopts `version`, which a change of owner or permissions made here. The data is unchanged,
    /// so handles keep what replicas have open. Opening again could fail under the new permissions.
    pub(in crate::fs) fn adopt_metadata_change(
        &self,
        version: FileVersion,
        make: impl FnOnce(&OpenFile) -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        let own = state.file.version();
        let is_touched = FileVersion { ctime: version.ctime, ..own } == version && own != version;
        if !is_touched || !state.writers.is_empty() {
            return None;
        }
        let old = state.replace(make);
        self.set_age(&mut state, VersionAge::Latest);
        state.file.adopt_open_files(&old);
        Some(old)
    }

    /// The file has another name: `make` makes the same version with the new path.
    pub(in crate::fs) fn adopt_rename(
        &self,
        make: impl FnOnce(&OpenFile) -> OpenFile,
    ) -> Arc<OpenFile> {
        self.state.lock().replace(make)
    }

    /// The file that the kernel reads by itself.
    pub(in crate::fs) fn backing(&self) -> Option<&Arc<PassthroughFile>> {
        self.backing.as_ref()
    }

    /// Whether no replica was asked for its version for `ttl`.
    pub(in crate::fs) fn is_check_due(&self, ttl: Duration, now: Instant) -> bool {
        let checked = self.state.lock().checked_at;
        checked.is_none_or(|checked| now.saturating_duration_since(checked) >= ttl)
    }

    /// Delays the next check of the version. It does not confirm the version.
    pub(in crate::fs) fn delay_check(&self) {
        self.state.lock().checked_at = Some(Instant::now());
    }

    /// The current version may be out of date.
    pub(in crate::fs) fn mark_unconfirmed(&self) {
        self.set_age(&mut self.state.lock(), VersionAge::Unknown);
    }

    /// Another daemon has left this version, and it may have been written since. A read past its end
    /// looks it up; others need not.
    pub(super) fn mark_left_by_another(&self) {
        let _state = self.state.lock();
        self.is_unconfirmed.store(true, Ordering::Release);
    }

    /// Whether the current version may be out of date. Without a reason to believe that, a version
    /// is trusted for some time.
    pub(in crate::fs) fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed.load(Ordering::Acquire)
    }

    fn set_age(&self, state: &mut OpenInodeState, age: VersionAge) {
        state.checked_at = match age {
            VersionAge::Latest => Some(Instant::now()),
            VersionAge::Unknown => None,
        };
        self.is_unconfirmed.store(age == VersionAge::Unknown, Ordering::Release);
    }

    /// The kernel gets attributes of the file.
    pub(in crate::fs) fn count_kernel_attrs(&self) {
        self.kernel_attrs.fetch_add(1, Ordering::AcqRel);
    }

    /// How often it got some.
    pub(in crate::fs) fn kernel_attrs(&self) -> u64 {
        self.kernel_attrs.load(Ordering::Acquire)
    }

    /// Moves to `version`, if that is another one, and returns the one that it left. `make` is
    /// called under this inode's lock and must not call its methods.
    pub(in crate::fs) fn adopt_version(
        &self,
        version: FileVersion,
        mode: VolumeMode,
        make: impl FnOnce() -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        self.adopt_opened(version, mode, None, make)
    }

    /// As [`OpenInode::adopt_version`], for a replica's open that showed `version`. The file that
    /// it opened belongs to that version only.
    pub(super) fn adopt_opened(
        &self,
        version: FileVersion,
        mode: VolumeMode,
        opened: Option<(ReplicaId, Arc<dyn BackendFile>)>,
        make: impl FnOnce() -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        if !state.writers.is_empty() {
            // The version is determined when the writers have closed it. Meanwhile the descriptor
            // keeps the file on that replica.
            if let Some((replica, file)) = opened {
                state.file.record_open(replica, file);
            }
            return None;
        }
        let own = state.file.version();
        let left = if own.is_same_version(&version, mode) {
            self.set_age(&mut state, VersionAge::Latest);
            None
        } else {
            // Of two answers the older one may come last. Copies have times of their own.
            let is_older = mode == VolumeMode::Shared && version.ctime <= own.ctime;
            let age = if is_older { VersionAge::Unknown } else { VersionAge::Latest };
            self.set_age(&mut state, age);
            let next = make();
            next.inherit_descriptors(&state.file);
            Some(std::mem::replace(&mut state.file, Arc::new(next)))
        };
        if let Some((replica, file)) = opened {
            state.file.record_verified_open(replica, file);
        }
        left
    }
}

impl OpenInodeState {
    /// Moves to the version that `make` makes of the present one; returns the present one.
    fn replace(&mut self, make: impl FnOnce(&OpenFile) -> OpenFile) -> Arc<OpenFile> {
        let next = make(&self.file);
        next.inherit_descriptors(&self.file);
        std::mem::replace(&mut self.file, Arc::new(next))
    }
}
