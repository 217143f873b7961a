//! One open file, which all its handles share. It keeps the version that they read and the
//! handles that may write, and moves them all to another version at once.

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

/// A regular file that is open: all its handles read the same version, or, while
/// it is written, what the write replica has.
pub(in crate::fs) struct OpenInode {
    state: RankedMutex<OpenInodeState>,
    /// What the kernel reads by itself, for as long as any handle is open.
    backing: Option<Arc<PassthroughFile>>,
    /// Keeps reads and changes of it apart.
    pub(in crate::fs) gate: Arc<WriteGate>,
}

struct OpenInodeState {
    file: Arc<OpenFile>,
    /// When a replica last said that this is the version there is; `None` where it is not
    /// known which there is.
    checked_at: Option<Instant>,
    /// Handles that may write.
    writers: Vec<Arc<Writer>>,
    /// How often it came to be written.
    write_epoch: u64,
}

/// How to read a file now.
pub(in crate::fs) enum ReadSource {
    /// Any replica that has this version; the epoch that it belongs to.
    AnyReplica(Arc<OpenFile>, u64),
    /// The write replica, through this if there is one.
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

    /// The version to read now, if it is not being written.
    pub(in crate::fs) fn current(&self) -> Arc<OpenFile> {
        Arc::clone(&self.state.lock().file)
    }

    /// What `own`, a handle's writer if it has one, is to be read from now.
    pub(in crate::fs) fn read_source(&self, own: Option<&Arc<Writer>>) -> ReadSource {
        let state = self.state.lock();
        if state.writers.is_empty() {
            return ReadSource::AnyReplica(Arc::clone(&state.file), state.write_epoch);
        }
        let readable = own.into_iter().chain(&state.writers).find(|writer| writer.readable);
        ReadSource::WriteReplica(readable.cloned())
    }

    /// Whether a read that began at `epoch` was of one version.
    pub(in crate::fs) fn is_same_epoch(&self, epoch: u64) -> bool {
        self.state.lock().write_epoch == epoch
    }

    /// Keeps writes from beginning for as long as the result lives, if none has since
    /// `epoch`. Never waits.
    pub(in crate::fs) fn block_writes(&self, epoch: u64) -> Option<RwLockReadGuard<'_, ()>> {
        // Whoever writes has begun an epoch first.
        self.gate.try_lock_shared().filter(|_| self.is_same_epoch(epoch))
    }

    /// One of the handles that may write it.
    pub(in crate::fs) fn any_writer(&self) -> Option<Arc<Writer>> {
        self.state.lock().writers.first().cloned()
    }

    /// A handle by which he may write it.
    pub(in crate::fs) fn writer_of(&self, who: &Credentials) -> Option<Arc<Writer>> {
        self.state.lock().writers.iter().find(|writer| writer.credentials == *who).cloned()
    }

    /// What a change through any of its handles came to, if it may have been lost.
    pub(in crate::fs) fn deferred_error(&self) -> Option<Errno> {
        self.state.lock().writers.iter().find_map(|writer| writer.deferred_error())
    }

    /// Whether any handle may write it.
    pub(in crate::fs) fn has_writers(&self) -> bool {
        !self.state.lock().writers.is_empty()
    }

    /// A handle may write it from now on.
    pub(in crate::fs) fn add_writer(&self, writer: Arc<Writer>) {
        let mut state = self.state.lock();
        state.write_epoch += u64::from(state.writers.is_empty());
        state.writers.push(writer);
    }

    /// A handle may not write it any more. Returns the version that is left for the
    /// one that `make` makes of it, where it was the last.
    pub(in crate::fs) fn remove_writer(
        &self,
        writer: &Arc<Writer>,
        make: impl FnOnce(&OpenFile) -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        let mut state = self.state.lock();
        state.writers.retain(|other| !Arc::ptr_eq(other, writer));
        if !state.writers.is_empty() {
            return None;
        }
        Some(state.replace(make))
    }

    /// Its rights or owner were changed here, and nothing of its data: `version` is what
    /// that made of it. Who has it open need not open it again, and might not be allowed
    /// to any more.
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
        state.file.adopt_open_files(&old);
        Some(old)
    }

    /// It has another name: `make` makes the same version of it.
    pub(in crate::fs) fn adopt_rename(
        &self,
        make: impl FnOnce(&OpenFile) -> OpenFile,
    ) -> Arc<OpenFile> {
        self.state.lock().replace(make)
    }

    /// What the kernel reads by itself.
    pub(in crate::fs) fn backing(&self) -> Option<&Arc<PassthroughFile>> {
        self.backing.as_ref()
    }

    /// Whether its version has not been checked for `ttl`.
    pub(in crate::fs) fn is_check_due(&self, ttl: Duration, now: Instant) -> bool {
        let checked = self.state.lock().checked_at;
        checked.is_none_or(|checked| now.saturating_duration_since(checked) >= ttl)
    }

    /// Nobody knows a newer version than the one that is read.
    pub(in crate::fs) fn mark_checked(&self) {
        self.state.lock().checked_at = Some(Instant::now());
    }

    /// The version that is read may not be the one there is.
    pub(in crate::fs) fn mark_unchecked(&self) {
        self.state.lock().checked_at = None;
    }

    /// Moves on to `version`, if that is another one; returns the one left.
    /// `make` is called under this inode's lock and must not ask it anything.
    pub(in crate::fs) fn adopt_version(
        &self,
        version: FileVersion,
        mode: VolumeMode,
        make: impl FnOnce() -> OpenFile,
    ) -> Option<Arc<OpenFile>> {
        self.adopt_opened(version, mode, None, make)
    }

    /// As [`OpenInode::adopt_version`], for a replica's open that showed `version`. What
    /// it opened goes to that version and to no other.
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
            // Its version is what it will be when they are through; what was opened
            // keeps the file there meanwhile.
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
    /// Moves on to what `make` makes of the present version; returns that one.
    fn replace(&mut self, make: impl FnOnce(&OpenFile) -> OpenFile) -> Arc<OpenFile> {
        let next = make(&self.file);
        next.inherit_descriptors(&self.file);
        self.checked_at = Some(Instant::now());
        std::mem::replace(&mut self.file, Arc::new(next))
    }
}
