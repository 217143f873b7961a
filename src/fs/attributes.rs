//! Setting attributes: of what has a name by that, of what is open by its descriptor.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno as E;

use super::change::made;
use super::handle::OpenInode;
use super::object;
use super::replaced::Looked;
use super::{Answer, Entry, Errno, Fs, HandleId, Ino};
use crate::backend::{
    Attr, Backend, BackendError, BackendFile, Change, FileChange, Identity, Lane, OpenAccess,
    Requester, SetAttr, SyncMode, WriteOpen,
};
use crate::read::OpenFile;
use crate::telemetry::counters::count;

impl Fs {
    /// Sets attributes; through the handle where one is given that may write.
    pub fn set_attributes(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        handle: Option<HandleId>,
        attributes: SetAttr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let set =
            move |fs: &Arc<Self>, done| fs.set_attributes_now(who, ino, handle, attributes, done);
        self.by_path((&[ino], true), set, done);
    }

    fn set_attributes_now(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        handle: Option<HandleId>,
        attributes: SetAttr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let write = match self.change_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        self.note_inode(ino);
        if let (Some(size), Some(open)) = (attributes.size, self.handles.inode(ino)) {
            open.gate.appends.lock().is_cut(size);
        }
        let identity = who.identity();
        let open = self.handles.inode(ino);
        let named = handle.map(|handle| self.handles.file(handle).ok_or(Errno::BADF));
        let own = match named.transpose() {
            Ok(file) => file.and_then(|file| file.writer),
            Err(errno) => return done(Err(errno)),
        };
        // The kernel names no handle where it truncates what was opened a moment ago.
        let own = own.or_else(|| open.as_ref()?.writer_of(&identity));
        if let (Some(writer), Some(inode), Some(_)) = (own, open.clone(), attributes.size) {
            let file = Arc::clone(&writer.file);
            let file = move |_: &dyn Backend| Ok(Arc::clone(&file));
            return self.set_open((&identity, who.again), ino, inode, attributes, file, done);
        }
        let path = match (self.path(ino), open.clone()) {
            (Ok(path), _) => path,
            (Err(_), Some(inode)) => {
                return self.set_nameless((&identity, who.again), ino, inode, attributes, done);
            }
            (Err(errno), None) => return done(Err(errno)),
        };
        if attributes.size.is_some() && open.is_some() {
            let by = (identity, who.request, who.again);
            return self.truncate_open(by, ino, path, attributes, done);
        }
        let gate = self.handles.gate(ino);
        let Some(under_way) = gate.begin_change(who.again) else { return done(Err(Errno::IO)) };
        // Nothing to be set is what chown(2) looks like that changes nothing, and also
        // that somebody is about to write who is to lose set-id bits. He need not be
        // allowed to change anything; the write takes them away.
        let is_to_write = attributes == SetAttr::default() && self.is_written(ino);
        let mine = Arc::clone(&under_way);
        let object = object::target(self, ino, path).on(write.replica);
        let look = object.clone();
        let change = Change::Set { object, attributes };
        let set = move |backend: &dyn Backend| {
            let _alone = if attributes.size.is_some() { Some(mine.enter()?) } else { None };
            match made(backend, &change) {
                Err(BackendError::Os(E::PERM)) if is_to_write => {
                    let attr = backend.stat(look.path())?;
                    look.check(&attr).map(|()| attr)
                }
                made => made,
            }
        };
        let fs = Arc::clone(self);
        self.caller.call_once(self.once(write, Lane::Metadata, &identity), set, move |answer| {
            under_way.ends(&answer);
            match (answer, open) {
                // Its name stands for another file by now, or for none. Nothing was done.
                (
                    Err(BackendError::Another | BackendError::Os(E::STALE | E::NOENT)),
                    Some(inode),
                ) => {
                    fs.set_nameless((&identity, who.again), ino, inode, attributes, done);
                }
                (answer, _) => done(fs.has_set(ino, attributes, answer)),
            }
        });
    }

    /// Sets attributes of an open file that has no name any more.
    fn set_nameless(
        self: &Arc<Self>,
        who: (&Identity, bool),
        ino: Ino,
        inode: Arc<OpenInode>,
        attributes: SetAttr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let write = match self.write_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        let (writer, current) = (inode.any_writer(), inode.current());
        let file = move |backend: &dyn Backend| match &writer {
            Some(writer) => Ok(Arc::clone(&writer.file)),
            None => current.as_it_is(write.replica, backend),
        };
        self.set_open(who, ino, inode, attributes, file, done);
    }

    /// Attributes of an inode were set, or not.
    fn has_set(
        &self,
        ino: Ino,
        set: SetAttr,
        answer: crate::backend::Result<Attr>,
    ) -> Answer<Entry> {
        self.note_inode(ino);
        count(&self.counters.changes);
        let change = self.one_more();
        self.inodes.lock().changed(ino, change);
        let is_same_data = set.size.is_none() && set.mtime.is_none();
        if let (Ok(attr), Some(open), true) = (&answer, self.handles.inode(ino), is_same_data) {
            let (version, mode) = (attr.version(), self.policy.mode);
            let make =
                |old: &OpenFile| self.reader.file(old.path().to_owned(), version, mode, old.who());
            if let Some(old) = open.touched(version, make) {
                self.reader.retire(&old);
            }
        }
        answer.map_err(Errno::from).map(|attr| self.seen(ino, attr, &Looked::default(), change))
    }

    /// Sets attributes of an open file.
    fn set_open(
        self: &Arc<Self>,
        (who, again): (&Identity, bool),
        ino: Ino,
        inode: Arc<OpenInode>,
        attributes: SetAttr,
        file: impl Fn(&dyn Backend) -> crate::backend::Result<Arc<dyn BackendFile>>
        + Send
        + Sync
        + 'static,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let write = match self.write_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        let Some(under_way) = inode.gate.begin_change(again) else { return done(Err(Errno::IO)) };
        let mine = Arc::clone(&under_way);
        let is_to_write = attributes == SetAttr::default() && inode.is_written();
        let set = move |backend: &dyn Backend| {
            let file = file(backend)?;
            let _alone = mine.enter()?;
            match file.change(&FileChange::Set(attributes)) {
                // Who is about to write: see `set_attributes`.
                Err(BackendError::Os(E::PERM)) if is_to_write => {}
                set => drop(set?),
            }
            file.attr()
        };
        let fs = Arc::clone(self);
        self.caller.call_once(self.once(write, Lane::Metadata, who), set, move |answer| {
            under_way.ends(&answer);
            done(fs.has_set(ino, attributes, answer));
        });
    }

    /// truncate(2) of a file that others have open: as if it were opened, cut and
    /// closed, so that those who read it meanwhile get no mixture.
    fn truncate_open(
        self: &Arc<Self>,
        (who, request, again): (Identity, u64, bool),
        ino: Ino,
        path: PathBuf,
        attributes: SetAttr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let how = WriteOpen {
            access: OpenAccess::Write,
            truncate: false,
            sync: SyncMode::No,
            known: None,
        };
        let fs = Arc::clone(self);
        self.open_writer((who.clone(), request, again), ino, path, how, move |answer| {
            let (handle, inode, writer) = match answer {
                Ok(opened) => opened,
                Err(errno) => return done(Err(errno)),
            };
            let (file, after) = (Arc::clone(&writer.file), Arc::clone(&fs));
            fs.set_open((&who, again), ino, inode, attributes, move |_| Ok(Arc::clone(&file)), {
                move |answer| {
                    after.release(handle);
                    done(answer);
                }
            });
        });
    }
}
