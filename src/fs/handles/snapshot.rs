//! Open files and directories as a snapshot, from which another daemon restores them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::{DirCache, DirHandle, FileHandle, Handle, Handles, OpenInode, OpenInodeEntry};
use crate::backend::{Attr, Credentials, CredentialsRecord, DirEntry, InodeIdentity, LazyFile};
use crate::fs::inodes::Inodes;
use crate::fs::journal::{Journal, JournalEntry};
use crate::fs::listing::PackedEntries;
use crate::fs::listing_memory::ListingMemory;
use crate::fs::snapshot::{
    FsSnapshot, RestoreContext, SnapshotBuilder, SnapshotError, current_path_or, path_record,
};
use crate::fs::write_gate::Writer;
use crate::fs::{CacheMode, Errno, HandleId, Ino, Listing};
use crate::read::OpenFile;
use crate::volume::FileVersion;

/// Tells a directory's listing from another: its names, in their order.
pub(in crate::fs) type ListingDigest = [u8; 16];

pub(super) fn digest_of_names<'a>(names: impl Iterator<Item = &'a OsStr>) -> ListingDigest {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(name.as_encoded_bytes());
        // No name contains it.
        hasher.update(&[0]);
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    digest
}

fn digest_of_listing(listing: &Listing) -> ListingDigest {
    digest_of_names(listing.entries_from(0).map(|entry| entry.name))
}

/// An open file, which may have several handles.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct FileRecord {
    ino: u64,
    at: VersionRecord,
    held: Vec<ReplicaFileRecord>,
    /// The attributes that were shown last.
    attr: Option<Attr>,
}

/// A version of a file, and how it is opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct VersionRecord {
    path: OsString,
    version: FileVersion,
    who: CredentialsRecord,
}

impl FileRecord {
    /// A file that no replica has open.
    fn unheld(ino: Ino, at: VersionRecord) -> Self {
        Self { ino: ino.0, at, held: Vec::new(), attr: None }
    }
}

/// The inode number of the parent directory, and the entries.
type ListingRecord = Option<(u64, Vec<DirEntry>)>;

/// What a replica has open of it.
#[derive(Debug, Serialize, Deserialize)]
struct ReplicaFileRecord {
    replica: u16,
    /// Whether its open showed this version.
    shows_it: bool,
    file: u32,
}

/// A handle.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::fs) struct HandleRecord {
    pub(in crate::fs) handle: u64,
    ino: u64,
    who: CredentialsRecord,
    what: HandleKindRecord,
}

#[derive(Debug, Serialize, Deserialize)]
enum HandleKindRecord {
    File { at: VersionRecord, direct: bool, current: bool, writer: Option<WriterRecord> },
    Directory { begun: bool, listing: ListingRecord, lost: Option<ListingDigest> },
}

#[derive(Debug, Serialize, Deserialize)]
struct WriterRecord {
    readable: bool,
    /// Of [`crate::backend::SyncMode`].
    sync: u8,
    who: CredentialsRecord,
    trouble: Option<i32>,
    /// Whether it has not been opened since a daemon was killed: so it is not sent, and
    /// the next daemon opens it when it is first used.
    is_deferred: bool,
    file: Option<u32>,
}

impl HandleRecord {
    /// Whether it may write.
    pub(in crate::fs) fn is_writer(&self) -> bool {
        matches!(self.what, HandleKindRecord::File { writer: Some(_), .. })
    }

    pub(in crate::fs) fn id(&self) -> HandleId {
        HandleId { number: self.handle, ino: Ino(self.ino) }
    }

    /// One of a directory.
    #[cfg(test)]
    pub(in crate::fs) fn example(handle: u64) -> Self {
        let what = HandleKindRecord::Directory { begun: false, listing: None, lost: None };
        Self { handle, ino: 2, who: None, what }
    }

    /// Nothing was sent along.
    pub(in crate::fs) fn mark_daemon_killed(&mut self) {
        match &mut self.what {
            HandleKindRecord::File { current, writer, .. } => {
                *current = false;
                if let Some(writer) = writer {
                    writer.file = None;
                }
            }
            HandleKindRecord::Directory { listing, .. } => *listing = None,
        }
    }

    /// A directory was listed.
    pub(in crate::fs) fn set_listed(&mut self, digest: ListingDigest) {
        if let HandleKindRecord::Directory { lost, begun, .. } = &mut self.what {
            (*lost, *begun) = (Some(digest), true);
        }
    }
}

impl VersionRecord {
    fn of(file: &OpenFile) -> Self {
        let path = path_record(file.path());
        let version = file.version();
        Self { path, version, who: file.credentials().to_record() }
    }
}

impl WriterRecord {
    fn of(writer: &Writer) -> Self {
        Self {
            readable: writer.readable,
            sync: writer.sync.to_code(),
            who: writer.credentials.to_record(),
            trouble: writer.deferred_error().map(Errno::raw),
            is_deferred: writer.file.is_deferred(),
            file: None,
        }
    }
}

impl Handle {
    /// Writes it down: with its listing, or with what stands for that.
    fn record(&self, handle: u64, inodes: Option<&Inodes>, with_listing: bool) -> HandleRecord {
        match self {
            Self::File(file) => HandleRecord {
                handle,
                ino: file.ino.0,
                who: file.credentials.to_record(),
                what: HandleKindRecord::File {
                    at: VersionRecord::of(&file.inode.current()),
                    direct: file.cache_mode == CacheMode::Direct,
                    current: inodes
                        .and_then(|inodes| inodes.cache_validity(file.ino))
                        .is_some_and(|cached| cached.is_same(&file.cache_validity)),
                    writer: file.writer.as_deref().map(WriterRecord::of),
                },
            },
            Self::Directory(dir) => {
                let kept = dir.cache.lock();
                // A window is collected again by whoever goes on.
                let whole = kept.listing.as_ref().filter(|listing| listing.packed.is_whole());
                let listing = whole.filter(|_| with_listing);
                let listing = listing.map(|l| (l.parent.0, l.packed.to_dir_entries()));
                let lost = match whole {
                    Some(whole) if !with_listing => Some(digest_of_listing(whole)),
                    Some(_) => None,
                    None => kept.lost_digest,
                };
                HandleRecord {
                    handle,
                    ino: dir.ino.0,
                    who: dir.credentials.to_record(),
                    what: HandleKindRecord::Directory { begun: kept.is_started, listing, lost },
                }
            }
        }
    }
}

impl Handles {
    /// Writes down what is opened and closed from now on.
    pub(in crate::fs) fn attach_journal(&self, journal: Arc<Journal>) {
        self.unsettled.attach_journal(Arc::clone(&journal));
        let _ = self.journal.set(journal);
    }

    /// Where that is written down, if it is.
    pub(in crate::fs) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get()
    }

    /// Nothing is opened or closed while this lives.
    pub(in crate::fs) fn block_open_close(&self) -> MutexGuard<'_, ()> {
        self.open_close_lock.lock()
    }

    pub(super) fn journal_open(&self, id: u64, handle: &Handle, request: u64) {
        if let Some(journal) = self.journal.get() {
            let record = Box::new(handle.record(id, None, false));
            journal.append_for_request(
                request,
                record.id().into(),
                &JournalEntry::Open(request, record),
            );
        }
    }

    /// A directory was listed.
    pub(in crate::fs) fn journal_listing(&self, handle: u64, listing: &Listing) {
        if let Some(journal) = self.journal.get()
            && listing.packed.is_whole()
        {
            journal.append(&JournalEntry::Listed(handle, digest_of_listing(listing)));
        }
    }

    pub(super) fn journal_close(&self, id: u64) {
        if let Some(journal) = self.journal.get() {
            journal.append(&JournalEntry::Close(id));
        }
    }

    /// Whether a file is being changed, or may be.
    pub(in crate::fs) fn has_changing_files(&self) -> bool {
        !self.changing_files().is_empty()
    }

    /// The files that are being changed, or may be.
    fn changing_files(&self) -> Vec<u64> {
        let gates = self.gates.lock();
        let live = gates.iter().filter_map(|(ino, gate)| Some((ino, gate.upgrade()?)));
        live.filter(|(_, gate)| gate.has_in_flight()).map(|(ino, _)| ino.0).collect()
    }

    /// The files that this daemon or an earlier one may change after the next one has
    /// taken over.
    fn unsettled_files(&self) -> Vec<u64> {
        let mut files = self.unsettled.files().lock().inos();
        files.extend(self.changing_files());
        files
    }

    /// Writes down what is open.
    pub(in crate::fs) fn snapshot(&self, inodes: &Inodes, sheet: &mut SnapshotBuilder) {
        let open = self.open.lock();
        for (id, handle) in open.iter() {
            let mut record = handle.record(id, Some(inodes), sheet.is_handover);
            if let (Handle::File(file), HandleKindRecord::File { writer: Some(record), .. }) =
                (handle, &mut record.what)
                && let Some(writer) = &file.writer
            {
                record.file = sheet.attach_file(&writer.file);
            }
            sheet.snapshot.opened.push(record);
        }
        for (ino, counted) in self.inodes.lock().iter() {
            let current = counted.inode.current();
            let held =
                current.open_descriptors().into_iter().filter_map(|(replica, shows_it, file)| {
                    let file = sheet.attach_file(&file)?;
                    Some(ReplicaFileRecord { replica: replica.index() as u16, shows_it, file })
                });
            let held = held.collect();
            let at = VersionRecord::of(&current);
            let attr = current.last_attr();
            sheet.snapshot.files.push(FileRecord { ino: ino.0, at, held, attr });
        }
        sheet.snapshot.last = self.numbers.last();
        if sheet.is_handover {
            sheet.snapshot.unsettled = self.unsettled_files();
        }
    }

    /// Whether the kernel reads any file by itself.
    pub(in crate::fs) fn has_passthrough_files(&self) -> bool {
        self.inodes.lock().values().any(|counted| counted.inode.backing().is_some())
    }

    /// Restores a snapshot.
    ///
    /// # Errors
    /// The entry that cannot be restored.
    pub(in crate::fs) fn restore(
        &self,
        inodes: &mut Inodes,
        snapshot: &mut FsSnapshot,
        context: &mut RestoreContext<'_>,
    ) -> Result<(), SnapshotError> {
        let issued = snapshot.opened.iter().map(|opened| opened.handle);
        self.numbers.avoid_issued(issued.chain([snapshot.last]));
        let files = snapshot.files.drain(..).map(|file| (file.ino, file));
        let mut files: HashMap<u64, FileRecord> = files.collect();
        for HandleRecord { handle, ino, who, what } in snapshot.opened.drain(..) {
            let ino = Ino(ino);
            let credentials = Credentials::from_record(who);
            let restored = match what {
                HandleKindRecord::Directory { begun, listing, lost } => {
                    let cache = restore_dir_cache(ino, listing, lost, context.listing_memory);
                    let cache = Mutex::new(DirCache { is_started: begun, ..cache });
                    Handle::Directory(Arc::new(DirHandle { ino, credentials, cache }))
                }
                HandleKindRecord::File { at, direct, current, writer } => {
                    let writer = writer
                        .map(|record| restore_writer(record, &at, inodes, ino, context))
                        .transpose()?;
                    let cache_mode = if direct { CacheMode::Direct } else { CacheMode::Kernel };
                    let file = files.remove(&ino.0).unwrap_or_else(|| FileRecord::unheld(ino, at));
                    let inode = self.restore_open_inode(inodes, file, cache_mode, context);
                    if let Some(writer) = &writer {
                        inode.add_writer(Arc::clone(writer));
                    }
                    let cached = inodes.cache_validity(ino).filter(|_| current).cloned();
                    Handle::File(FileHandle {
                        ino,
                        inode,
                        cache_validity: cached.unwrap_or_default(),
                        cache_mode,
                        read_stats: Arc::default(),
                        read_handle: Arc::new(context.reader.new_handle()),
                        credentials,
                        is_closing: Arc::default(),
                        writer,
                    })
                }
            };
            self.open.lock().insert(handle, restored);
        }
        Ok(())
    }

    /// The open file of one more handle.
    fn restore_open_inode(
        &self,
        known: &Inodes,
        record: FileRecord,
        cache_mode: CacheMode,
        context: &mut RestoreContext<'_>,
    ) -> Arc<OpenInode> {
        let ino = Ino(record.ino);
        let mut inodes = self.inodes.lock();
        let counted = inodes.entry(ino).or_insert_with(|| {
            let FileRecord { at, held, attr, .. } = record;
            let is_named = known.path(ino).is_some();
            let path = current_path_or(known, ino, at.path);
            let credentials = Credentials::from_record(at.who);
            let file = context.reader.new_open_file(path, at.version, context.mode, credentials);
            let file = file.with_generation(known.generation(ino));
            let file = if is_named { file } else { file.unlinked() };
            attr.iter().for_each(|attr| file.set_last_attr(attr));
            for ReplicaFileRecord { replica, shows_it, file: index } in held {
                let Some(replica) = context.map_replica(replica) else { continue };
                match context.adopt_file(replica, Some(index)) {
                    Some(open) if shows_it => file.record_verified_open(replica, open),
                    Some(open) => file.record_open(replica, open),
                    None => {}
                }
            }
            let gate = self.gate(ino);
            gate.pending_writes.forget_reads();
            let inode = Arc::new(OpenInode::new(file, None, gate));
            OpenInodeEntry { inode, handles: 0, direct_handles: 0 }
        });
        counted.add_handles(cache_mode, 1);
        Arc::clone(&counted.inode)
    }
}

/// The listing that a handle kept, where there is memory for it.
fn restore_dir_cache(
    ino: Ino,
    listing: ListingRecord,
    lost_digest: Option<ListingDigest>,
    memory: &ListingMemory,
) -> DirCache {
    let Some((parent, entries)) = listing else {
        return DirCache { lost_digest, ..DirCache::default() };
    };
    match PackedEntries::restore(memory, &entries) {
        Some(packed) => {
            let listing = Arc::new(Listing { ino, parent: Ino(parent), packed });
            DirCache { listing: Some(listing), ..DirCache::default() }
        }
        None => {
            let digest = digest_of_names(entries.iter().map(|entry| &*entry.name));
            DirCache { lost_digest: Some(digest), ..DirCache::default() }
        }
    }
}

/// A handle that may write goes on doing so; one whose descriptor was lost opens the
/// file again when it is next used, if it is still that file.
fn restore_writer(
    record: WriterRecord,
    at: &VersionRecord,
    inodes: &Inodes,
    ino: Ino,
    heir: &mut RestoreContext<'_>,
) -> Result<Arc<Writer>, SnapshotError> {
    let Some(write) = heir.write else {
        return Err(SnapshotError::ReadOnly);
    };
    let sync = crate::backend::SyncMode::from_code(record.sync);
    let file = match heir.adopt_file(write.replica, record.file) {
        Some(file) => file,
        None if heir.is_predecessor_killed || record.is_deferred => {
            // Another file may be where it was, with its number.
            let path = inodes.path(ino);
            let known = InodeIdentity { ino: at.version.ino, generation: inodes.generation(ino) };
            let backend = heir.replicas[write.replica].backend();
            Arc::new(LazyFile::new(backend, path, known, record.readable, sync))
        }
        None => return Err(SnapshotError::MissingFile),
    };
    let writer = Writer::new(file, record.readable, sync, Credentials::from_record(record.who));
    if let Some(errno) = record.trouble {
        writer.set_deferred_error(Errno::from_raw(errno));
    }
    Ok(Arc::new(writer))
}
