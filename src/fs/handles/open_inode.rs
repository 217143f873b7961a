//! An open file, shared by all its handles. It keeps the version that they read and the handles
//! that may write, and moves all of them to another version at once.

use std::sync::Arc;
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
    /// The file that the kernel reads by itself, for as long as any handle is open.
    backing: Option<Arc<PassthroughFile>>,
    /// Separates reads and changes of the file.
    pub(in crate::fs) gate: Arc<WriteGate>,
}

struct OpenInodeState {
    file: Arc<OpenFile>,
    /// When a replica last confirmed this version; `None` if it may be out of date.
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
        Self { state: RankedMutex::new(LockRank::OpenInode, state), backing, gate }
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
        state.checked_at = match age {
            VersionAge::Latest => Some(Instant::now()),
            VersionAge::Unknown => None,
        };
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
        state.checked_at = Some(Instant::now());
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

    /// Whether its version was not confirmed for `ttl`.
    pub(in crate::fs) fn is_check_due(&self, ttl: Duration, now: Instant) -> bool {
        let checked = self.state.lock().checked_at;
        checked.is_none_or(|checked| now.saturating_duration_since(checked) >= ttl)
    }

    /// Confirms that the current version is the latest.
    pub(in crate::fs) fn mark_checked(&self) {
        self.state.lock().checked_at = Some(Instant::now());
    }

    /// The current version may be out of date.
    pub(in crate::fs) fn mark_unchecked(&self) {
        self.state.lock().checked_at = None;
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
        state.checked_at = Some(Instant::now());
        if !state.writers.is_empty() {
            // The version is determined when the writers have closed it. Meanwhile the descriptor
            // keeps the file on that replica.
            if let Some((replica, file)) = opened {
                state.file.record_open(replica, file);
            }
            return None;
        }
        let left = if state.file.version().is_same_version(&version, mode) {
            None
        } else {
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
