//! Opening a file of an immutable volume: no replica is asked.
//!
//! The kernel has looked the name up, and nothing has changed since. So the version that the kernel
//! knows is the file's, and the first read opens the file on the replica that it reads from.
//!
//! This holds for callers with the daemon's own credentials, if every process that has the file open
//! has them too. The kernel has checked the mode and the access control list. If a server refuses
//! the daemon all the same, the first read returns its error. A server may refuse other callers for
//! reasons of its own, so a replica opens the file with their credentials. In `copies` mode an open
//! asks the copy that decides.
//!
//! If the open reads the file too ([`super::pages_at_open`]), one replica is asked. If this fails or
//! takes long, the file is open all the same.

use std::sync::Arc;
use std::time::Instant;

use super::OpenFiles;
use super::open::{OpenRequest, OpenedFile};
use crate::backend::{Backend, BackendError, BackendFile};
use crate::fs::handles::{OpenMethod, OpenOutcome};
use crate::fs::tables::ReplicaPath;
use crate::read::FileContent;
use crate::replicas::metadata_client::{Fallback, RunAs};
use crate::volume::{FileVersion, ReplicaId, VolumeMode};

/// A small file that a replica has opened.
pub(super) struct ReadFile {
    replica: ReplicaId,
    file: Arc<dyn BackendFile>,
    version: FileVersion,
    /// `None` if it was not read too.
    pub(super) content: Option<FileContent>,
}

impl OpenFiles {
    /// Opens the file for reading if its version is known. `None`: ask a replica.
    pub(super) async fn open_immutable(
        &self,
        request: &OpenRequest,
        since: Instant,
    ) -> Option<OpenedFile> {
        let policy = &self.tables.policy;
        let is_known = policy.immutable && policy.mode == VolumeMode::Shared;
        if !is_known || !request.is_by_daemon() || self.passthrough.is_wanted() {
            return None;
        }
        let read = match request.reads {
            Some(version) => self.read_whole(request, version, since).await,
            None => None,
        };
        self.enter_immutable(request, read)
    }

    /// Opens and reads the file on a replica. `None` if none does so soon.
    pub(super) async fn read_whole(
        &self,
        request: &OpenRequest,
        version: FileVersion,
        since: Instant,
    ) -> Option<ReadFile> {
        let ino = request.ino;
        let path = self.tables.path(ino).ok()?;
        let target = self.calls.target_of_inode(ino, &path).requested_at(since);
        if target.is_pinned() {
            return None;
        }
        // Another could only be asked later than this open is answered.
        let target = target.only_on(self.tables.reader.quick_replica(target.path_hash())?);
        let tables = Arc::clone(&self.tables);
        let read = move |replica: ReplicaId, backend: &dyn Backend| {
            let at = ReplicaPath { replica, backend, path: &path };
            let (file, attr) = tables.open_revalidated(ino, at)?;
            if attr.version() != version || !tables.inodes.lock().is_same(ino, replica, &attr) {
                return Err(BackendError::VersionMismatch);
            }
            let can_read = tables.can_read_at_open(replica);
            let content =
                can_read.then(|| tables.reader.read_at_open(replica, &*file, version)).flatten();
            Ok(Some(ReadFile { replica, file, version, content }))
        };
        let late = Some(Fallback::Known(ReplicaId::new(0), None));
        let run_as = RunAs::Only(request.credentials().clone());
        match self.calls.client.call_with_fallback(late, target, run_as, read).await {
            Ok((_, Some(file))) => Some(file),
            Ok((_, None)) => {
                self.tables.reader.pause_reads_at_open();
                None
            }
            Err(_) => None,
        }
    }

    /// Enters the open into the tables, with the file if a replica has opened it.
    pub(super) fn enter_immutable(
        &self,
        request: &OpenRequest,
        read: Option<ReadFile>,
    ) -> Option<OpenedFile> {
        let mode = self.tables.policy.mode;
        let ino = request.ino;
        let mut inodes = self.tables.inodes.lock();
        let open = self.tables.handles.find_inode(ino);
        if open.is_some_and(|open| !open.current().credentials().is_daemon()) {
            return None;
        }
        let version = inodes.sole_kernel_version(ino)?;
        let path = inodes.path(ino)?;
        let read = read.filter(|read| read.version == version);
        let (file, content) = match read {
            Some(ReadFile { replica, file, content, .. }) => (Some((replica, file)), content),
            None => (None, None),
        };
        let store = self.prepare_store(&inodes, ino, content);
        let generation = inodes.generation(ino);
        let make_file = || {
            let credentials = request.credentials().clone();
            let file = self.tables.reader.new_open_file(path.clone(), version, mode, credentials);
            file.opened_by_read().with_generation(generation)
        };
        let cache_mode = self.choose_cache_mode(&inodes, ino, version.size);
        let method = OpenMethod { cache_mode, backing: None, make_file };
        let cache_validity = inodes.record_open(ino, version);
        let outcome = self.tables.handles.open_inode(ino, version, mode, file, method);
        drop(inodes);
        let OpenOutcome { inode, cache_mode, retired, .. } = outcome;
        if let Some(old) = retired {
            self.tables.reader.retire_file(&old);
        }
        let is_current = store.is_none_or(|store| self.store_pages(ino, store));
        let keep_cache = cache_validity.is_valid() && is_current;
        let handle = self.insert_reader(request, inode, cache_validity, cache_mode);
        Some(OpenedFile { handle, cache_mode, keep_cache, backing: None, is_writable: false })
    }
}
