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

use super::OpenFiles;
use super::open::{OpenRequest, OpenedFile};
use crate::fs::handles::{OpenMethod, OpenOutcome};
use crate::volume::VolumeMode;

impl OpenFiles {
    /// Opens the file for reading if its version is known. `None`: ask a replica.
    pub(super) fn open_immutable(&self, request: &OpenRequest) -> Option<OpenedFile> {
        let mode = self.tables.policy.mode;
        let is_known = self.tables.policy.immutable && mode == VolumeMode::Shared;
        if !is_known || !request.is_by_daemon() || self.passthrough.is_wanted() {
            return None;
        }
        let ino = request.ino;
        let mut inodes = self.tables.inodes.lock();
        let open = self.tables.handles.find_inode(ino);
        if open.is_some_and(|open| !open.current().credentials().is_daemon()) {
            return None;
        }
        let version = inodes.sole_kernel_version(ino)?;
        let path = inodes.path(ino)?;
        let generation = inodes.generation(ino);
        let make_file = || {
            let credentials = request.credentials().clone();
            let file = self.tables.reader.new_open_file(path.clone(), version, mode, credentials);
            file.opened_by_read().with_generation(generation)
        };
        let cache_mode = self.choose_cache_mode(&inodes, ino, version.size);
        let method = OpenMethod { cache_mode, backing: None, make_file };
        let cache_validity = inodes.record_open(ino, version);
        let outcome = self.tables.handles.open_inode(ino, version, mode, None, method);
        drop(inodes);
        let OpenOutcome { inode, cache_mode, retired, .. } = outcome;
        if let Some(old) = retired {
            self.tables.reader.retire_file(&old);
        }
        let keep_cache = cache_validity.is_valid();
        let handle = self.insert_reader(request, inode, cache_validity, cache_mode);
        Some(OpenedFile { handle, cache_mode, keep_cache, backing: None, is_writable: false })
    }
}
