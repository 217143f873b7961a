//! Files that are opened to be written, and what is done with them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use super::file_replacement::OpenFileCheck;
use super::handles::{FileHandle, OpenHooks, OpenInode, OpenOutcome};
use super::namespace_ops::ALWAYS_CURRENT;
use super::open::OpenedFile;
use super::payload_budget::{OnFull, Payload};
use super::recent_changes::ChangeScope;
use super::renames::ReplyFn;
use super::write_gate::Writer;
use super::{CacheMode, Errno, Fs, FsResult, HandleId, Ino, InodeAttr, OpenResponder};
use crate::backend::{
    Backend, BackendError, BackendFile, CreateOptions, Credentials, FileMutation, Lane,
    RequestContext, SyncMode, WritableFile, WriteOpenOptions,
};
use crate::read::OpenFile;
use crate::telemetry::counters::increment;

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

/// A handle that may write, and what it belongs to.
pub(super) type WriteHandle = (HandleId, Arc<OpenInode>, Arc<Writer>);

impl Fs {
    /// Opens a regular file to be written.
    pub fn open_to_write(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        how: WriteOpenOptions,
        reply: impl OpenResponder,
    ) {
        let fs = Arc::clone(self);
        let open = move |fs: &Arc<Self>, done: ReplyFn<WriteHandle>| {
            let path = match fs.path(ino) {
                Ok(path) => path,
                Err(errno) => return done(Err(errno)),
            };
            let by = (who.credentials(), who.request, who.is_resent);
            fs.open_writer(by, ino, path, how, done);
        };
        self.call_with_rename_retry((&[ino], true), open, move |answer| {
            if answer.is_ok() {
                fs.inodes.lock().invalidate_if_ambiguous(ino, || reply.invalidate_attrs());
            }
            reply.send(answer.map(|(handle, ..)| fs.opened_file_of(handle)));
        });
    }

    fn opened_file_of(&self, handle: HandleId) -> OpenedFile {
        let file = self.handles.file(handle);
        let caching = file.as_ref().map_or(CacheMode::Kernel, FileHandle::cache_mode);
        let unchanged = file.is_some_and(|file| file.cache_validity.is_valid());
        OpenedFile {
            handle,
            cache_mode: caching,
            keep_cache: unchanged,
            backing: None,
            is_writable: true,
        }
    }

    /// Opens a file on the write replica; whoever reads it does so there from now on.
    pub(super) fn open_writer(
        self: &Arc<Self>,
        (who, request, again): (Credentials, u64, bool),
        ino: Ino,
        path: PathBuf,
        how: WriteOpenOptions,
        done: impl FnOnce(FsResult<WriteHandle>) + Send + 'static,
    ) {
        let write = match self.change_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        let gate = self.handles.gate(ino);
        let change = if how.truncate { gate.start_mutation(again) } else { gate.start_operation() };
        let Some(change) = change else { return done(Err(Errno::IO)) };
        self.record_inode_change(ino);
        let fs = Arc::clone(self);
        let once = self.single_call(write, Lane::Metadata, &who);
        let (at, under_way) = (path.clone(), Arc::clone(&change));
        let how = WriteOpenOptions { expected: self.inodes.lock().known_object(ino), ..how };
        self.client.call_once(
            once,
            move |backend| {
                let _alone = if how.truncate { Some(under_way.lock_exclusive()?) } else { None };
                backend.open_to_write(&at, &how)
            },
            move |answer| {
                change.finish(&answer);
                let enter =
                    |opened| fs.register_writer((&who, how.sync, request), ino, path, opened);
                done(answer.map_err(Errno::of_known_inode).and_then(enter));
            },
        );
    }

    /// Makes a file, or opens the one that has the name by now.
    pub fn create(
        self: &Arc<Self>,
        who: RequestContext,
        parent: Ino,
        name: &OsStr,
        (how, create): (WriteOpenOptions, CreateOptions),
        done: impl FnOnce(FsResult<CreatedFile>) + Send + 'static,
    ) {
        let name = name.to_owned();
        let make =
            move |fs: &Arc<Self>, done| fs.try_create(who, parent, &name, (how, create), done);
        self.call_with_rename_retry((&[parent], true), make, done);
    }

    fn try_create(
        self: &Arc<Self>,
        who: RequestContext,
        parent: Ino,
        name: &OsStr,
        (how, create): (WriteOpenOptions, CreateOptions),
        done: impl FnOnce(FsResult<CreatedFile>) + Send + 'static,
    ) {
        let (write, named) = match (self.change_policy(), self.entry_ref(parent, name)) {
            (Ok(write), Ok(named)) => (write, named),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        let (path, identity) = (named.path(), who.credentials());
        self.record_name_change(&path, ChangeScope::Object);
        let once = self.single_call(write, Lane::Metadata, &identity);
        let (fs, name, at) = (Arc::clone(self), name.to_owned(), named.name_on(write.replica));
        self.client.call_once(
            once,
            move |backend| backend.create(&at, &how, create),
            move |answer| {
                fs.record_name_change(&path, ChangeScope::Object);
                increment(&fs.counters.changes);
                let opened = match answer {
                    Ok(opened) => opened,
                    Err(error) => return done(Err(error.into())),
                };
                let (made, attr) = (Some((parent, name.clone())), opened.attr);
                fs.after_kernel_forget(made, write.replica, attr, move |fs| {
                    let as_whom = (&identity, how.sync, who.request);
                    done(fs.register_created((parent, &name), path, as_whom, opened));
                });
            },
        );
    }

    /// The kernel is about to be told of a file that was just made, and opened.
    fn register_created(
        self: &Arc<Self>,
        (parent, name): (Ino, &OsStr),
        path: PathBuf,
        as_whom: (&Credentials, SyncMode, u64),
        opened: WritableFile,
    ) -> FsResult<CreatedFile> {
        let write = self.write_policy()?;
        let found = (write.replica, &opened.attr);
        let entry = self.entry_reply(
            (parent, name),
            found,
            &OpenFileCheck::default(),
            ALWAYS_CURRENT,
            as_whom.2,
        )?;
        match self.register_writer(as_whom, entry.ino, path, opened) {
            Ok((handle, ..)) => Ok(CreatedFile { entry, opened: self.opened_file_of(handle) }),
            Err(errno) => {
                // The kernel will not know of it.
                self.forget(entry.ino, 1);
                Err(errno)
            }
        }
    }

    /// Enters a handle that may write into the tables.
    fn register_writer(
        self: &Arc<Self>,
        (who, sync, request): (&Credentials, SyncMode, u64),
        ino: Ino,
        path: PathBuf,
        opened: WritableFile,
    ) -> FsResult<WriteHandle> {
        let write = self.write_policy()?;
        let WritableFile { file, attr, readable } = opened;
        let (mode, version) = (self.policy.mode, attr.version());
        let can_map = self.direct_mmap.load(Ordering::Relaxed);
        let writer = Arc::new(Writer::new(file, readable, sync, who.clone()));
        let (cached, answered, retired) = {
            let mut inodes = self.inodes.lock();
            if !inodes.is_same(ino, write.replica, &attr) {
                return Err(Errno::STALE);
            }
            inodes.record_kernel_attrs(ino, version);
            let cached = match self.is_open_for_write(ino) {
                false => inodes.record_open(ino, version),
                true => Default::default(),
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
            let first = OpenHooks { cache_mode: caching, open_backing: || None, make_file: make };
            let (answered, retired) = self.handles.open_inode(ino, version, mode, None, first);
            answered.inode.add_writer(Arc::clone(&writer));
            answered.inode.gate.appends.lock().raise_kernel_end(attr.size);
            inodes.mark_cache_mixed(ino);
            inodes.mark_changed(ino, self.next_change_seq());
            (cached, answered, retired)
        };
        let OpenOutcome { inode, cache_mode: caching } = answered;
        for old in retired.into_iter().chain([inode.current()]) {
            self.reader.retire_file(&old);
        }
        let read = self.reader.new_handle();
        let (own, me, opened) = (Some(Arc::clone(&writer)), who.clone(), Arc::clone(&inode));
        let handle =
            self.handles.insert_file((ino, opened), (cached, caching), read, (me, request), own);
        Ok((handle, inode, writer))
    }

    /// A handle that could write is closed: looks what there is now, so that the
    /// file is read from everybody again who has that.
    pub(super) fn release_writer(
        self: &Arc<Self>,
        ino: Ino,
        inode: Arc<OpenInode>,
        writer: Arc<Writer>,
    ) {
        let Ok(write) = self.write_policy() else { return };
        self.record_inode_change(ino);
        let (fs, file) = (Arc::clone(self), Arc::clone(&writer.file));
        let once = self.single_call(write, Lane::Metadata, &writer.credentials);
        // Who removes the file waits until it is closed.
        let closing = inode.gate.start_operation();
        self.client.call_once(
            once,
            move |_| file.attr(),
            move |answer| {
                let _closing = closing;
                fs.record_inode_change(ino);
                let mode = fs.policy.mode;
                let retired = {
                    let mut inodes = fs.inodes.lock();
                    let path = inodes.path(ino);
                    inodes.mark_cache_mixed(ino);
                    inodes.mark_changed(ino, fs.next_change_seq());
                    inode.remove_writer(&writer, |old: &OpenFile| {
                        let version = answer.map_or(old.version(), |attr| attr.version());
                        let path = path.unwrap_or_else(|| old.path().to_owned());
                        fs.reader.new_open_file(path, version, mode, old.credentials()).reopening()
                    })
                };
                if let Some(old) = retired {
                    fs.reader.retire_file(&old);
                }
                if answer.is_err() {
                    inode.mark_unchecked();
                }
            },
        );
    }

    /// A change of an open file that `handle` may write: carried out once.
    pub(super) fn change_file<T: Send + 'static>(
        self: &Arc<Self>,
        handle: HandleId,
        turn: ChangeLock,
        who: Option<RequestContext>,
        change: impl Fn(&dyn BackendFile, &dyn Backend) -> crate::backend::Result<T>
        + Send
        + Sync
        + 'static,
        done: impl FnOnce(FsResult<T>) + Send + 'static,
    ) {
        let (write, file) = match (self.write_policy(), self.handles.file(handle)) {
            (Ok(write), Some(file)) => (write, file),
            (Err(errno), _) => return done(Err(errno)),
            (_, None) => return done(Err(Errno::BADF)),
        };
        let Some(writer) = file.writer else { return done(Err(Errno::BADF)) };
        let exclusive = turn != ChangeLock::Shared;
        if exclusive {
            file.is_closing.store(false, Ordering::Relaxed);
        }
        let under_way = match turn {
            ChangeLock::Shared => file.inode.gate.start_operation(),
            ChangeLock::Exclusive { is_resent: again } => file.inode.gate.start_mutation(again),
        };
        let Some(under_way) = under_way else { return done(Err(Errno::IO)) };
        let now = Instant::now();
        if exclusive && writer.should_record_change(now, write.lag / RECORDS_PER_LAG) {
            self.record_inode_change(file.ino);
        }
        let other = who.filter(|who| !writer.credentials.is_same_user_as(who));
        let identity = other.map_or_else(|| writer.credentials.clone(), |who| who.credentials());
        let once = self.single_call(write, Lane::Read, &identity);
        let (mine, target) = (Arc::clone(&under_way), Arc::clone(&writer.file));
        let op = move |backend: &dyn Backend| {
            let _alone = if exclusive { Some(mine.lock_exclusive()?) } else { None };
            change(&*target, backend)
        };
        self.client.call_once(once, op, move |answer| {
            under_way.finish(&answer);
            if matches!(answer, Err(BackendError::Late)) {
                writer.set_deferred_error(BackendError::Late.into());
            }
            done(answer.map_err(Errno::from));
        });
    }

    /// Writes; says how many bytes. Blocks while there is no room for them.
    pub fn write(
        self: &Arc<Self>,
        handle: HandleId,
        request: WriteRequest<'_>,
        done: impl FnOnce(FsResult<u64>) + Send + 'static,
    ) {
        // Before it waits for room: reads that come meanwhile are younger.
        let file = self.handles.file(handle);
        let cached = file.filter(|file| file.cache_mode() == CacheMode::Kernel);
        let arrived = cached.map(|file| file.inode.gate.track_write());
        let done = move |answer| {
            drop(arrived);
            done(answer);
        };
        if request.append && request.is_part {
            return self.append_part(handle, request, done);
        }
        let need = if request.whole { OnFull::WaitOrExceed } else { OnFull::WaitOrFail };
        match self.payload_budget.copy_payload(request.data, need) {
            Ok(data) => self.submit_write(handle, request.with_payload(data), done),
            Err(errno) => {
                increment(&self.counters.write_errors);
                done(Err(errno));
            }
        }
    }

    /// The same, without waiting for parts before it.
    pub(super) fn submit_write(
        self: &Arc<Self>,
        handle: HandleId,
        request: ChargedWrite,
        done: impl FnOnce(FsResult<u64>) + Send + 'static,
    ) {
        let ChargedWrite { offset, data, append, whole, is_resent: again, caller: who } = request;
        // Taken out, so that it is not kept longer than somebody waits for it.
        let data = Arc::new(Mutex::new(Some(data)));
        let left = Arc::clone(&data);
        let write = move |file: &dyn BackendFile, _: &dyn Backend| {
            let data = data.lock().take().ok_or(BackendError::Late)?;
            let answer = file.mutate(&FileMutation::Write { offset, data: &data, append, whole });
            data.charge.record_completion();
            answer
        };
        let fs = Arc::clone(self);
        self.change_file(
            handle,
            ChangeLock::Exclusive { is_resent: again },
            who,
            write,
            move |answer| {
                drop(left.lock().take());
                if let Ok(bytes) = answer {
                    increment(&fs.counters.writes);
                    fs.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
                } else {
                    increment(&fs.counters.write_errors);
                }
                done(answer);
                fs.payload_budget.serve_waiting_reads();
            },
        );
    }
}
