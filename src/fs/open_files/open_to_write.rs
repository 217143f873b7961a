//! Opening a file for writing. Then all its handles read it from the write replica, until the last
//! handle that may write is closed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{OpenFiles, OpenedFile};
use crate::backend::{
    Attr, Backend, Credentials, Lane, RequestContext, SyncMode, WritableFile, WriteOpenOptions,
};
use crate::fs::cache_mode::{CacheMode, ReadSizeStats};
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::{FileHandle, OpenInode, OpenMethod, OpenOutcome};
use crate::fs::ino::Ino;
use crate::fs::inodes::CacheValidity;
use crate::fs::kernel_open::KernelOpen;
use crate::fs::replica_calls::RetriedCall;
use crate::fs::write_gate::Writer;

/// A handle that may write, and the inode that it belongs to.
pub(in crate::fs) struct WriteHandle {
    pub(in crate::fs) handle: HandleId,
    pub(in crate::fs) inode: Arc<OpenInode>,
    pub(in crate::fs) writer: Arc<Writer>,
}

/// A request to open a file for writing.
pub(in crate::fs) struct OpenForWrite {
    pub(in crate::fs) ino: Ino,
    pub(in crate::fs) credentials: Credentials,
    pub(in crate::fs) options: WriteOpenOptions,
    /// Whether the kernel sends the request again.
    pub(in crate::fs) is_resent: bool,
    /// The kernel's number of the request.
    pub(in crate::fs) request: u64,
}

/// A file that the write replica has opened for writing, and the credentials of that open.
pub(in crate::fs) struct OpenedWriter {
    pub(in crate::fs) ino: Ino,
    pub(in crate::fs) path: PathBuf,
    pub(in crate::fs) credentials: Credentials,
    pub(in crate::fs) sync: SyncMode,
    pub(in crate::fs) opened: WritableFile,
}

/// A writer that was entered and has no handle yet.
struct EnteredWriter {
    cache_validity: CacheValidity,
    outcome: OpenOutcome,
}

impl OpenFiles {
    /// Opens a regular file for writing.
    pub async fn open_to_write(
        &self,
        caller: RequestContext,
        ino: Ino,
        options: WriteOpenOptions,
        kernel: &impl KernelOpen,
    ) -> FsResult<OpenedFile> {
        let open = || async {
            let path = self.tables.path(ino)?;
            let request = OpenForWrite {
                ino,
                credentials: caller.credentials(),
                options,
                is_resent: caller.is_resent,
                request: caller.request,
            };
            self.open_writer(request, path).await
        };
        let opened = self.calls.with_rename_retry(&[ino], RetriedCall::Mutation, open).await?;
        let notice = self.tables.inodes.lock().attr_notice(ino);
        self.send_attr_notice(notice, kernel);
        Ok(self.opened_file_of(opened.handle))
    }

    pub(in crate::fs) fn opened_file_of(&self, handle: HandleId) -> OpenedFile {
        let file = self.tables.handles.file(handle);
        let cache_mode = file.as_ref().map_or(CacheMode::Kernel, |file| file.cache_mode());
        let keep_cache = file.is_some_and(|file| file.cache_validity.is_valid());
        OpenedFile { handle, cache_mode, keep_cache, backing: None, is_writable: true }
    }

    /// Opens a file on the write replica; from then on it is read there.
    pub(in crate::fs) async fn open_writer(
        &self,
        request: OpenForWrite,
        path: PathBuf,
    ) -> FsResult<WriteHandle> {
        let write = self.calls.change_policy()?;
        let OpenForWrite { ino, credentials, options, .. } = request;
        let gate = self.tables.handles.gate(ino);
        let guard = match options.truncate {
            true => gate.start_mutation(request.is_resent),
            false => gate.start_operation(),
        };
        let guard = guard.ok_or(Errno::IO)?;
        self.tables.record_inode_change(ino);
        let mut once = self.calls.single_call(write, Lane::Metadata, &credentials);
        once.class = guard.class(once.class);
        let expected = self.tables.inodes.lock().known_object(ino);
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
        let answer = self.calls.client.call_once(once, open).await;
        guard.finish(&answer);
        let opened = answer.map_err(Errno::of_known_inode)?;
        let opened = OpenedWriter { ino, path, credentials, sync: options.sync, opened };
        self.register_writer(opened, request.request)
    }

    /// Enters a handle that may write into the tables, for the kernel's `request`.
    pub(in crate::fs) fn register_writer(
        &self,
        opened: OpenedWriter,
        request: u64,
    ) -> FsResult<WriteHandle> {
        let OpenedWriter { ino, path, credentials, sync, opened } = opened;
        let WritableFile { file, attr, readable } = opened;
        let writer = Arc::new(Writer::new(file, readable, sync, credentials));
        let entered = self.enter_writer(ino, path, &attr, &writer)?;
        let OpenOutcome { inode, cache_mode, retired, .. } = entered.outcome;
        for old in retired.into_iter().chain([inode.current()]) {
            self.tables.reader.retire_file(&old);
        }
        let handle = FileHandle {
            ino,
            inode: Arc::clone(&inode),
            cache_validity: entered.cache_validity,
            cache_mode,
            read_stats: ReadSizeStats::default(),
            read_handle: Arc::new(self.tables.reader.new_handle()),
            credentials: writer.credentials.clone(),
            is_closing: AtomicBool::default(),
            writer: Some(Arc::clone(&writer)),
            is_implicit: false,
        };
        let handle = self.tables.handles.insert_file(handle, request);
        Ok(WriteHandle { handle, inode, writer })
    }

    fn enter_writer(
        &self,
        ino: Ino,
        path: PathBuf,
        attr: &Attr,
        writer: &Arc<Writer>,
    ) -> FsResult<EnteredWriter> {
        let write = self.tables.write_policy()?;
        let mode = self.tables.policy.mode;
        let version = attr.version();
        let mut inodes = self.tables.inodes.lock();
        if !inodes.is_same(ino, write.replica, attr) {
            return Err(Errno::STALE);
        }
        inodes.record_kernel_attrs(ino, version);
        let cache_validity = match self.tables.is_open_for_write(ino) {
            false => inodes.record_open(ino, version),
            true => CacheValidity::default(),
        };
        // It may have been renamed since it was opened.
        let path = inodes.path(ino).unwrap_or(path);
        let has_small_reads = inodes.has_small_block_reads(ino);
        let can_map = self.direct_mmap.load(Ordering::Relaxed);
        let cache_mode =
            self.tables.policy.cache_mode.choose(version.size, has_small_reads, can_map);
        let make_file = || {
            self.tables
                .reader
                .new_open_file(path.clone(), version, mode, writer.credentials.clone())
                .with_generation(attr.generation)
        };
        let method = OpenMethod { cache_mode, backing: None, make_file };
        let outcome = self.tables.handles.open_inode(ino, version, mode, None, method);
        outcome.inode.add_writer(Arc::clone(writer));
        outcome.inode.gate.appends.lock().raise_kernel_end(attr.size);
        inodes.mark_cache_mixed(ino);
        inodes.mark_changed(ino, self.tables.next_change_seq());
        Ok(EnteredWriter { cache_validity, outcome })
    }
}
