//! Open files and directories as records, from which another daemon restores them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{DirHandle, FileHandle, Handle, Handles, OpenInode, OpenInodeEntry};
use crate::backend::{Credentials, InodeIdentity, LazyFile, SyncMode};
use crate::fs::cache_mode::{CacheMode, ReadSizeStats};
use crate::fs::error::Errno;
use crate::fs::file_transfer::{FilesToSend, ReceivedFiles, SnapshotError};
use crate::fs::ino::Ino;
use crate::fs::inodes::Inodes;
use crate::fs::listing_cache::{ListingCache, ListingCacheRecord};
use crate::fs::listing_memory::ListingMemory;
use crate::fs::records::{
    FileRecord, FsSnapshot, HandleKindRecord, HandleRecord, ReplicaFileRecord, VersionRecord,
    WriterRecord,
};
use crate::fs::write_gate::Writer;
use crate::read::{OpenFile, Reader};
use crate::replicas::Replicas;
use crate::volume::{ReplicaId, VolumeMode};

/// The parts that handles are restored with.
pub(in crate::fs) struct HandlesRestore<'a> {
    pub(in crate::fs) inodes: &'a Inodes,
    pub(in crate::fs) reader: &'a Reader,
    pub(in crate::fs) listing_memory: &'a ListingMemory,
    pub(in crate::fs) replicas: &'a Replicas,
    pub(in crate::fs) mode: VolumeMode,
    pub(in crate::fs) write_replica: Option<ReplicaId>,
    pub(in crate::fs) is_immutable: bool,
}

fn version_record(file: &OpenFile) -> VersionRecord {
    VersionRecord {
        path: file.path().as_os_str().to_owned(),
        version: file.version(),
        credentials: file.credentials().to_record(),
    }
}

fn writer_record(writer: &Writer) -> WriterRecord {
    WriterRecord {
        readable: writer.readable,
        sync: writer.sync.to_code(),
        credentials: writer.credentials.to_record(),
        deferred_error: writer.deferred_error().map(Errno::raw),
        is_deferred: writer.file.is_deferred(),
        file: None,
    }
}

impl Handle {
    /// The record of the handle: with its listing, or with the digest of the listing.
    pub(super) fn record(
        &self,
        number: u64,
        inodes: Option<&Inodes>,
        with_listing: bool,
    ) -> HandleRecord {
        match self {
            Self::File(file) => HandleRecord {
                number,
                ino: file.ino.0,
                credentials: file.credentials.to_record(),
                kind: HandleKindRecord::File {
                    version: version_record(&file.inode.current()),
                    is_direct: file.cache_mode == CacheMode::Direct,
                    is_current: inodes
                        .and_then(|inodes| inodes.cache_validity(file.ino))
                        .is_some_and(|cached| cached.is_same(&file.cache_validity)),
                    writer: file.writer.as_deref().map(writer_record),
                },
            },
            Self::Directory(dir) => {
                let kept = dir.listing.snapshot(with_listing);
                let ListingCacheRecord { is_started, listing, lost_digest } = kept;
                HandleRecord {
                    number,
                    ino: dir.ino.0,
                    credentials: dir.credentials.to_record(),
                    kind: HandleKindRecord::Directory { is_started, listing, lost_digest },
                }
            }
        }
    }
}

impl Handles {
    /// Whether a file has a change that has not ended.
    pub(in crate::fs) fn has_changing_files(&self) -> bool {
        !self.changing_files().is_empty()
    }

    /// The files with a change that has not ended.
    fn changing_files(&self) -> Vec<u64> {
        let gates = self.gates.lock();
        let live = gates.iter().filter_map(|(ino, gate)| Some((ino, gate.upgrade()?)));
        live.filter(|(_, gate)| gate.has_in_flight()).map(|(ino, _)| ino.0).collect()
    }

    /// Records the open files and directories, and adds the descriptors to `files`.
    pub(in crate::fs) fn snapshot(
        &self,
        inodes: &Inodes,
        snapshot: &mut FsSnapshot,
        files: &mut FilesToSend,
    ) {
        let open = self.open.lock();
        for (number, handle) in open.iter().filter(|(_, handle)| !handle.is_implicit()) {
            let mut record = handle.record(number, Some(inodes), files.is_handover());
            if let (Handle::File(file), HandleKindRecord::File { writer: Some(record), .. }) =
                (handle, &mut record.kind)
                && let Some(writer) = &file.writer
            {
                record.file = files.add(&writer.file);
            }
            snapshot.handles.push(record);
        }
        let is_written = |ino: Ino| open.of_inode(ino).any(Handle::is_writable);
        let is_known = |ino: Ino| open.of_inode(ino).any(|handle| !handle.is_implicit());
        for (ino, counted) in self.inodes.lock().iter().filter(|(ino, _)| is_known(**ino)) {
            let current = counted.inode.current();
            // The last writer has closed it, and its version afterwards is not known yet. A
            // descriptor may show old data although it shows this version, so none counts as
            // verified.
            let is_ending = counted.inode.has_writers() && !is_written(*ino);
            let held =
                current.open_descriptors().into_iter().filter_map(|(replica, verified, file)| {
                    Some(ReplicaFileRecord {
                        replica: replica.index() as u16,
                        is_verified: verified && !is_ending,
                        file: files.add(&file)?,
                    })
                });
            snapshot.files.push(FileRecord {
                ino: ino.0,
                replica_files: held.collect(),
                version: version_record(&current),
                attr: current.last_attr(),
            });
        }
        snapshot.last_handle = self.numbers.last();
        if files.is_handover() {
            // This daemon may still change them after the next one has taken over.
            snapshot.unsettled = self.unsettled.lock_files().inos();
            snapshot.unsettled.extend(self.changing_files());
        }
    }

    pub(in crate::fs) fn has_passthrough_files(&self) -> bool {
        self.inodes.lock().values().any(|counted| counted.inode.backing().is_some())
    }

    /// Restores the handles of the predecessor, with the files that it sent.
    ///
    /// # Errors The reason why an entry cannot be restored.
    pub(in crate::fs) fn restore(
        &self,
        snapshot: &mut FsSnapshot,
        over: &HandlesRestore<'_>,
        received: &mut ReceivedFiles<'_>,
    ) -> Result<(), SnapshotError> {
        let issued = snapshot.handles.iter().map(|handle| handle.number);
        self.numbers.avoid_issued(issued.chain([snapshot.last_handle]));
        let files = snapshot.files.drain(..).map(|file| (file.ino, file));
        let mut files: HashMap<u64, FileRecord> = files.collect();
        for HandleRecord { number, ino, credentials, kind } in snapshot.handles.drain(..) {
            let ino = Ino(ino);
            let credentials = Credentials::from_record(credentials);
            let restored = match kind {
                HandleKindRecord::Directory { is_started, listing, lost_digest } => {
                    let kept = ListingCacheRecord { is_started, listing, lost_digest };
                    let cache = ListingCache::restore(ino, kept, over.listing_memory);
                    let listing = Arc::new(cache);
                    Handle::Directory(Arc::new(DirHandle { ino, credentials, listing }))
                }
                HandleKindRecord::File { version, is_direct, is_current, writer } => {
                    let writer = writer
                        .map(|record| over.restore_writer(record, &version, ino, received))
                        .transpose()?;
                    let cache_mode = if is_direct { CacheMode::Direct } else { CacheMode::Kernel };
                    let file =
                        files.remove(&ino.0).unwrap_or_else(|| FileRecord::unopened(ino, version));
                    let inode = self.restore_open_inode(file, cache_mode, over, received);
                    if let Some(writer) = &writer {
                        inode.add_writer(Arc::clone(writer));
                    }
                    let cached = over.inodes.cache_validity(ino).filter(|_| is_current).cloned();
                    Handle::File(Arc::new(FileHandle {
                        ino,
                        inode,
                        cache_validity: cached.unwrap_or_default(),
                        cache_mode,
                        read_stats: ReadSizeStats::default(),
                        read_handle: Arc::new(over.reader.new_handle()),
                        credentials,
                        is_closing: AtomicBool::default(),
                        writer,
                        is_implicit: false,
                    }))
                }
            };
            self.open.lock().insert(number, restored);
        }
        Ok(())
    }

    /// The open file, with one more handle.
    fn restore_open_inode(
        &self,
        record: FileRecord,
        cache_mode: CacheMode,
        over: &HandlesRestore<'_>,
        received: &mut ReceivedFiles<'_>,
    ) -> Arc<OpenInode> {
        let ino = Ino(record.ino);
        let inode = self.find_inode(ino).unwrap_or_else(|| {
            let file = over.restore_file(ino, record, received);
            let gate = self.gate(ino);
            gate.pending_writes.forget_reads();
            let inode = OpenInode::new(file, None, gate);
            if !over.is_immutable {
                inode.mark_left_by_another();
            }
            Arc::new(inode)
        });
        let entry = OpenInodeEntry { inode: Arc::clone(&inode), handles: 0, direct_handles: 0 };
        self.inodes.lock().entry(ino).or_insert(entry).add_handles(cache_mode, 1);
        inode
    }
}

impl HandlesRestore<'_> {
    /// The version of the file that its handles read, and the descriptors of replicas.
    fn restore_file(
        &self,
        ino: Ino,
        record: FileRecord,
        received: &mut ReceivedFiles<'_>,
    ) -> OpenFile {
        let FileRecord { version, replica_files, attr, .. } = record;
        let named = self.inodes.path(ino);
        let is_named = named.is_some();
        let path = named.unwrap_or_else(|| Path::new(&version.path).to_owned());
        let credentials = Credentials::from_record(version.credentials);
        let file = self.reader.new_open_file(path, version.version, self.mode, credentials);
        let file = file.with_generation(self.inodes.generation(ino));
        let file = if is_named { file } else { file.unlinked() };
        // The predecessor may have had to open it again, which brings a mount's cache up to date.
        let must_reopen =
            self.mode == VolumeMode::Shared && replica_files.iter().any(|file| !file.is_verified);
        let file = if must_reopen { file.reopening() } else { file };
        attr.iter().for_each(|attr| file.set_last_attr(attr));
        for ReplicaFileRecord { replica, is_verified, file: place } in replica_files {
            let Some(replica) = received.map_replica(replica) else { continue };
            match received.take(replica, Some(place)) {
                Some(open) if is_verified => file.record_verified_open(replica, open),
                Some(open) => file.record_open(replica, open),
                None => {}
            }
        }
        file
    }

    /// Restores a handle that may write. If its descriptor was lost, the next use opens the file
    /// again, after a check that it is still the same file.
    fn restore_writer(
        &self,
        record: WriterRecord,
        version: &VersionRecord,
        ino: Ino,
        received: &mut ReceivedFiles<'_>,
    ) -> Result<Arc<Writer>, SnapshotError> {
        let Some(replica) = self.write_replica else {
            return Err(SnapshotError::ReadOnly);
        };
        let sync = SyncMode::from_code(record.sync);
        let file = match received.take(replica, record.file) {
            Some(file) => file,
            None if received.is_predecessor_killed || record.is_deferred => {
                // Another file may have its path and inode number by now.
                let path = self.inodes.path(ino);
                let known = InodeIdentity {
                    ino: version.version.ino,
                    generation: self.inodes.generation(ino),
                };
                let backend = self.replicas[replica].backend();
                Arc::new(LazyFile::new(backend, path, known, record.readable, sync))
            }
            None => return Err(SnapshotError::MissingFile),
        };
        let credentials = Credentials::from_record(record.credentials);
        let writer = Writer::new(file, record.readable, sync, credentials);
        if let Some(errno) = record.deferred_error {
            writer.set_deferred_error(Errno::from_raw(errno));
        }
        Ok(Arc::new(writer))
    }
}
