//! Renames and exchanges of names. The write replica makes the change; then the inodes'
//! names and the paths of open files follow it.

use std::ffi::OsStr;
use std::sync::Arc;

use super::{PendingRemoval, prepare_removal};
use crate::backend::{Backend, BackendError, Lane, RequestContext, TreeMutation};
use crate::fs::handles::OpenInode;
use crate::fs::inodes::LinkRemoval;
use crate::fs::recent_changes::ChangeScope;
use crate::fs::{Errno, Fs, FsResult, Ino};
use crate::read::OpenFile;
use crate::telemetry::counters::increment;

/// `RENAME_EXCHANGE` of renameat2(2).
const RENAME_EXCHANGE: u32 = 2;

impl Fs {
    /// Changes a name; `flags` are renameat2(2)'s.
    pub fn rename(
        self: &Arc<Self>,
        who: RequestContext,
        (parent, name): (Ino, &OsStr),
        (new_parent, new_name): (Ino, &OsStr),
        flags: u32,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let replaced = self.inodes.lock().child(new_parent, new_name);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let rename = move |fs: &Arc<Self>, done| {
            fs.try_rename(who, (parent, &name), (new_parent, &new_name), flags, done);
        };
        let parents = [parent, new_parent];
        self.after_pending_close(replaced, move |fs| {
            fs.call_with_rename_retry((&parents, true), rename, done)
        });
    }

    fn try_rename(
        self: &Arc<Self>,
        who: RequestContext,
        (parent, name): (Ino, &OsStr),
        (new_parent, new_name): (Ino, &OsStr),
        flags: u32,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let names = (
            self.change_policy(),
            self.entry_ref(parent, name),
            self.entry_ref(new_parent, new_name),
        );
        let (write, from, to) = match names {
            (Ok(write), Ok(from), Ok(to)) => (write, from, to),
            (Err(errno), ..) | (_, Err(errno), _) | (.., Err(errno)) => return done(Err(errno)),
        };
        let (moved, replaced) = {
            let inodes = self.inodes.lock();
            (inodes.child(parent, name), inodes.child(new_parent, new_name))
        };
        let exchange = flags & RENAME_EXCHANGE != 0;
        let noted = {
            let (fs, from, to) = (Arc::clone(self), from.path(), to.path());
            move || {
                fs.record_name_change(&from, ChangeScope::Subtree);
                fs.record_name_change(&to, ChangeScope::Subtree);
                [moved, replaced].into_iter().flatten().for_each(|ino| fs.record_inode_change(ino));
            }
        };
        noted();
        let mut under_way = self.start_rename(from.path(), to.path());
        let open = replaced.filter(|_| !exchange).and_then(|ino| self.handles.find_inode(ino));
        let once = self.single_call(write, Lane::Metadata, &who.credentials());
        let (from, to) = (from.name_on(write.replica), to.name_on(write.replica));
        let rename = move |backend: &dyn Backend| {
            let replaced = match exchange {
                true => PendingRemoval { removal: LinkRemoval::OtherLinksLeft, dir_attr: None },
                false => prepare_removal(backend, write.replica, &to, open.as_deref())?,
            };
            backend.mutate(&TreeMutation::Rename { from: from.clone(), to: to.clone(), flags })?;
            Ok(replaced)
        };
        let (fs, old, new) = (Arc::clone(self), name.to_owned(), new_name.to_owned());
        self.client.call_once(once, rename, move |answer| {
            noted();
            increment(&fs.counters.changes);
            under_way.is_refused = answer.is_err_and(|error| error != BackendError::Late);
            let answer = answer.map_err(Errno::from).map(|leaving| {
                let (from, to) = ((parent, &*old), (new_parent, &*new));
                let change = fs.next_change_seq();
                let mut inodes = fs.inodes.lock();
                if exchange {
                    inodes.exchange(from, to, (moved, replaced), change);
                } else if moved.is_none() || moved != replaced {
                    // Of two names of one file rename(2) leaves both.
                    fs.apply_removal(&mut inodes, to, replaced, (write.replica, leaving), change);
                    inodes.rename(from, to, moved, change);
                }
                drop(inodes);
                fs.update_open_paths([moved, replaced].into_iter().flatten());
            });
            drop(under_way);
            done(answer);
        });
    }

    /// Files that are open are where their names are now: those that were renamed, and
    /// those beneath.
    fn update_open_paths(&self, renamed: impl Iterator<Item = Ino>) {
        for (ino, inode) in self.open_files_below(renamed) {
            let Some(path) = self.inodes.lock().path(ino) else { continue };
            let current = inode.current();
            if *current.path() == *path {
                continue;
            }
            let mode = self.policy.mode;
            let make = |old: &OpenFile| {
                self.reader.new_open_file(path, old.version(), mode, old.credentials())
            };
            self.reader.retire_file(&inode.adopt_rename(make));
        }
    }

    /// Files that are open, of these inodes and beneath them; all that are open, where that
    /// is less to look at.
    fn open_files_below(&self, tops: impl Iterator<Item = Ino>) -> Vec<(Ino, Arc<OpenInode>)> {
        let most = self.handles.open_file_count();
        let trees: Option<Vec<Vec<Ino>>> = {
            let inodes = self.inodes.lock();
            tops.map(|top| inodes.subtree(top, most)).collect()
        };
        let Some(trees) = trees else { return self.handles.open_inodes() };
        let open = |ino: Ino| Some((ino, self.handles.find_inode(ino)?));
        trees.into_iter().flatten().filter_map(open).collect()
    }
}
