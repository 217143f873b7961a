//! What changes the tree and its attributes: all on the write replica, once.
//!
//! A change is noted ([`super::recent`]) before it is sent and again when it has
//! ended, as others may look at the same names meanwhile. The names that the
//! kernel knows are changed here as they were changed there, once it is known
//! that they were.
//!
//! *Invariant:* before a file that is open here loses a name, the write replica
//! has it open too. On NFS that is what keeps it readable: its client gives the
//! file another name (`.nfs...`) instead of removing it, until it is closed.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::call::{Once, Rights};
use super::handle::OpenInode;
use super::inode::{Inodes, Removed};
use super::intake::{Charge, Need};
use super::moves::Done;
use super::recent::Reach;
use super::replaced::Looked;
use super::{Answer, Entry, Errno, Fs, Ino, WritePolicy};
use crate::backend::{
    Attr, Backend, BackendError, Change, FileKind, Identity, Lane, Name, Requester, Target,
};
use crate::buffer::Reservation;
use crate::read::{OpenFile, Term};
use crate::telemetry::counters::count;
use crate::volume::ReplicaId;

/// When there will have been so many changes, what was just made here may be out of
/// date. To refuse it would be to have the kernel make it once more.
pub(super) const MADE_HERE: u64 = u64::MAX;

/// How often, and how many times, it is looked whether the kernel is through with
/// something that it is about to tell of: a close, a forget.
const MOMENT: Duration = Duration::from_millis(1);
const MOMENTS: u32 = 30;

/// `RENAME_EXCHANGE` of renameat2(2).
const EXCHANGE: u32 = 2;

impl Fs {
    pub(super) fn write_policy(&self) -> Answer<WritePolicy> {
        self.policy.write.ok_or(Errno::ROFS)
    }

    /// The same, for a change that begins.
    ///
    /// # Errors
    /// EIO while an earlier daemon may be making changes that this one could overtake, and
    /// while the write replica is absent: what is not tried is not noted as changed either.
    /// EROFS on a volume that is only read.
    pub(super) fn change_policy(&self) -> Answer<WritePolicy> {
        let write = self.write_policy()?;
        let is_there = self.caller.replica(write.replica).is_in_service();
        if is_there && !self.handles.unsettled.holds_all() { Ok(write) } else { Err(Errno::IO) }
    }

    pub(super) fn once(&self, write: WritePolicy, lane: Lane, who: &Identity) -> Once {
        let term = Term::new(Instant::now(), write.deadlines);
        Once { replica: write.replica, lane, term, rights: Rights::Of(who.clone()) }
    }

    fn note(&self, path: &Path, reach: Reach) {
        self.recent.note(path, reach, Instant::now());
    }

    /// A name is changed, and with it the directory that it is in.
    pub(super) fn note_name(&self, path: &Path, reach: Reach) {
        self.note(path, reach);
        self.note(path.parent().unwrap_or(Path::new("")), Reach::Listing);
    }

    /// Data or attributes of an inode are changed: whatever names it has show
    /// others, and so do the listings that they are in.
    pub(super) fn note_inode(&self, ino: Ino) {
        let (paths, now) = (self.inodes.lock().paths(ino), Instant::now());
        for path in &paths {
            self.recent.note(path, Reach::Itself, now);
            if let Some(dir) = path.parent() {
                self.recent.note(dir, Reach::Listing, now);
            }
        }
        self.recent.note_inode(ino, now);
    }

    /// Makes something that has a name: what `change` says of that.
    pub fn make(
        self: &Arc<Self>,
        who: Requester,
        parent: Ino,
        name: &OsStr,
        change: impl Fn(Name) -> Change + Send + Sync + 'static,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let name = name.to_owned();
        let make = move |fs: &Arc<Self>, done| fs.make_now(who, parent, &name, &change, done);
        self.by_path((&[parent], true), make, done);
    }

    fn make_now(
        self: &Arc<Self>,
        who: Requester,
        parent: Ino,
        name: &OsStr,
        change: impl FnOnce(Name) -> Change,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let (write, named) = match (self.change_policy(), self.name(parent, name)) {
            (Ok(write), Ok(named)) => (write, named),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        let (path, change) = (named.path(), change(named.on(write.replica)));
        let is_dir = matches!(change, Change::MakeDir { .. });
        let is_new = !matches!(change, Change::Link { .. });
        let reach = if is_dir { Reach::Tree } else { Reach::Itself };
        self.note_name(&path, reach);
        let (fs, name) = (Arc::clone(self), name.to_owned());
        self.caller.call_once(
            self.once(write, Lane::Metadata, &who.identity()),
            move |backend| made(backend, &change),
            move |answer| {
                fs.note_name(&path, reach);
                count(&fs.counters.changes);
                let attr = match answer {
                    Ok(attr) => attr,
                    Err(error) => return done(Err(error.into())),
                };
                let named = is_new.then(|| (parent, name.clone()));
                fs.when_forgotten(named, write.replica, attr, move |fs| {
                    done(fs.enter(
                        (parent, &name),
                        (write.replica, &attr),
                        &Looked::default(),
                        MADE_HERE,
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
    pub(super) fn when_forgotten(
        self: &Arc<Self>,
        made: Option<(Ino, OsString)>,
        replica: ReplicaId,
        attr: Attr,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let is_taken = move |fs: &Self| {
            let inodes = fs.inodes.lock();
            made.as_ref()
                .is_some_and(|(parent, name)| inodes.is_taken((*parent, name), replica, &attr))
        };
        self.when_through(is_taken, then);
    }

    /// Does `then` once the kernel is through with something, or does not seem to be
    /// soon. A change that waits for it counts as one that is under way.
    pub(super) fn when_through(
        self: &Arc<Self>,
        is_not: impl Fn(&Self) -> bool + Send + 'static,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        if !is_not(self) {
            return then(self);
        }
        let (fs, delayed) = (Arc::clone(self), self.caller.changes.delay());
        self.locks.runtime().spawn(async move {
            let _delayed = delayed;
            for _ in 0..MOMENTS {
                tokio::time::sleep(MOMENT).await;
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
        who: Requester,
        ino: Ino,
        parent: Ino,
        name: &OsStr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let name = name.to_owned();
        let link = move |fs: &Arc<Self>, done| fs.link_now(who, ino, parent, &name, done);
        self.by_path((&[ino, parent], true), link, done);
    }

    fn link_now(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        parent: Ino,
        name: &OsStr,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let from = match (self.change_policy(), self.object(ino)) {
            (Ok(write), Ok(object)) => object.on(write.replica),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        self.note_inode(ino);
        let fs = Arc::clone(self);
        let link = move |to| Change::Link { from, to };
        self.make_now(who, parent, name, link, move |answer| {
            fs.note_inode(ino);
            done(answer);
        });
    }

    /// Does `then` once the file, which is about to lose a name, is closed, if it looks
    /// as if it soon were. The kernel tells of the last close a little after it, and a
    /// file that is open when it is removed leaves a `.nfs...` file behind, and its
    /// directory full.
    fn when_closed(
        self: &Arc<Self>,
        ino: Option<Ino>,
        then: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let is_closing = move |fs: &Self| ino.is_some_and(|ino| fs.handles.is_closing(ino));
        self.when_through(is_closing, then);
    }

    /// Removes a name: of a directory, or of anything else.
    pub fn remove(
        self: &Arc<Self>,
        who: Requester,
        parent: Ino,
        name: &OsStr,
        is_dir: bool,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let (ino, name) = (self.inodes.lock().named(parent, name), name.to_owned());
        let remove = move |fs: &Arc<Self>, done| fs.remove_now(who, parent, &name, is_dir, done);
        self.when_closed(ino, move |fs| fs.by_path((&[parent], true), remove, done));
    }

    fn remove_now(
        self: &Arc<Self>,
        who: Requester,
        parent: Ino,
        name: &OsStr,
        is_dir: bool,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let (write, named) = match (self.change_policy(), self.name(parent, name)) {
            (Ok(write), Ok(named)) => (write, named),
            (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
        };
        let (path, at) = (named.path(), named.on(write.replica));
        let ino = self.inodes.lock().named(parent, name);
        let reach = if is_dir { Reach::Tree } else { Reach::Itself };
        self.note_name(&path, reach);
        let open = ino.and_then(|ino| self.handles.inode(ino));
        let once = self.once(write, Lane::Metadata, &who.identity());
        let remove = move |backend: &dyn Backend| {
            let removed = before_removal(backend, write.replica, &at, open.as_deref())?;
            backend.change(&match is_dir {
                true => Change::RemoveDir { at: at.clone() },
                false => Change::Unlink { at: at.clone() },
            })?;
            Ok(removed)
        };
        let (fs, name) = (Arc::clone(self), name.to_owned());
        // Whoever looks at it meanwhile waits, and is shown what is left of it.
        let under_way = is_dir.then(|| self.moves(path.clone(), path.clone()));
        self.caller.call_once(once, remove, move |answer| {
            fs.note_name(&path, reach);
            if let Some(ino) = ino {
                fs.note_inode(ino);
            }
            count(&fs.counters.changes);
            let answer = answer.map_err(Errno::from).map(|leaving| {
                let change = fs.one_more();
                let mut inodes = fs.inodes.lock();
                fs.has_left(&mut inodes, (parent, &name), ino, (write.replica, leaving), change);
            });
            drop(under_way);
            done(answer);
        });
    }

    /// An inode has lost a name on the write replica, by change number `change`.
    fn has_left(
        &self,
        inodes: &mut Inodes,
        at: (Ino, &OsStr),
        ino: Option<Ino>,
        (replica, leaving): (ReplicaId, Leaving),
        change: u64,
    ) {
        let is_open = || ino.is_some_and(|ino| self.handles.inode(ino).is_some());
        let left = match leaving.left {
            // It was closed meanwhile.
            Removed::Name if !is_open() => Removed::All,
            left => left,
        };
        let dir = leaving.dir.and_then(|attr| Some((ino?, attr)));
        let dir = dir.filter(|(ino, attr)| inodes.is_same(*ino, replica, attr));
        inodes.removed(at, ino, left, change);
        if let Some((ino, attr)) = dir {
            inodes.remains_of(ino, attr);
        }
    }

    /// Changes a name; `flags` are renameat2(2)'s.
    pub fn rename(
        self: &Arc<Self>,
        who: Requester,
        (parent, name): (Ino, &OsStr),
        (new_parent, new_name): (Ino, &OsStr),
        flags: u32,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let replaced = self.inodes.lock().named(new_parent, new_name);
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        let rename = move |fs: &Arc<Self>, done| {
            fs.rename_now(who, (parent, &name), (new_parent, &new_name), flags, done);
        };
        let parents = [parent, new_parent];
        self.when_closed(replaced, move |fs| fs.by_path((&parents, true), rename, done));
    }

    fn rename_now(
        self: &Arc<Self>,
        who: Requester,
        (parent, name): (Ino, &OsStr),
        (new_parent, new_name): (Ino, &OsStr),
        flags: u32,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let names =
            (self.change_policy(), self.name(parent, name), self.name(new_parent, new_name));
        let (write, from, to) = match names {
            (Ok(write), Ok(from), Ok(to)) => (write, from, to),
            (Err(errno), ..) | (_, Err(errno), _) | (.., Err(errno)) => return done(Err(errno)),
        };
        let (moved, replaced) = {
            let inodes = self.inodes.lock();
            (inodes.named(parent, name), inodes.named(new_parent, new_name))
        };
        let exchange = flags & EXCHANGE != 0;
        let noted = {
            let (fs, from, to) = (Arc::clone(self), from.path(), to.path());
            move || {
                fs.note_name(&from, Reach::Tree);
                fs.note_name(&to, Reach::Tree);
                [moved, replaced].into_iter().flatten().for_each(|ino| fs.note_inode(ino));
            }
        };
        noted();
        let mut under_way = self.moves(from.path(), to.path());
        let open = replaced.filter(|_| !exchange).and_then(|ino| self.handles.inode(ino));
        let once = self.once(write, Lane::Metadata, &who.identity());
        let (from, to) = (from.on(write.replica), to.on(write.replica));
        let rename = move |backend: &dyn Backend| {
            let replaced = match exchange {
                true => Leaving { left: Removed::OneOfSeveral, dir: None },
                false => before_removal(backend, write.replica, &to, open.as_deref())?,
            };
            backend.change(&Change::Rename { from: from.clone(), to: to.clone(), flags })?;
            Ok(replaced)
        };
        let (fs, old, new) = (Arc::clone(self), name.to_owned(), new_name.to_owned());
        self.caller.call_once(once, rename, move |answer| {
            noted();
            count(&fs.counters.changes);
            under_way.is_refused = answer.is_err_and(|error| error != BackendError::Late);
            let answer = answer.map_err(Errno::from).map(|leaving| {
                let (from, to) = ((parent, &*old), (new_parent, &*new));
                let change = fs.one_more();
                let mut inodes = fs.inodes.lock();
                if exchange {
                    inodes.exchanged(from, to, (moved, replaced), change);
                } else if moved.is_none() || moved != replaced {
                    // Of two names of one file rename(2) leaves both.
                    fs.has_left(&mut inodes, to, replaced, (write.replica, leaving), change);
                    inodes.renamed(from, to, moved, change);
                }
                drop(inodes);
                fs.follow_names([moved, replaced].into_iter().flatten());
            });
            drop(under_way);
            done(answer);
        });
    }

    /// Files that are open are where their names are now: those that were renamed, and
    /// those beneath.
    fn follow_names(&self, renamed: impl Iterator<Item = Ino>) {
        for (ino, inode) in self.open_beneath(renamed) {
            let Some(path) = self.inodes.lock().path(ino) else { continue };
            let current = inode.current();
            if *current.path() == *path {
                continue;
            }
            let mode = self.policy.mode;
            let make = |old: &OpenFile| self.reader.file(path, old.version(), mode, old.who());
            self.reader.retire(&inode.moved(make));
        }
    }

    /// Files that are open, of these inodes and beneath them; all that are open, where that
    /// is less to look at.
    fn open_beneath(&self, tops: impl Iterator<Item = Ino>) -> Vec<(Ino, Arc<OpenInode>)> {
        let most = self.handles.open_files();
        let trees: Option<Vec<Vec<Ino>>> = {
            let inodes = self.inodes.lock();
            tops.map(|top| inodes.tree(top, most)).collect()
        };
        let Some(trees) = trees else { return self.handles.open_inodes() };
        let open = |ino: Ino| Some((ino, self.handles.inode(ino)?));
        trees.into_iter().flatten().filter_map(open).collect()
    }

    /// setxattr(2), or removexattr(2) where there is no `value`.
    pub fn set_xattr(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        name: &OsStr,
        value: Option<(&[u8], u32)>,
        done: impl FnOnce(Answer<()>) + Send + 'static,
    ) {
        let charge = |(value, _): (&[u8], u32)| self.intake.charge(value.len() as u64, Need::Room);
        let room = match value.map(charge).transpose() {
            Ok(room) => room,
            Err(errno) => return done(Err(errno)),
        };
        let (name, value) =
            (name.to_owned(), value.map(|(value, flags)| (Arc::<[u8]>::from(value), flags)));
        self.change_at(who, ino, (Lane::Metadata, room), done, move |object| {
            let name = name.clone();
            match value.clone() {
                Some((value, flags)) => Change::SetXattr { object, name, value, flags },
                None => Change::RemoveXattr { object, name },
            }
        });
    }

    pub(super) fn change_at(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        (lane, room): (Lane, Option<(Charge, Reservation)>),
        done: impl FnOnce(Answer<()>) + Send + 'static,
        change: impl Fn(Target) -> Change + Send + Sync + 'static,
    ) {
        let room = Arc::new(room);
        let change = move |fs: &Arc<Self>, done: Done<()>| {
            let (write, object) = match (fs.change_policy(), fs.object(ino)) {
                (Ok(write), Ok(object)) => (write, object),
                (Err(errno), _) | (_, Err(errno)) => return done(Err(errno)),
            };
            let (change, room) = (change(object.on(write.replica)), Arc::clone(&room));
            fs.note_inode(ino);
            let own = Arc::clone(fs);
            fs.caller.call_once(
                fs.once(write, lane, &who.identity()),
                move |backend| {
                    let answer = backend.change(&change).map(drop);
                    if let Some((charge, _)) = &*room {
                        charge.is_answered();
                    }
                    answer
                },
                move |answer| {
                    own.note_inode(ino);
                    count(&own.counters.changes);
                    done(answer.map_err(Errno::from));
                    own.intake.settle();
                },
            );
        };
        self.by_path((&[ino], true), change, done);
    }
}

/// Carries out a change that has something to show for it.
pub(super) fn made(
    backend: &dyn Backend,
    change: &Change,
) -> crate::backend::Result<crate::backend::Attr> {
    backend.change(change)?.ok_or(BackendError::Os(rustix::io::Errno::IO))
}

/// An object that is about to lose a name.
#[derive(Clone, Copy)]
struct Leaving {
    /// What will be left of it.
    left: Removed,
    /// Its attributes, where it is a directory.
    dir: Option<Attr>,
}

/// Sees to it that a file that is open here stays, and what will be left of what loses
/// `name`.
fn before_removal(
    backend: &dyn Backend,
    replica: ReplicaId,
    name: &Name,
    open: Option<&OpenInode>,
) -> crate::backend::Result<Leaving> {
    backend.settle();
    let looked = backend.stat_entry(name);
    let dir = looked.ok().filter(|attr| attr.kind == FileKind::Directory);
    let is_last = match looked {
        Ok(attr) => dir.is_some() || attr.nlink <= 1,
        // Another directory has the path: nothing may be removed there.
        Err(BackendError::Another) => return Err(BackendError::Another),
        Err(_) => false,
    };
    if let Some(inode) = open {
        // Where it cannot be opened, what is open elsewhere has to do. Who may write it
        // has it open too, but only until he closes it.
        let _ = inode.current().as_it_is(replica, backend);
    }
    let left = match (is_last, open) {
        (false, _) => Removed::OneOfSeveral,
        (true, Some(_)) => Removed::Name,
        (true, None) => Removed::All,
    };
    Ok(Leaving { left, dir })
}
