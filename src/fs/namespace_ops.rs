//! What changes the tree and its attributes: all on the write replica, once.
//!
//! A change is noted ([`super::recent_changes`]) before it is sent and again when it has
//! ended, as others may look at the same names meanwhile. The names that the
//! kernel knows are changed here as they were changed there, once it is known
//! that they were.
//!
//! *Invariant:* before a file that is open here loses a name, the write replica
//! has it open too. On NFS that is what keeps it readable: its client gives the
//! file another name (`.nfs...`) instead of removing it, until it is closed.

mod rename;
mod xattr;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::file_replacement::OpenFileCheck;
use super::handles::OpenInode;
use super::inodes::{Inodes, LinkRemoval};
use super::metadata_client::{RunAs, SingleCall};
use super::payload_budget::Charge;
use super::recent_changes::ChangeScope;
use super::renames::ReplyFn;
use super::{Errno, Fs, FsResult, Ino, InodeAttr, WritePolicy};
use crate::backend::{
    Attr, Backend, BackendError, Credentials, EntryRef, FileKind, Lane, ObjectRef, RequestContext,
    TreeMutation,
};
use crate::buffer::Reservation;
use crate::read::RequestDeadline;
use crate::telemetry::counters::increment;
use crate::volume::ReplicaId;

/// When there will have been so many changes, what was just made here may be out of
/// date. To refuse it would be to have the kernel make it once more.
pub(super) const ALWAYS_CURRENT: u64 = u64::MAX;

/// How often, and how many times, it is looked whether the kernel is through with
/// something that it is about to tell of: a close, a forget.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLLS: u32 = 30;

impl Fs {
    pub(super) fn write_policy(&self) -> FsResult<WritePolicy> {
        self.policy.write.ok_or(Errno::ROFS)
    }

    /// The same, for a change that begins.
    ///
    /// # Errors
    /// EIO while an earlier daemon may be making changes that this one could overtake, and
    /// while the write replica is absent: what is not tried is not noted as changed either.
    /// EROFS on a volume that is only read.
    pub(super) fn change_policy(&self) -> FsResult<WritePolicy> {
        let write = self.write_policy()?;
        let is_there = self.client.replica(write.replica).is_in_service();
        if is_there && !self.handles.unsettled.is_all_blocked() {
            Ok(write)
        } else {
            Err(Errno::IO)
        }
    }

    pub(super) fn single_call(
        &self,
        write: WritePolicy,
        lane: Lane,
        who: &Credentials,
    ) -> SingleCall {
        let term = RequestDeadline::new(Instant::now(), write.deadlines);
        SingleCall {
            replica: write.replica,
            lane,
            deadline: term,
            run_as: RunAs::Only(who.clone()),
        }
    }

    fn record_change(&self, path: &Path, reach: ChangeScope) {
        self.recent_changes.record_path(path, reach, Instant::now());
    }

    /// A name is changed, and with it the directory that it is in.
    pub(super) fn record_name_change(&self, path: &Path, reach: ChangeScope) {
        self.record_change(path, reach);
        self.record_change(path.parent().unwrap_or(Path::new("")), ChangeScope::Listing);
    }

    /// Data or attributes of an inode are changed: whatever names it has show
    /// others, and so do the listings that they are in.
    pub(super) fn record_inode_change(&self, ino: Ino) {
        let (paths, now) = (self.inodes.lock().paths(ino), Instant::now());
        for path in &paths {
            self.recent_changes.record_path(path, ChangeScope::Object, now);
            if let Some(dir) = path.parent() {
                self.recent_changes.record_path(dir, ChangeScope::Listing, now);
            }
        }
        self.recent_changes.record_inode(ino, now);
    }

    /// Makes something that has a name: what `change` says of that.
    pub fn make_entry(
        self: &Arc<Self>,
        who: RequestContext,
        parent: Ino,
        name: &OsStr,
        change: impl Fn(EntryRef) -> TreeMutation + Send + Sync + 'static,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let name = name.to_owned();
        let make = move |fs: &Arc<Self>, done| fs.try_make_entry(who, parent, &name, &change, done);
        self.call_with_rename_retry((&[parent], true), make, done);
    }

    fn try_make_entry(
        self: &Arc<Self>,
        who: RequestContext,
        parent: Ino,
        name: &OsStr,
        change: impl FnOnce(EntryRef) -> TreeMutation,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let (write, named) = match (self.change_policy(), self.entry_ref(parent, name)) {
            (Ok(write), Ok(named)) => (write, named),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        let (path, change) = (named.path(), change(named.name_on(write.replica)));
        let is_dir = matches!(change, TreeMutation::Mkdir { .. });
        let is_new = !matches!(change, TreeMutation::Link { .. });
        let reach = if is_dir { ChangeScope::Subtree } else { ChangeScope::Object };
        self.record_name_change(&path, reach);
        let (fs, name) = (Arc::clone(self), name.to_owned());
        self.client.call_once(
            self.single_call(write, Lane::Metadata, &who.credentials()),
            move |backend| change_returning_attr(backend, &change),
            move |answer| {
                fs.record_name_change(&path, reach);
                increment(&fs.counters.changes);
                let attr = match answer {
                    Ok(attr) => attr,
                    Err(error) => return done(Err(error.into())),
                };
                let named = is_new.then(|| (parent, name.clone()));
                fs.after_kernel_forget(named, write.replica, attr, move |fs| {
                    done(fs.entry_reply(
                        (parent, &name),
                        (write.replica, &attr),
                        &OpenFileCheck::default(),
                        ALWAYS_CURRENT,
                        who.request,
                    ));
                });
            },
        );
    }

    /// Does `then` once the kernel has forgotten what had the number of `attr` before,
    /// the attributes of what was just made under a name. It is on its way to: the
    /// replica has freed the number, so the answer to the removal is there or about
    /// to be. Told of the new one first, the kernel would take away a link of it.
    pub(super) fn after_kernel_forget(
        self: &Arc<Self>,
        made: Option<(Ino, OsString)>,
        replica: ReplicaId,
        attr: Attr,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let is_taken = move |fs: &Self| {
            let inodes = fs.inodes.lock();
            made.as_ref()
                .is_some_and(|(parent, name)| inodes.is_ino_in_use((*parent, name), replica, &attr))
        };
        self.wait_while(is_taken, then);
    }

    /// Does `then` once the kernel is through with something, or does not seem to be
    /// soon. A change that waits for it counts as one that is under way.
    pub(super) fn wait_while(
        self: &Arc<Self>,
        is_not: impl Fn(&Self) -> bool + Send + 'static,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        if !is_not(self) {
            return then(self);
        }
        let (fs, delayed) = (Arc::clone(self), self.client.pending_changes.add_delayed());
        self.locks.runtime().spawn(async move {
            let _delayed = delayed;
            for _ in 0..MAX_POLLS {
                tokio::time::sleep(POLL_INTERVAL).await;
                if !is_not(&fs) {
                    break;
                }
            }
            then(&fs);
        });
    }

    /// Gives an inode one more name.
    pub fn link(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        parent: Ino,
        name: &OsStr,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let name = name.to_owned();
        let link = move |fs: &Arc<Self>, done| fs.try_link(who, ino, parent, &name, done);
        self.call_with_rename_retry((&[ino, parent], true), link, done);
    }

    fn try_link(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        parent: Ino,
        name: &OsStr,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let from = match (self.change_policy(), self.inode_ref(ino)) {
            (Ok(write), Ok(object)) => object.target_on(write.replica),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        self.record_inode_change(ino);
        let fs = Arc::clone(self);
        let link = move |to| TreeMutation::Link { from, to };
        self.try_make_entry(who, parent, name, link, move |answer| {
            fs.record_inode_change(ino);
            done(answer);
        });
    }

    /// Does `then` once the file, which is about to lose a name, is closed, if it looks
    /// as if it soon were. The kernel tells of the last close a little after it, and a
    /// file that is open when it is removed leaves a `.nfs...` file behind, and its
    /// directory full.
    fn after_pending_close(
        self: &Arc<Self>,
        ino: Option<Ino>,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let is_closing = move |fs: &Self| ino.is_some_and(|ino| fs.handles.is_closing_soon(ino));
        self.wait_while(is_closing, then);
    }

    /// Removes a name: of a directory, or of anything else.
    pub fn unlink_or_rmdir(
        self: &Arc<Self>,
        who: RequestContext,
        parent: Ino,
        name: &OsStr,
        is_dir: bool,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let (ino, name) = (self.inodes.lock().child(parent, name), name.to_owned());
        let remove =
            move |fs: &Arc<Self>, done| fs.try_unlink_or_rmdir(who, parent, &name, is_dir, done);
        self.after_pending_close(ino, move |fs| {
            fs.call_with_rename_retry((&[parent], true), remove, done)
        });
    }

    fn try_unlink_or_rmdir(
        self: &Arc<Self>,
        who: RequestContext,
        parent: Ino,
        name: &OsStr,
        is_dir: bool,
        done: impl FnOnce(FsResult<()>) + Send + 'static,
    ) {
        let (write, named) = match (self.change_policy(), self.entry_ref(parent, name)) {
            (Ok(write), Ok(named)) => (write, named),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        let (path, at) = (named.path(), named.name_on(write.replica));
        let ino = self.inodes.lock().child(parent, name);
        let reach = if is_dir { ChangeScope::Subtree } else { ChangeScope::Object };
        self.record_name_change(&path, reach);
        let open = ino.and_then(|ino| self.handles.find_inode(ino));
        let once = self.single_call(write, Lane::Metadata, &who.credentials());
        let remove = move |backend: &dyn Backend| {
            let removed = prepare_removal(backend, write.replica, &at, open.as_deref())?;
            backend.mutate(&match is_dir {
                true => TreeMutation::Rmdir { at: at.clone() },
                false => TreeMutation::Unlink { at: at.clone() },
            })?;
            Ok(removed)
        };
        let (fs, name) = (Arc::clone(self), name.to_owned());
        // Whoever looks at it meanwhile waits, and is shown what is left of it.
        let under_way = is_dir.then(|| self.start_rename(path.clone(), path.clone()));
        self.client.call_once(once, remove, move |answer| {
            fs.record_name_change(&path, reach);
            if let Some(ino) = ino {
                fs.record_inode_change(ino);
            }
            increment(&fs.counters.changes);
            let answer = answer.map_err(Errno::from).map(|leaving| {
                let change = fs.next_change_seq();
                let mut inodes = fs.inodes.lock();
                fs.apply_removal(
                    &mut inodes,
                    (parent, &name),
                    ino,
                    (write.replica, leaving),
                    change,
                );
            });
            drop(under_way);
            done(answer);
        });
    }

    /// An inode has lost a name on the write replica, by change number `change`.
    fn apply_removal(
        &self,
        inodes: &mut Inodes,
        at: (Ino, &OsStr),
        ino: Option<Ino>,
        (replica, leaving): (ReplicaId, PendingRemoval),
        change: u64,
    ) {
        let is_open = || ino.is_some_and(|ino| self.handles.find_inode(ino).is_some());
        let left = match leaving.removal {
            // It was closed meanwhile.
            LinkRemoval::StillOpen if !is_open() => LinkRemoval::ObjectRemoved,
            left => left,
        };
        let dir = leaving.dir_attr.and_then(|attr| Some((ino?, attr)));
        let dir = dir.filter(|(ino, attr)| inodes.is_same(*ino, replica, attr));
        inodes.remove_link(at, ino, left, change);
        if let Some((ino, attr)) = dir {
            inodes.set_removed_dir_attr(ino, attr);
        }
    }

    pub(super) fn change_inode(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        (lane, room): (Lane, Option<(Charge, Reservation)>),
        done: impl FnOnce(FsResult<()>) + Send + 'static,
        change: impl Fn(ObjectRef) -> TreeMutation + Send + Sync + 'static,
    ) {
        let room = Arc::new(room);
        let change = move |fs: &Arc<Self>, done: ReplyFn<()>| {
            let (write, object) = match (fs.change_policy(), fs.inode_ref(ino)) {
                (Ok(write), Ok(object)) => (write, object),
                (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
            };
            let (change, room) = (change(object.target_on(write.replica)), Arc::clone(&room));
            fs.record_inode_change(ino);
            let own = Arc::clone(fs);
            fs.client.call_once(
                fs.single_call(write, lane, &who.credentials()),
                move |backend| {
                    let answer = backend.mutate(&change).map(drop);
                    if let Some((charge, _)) = &*room {
                        charge.record_completion();
                    }
                    answer
                },
                move |answer| {
                    own.record_inode_change(ino);
                    increment(&own.counters.changes);
                    done(answer.map_err(Errno::from));
                    own.payload_budget.serve_waiting_reads();
                },
            );
        };
        self.call_with_rename_retry((&[ino], true), change, done);
    }
}

/// Carries out a change that has something to show for it.
pub(super) fn change_returning_attr(
    backend: &dyn Backend,
    change: &TreeMutation,
) -> crate::backend::Result<crate::backend::Attr> {
    backend.mutate(change)?.ok_or(BackendError::Os(rustix::io::Errno::IO))
}

/// An object that is about to lose a name.
#[derive(Clone, Copy)]
struct PendingRemoval {
    /// What will be left of it.
    removal: LinkRemoval,
    /// Its attributes, where it is a directory.
    dir_attr: Option<Attr>,
}

/// Sees to it that a file that is open here stays, and what will be left of what loses
/// `name`.
fn prepare_removal(
    backend: &dyn Backend,
    replica: ReplicaId,
    name: &EntryRef,
    open: Option<&OpenInode>,
) -> crate::backend::Result<PendingRemoval> {
    backend.flush_closes();
    let looked = backend.stat_entry(name);
    let dir = looked.ok().filter(|attr| attr.kind == FileKind::Directory);
    let is_last = match looked {
        Ok(attr) => dir.is_some() || attr.nlink <= 1,
        // Another directory has the path: nothing may be removed there.
        Err(BackendError::WrongObject) => return Err(BackendError::WrongObject),
        Err(_) => false,
    };
    if let Some(inode) = open {
        // Where it cannot be opened, what is open elsewhere has to do. Who may write it
        // has it open too, but only until he closes it.
        let _ = inode.current().open_unchecked(replica, backend);
    }
    let left = match (is_last, open) {
        (false, _) => LinkRemoval::OtherLinksLeft,
        (true, Some(_)) => LinkRemoval::StillOpen,
        (true, None) => LinkRemoval::ObjectRemoved,
    };
    Ok(PendingRemoval { removal: left, dir_attr: dir })
}
