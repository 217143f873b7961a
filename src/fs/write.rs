//! Files that are opened to be written, and what is done with them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use super::change::MADE_HERE;
use super::handle::{Answered, FileHandle, FirstOpen, OpenInode};
use super::intake::{Need, Payload};
use super::moves::Done;
use super::open::Opened;
use super::recent::Reach;
use super::replaced::Looked;
use super::written::Writer;
use super::{Answer, Caching, Entry, Errno, Fs, HandleId, Ino, OpenReply};
use crate::backend::{
    Backend, BackendError, BackendFile, Create, FileChange, Identity, Lane, OpenedToWrite,
    Requester, SyncMode, WriteOpen,
};
use crate::read::OpenFile;
use crate::telemetry::counters::count;

/// A file just made, and opened.
pub struct Created {
    /// What the kernel is to know of it.
    pub entry: Entry,
    /// Its first handle.
    pub opened: Opened,
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
    pub again: bool,
    /// Who writes, where that is known and he is not to keep set-id bits alive.
    pub who: Option<Requester>,
}

/// The same, with bytes that the budget has paid for.
pub(super) struct Writing {
    offset: u64,
    data: Payload,
    append: bool,
    whole: bool,
    again: bool,
    who: Option<Requester>,
}

impl WriteRequest<'_> {
    pub(super) fn with(self, data: Payload) -> Writing {
        let Self { offset, append, whole, again, who, .. } = self;
        Writing { offset, data, append, whole, again, who }
    }
}

/// How a change of an open file is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Beside reads and other changes of the file.
    Beside,
    /// Apart from them.
    Alone {
        /// Whether the kernel sends it again.
        again: bool,
    },
}

/// A handle's changes are noted so often within the time that they count as recent.
const NOTES: u32 = 4;

/// A handle that may write, and what it belongs to.
pub(super) type WriteHandle = (HandleId, Arc<OpenInode>, Arc<Writer>);

impl Fs {
    /// Opens a regular file to be written.
    pub fn open_to_write(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        how: WriteOpen,
        reply: impl OpenReply,
    ) {
        let fs = Arc::clone(self);
        let open = move |fs: &Arc<Self>, done: Done<WriteHandle>| {
            let path = match fs.path(ino) {
                Ok(path) => path,
                Err(errno) => return done(Err(errno)),
            };
            let by = (who.identity(), who.request, who.again);
            fs.open_writer(by, ino, path, how, done);
        };
        self.by_path((&[ino], true), open, move |answer| {
            if answer.is_ok() {
                fs.inodes.lock().settle(ino, || reply.forget_attributes());
            }
            reply.answer(answer.map(|(handle, ..)| fs.opened_to_write(handle)));
        });
    }

    fn opened_to_write(&self, handle: HandleId) -> Opened {
        let file = self.handles.file(handle);
        let caching = file.as_ref().map_or(Caching::Kernel, FileHandle::caching);
        let unchanged = file.is_some_and(|file| file.cached.is_good());
        Opened { handle, caching, unchanged, backing: None, writes: true }
    }

    /// Opens a file on the write replica; whoever reads it does so there from now on.
    pub(super) fn open_writer(
        self: &Arc<Self>,
        (who, request, again): (Identity, u64, bool),
        ino: Ino,
        path: PathBuf,
        how: WriteOpen,
        done: impl FnOnce(Answer<WriteHandle>) + Send + 'static,
    ) {
        let write = match self.change_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        let gate = self.handles.gate(ino);
        let change = if how.truncate { gate.begin_change(again) } else { gate.begin() };
        let Some(change) = change else { return done(Err(Errno::IO)) };
        self.note_inode(ino);
        let fs = Arc::clone(self);
        let once = self.once(write, Lane::Metadata, &who);
        let (at, under_way) = (path.clone(), Arc::clone(&change));
        let how = WriteOpen { known: self.inodes.lock().known(ino), ..how };
        self.caller.call_once(
            once,
            move |backend| {
                let _alone = if how.truncate { Some(under_way.enter()?) } else { None };
                backend.open_to_write(&at, &how)
            },
            move |answer| {
                change.ends(&answer);
                let enter = |opened| fs.begin_writing((&who, how.sync, request), ino, path, opened);
                done(answer.map_err(Errno::of_known).and_then(enter));
            },
        );
    }

    /// Makes a file, or opens the one that has the name by now.
    pub fn create(
        self: &Arc<Self>,
        who: Requester,
        parent: Ino,
        name: &OsStr,
        (how, create): (WriteOpen, Create),
        done: impl FnOnce(Answer<Created>) + Send + 'static,
    ) {
        let name = name.to_owned();
        let make =
            move |fs: &Arc<Self>, done| fs.create_now(who, parent, &name, (how, create), done);
        self.by_path((&[parent], true), make, done);
    }

    fn create_now(
        self: &Arc<Self>,
        who: Requester,
        parent: Ino,
        name: &OsStr,
        (how, create): (WriteOpen, Create),
        done: impl FnOnce(Answer<Created>) + Send + 'static,
    ) {
        let (write, named) = match (self.change_policy(), self.name(parent, name)) {
            (Ok(write), Ok(named)) => (write, named),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        let (path, identity) = (named.path(), who.identity());
        self.note_name(&path, Reach::Itself);
        let once = self.once(write, Lane::Metadata, &identity);
        let (fs, name, at) = (Arc::clone(self), name.to_owned(), named.on(write.replica));
        self.caller.call_once(
            once,
            move |backend| backend.create(&at, &how, create),
            move |answer| {
                fs.note_name(&path, Reach::Itself);
                count(&fs.counters.changes);
                let opened = match answer {
                    Ok(opened) => opened,
                    Err(error) => return done(Err(error.into())),
                };
                let (made, attr) = (Some((parent, name.clone())), opened.attr);
                fs.when_forgotten(made, write.replica, attr, move |fs| {
                    let as_whom = (&identity, how.sync, who.request);
                    done(fs.created((parent, &name), path, as_whom, opened));
                });
            },
        );
    }

    /// The kernel is about to be told of a file that was just made, and opened.
    fn created(
        self: &Arc<Self>,
        (parent, name): (Ino, &OsStr),
        path: PathBuf,
        as_whom: (&Identity, SyncMode, u64),
        opened: OpenedToWrite,
    ) -> Answer<Created> {
        let write = self.write_policy()?;
        let found = (write.replica, &opened.attr);
        let entry = self.enter((parent, name), found, &Looked::default(), MADE_HERE, as_whom.2)?;
        match self.begin_writing(as_whom, entry.ino, path, opened) {
            Ok((handle, ..)) => Ok(Created { entry, opened: self.opened_to_write(handle) }),
            Err(errno) => {
                // The kernel will not know of it.
                self.forget(entry.ino, 1);
                Err(errno)
            }
        }
    }

    /// Enters a handle that may write into the tables.
    fn begin_writing(
        self: &Arc<Self>,
        (who, sync, request): (&Identity, SyncMode, u64),
        ino: Ino,
        path: PathBuf,
        opened: OpenedToWrite,
    ) -> Answer<WriteHandle> {
        let write = self.write_policy()?;
        let OpenedToWrite { file, attr, readable } = opened;
        let (mode, version) = (self.policy.mode, attr.version());
        let can_map = self.maps_direct.load(Ordering::Relaxed);
        let writer = Arc::new(Writer::new(file, readable, sync, who.clone()));
        let (cached, answered, retired) = {
            let mut inodes = self.inodes.lock();
            if !inodes.is_same(ino, write.replica, &attr) {
                return Err(Errno::STALE);
            }
            inodes.told(ino, version);
            let cached = match self.is_written(ino) {
                false => inodes.opened(ino, version),
                true => Default::default(),
            };
            // It may have been renamed since it was opened.
            let path = inodes.path(ino).unwrap_or(path);
            let small = inodes.is_read_in_small_blocks(ino);
            let caching = self.policy.caching.choose(version.size, small, can_map);
            let make =
                || self.reader.file(path.clone(), version, mode, who.clone()).of(attr.generation);
            let first = FirstOpen { caching, lend: || None, make };
            let (answered, retired) = self.handles.open_inode(ino, version, mode, None, first);
            answered.inode.begin_writing(Arc::clone(&writer));
            answered.inode.gate.appends.lock().is_told(attr.size);
            inodes.moved_on(ino);
            inodes.changed(ino, self.one_more());
            (cached, answered, retired)
        };
        let Answered { inode, caching } = answered;
        for old in retired.into_iter().chain([inode.current()]) {
            self.reader.retire(&old);
        }
        let read = self.reader.handle();
        let (own, me, opened) = (Some(Arc::clone(&writer)), who.clone(), Arc::clone(&inode));
        let handle =
            self.handles.insert_file((ino, opened), (cached, caching), read, (me, request), own);
        Ok((handle, inode, writer))
    }

    /// A handle that could write is closed: looks what there is now, so that the
    /// file is read from everybody again who has that.
    pub(super) fn stop_writing(
        self: &Arc<Self>,
        ino: Ino,
        inode: Arc<OpenInode>,
        writer: Arc<Writer>,
    ) {
        let Ok(write) = self.write_policy() else { return };
        self.note_inode(ino);
        let (fs, file) = (Arc::clone(self), Arc::clone(&writer.file));
        let once = self.once(write, Lane::Metadata, &writer.who);
        // Who removes the file waits until it is closed.
        let closing = inode.gate.begin();
        self.caller.call_once(
            once,
            move |_| file.attr(),
            move |answer| {
                let _closing = closing;
                fs.note_inode(ino);
                let mode = fs.policy.mode;
                let retired = {
                    let mut inodes = fs.inodes.lock();
                    let path = inodes.path(ino);
                    inodes.moved_on(ino);
                    inodes.changed(ino, fs.one_more());
                    inode.end_writing(&writer, |old: &OpenFile| {
                        let version = answer.map_or(old.version(), |attr| attr.version());
                        let path = path.unwrap_or_else(|| old.path().to_owned());
                        fs.reader.file(path, version, mode, old.who()).anew()
                    })
                };
                if let Some(old) = retired {
                    fs.reader.retire(&old);
                }
                if answer.is_err() {
                    inode.is_not_known();
                }
            },
        );
    }

    /// A change of an open file that `handle` may write: carried out once.
    pub(super) fn change_file<T: Send + 'static>(
        self: &Arc<Self>,
        handle: HandleId,
        turn: Turn,
        who: Option<Requester>,
        change: impl Fn(&dyn BackendFile, &dyn Backend) -> crate::backend::Result<T>
        + Send
        + Sync
        + 'static,
        done: impl FnOnce(Answer<T>) + Send + 'static,
    ) {
        let (write, file) = match (self.write_policy(), self.handles.file(handle)) {
            (Ok(write), Some(file)) => (write, file),
            (Err(errno), _) => return done(Err(errno)),
            (_, None) => return done(Err(Errno::BADF)),
        };
        let Some(writer) = file.writer else { return done(Err(Errno::BADF)) };
        let exclusive = turn != Turn::Beside;
        if exclusive {
            file.closing.store(false, Ordering::Relaxed);
        }
        let under_way = match turn {
            Turn::Beside => file.inode.gate.begin(),
            Turn::Alone { again } => file.inode.gate.begin_change(again),
        };
        let Some(under_way) = under_way else { return done(Err(Errno::IO)) };
        let now = Instant::now();
        if exclusive && writer.is_to_note(now, write.lag / NOTES) {
            self.note_inode(file.ino);
        }
        let other = who.filter(|who| !writer.who.is_of(who));
        let identity = other.map_or_else(|| writer.who.clone(), |who| who.identity());
        let once = self.once(write, Lane::Read, &identity);
        let (mine, target) = (Arc::clone(&under_way), Arc::clone(&writer.file));
        let op = move |backend: &dyn Backend| {
            let _alone = if exclusive { Some(mine.enter()?) } else { None };
            change(&*target, backend)
        };
        self.caller.call_once(once, op, move |answer| {
            under_way.ends(&answer);
            if matches!(answer, Err(BackendError::Late)) {
                writer.fails(BackendError::Late.into());
            }
            done(answer.map_err(Errno::from));
        });
    }

    /// Writes; says how many bytes. Blocks while there is no room for them.
    pub fn write(
        self: &Arc<Self>,
        handle: HandleId,
        request: WriteRequest<'_>,
        done: impl FnOnce(Answer<u64>) + Send + 'static,
    ) {
        // Before it waits for room: reads that come meanwhile are younger.
        let file = self.handles.file(handle);
        let cached = file.filter(|file| file.caching() == Caching::Kernel);
        let arrived = cached.map(|file| file.inode.gate.arrives());
        let done = move |answer| {
            drop(arrived);
            done(answer);
        };
        if request.append && request.is_part {
            return self.append_part(handle, request, done);
        }
        let need = if request.whole { Need::Success } else { Need::Room };
        match self.intake.take(request.data, need) {
            Ok(data) => self.write_now(handle, request.with(data), done),
            Err(errno) => {
                count(&self.counters.write_errors);
                done(Err(errno));
            }
        }
    }

    /// The same, without waiting for parts before it.
    pub(super) fn write_now(
        self: &Arc<Self>,
        handle: HandleId,
        request: Writing,
        done: impl FnOnce(Answer<u64>) + Send + 'static,
    ) {
        let Writing { offset, data, append, whole, again, who } = request;
        // Taken out, so that it is not kept longer than somebody waits for it.
        let data = Arc::new(Mutex::new(Some(data)));
        let left = Arc::clone(&data);
        let write = move |file: &dyn BackendFile, _: &dyn Backend| {
            let data = data.lock().take().ok_or(BackendError::Late)?;
            let answer = file.change(&FileChange::Write { offset, data: &data, append, whole });
            data.charge.is_answered();
            answer
        };
        let fs = Arc::clone(self);
        self.change_file(handle, Turn::Alone { again }, who, write, move |answer| {
            drop(left.lock().take());
            if let Ok(bytes) = answer {
                count(&fs.counters.writes);
                fs.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
            } else {
                count(&fs.counters.write_errors);
            }
            done(answer);
            fs.intake.settle();
        });
    }
}
