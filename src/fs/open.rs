//! Opening and closing a file.
//!
//! One replica opens it and shows its version. Where the kernel is to read the
//! file from a replica by itself ([`super::passthrough`]), that replica opens it
//! too, unless it was the one; and as long as the kernel does, it is that
//! replica whose opens count, so that its mount looks whether the file changed.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::file_replacement::{AttrOwner, OpenFileCheck};
use super::handles::{OpenHooks, OpenOutcome, ReleasedHandle};
use super::inodes::{CacheValidity, Inodes};
use super::metadata_client::{CallTarget, RunAs};
use super::name_freshness::ReplicaPath;
use super::passthrough::{BackingId, PassthroughFile};
use super::renames::CallStart;
use super::unanswered::UnansweredEntry;
use super::{CacheMode, Errno, Fs, FsResult, HandleId, Ino, journal};
use crate::backend::{Attr, Backend, BackendError, BackendFile, Credentials, Lane, RequestContext};
use crate::volume::{ReplicaId, ReplicaSet};

/// A file just opened.
#[derive(Clone)]
pub struct OpenedFile {
    /// Names the handle in later calls.
    pub handle: HandleId,
    /// Who caches what is read through it.
    pub cache_mode: CacheMode,
    /// Whether what the kernel has cached of the file is still good; whoever
    /// caches, or pages of another version would stay.
    pub keep_cache: bool,
    /// What the kernel is to read by itself.
    pub backing: Option<Arc<PassthroughFile>>,
    /// Whether it may be written through.
    pub is_writable: bool,
}

/// Where the answer to an open goes.
pub trait OpenResponder: Send + 'static {
    /// Lends the kernel a descriptor to read through.
    ///
    /// # Errors
    /// The errno that the kernel refuses it with.
    fn register_backing(&self, file: BorrowedFd<'_>) -> std::io::Result<BackingId>;

    /// Has the kernel forget the attributes that it was told of the file, before it is
    /// answered. Called with tables locked.
    fn invalidate_attrs(&self);

    /// The answer.
    fn send(self, answer: FsResult<OpenedFile>);
}

/// What a replica's open showed.
struct ReplicaOpen {
    replica: ReplicaId,
    file: Arc<dyn BackendFile>,
    attr: Attr,
    /// Whether it is the file that the kernel reads by itself; `None` where that
    /// was not looked at.
    is_backing_file: Option<bool>,
    /// Whether it is the file that is open.
    file_check: OpenFileCheck,
}

/// What the kernel is to read by itself, if it is to.
type BackingCandidate = Option<(ReplicaId, Arc<dyn BackendFile>)>;

/// Looks for a file's chunks in at most so many places, to tell who is local to
/// all of them.
const MAX_PLACEMENT_SAMPLES: u64 = 1024;

/// No cluster's chunks are smaller.
const MIN_CHUNK_SIZE: u64 = 1 << 20;

impl Fs {
    /// Opens a regular file for reading, perhaps `to_run` it, which the kernel has
    /// checked that he may.
    pub fn open(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        to_run: bool,
        reply: impl OpenResponder,
    ) {
        let begun = self.start_call(&[ino]);
        self.open_by_current_path((who.credentials(), to_run, who.request), ino, begun, reply);
    }

    /// Opens it by the path that it has now.
    fn open_by_current_path(
        self: &Arc<Self>,
        by: (Credentials, bool, u64),
        ino: Ino,
        begun: CallStart,
        reply: impl OpenResponder,
    ) {
        match self.path(ino) {
            Ok(path) => {
                let spot = self.call_target_of_inode(ino, &path).requested_at(begun.started_at);
                self.open_on_replica(by, ino, begun, (path, spot), reply);
            }
            Err(errno) => reply.send(Err(errno)),
        }
    }

    fn open_on_replica(
        self: &Arc<Self>,
        (who, to_run, request): (Credentials, bool, u64),
        ino: Ino,
        begun: CallStart,
        (path, spot): (PathBuf, CallTarget),
        reply: impl OpenResponder,
    ) {
        let (fs, asked) = (Arc::clone(self), self.change_seq());
        let lent = self.handles.find_inode(ino).and_then(|inode| inode.backing().cloned());
        let first = lent.as_ref().map(|backing| backing.replica);
        let open = {
            let (fs, path) = (Arc::clone(self), path.clone());
            move |replica: ReplicaId, backend: &dyn Backend| {
                let at = ReplicaPath { replica, backend, path: &path };
                let (file, attr) = fs.open_revalidated(ino, at)?;
                let looked = fs.check_open_file(ino, replica, &attr);
                let lent = lent.as_ref().filter(|backing| backing.replica == replica);
                let is_same = |backing: &Arc<PassthroughFile>| {
                    backing.attr().is_ok_and(|lent| lent.id == attr.id)
                };
                Ok(ReplicaOpen {
                    replica,
                    file,
                    attr,
                    is_backing_file: lent.map(is_same),
                    file_check: looked,
                })
            }
        };
        let rights =
            if to_run { RunAs::CallerThenDaemon(who.clone()) } else { RunAs::Only(who.clone()) };
        // Whoever opens it later does so in the name that did it.
        let who = if to_run { Credentials::DAEMON } else { who };
        self.client.call_preferring(first, spot, rights, open, move |answer| match answer {
            Ok((replica, found))
                if fs.is_possibly_stale(replica, &path, ino)
                    || fs.attr_owner(ino, &found.attr, &found.file_check) == AttrOwner::Unknown
                    || !fs.inodes.lock().is_unchanged_since(ino, asked) =>
            {
                let spot = fs.call_target_of_inode(ino, &path).for_retry_of(spot);
                fs.open_on_replica((who, to_run, request), ino, begun, (path, spot), reply);
            }
            Ok((replica, found)) if fs.inodes.lock().is_same(ino, replica, &found.attr) => {
                let by = (who, to_run, request);
                fs.open_on_backing_replica(by, ino, begun, (path, spot, asked), found, reply);
            }
            answer => {
                let error = match answer {
                    Ok(_) => Errno::STALE,
                    Err(error) => Errno::of_known_inode(error),
                };
                fs.retry_after_rename((begun, false), error, move |fs, again| match again {
                    Some(begun) => {
                        fs.open_by_current_path((who, to_run, request), ino, begun, reply)
                    }
                    None => reply.send(Err(error)),
                });
            }
        });
    }

    /// Has the file opened by the replica that the kernel is to read it from, if
    /// that is another one, and ends the open.
    fn open_on_backing_replica(
        self: &Arc<Self>,
        by: (Credentials, bool, u64),
        ino: Ino,
        begun: CallStart,
        (path, before, asked): (PathBuf, CallTarget, u64),
        found: ReplicaOpen,
        reply: impl OpenResponder,
    ) {
        // Where somebody has it open it is lent already, or is not; should everybody have
        // closed it in the meantime, the one that was asked will do.
        let is_open = self.handles.find_inode(ino).is_some();
        let target = self.passthrough_replica(&path, &found);
        let target = target.map(|target| if is_open { found.replica } else { target });
        let target = match target {
            Some(target) if target != found.replica => target,
            target => {
                let file = target.map(|target| (target, Arc::clone(&found.file)));
                return self.finish_open(by, ino, begun, (path, asked), (found, file), reply);
            }
        };
        let (fs, spot) = (Arc::clone(self), self.call_target(&path).for_retry_of(before));
        let (version, mode, opener) = (found.attr.version(), self.policy.mode, found.replica);
        let open = {
            let path = path.clone();
            move |replica: ReplicaId, backend: &dyn Backend| {
                // Where the other one fails or is late, the first will do.
                if replica == opener {
                    return Ok(None);
                }
                let (file, attr) = backend.open(&path)?;
                match version.is_same_version(&attr.version(), mode) {
                    true => Ok(Some(file)),
                    false => Err(BackendError::VersionMismatch),
                }
            }
        };
        let rights = RunAs::Only(by.0.clone());
        self.client.call_on(vec![target, opener], spot, rights, open, move |answer| {
            let file = match answer {
                Ok((replica, Some(file))) => (replica, file),
                _ => (found.replica, Arc::clone(&found.file)),
            };
            fs.finish_open(by, ino, begun, (path, asked), (found, Some(file)), reply);
        });
    }

    /// Answers the open, or opens the file once more where it was changed here since the
    /// replica was asked, when there had been `asked` changes.
    fn finish_open(
        self: &Arc<Self>,
        (who, to_run, request): (Credentials, bool, u64),
        ino: Ino,
        begun: CallStart,
        (path, asked): (PathBuf, u64),
        (found, lend): (ReplicaOpen, BackingCandidate),
        reply: impl OpenResponder,
    ) {
        match self.register_open((&who, request), ino, (path, asked), found, lend, &reply) {
            Some(answer) => reply.send(answer),
            None => self.open_by_current_path((who, to_run, request), ino, begun, reply),
        }
    }

    /// The replica that the kernel is to read the file from, if it is to.
    fn passthrough_replica(
        &self,
        path: &std::path::Path,
        found: &ReplicaOpen,
    ) -> Option<ReplicaId> {
        let version = found.attr.version();
        // There is nothing to read in an empty file.
        if !self.passthrough.is_wanted() || version.size == 0 {
            return None;
        }
        let pinned = self.reader.locator().pin(path).map_or(ReplicaSet::EMPTY, |pin| pin.replicas);
        let mut local = ReplicaSet::EMPTY;
        if let Some(at) = self.reader.locator().locate_file(path, version) {
            let (now, all) = (Instant::now(), ReplicaSet::ALL);
            let step = (version.size / MAX_PLACEMENT_SAMPLES).max(MIN_CHUNK_SIZE);
            local = (0..version.size).step_by(step as usize).fold(all, |local, offset| {
                local.and(at.placement.holders(offset, now).map_or(all, |holders| holders.local))
            });
        }
        let (standings, usable) =
            (self.reader.replica_snapshots(), self.reader.availability().usable);
        self.passthrough.choose_replica(&standings, usable, [pinned, local], version.size)
    }

    /// Enters the open file into the tables; `lend` is what the kernel may read
    /// by itself, if this is the file's first open. `None` where the version that was found
    /// may be one from before a change that has ended since.
    fn register_open(
        &self,
        (who, request): (&Credentials, u64),
        ino: Ino,
        (path, asked): (PathBuf, u64),
        found: ReplicaOpen,
        lend: BackingCandidate,
        reply: &impl OpenResponder,
    ) -> Option<FsResult<OpenedFile>> {
        let ReplicaOpen { replica, file, attr, is_backing_file: is_lent, file_check: looked } =
            found;
        let (mode, version) = (self.policy.mode, attr.version());
        let can_map = self.direct_mmap.load(Ordering::Relaxed);
        let lend = move || {
            let (replica, file) = lend?;
            let name = self.client.name(replica);
            self.passthrough.open_backing((replica, name), file, version.size, reply)
        };
        let (cached, answered, retired) = {
            // Held, so that nothing is changed between these looks and the entry.
            let mut inodes = self.inodes.lock();
            if !inodes.is_unchanged_since(ino, asked) {
                return None;
            }
            // The kernel looks the name up once more, and opens what has it now.
            if !inodes.is_same(ino, replica, &attr)
                || self.attr_owner(ino, &attr, &looked) != AttrOwner::OpenFile
            {
                return Some(Err(Errno::STALE));
            }
            if let Some(open) = self.handles.find_inode(ino)
                && open.backing().is_some()
                && !is_lent
                    .unwrap_or_else(|| open.current().version().is_same_version(&version, mode))
            {
                // The kernel would read another file than the one just opened.
                return Some(Err(Errno::STALE));
            }
            inodes.record_kernel_attrs(ino, version);
            inodes.invalidate_if_ambiguous(ino, || reply.invalidate_attrs());
            let cached = match self.is_open_for_write(ino) {
                false => inodes.record_open(ino, version),
                // What the kernel gets of it now is of no one version.
                true => CacheValidity::default(),
            };
            // It may have been renamed since it was opened.
            let path = inodes.path(ino).unwrap_or(path);
            let small = inodes.has_small_block_reads(ino);
            let caching = self.policy.cache_mode.choose(version.size, small, can_map);
            let make = || {
                self.reader
                    .new_open_file(path.clone(), version, mode, who.clone())
                    .with_generation(attr.generation)
            };
            let first = OpenHooks { cache_mode: caching, open_backing: lend, make_file: make };
            let (answered, retired) =
                self.handles.open_inode(ino, version, mode, Some((replica, file)), first);
            (cached, answered, retired)
        };
        if let Some(old) = retired {
            self.reader.retire_file(&old);
        }
        let OpenOutcome { inode, cache_mode: caching } = answered;
        let (unchanged, backing) = (cached.is_valid(), inode.backing().cloned());
        if backing.is_some() {
            self.passthrough.count_open();
        }
        // Who may read it has it opened elsewhere; a writer perhaps may not.
        inode.current().set_credentials(who);
        inode.current().set_last_attr(&attr);
        let read = self.reader.new_handle();
        let as_whom = (who.clone(), request);
        let handle = self.handles.insert_file((ino, inode), (cached, caching), read, as_whom, None);
        Some(Ok(OpenedFile {
            handle,
            cache_mode: caching,
            keep_cache: unchanged,
            backing,
            is_writable: false,
        }))
    }

    /// Closes a file or directory.
    pub fn release(self: &Arc<Self>, handle: HandleId) {
        // A removal waits until nothing of it is open.
        let open = self.handles.file(handle).filter(|_| self.can_write());
        let _closing = open.and_then(|file| file.inode.gate.start_operation());
        let closed = self.remove_handle(&mut self.inodes.lock(), handle);
        self.finish_close(handle, closed);
        self.compact_journal_if_due();
    }

    /// The kernel sends a request again: it knows nothing of what an earlier try has
    /// entered.
    pub fn roll_back_request(self: &Arc<Self>, request: u64) {
        let mut closed = Vec::new();
        {
            // Held throughout, so that a rewritten journal has all of it or nothing.
            let mut inodes = self.inodes.lock();
            let entered = self.unanswered.lock().take_entries_of(request);
            if let Some(journal) = self.handles.journal().filter(|_| !entered.is_empty()) {
                journal.append(&journal::JournalEntry::TakenBack(request));
            }
            for entered in entered {
                match entered {
                    UnansweredEntry::Lookup(ino) => inodes.undo_lookup(Ino(ino)),
                    UnansweredEntry::Handle { number, ino } => {
                        let handle = HandleId { number, ino: Ino(ino) };
                        closed.push((handle, self.remove_handle(&mut inodes, handle)));
                    }
                }
            }
        }
        for (handle, closed) in closed {
            self.finish_close(handle, closed);
        }
    }

    /// Takes a handle out of the tables.
    fn remove_handle(&self, inodes: &mut Inodes, handle: HandleId) -> ReleasedHandle {
        let closed = self.handles.remove(handle);
        if closed.last_version.is_some()
            && let Some(ino) = closed.ino
        {
            inodes.mark_closed(ino, self.next_change_seq());
        }
        closed
    }

    /// Lets go of what a closed handle leaves.
    fn finish_close(self: &Arc<Self>, handle: HandleId, closed: ReleasedHandle) {
        self.locks.release_handle(handle.number);
        if let Some((ino, inode, writer)) = closed.writer {
            self.release_writer(ino, inode, writer);
        }
        if let Some((ino, small)) = closed.small_blocks {
            self.inodes.lock().set_small_block_reads(ino, small);
        }
        if let Some((read, file)) = closed.read_totals {
            self.activity.record_closed(file.path(), read);
        }
        if let Some(read) = closed.read_handle {
            self.reader.close_handle(&read);
        }
        if let Some(backing) = closed.backing {
            self.passthrough.release(&backing);
            // Closing may ask the replica, so nobody else's thread does it.
            let replica = self.client.replica(backing.replica);
            let _ = replica.submit(Lane::Metadata, move |_| drop(backing));
        }
        if let Some(file) = closed.last_version {
            self.reader.retire_file(&file);
        }
    }
}
