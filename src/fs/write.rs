//! Files that are opened to be written, and what is done with them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use super::entry_name::ReplicaAttr;
use super::file_replacement::OpenFileCheck;
use super::handles::{FileHandle, OpenHooks, OpenInode, OpenOutcome};
use super::inodes::CacheValidity;
use super::namespace_ops::ALWAYS_CURRENT;
use super::open::OpenedFile;
use super::payload_budget::{OnFull, Payload};
use super::recent_changes::ChangeScope;
use super::renames::RetriedCall;
use super::write_gate::Writer;
use super::{CacheMode, EntryName, Errno, Fs, FsResult, HandleId, Ino, InodeAttr, KernelOpen};
use crate::backend::{
    Attr, Backend, BackendError, BackendFile, CreateOptions, Credentials, FileMutation, Lane,
    RequestContext, SyncMode, WritableFile, WriteOpenOptions,
};
use crate::read::OpenFile;
use crate::telemetry::counters::increment;
use crate::volume::ByteRange;

/// A file just made, and opened.
pub struct CreatedFile {
    /// What the kernel is to know of it.
    pub entry: InodeAttr,
    /// Its first handle.
    pub opened: OpenedFile,
}

/// Bytes to be written.
pub struct WriteRequest<'a> {
    /// From where on.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// To the file's end, wherever that is on the write replica.
    pub append: bool,
    /// Whether they may be one of several parts of a write(2), sent at the same time.
    pub is_part: bool,
    /// All of them, or an error: nobody looks how many it were.
    pub whole: bool,
    /// Whether the kernel sends it again.
    pub is_resent: bool,
    /// Who writes, where that is known and he is not to keep set-id bits alive.
    pub caller: Option<RequestContext>,
}

/// The same, with bytes that the budget has paid for.
pub(super) struct ChargedWrite {
    offset: u64,
    data: Payload,
    append: bool,
    whole: bool,
    is_resent: bool,
    caller: Option<RequestContext>,
}

impl WriteRequest<'_> {
    pub(super) fn with_payload(self, data: Payload) -> ChargedWrite {
        let Self { offset, append, whole, is_resent: again, caller: who, .. } = self;
        ChargedWrite { offset, data, append, whole, is_resent: again, caller: who }
    }
}

/// How a change of an open file is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangeLock {
    /// Beside reads and other changes of the file.
    Shared,
    /// Apart from them.
    Exclusive {
        /// Whether the kernel sends it again.
        is_resent: bool,
    },
}

/// A handle's changes are noted so often within the time that they count as recent.
const RECORDS_PER_LAG: u32 = 4;

/// A handle that may write, and the inode that it belongs to.
pub(super) struct WriteHandle {
    pub(super) handle: HandleId,
    pub(super) inode: Arc<OpenInode>,
    pub(super) writer: Arc<Writer>,
}

/// A request to open a file for writing.
pub(super) struct OpenForWrite {
    pub(super) ino: Ino,
    pub(super) credentials: Credentials,
    pub(super) options: WriteOpenOptions,
    /// Whether the kernel sends it again.
    pub(super) is_resent: bool,
    /// The kernel's number of the request.
    pub(super) request: u64,
}

/// A file that the write replica has opened for writing, and the credentials it was opened
/// with.
struct OpenedWriter {
    ino: Ino,
    path: PathBuf,
    credentials: Credentials,
    sync: SyncMode,
    opened: WritableFile,
}

/// A name to be made, and the way in which the file is opened.
pub struct CreateRequest<'a> {
    /// The name.
    pub at: EntryName<'a>,
    /// How the file is opened.
    pub open: WriteOpenOptions,
    /// How it is made where it does not exist.
    pub create: CreateOptions,
}

/// An entered writer that is not a handle yet.
struct EnteredWriter {
    cache_validity: CacheValidity,
    outcome: OpenOutcome,
    /// The version that was open before.
    retired: Option<Arc<OpenFile>>,
}

impl Fs {
    /// Opens a regular file for writing.
    pub async fn open_to_write(
        self: &Arc<Self>,
        caller: RequestContext,
        ino: Ino,
        options: WriteOpenOptions,
        kernel: &impl KernelOpen,
    ) -> FsResult<OpenedFile> {
        let open = || async {
            let path = self.path(ino)?;
            let request = OpenForWrite {
                ino,
                credentials: caller.credentials(),
                options,
                is_resent: caller.is_resent,
                request: caller.request,
            };
            self.open_writer(request, path).await
        };
        let opened = self.with_rename_retry(&[ino], RetriedCall::Mutation, open).await?;
        self.inodes.lock().invalidate_if_ambiguous(ino, || kernel.invalidate_attrs());
        Ok(self.opened_file_of(opened.handle))
    }

    fn opened_file_of(&self, handle: HandleId) -> OpenedFile {
        let file = self.handles.file(handle);
        let cache_mode = file.as_ref().map_or(CacheMode::Kernel, FileHandle::cache_mode);
        let keep_cache = file.is_some_and(|file| file.cache_validity.is_valid());
        OpenedFile { handle, cache_mode, keep_cache, backing: None, is_writable: true }
    }

    /// Opens a file on the write replica; from now on it is read there.
    pub(super) async fn open_writer(
        self: &Arc<Self>,
        request: OpenForWrite,
        path: PathBuf,
    ) -> FsResult<WriteHandle> {
        let write = self.change_policy()?;
        let OpenForWrite { ino, credentials, options, .. } = request;
        let gate = self.handles.gate(ino);
        let guard = match options.truncate {
            true => gate.start_mutation(request.is_resent),
            false => gate.start_operation(),
        };
        let guard = guard.ok_or(Errno::IO)?;
        self.record_inode_change(ino);
        let once = self.single_call(write, Lane::Metadata, &credentials);
        let expected = self.inodes.lock().known_object(ino);
        let options = WriteOpenOptions { expected, ..options };
        let open = {
            let path = path.clone();
            let guard = Arc::clone(&guard);
            move |backend: &dyn Backend| {
                let _exclusive =
                    if options.truncate { Some(guard.lock_exclusive()?) } else { None };
                backend.open_to_write(&path, &options)
            }
        };
        let answer = self.client.call_once(once, open).await;
        guard.finish(&answer);
        let opened = answer.map_err(Errno::of_known_inode)?;
        let opened = OpenedWriter { ino, path, credentials, sync: options.sync, opened };
        self.register_writer(opened, request.request)
    }

    /// Makes a file, or opens the one that has the name by now.
    pub async fn create(
        self: &Arc<Self>,
        caller: RequestContext,
        request: CreateRequest<'_>,
    ) -> FsResult<CreatedFile> {
        let create = || self.try_create(caller, &request);
        self.with_rename_retry(&[request.at.parent], RetriedCall::Mutation, create).await
    }

    async fn try_create(
        self: &Arc<Self>,
        caller: RequestContext,
        request: &CreateRequest<'_>,
    ) -> FsResult<CreatedFile> {
        let CreateRequest { at, open: options, create } = *request;
        let write = self.change_policy()?;
        let entry = self.entry_ref(at.parent, at.name)?;
        let path = entry.path();
        let credentials = caller.credentials();
        self.record_name_change(&path, ChangeScope::Object);
        let once = self.single_call(write, Lane::Metadata, &credentials);
        let target = entry.name_on(write.replica);
        let make = move |backend: &dyn Backend| backend.create(&target, &options, create);
        let answer = self.client.call_once(once, make).await;
        self.record_name_change(&path, ChangeScope::Object);
        increment(&self.counters.changes);
        let opened = answer?;
        let attr = opened.attr;
        self.wait_for_kernel_forget(at, write.replica, attr).await;
        let found = ReplicaAttr { replica: write.replica, attr: &attr };
        let check = OpenFileCheck::default();
        let entry = self.entry_reply(at, found, &check, ALWAYS_CURRENT, caller.request)?;
        let opened = OpenedWriter { ino: entry.ino, path, credentials, sync: options.sync, opened };
        match self.register_writer(opened, caller.request) {
            Ok(writer) => {
                self.wait_for_page_drops(entry.ino).await;
                Ok(CreatedFile { entry, opened: self.opened_file_of(writer.handle) })
            }
            Err(errno) => {
                // The kernel will not know of it.
                self.forget(entry.ino, 1);
                Err(errno)
            }
        }
    }

    /// Enters a handle that may write into the tables, for the kernel's `request`.
    fn register_writer(
        self: &Arc<Self>,
        opened: OpenedWriter,
        request: u64,
    ) -> FsResult<WriteHandle> {
        let OpenedWriter { ino, path, credentials, sync, opened } = opened;
        let WritableFile { file, attr, readable } = opened;
        let writer = Arc::new(Writer::new(file, readable, sync, credentials));
        let entered = self.enter_writer(ino, path, &attr, &writer)?;
        let OpenOutcome { inode, cache_mode } = entered.outcome;
        for old in entered.retired.into_iter().chain([inode.current()]) {
            self.reader.retire_file(&old);
        }
        let handle = FileHandle {
            ino,
            inode: Arc::clone(&inode),
            cache_validity: entered.cache_validity,
            cache_mode,
            read_stats: Arc::default(),
            read_handle: Arc::new(self.reader.new_handle()),
            credentials: writer.credentials.clone(),
            is_closing: Arc::default(),
            writer: Some(Arc::clone(&writer)),
        };
        let handle = self.handles.insert_file(handle, request);
        Ok(WriteHandle { handle, inode, writer })
    }

    fn enter_writer(
        &self,
        ino: Ino,
        path: PathBuf,
        attr: &Attr,
        writer: &Arc<Writer>,
    ) -> FsResult<EnteredWriter> {
        let write = self.write_policy()?;
        let mode = self.policy.mode;
        let version = attr.version();
        let mut inodes = self.inodes.lock();
        if !inodes.is_same(ino, write.replica, attr) {
            return Err(Errno::STALE);
        }
        inodes.record_kernel_attrs(ino, version);
        let cache_validity = match self.is_open_for_write(ino) {
            false => inodes.record_open(ino, version),
            true => CacheValidity::default(),
        };
        // It may have been renamed since it was opened.
        let path = inodes.path(ino).unwrap_or(path);
        let has_small_reads = inodes.has_small_block_reads(ino);
        let can_map = self.direct_mmap.load(Ordering::Relaxed);
        let cache_mode = self.policy.cache_mode.choose(version.size, has_small_reads, can_map);
        let make_file = || {
            self.reader
                .new_open_file(path.clone(), version, mode, writer.credentials.clone())
                .with_generation(attr.generation)
        };
        let hooks = OpenHooks { cache_mode, open_backing: || None, make_file };
        let (outcome, retired) = self.handles.open_inode(ino, version, mode, None, hooks);
        outcome.inode.add_writer(Arc::clone(writer));
        outcome.inode.gate.appends.lock().raise_kernel_end(attr.size);
        inodes.mark_cache_mixed(ino);
        inodes.mark_changed(ino, self.next_change_seq());
        Ok(EnteredWriter { cache_validity, outcome, retired })
    }

    /// A handle that could write is closed. Asks for the file's version, so that all replicas
    /// that have it serve reads again.
    pub(super) async fn release_writer(
        self: Arc<Self>,
        ino: Ino,
        inode: Arc<OpenInode>,
        writer: Arc<Writer>,
    ) {
        let Ok(write) = self.write_policy() else { return };
        self.record_inode_change(ino);
        let once = self.single_call(write, Lane::Metadata, &writer.credentials);
        let file = Arc::clone(&writer.file);
        // A caller that removes the file waits until it is closed.
        let _closing = inode.gate.start_operation();
        let answer = self.client.call_once(once, move |_| file.attr()).await;
        self.record_inode_change(ino);
        let mode = self.policy.mode;
        let retired = {
            let mut inodes = self.inodes.lock();
            let path = inodes.path(ino);
            inodes.mark_cache_mixed(ino);
            inodes.mark_changed(ino, self.next_change_seq());
            inode.remove_writer(&writer, |old: &OpenFile| {
                let version = answer.map_or(old.version(), |attr| attr.version());
                let path = path.unwrap_or_else(|| old.path().to_owned());
                self.reader.new_open_file(path, version, mode, old.credentials()).reopening()
            })
        };
        if let Some(old) = retired {
            self.reader.retire_file(&old);
        }
        if answer.is_err() {
            inode.mark_unchecked();
        }
    }

    /// A change of an open file that `handle` may write: carried out once, with the
    /// credentials of `caller` where they are another user's than the handle's.
    pub(super) async fn change_file<T: Send + 'static>(
        self: &Arc<Self>,
        handle: HandleId,
        lock: ChangeLock,
        caller: Option<RequestContext>,
        change: impl Fn(&dyn BackendFile, &dyn Backend) -> crate::backend::Result<T>
        + Send
        + Sync
        + 'static,
    ) -> FsResult<T> {
        let write = self.write_policy()?;
        let file = self.handles.file(handle).ok_or(Errno::BADF)?;
        let writer = file.writer.ok_or(Errno::BADF)?;
        let is_exclusive = lock != ChangeLock::Shared;
        if is_exclusive {
            file.is_closing.store(false, Ordering::Relaxed);
        }
        let guard = match lock {
            ChangeLock::Shared => file.inode.gate.start_operation(),
            ChangeLock::Exclusive { is_resent } => file.inode.gate.start_mutation(is_resent),
        };
        let guard = guard.ok_or(Errno::IO)?;
        let now = Instant::now();
        if is_exclusive && writer.should_record_change(now, write.lag / RECORDS_PER_LAG) {
            self.record_inode_change(file.ino);
        }
        let other = caller.filter(|caller| !writer.credentials.is_same_user_as(caller));
        let credentials =
            other.map_or_else(|| writer.credentials.clone(), |caller| caller.credentials());
        let once = self.single_call(write, Lane::Read, &credentials);
        let change = {
            let guard = Arc::clone(&guard);
            let target = Arc::clone(&writer.file);
            move |backend: &dyn Backend| {
                let _exclusive = if is_exclusive { Some(guard.lock_exclusive()?) } else { None };
                change(&*target, backend)
            }
        };
        let answer = self.client.call_once(once, change).await;
        guard.finish(&answer);
        if matches!(answer, Err(BackendError::Late)) {
            writer.set_deferred_error(BackendError::Late.into());
        }
        Ok(answer?)
    }

    /// Writes; returns the number of bytes. Blocks while there is no room for them; the future
    /// does not.
    pub fn write(
        self: &Arc<Self>,
        handle: HandleId,
        request: WriteRequest<'_>,
    ) -> impl Future<Output = FsResult<u64>> + Send + 'static + use<> {
        let fs = Arc::clone(self);
        // Before it waits for room: reads that come meanwhile are younger.
        let file = self.handles.file(handle);
        let is_cached = |file: &FileHandle| file.cache_mode() == CacheMode::Kernel;
        let cached = file.clone().filter(is_cached);
        let range = ByteRange::at(request.offset, request.data.len() as u64);
        // What is written back was changed in memory that is mapped, and a part of an O_DIRECT
        // write goes past the cache.
        let is_copied = !request.whole && !request.is_part;
        let arrived = cached.map(|file| file.inode.gate.track_write(range, is_copied));
        let part = match request.append && request.is_part {
            true => file.map(|file| file.inode.gate.announce_part(&request)),
            false => None,
        };
        let on_full = match (&part, request.whole) {
            (Some(part), _) => part.on_full,
            (None, true) => OnFull::WaitOrExceed,
            (None, false) => OnFull::WaitOrFail,
        };
        let payload = self.payload_budget.copy_payload(request.data, on_full);
        let payload = payload.map(|data| request.with_payload(data));
        async move {
            let answer = match (part, payload) {
                (Some(part), payload) => fs.append_part(handle, part, payload).await,
                (None, Ok(request)) => fs.submit_write(handle, request).await,
                (None, Err(errno)) => {
                    increment(&fs.counters.write_errors);
                    Err(errno)
                }
            };
            // Reads that wait for it go on first: to drop pages is to wait for reads.
            if let Some(stale) = arrived.and_then(|write| write.end()) {
                fs.drop_pages_after_reply(handle.ino, stale);
            }
            answer
        }
    }

    /// The same, without waiting for parts before it.
    pub(super) async fn submit_write(
        self: &Arc<Self>,
        handle: HandleId,
        request: ChargedWrite,
    ) -> FsResult<u64> {
        let ChargedWrite { offset, data, append, whole, is_resent, caller } = request;
        // Taken out, so that it is not kept longer than a caller waits for it.
        let data = Arc::new(Mutex::new(Some(data)));
        let write = {
            let data = Arc::clone(&data);
            move |file: &dyn BackendFile, _: &dyn Backend| {
                let data = data.lock().take().ok_or(BackendError::Late)?;
                let write = FileMutation::Write { offset, data: &data, append, whole };
                let answer = file.mutate(&write);
                data.charge.record_completion();
                answer
            }
        };
        let lock = ChangeLock::Exclusive { is_resent };
        let answer = self.change_file(handle, lock, caller, write).await;
        drop(data.lock().take());
        match answer {
            Ok(bytes) => {
                increment(&self.counters.writes);
                self.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(_) => increment(&self.counters.write_errors),
        }
        self.serve_waiting_reads_after_reply();
        answer
    }
}
