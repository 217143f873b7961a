//! Attributes of inodes that the kernel knows.
//!
//! The name is looked at, or the open file where the name is gone or is another file's.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno as E;

use super::call::{Once, Rights};
use super::newer::At;
use super::replaced::{Looked, Whose};
use super::written::Writer;
use super::{Answer, Entry, Errno, Fs, HandleId, Ino, ROOT};
use crate::backend::{Attr, Backend, BackendError, FileKind, Lane, Requester};
use crate::read::{OpenFile, Term};
use crate::volume::ReplicaId;

/// How attributes are looked at.
#[derive(Clone, Copy, Debug)]
enum See {
    /// By the name.
    Name,
    /// By an open.
    Open,
    /// By the name, for a file that is open, unless no replica answers soon.
    Again,
}

/// Attributes of what is at `path`, as an open shows them: an NFS mount asks the server for
/// them then. Where they are of the version that `open` is at, reads go to that replica
/// again.
fn shown_at_open(
    fs: &Fs,
    (ino, path): (Ino, &Path),
    replica: ReplicaId,
    backend: &dyn Backend,
    open: Option<&OpenFile>,
) -> Result<Attr, BackendError> {
    match fs.open_as_named(ino, At { replica, backend, path }) {
        Ok((file, attr)) => {
            if let Some(open) = open.filter(|open| open.is_version(&attr)) {
                open.opened_by(replica, file);
            }
            Ok(attr)
        }
        // The rights may have changed since the file was opened.
        Err(BackendError::Os(E::ACCESS | E::PERM)) => backend.stat(path),
        Err(error) => Err(error),
    }
}

impl Fs {
    /// An inode's attributes; through the open file where `handle` is given and
    /// its name is gone.
    pub fn attributes(
        self: &Arc<Self>,
        who: Requester,
        ino: Ino,
        handle: Option<HandleId>,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let since = Instant::now();
        let look = move |fs: &Arc<Self>, done| {
            fs.attributes_by(Rights::Enough(who), ino, handle, since, done);
        };
        let fs = Arc::clone(self);
        self.by_path((&[ino], false), look, move |answer| {
            let removed = |_| fs.inodes.lock().remains(ino).map(|attr| Entry { ino, attr });
            done(answer.or_else(|errno| removed(errno).ok_or(errno)));
        });
    }

    /// The deadline counts from `since`.
    pub(super) fn attributes_by(
        self: &Arc<Self>,
        rights: Rights,
        ino: Ino,
        handle: Option<HandleId>,
        since: Instant,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        self.attributes_seen_by((rights, See::Name), ino, handle, since, done);
    }

    /// The same for a file whose attributes do not agree with its data: a replica's mount
    /// may believe older ones, until the file is opened.
    pub(super) fn attributes_at_open(
        self: &Arc<Self>,
        rights: Rights,
        ino: Ino,
        since: Instant,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        self.attributes_seen_by((rights, See::Open), ino, None, since, done);
    }

    /// The same for a file that is open and was not looked at for a while. A reader does not
    /// wait for replicas that are silent: what it wants may be in memory.
    pub(super) fn attributes_again(
        self: &Arc<Self>,
        rights: Rights,
        ino: Ino,
        since: Instant,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        self.attributes_seen_by((rights, See::Again), ino, None, since, done);
    }

    fn attributes_seen_by(
        self: &Arc<Self>,
        (rights, see): (Rights, See),
        ino: Ino,
        handle: Option<HandleId>,
        since: Instant,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        if ino == ROOT {
            return self.root_attributes(rights, since, done);
        }
        // The kernel names no handle for an fstat(2); any open one will do.
        if handle.is_some_and(|handle| self.handles.file(handle).is_none()) {
            return done(Err(Errno::BADF));
        }
        let inode = self.handles.inode(ino);
        if let Some(writer) = inode.as_ref().and_then(|inode| inode.any_writer()) {
            return self.written_attributes(ino, writer, since, done);
        }
        // Where the kernel reads the file by itself, its attributes are to be of that file.
        let lent = inode.as_ref().and_then(|inode| inode.backing().cloned());
        let first = lent.as_ref().map(|backing| backing.replica);
        let open = inode.map(|inode| inode.current());
        let path = match (self.path(ino), open.clone()) {
            (Ok(path), _) => path,
            (Err(_), Some(open)) => return self.open_attributes(ino, open, since, done),
            (Err(errno), None) => return done(Err(errno)),
        };
        let (fs, at, asked) = (Arc::clone(self), path.clone(), self.now());
        // Then nothing is learned.
        let fallback = matches!(see, See::Again).then(|| (ReplicaId::new(0), None));
        let look = {
            let (fs, path) = (Arc::clone(self), path.clone());
            move |replica: ReplicaId, backend: &dyn Backend| {
                if let Some(backing) = lent.as_ref().filter(|backing| backing.replica == replica) {
                    let looked = open.as_ref().map(Looked::at).unwrap_or_default();
                    return Ok(Some((backing.attr()?, looked)));
                }
                let attr = match see {
                    See::Name | See::Again => {
                        fs.stat_as_known(ino, At { replica, backend, path: &path })?
                    }
                    See::Open => {
                        shown_at_open(&fs, (ino, &path), replica, backend, open.as_deref())?
                    }
                };
                Ok(Some((attr, fs.look_at_open(ino, replica, &attr))))
            }
        };
        let spot = self.spot_of(ino, &path).since(since);
        let spot = first.map_or(spot, |first| spot.first(first));
        let mine = rights.clone();
        self.caller.call_or(fallback, spot, mine, look, move |answer| {
            let same = |replica, attr: &Attr, looked: &Looked| {
                fs.inodes.lock().is_same(ino, replica, attr)
                    && fs.whose(ino, attr, looked) == Whose::Its
            };
            let open = fs.handles.inode(ino).map(|inode| inode.current());
            let found = match answer {
                Ok((_, None)) => return done(Err(BackendError::Late.into())),
                Ok((replica, Some(found))) => Ok((replica, found)),
                Err(error) => Err(error),
            };
            match (found, open) {
                (Ok((replica, _)), _) if fs.is_overtaken(replica, &at, ino) => {
                    fs.attributes_seen_by((rights, see), ino, handle, since, done);
                }
                (Ok((replica, (attr, looked))), _) if same(replica, &attr, &looked) => {
                    done(Ok(fs.seen(ino, attr, &looked, asked)));
                }
                // Its name is gone or stands for another file: ask the open one.
                (Ok(_), Some(open)) => fs.open_attributes(ino, open, since, done),
                (Ok(_), None) => done(Err(Errno::STALE)),
                (Err(BackendError::Os(E::NOENT | E::NOTDIR | E::LOOP | E::STALE)), Some(open)) => {
                    fs.open_attributes(ino, open, since, done);
                }
                (Err(error), _) => done(Err(error.into())),
            }
        });
    }

    /// The kernel is about to be told these attributes of an inode it knows.
    pub(super) fn seen(&self, ino: Ino, attr: Attr, looked: &Looked, asked: u64) -> Entry {
        self.learned(ino, &attr, looked, asked);
        Entry { ino, attr }
    }

    fn open_attributes(
        self: &Arc<Self>,
        ino: Ino,
        open: Arc<OpenFile>,
        since: Instant,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let (fs, asked, looked) = (Arc::clone(self), self.now(), Looked::at(&open));
        let write = self.policy.write.filter(|_| self.is_changed(ino)).map(|write| write.replica);
        let may_lag = move |replica| write.is_some_and(|write| write != replica);
        self.caller.call_by_replica(
            self.spot_of_open(ino, &open).since(since),
            Rights::Of(open.who()),
            move |replica, backend| {
                let attr = open.attr_on(replica, backend)?;
                match may_lag(replica) && open.is_after(&attr) {
                    true => Err(BackendError::Version),
                    false => Ok(attr),
                }
            },
            move |answer| {
                let seen = |(_, attr)| fs.seen(ino, attr, &looked, asked);
                done(answer.map_err(Errno::from).map(seen))
            },
        );
    }

    /// Attributes of a file that is open for writing.
    fn written_attributes(
        self: &Arc<Self>,
        ino: Ino,
        writer: Arc<Writer>,
        since: Instant,
        done: impl FnOnce(Answer<Entry>) + Send + 'static,
    ) {
        let Some(write) = self.policy.write else { return done(Err(Errno::ROFS)) };
        let once = Once {
            replica: write.replica,
            lane: Lane::Metadata,
            term: Term::new(since, self.policy.deadlines),
            rights: Rights::Of(writer.who.clone()),
        };
        let (fs, asked) = (Arc::clone(self), self.now());
        self.caller.call_once(
            once,
            move |_| writer.file.attr(),
            move |answer| {
                let seen = |attr| fs.seen(ino, attr, &Looked::default(), asked);
                done(answer.map_err(Errno::from).map(seen));
            },
        );
    }

    /// The kernel is about to be told `attr` of this inode: handles that have it
    /// open read that version from now on. Not so if it was changed here since they
    /// were asked for: then the kernel does not believe them either.
    pub(super) fn learned(&self, ino: Ino, attr: &Attr, looked: &Looked, asked: u64) {
        if attr.kind != FileKind::Regular {
            return;
        }
        // Before the handles: an open that begins meanwhile sees this, or is seen below.
        self.inodes.lock().told(ino, attr.version());
        let Some(open) = self.handles.inode(ino) else { return };
        open.gate.appends.lock().is_told(attr.size);
        let (mode, version) = (self.policy.mode, attr.version());
        let current = open.current();
        let (path, who) = (current.path().to_owned(), current.who());
        let retired = {
            // Held, so that opens and this are in one order for both tables.
            let mut inodes = self.inodes.lock();
            if !inodes.is_true(ino, asked) || self.whose(ino, attr, looked) != Whose::Its {
                return;
            }
            let retired = open.adopt(version, mode, || self.reader.file(path, version, mode, who));
            if retired.is_some() {
                inodes.moved_on(ino);
            }
            open.current().has_shown(attr);
            retired
        };
        if let Some(old) = retired {
            self.reader.retire(&old);
        }
    }
}
