//! Setting attributes: of what has a name by that, of what is open by its descriptor.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno as E;

use super::file_replacement::OpenFileCheck;
use super::handles::OpenInode;
use super::inode_ref;
use super::namespace_ops::change_returning_attr;
use super::{Errno, Fs, FsResult, HandleId, Ino, InodeAttr};
use crate::backend::{
    Attr, Backend, BackendError, BackendFile, Credentials, FileMutation, Lane, OpenAccess,
    RequestContext, SetAttr, SyncMode, TreeMutation, WriteOpenOptions,
};
use crate::read::OpenFile;
use crate::telemetry::counters::increment;

impl Fs {
    /// Sets attributes; through the handle where one is given that may write.
    pub fn setattr(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        handle: Option<HandleId>,
        attributes: SetAttr,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let set = move |fs: &Arc<Self>, done| fs.try_setattr(who, ino, handle, attributes, done);
        self.call_with_rename_retry((&[ino], true), set, done);
    }

    fn try_setattr(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        handle: Option<HandleId>,
        attributes: SetAttr,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let write = match self.change_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        self.record_inode_change(ino);
        if let (Some(size), Some(open)) = (attributes.size, self.handles.find_inode(ino)) {
            open.gate.appends.lock().truncate_to(size);
        }
        let identity = who.credentials();
        let open = self.handles.find_inode(ino);
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
            return self.setattr_open_file(
                (&identity, who.is_resent),
                ino,
                inode,
                attributes,
                file,
                done,
            );
        }
        let path = match (self.path(ino), open.clone()) {
            (Ok(path), _) => path,
            (Err(_), Some(inode)) => {
                return self.setattr_unlinked(
                    (&identity, who.is_resent),
                    ino,
                    inode,
                    attributes,
                    done,
                );
            }
            (Err(errno), None) => return done(Err(errno)),
        };
        if attributes.size.is_some() && open.is_some() {
            let by = (identity, who.request, who.is_resent);
            return self.truncate_open_file(by, ino, path, attributes, done);
        }
        let gate = self.handles.gate(ino);
        let Some(under_way) = gate.start_mutation(who.is_resent) else {
            return done(Err(Errno::IO));
        };
        // Nothing to be set is what chown(2) looks like that changes nothing, and also
        // that somebody is about to write who is to lose set-id bits. He need not be
        // allowed to change anything; the write takes them away.
        let is_to_write = attributes == SetAttr::default() && self.is_open_for_write(ino);
        let mine = Arc::clone(&under_way);
        let object = inode_ref::inode_at(self, ino, path).target_on(write.replica);
        let look = object.clone();
        let change = TreeMutation::SetAttr { object, attributes };
        let set = move |backend: &dyn Backend| {
            let _alone =
                if attributes.size.is_some() { Some(mine.lock_exclusive()?) } else { None };
            match change_returning_attr(backend, &change) {
                Err(BackendError::Os(E::PERM)) if is_to_write => {
                    let attr = backend.stat(look.path())?;
                    look.check_identity(&attr).map(|()| attr)
                }
                made => made,
            }
        };
        let fs = Arc::clone(self);
        self.client.call_once(
            self.single_call(write, Lane::Metadata, &identity),
            set,
            move |answer| {
                under_way.finish(&answer);
                match (answer, open) {
                    // Its name stands for another file by now, or for none. Nothing was done.
                    (
                        Err(BackendError::WrongObject | BackendError::Os(E::STALE | E::NOENT)),
                        Some(inode),
                    ) => {
                        fs.setattr_unlinked(
                            (&identity, who.is_resent),
                            ino,
                            inode,
                            attributes,
                            done,
                        );
                    }
                    (answer, _) => done(fs.finish_setattr(ino, attributes, answer)),
                }
            },
        );
    }

    /// Sets attributes of an open file that has no name any more.
    fn setattr_unlinked(
        self: &Arc<Self>,
        who: (&Credentials, bool),
        ino: Ino,
        inode: Arc<OpenInode>,
        attributes: SetAttr,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let write = match self.write_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        let (writer, current) = (inode.any_writer(), inode.current());
        let file = move |backend: &dyn Backend| match &writer {
            Some(writer) => Ok(Arc::clone(&writer.file)),
            None => current.open_unchecked(write.replica, backend),
        };
        self.setattr_open_file(who, ino, inode, attributes, file, done);
    }

    /// Attributes of an inode were set, or not.
    fn finish_setattr(
        &self,
        ino: Ino,
        set: SetAttr,
        answer: crate::backend::Result<Attr>,
    ) -> FsResult<InodeAttr> {
        self.record_inode_change(ino);
        increment(&self.counters.changes);
        let change = self.next_change_seq();
        self.inodes.lock().mark_changed(ino, change);
        let is_same_data = set.size.is_none() && set.mtime.is_none();
        if let (Ok(attr), Some(open), true) = (&answer, self.handles.find_inode(ino), is_same_data)
        {
            let (version, mode) = (attr.version(), self.policy.mode);
            let make = |old: &OpenFile| {
                self.reader.new_open_file(old.path().to_owned(), version, mode, old.credentials())
            };
            if let Some(old) = open.adopt_metadata_change(version, make) {
                self.reader.retire_file(&old);
            }
        }
        answer
            .map_err(Errno::from)
            .map(|attr| self.attr_reply(ino, attr, &OpenFileCheck::default(), change))
    }

    /// Sets attributes of an open file.
    fn setattr_open_file(
        self: &Arc<Self>,
        (who, again): (&Credentials, bool),
        ino: Ino,
        inode: Arc<OpenInode>,
        attributes: SetAttr,
        file: impl Fn(&dyn Backend) -> crate::backend::Result<Arc<dyn BackendFile>>
        + Send
        + Sync
        + 'static,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let write = match self.write_policy() {
            Ok(write) => write,
            Err(errno) => return done(Err(errno)),
        };
        let Some(under_way) = inode.gate.start_mutation(again) else { return done(Err(Errno::IO)) };
        let mine = Arc::clone(&under_way);
        let is_to_write = attributes == SetAttr::default() && inode.has_writers();
        let set = move |backend: &dyn Backend| {
            let file = file(backend)?;
            let _alone = mine.lock_exclusive()?;
            match file.mutate(&FileMutation::SetAttr(attributes)) {
                // Who is about to write: see `set_attributes`.
                Err(BackendError::Os(E::PERM)) if is_to_write => {}
                set => drop(set?),
            }
            file.attr()
        };
        let fs = Arc::clone(self);
        self.client.call_once(self.single_call(write, Lane::Metadata, who), set, move |answer| {
            under_way.finish(&answer);
            done(fs.finish_setattr(ino, attributes, answer));
        });
    }

    /// truncate(2) of a file that others have open: as if it were opened, cut and
    /// closed, so that those who read it meanwhile get no mixture.
    fn truncate_open_file(
        self: &Arc<Self>,
        (who, request, again): (Credentials, u64, bool),
        ino: Ino,
        path: PathBuf,
        attributes: SetAttr,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let how = WriteOpenOptions {
            access: OpenAccess::Write,
            truncate: false,
            sync: SyncMode::No,
            expected: None,
        };
        let fs = Arc::clone(self);
        self.open_writer((who.clone(), request, again), ino, path, how, move |answer| {
            let (handle, inode, writer) = match answer {
                Ok(opened) => opened,
                Err(errno) => return done(Err(errno)),
            };
            let (file, after) = (Arc::clone(&writer.file), Arc::clone(&fs));
            fs.setattr_open_file(
                (&who, again),
                ino,
                inode,
                attributes,
                move |_| Ok(Arc::clone(&file)),
                {
                    move |answer| {
                        after.release(handle);
                        done(answer);
                    }
                },
            );
        });
    }
}
