//! Attributes of inodes that the kernel knows.
//!
//! The name is looked at, or the open file where the name is gone or is another file's.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno as E;

use super::file_replacement::{AttrOwner, OpenFileCheck};
use super::metadata_client::{RunAs, SingleCall};
use super::name_freshness::ReplicaPath;
use super::write_gate::Writer;
use super::{Errno, Fs, FsResult, HandleId, Ino, InodeAttr, ROOT};
use crate::backend::{Attr, Backend, BackendError, FileKind, Lane, RequestContext};
use crate::read::{OpenFile, RequestDeadline};
use crate::volume::ReplicaId;

/// How attributes are looked at.
#[derive(Clone, Copy, Debug)]
enum AttrSource {
    /// By the name.
    Path,
    /// By an open.
    Reopen,
    /// By the name, for a file that is open, unless no replica answers soon.
    PathOrTimeout,
}

/// Attributes of what is at `path`, as an open shows them: an NFS mount asks the server for
/// them then. Where they are of the version that `open` is at, reads go to that replica
/// again.
fn attr_by_reopen(
    fs: &Fs,
    (ino, path): (Ino, &Path),
    replica: ReplicaId,
    backend: &dyn Backend,
    open: Option<&OpenFile>,
) -> Result<Attr, BackendError> {
    match fs.open_revalidated(ino, ReplicaPath { replica, backend, path }) {
        Ok((file, attr)) => {
            if let Some(open) = open.filter(|open| open.is_version(&attr)) {
                open.record_verified_open(replica, file);
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
    pub fn getattr(
        self: &Arc<Self>,
        who: RequestContext,
        ino: Ino,
        handle: Option<HandleId>,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let since = Instant::now();
        let look = move |fs: &Arc<Self>, done| {
            fs.getattr_as(RunAs::DaemonThenCaller(who), ino, handle, since, done);
        };
        let fs = Arc::clone(self);
        self.call_with_rename_retry((&[ino], false), look, move |answer| {
            let removed =
                |_| fs.inodes.lock().removed_dir_attr(ino).map(|attr| InodeAttr { ino, attr });
            done(answer.or_else(|errno| removed(errno).ok_or(errno)));
        });
    }

    /// The deadline counts from `since`.
    pub(super) fn getattr_as(
        self: &Arc<Self>,
        rights: RunAs,
        ino: Ino,
        handle: Option<HandleId>,
        since: Instant,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        self.getattr_from((rights, AttrSource::Path), ino, handle, since, done);
    }

    /// The same for a file whose attributes do not agree with its data: a replica's mount
    /// may believe older ones, until the file is opened.
    pub(super) fn getattr_by_reopen(
        self: &Arc<Self>,
        rights: RunAs,
        ino: Ino,
        since: Instant,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        self.getattr_from((rights, AttrSource::Reopen), ino, None, since, done);
    }

    /// The same for a file that is open and was not looked at for a while. A reader does not
    /// wait for replicas that are silent: what it wants may be in memory.
    pub(super) fn revalidate_attrs(
        self: &Arc<Self>,
        rights: RunAs,
        ino: Ino,
        since: Instant,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        self.getattr_from((rights, AttrSource::PathOrTimeout), ino, None, since, done);
    }

    fn getattr_from(
        self: &Arc<Self>,
        (rights, see): (RunAs, AttrSource),
        ino: Ino,
        handle: Option<HandleId>,
        since: Instant,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        if ino == ROOT {
            return self.getattr_root(rights, since, done);
        }
        // The kernel names no handle for an fstat(2); any open one will do.
        if handle.is_some_and(|handle| self.handles.file(handle).is_none()) {
            return done(Err(Errno::BADF));
        }
        let inode = self.handles.find_inode(ino);
        if let Some(writer) = inode.as_ref().and_then(|inode| inode.any_writer()) {
            return self.getattr_by_writer(ino, writer, since, done);
        }
        // Where the kernel reads the file by itself, its attributes are to be of that file.
        let lent = inode.as_ref().and_then(|inode| inode.backing().cloned());
        let first = lent.as_ref().map(|backing| backing.replica);
        let open = inode.map(|inode| inode.current());
        let path = match (self.path(ino), open.clone()) {
            (Ok(path), _) => path,
            (Err(_), Some(open)) => return self.getattr_by_open_file(ino, open, since, done),
            (Err(errno), None) => return done(Err(errno)),
        };
        let (fs, at, asked) = (Arc::clone(self), path.clone(), self.change_seq());
        // Then nothing is learned.
        let fallback = matches!(see, AttrSource::PathOrTimeout).then(|| (ReplicaId::new(0), None));
        let look = {
            let (fs, path) = (Arc::clone(self), path.clone());
            move |replica: ReplicaId, backend: &dyn Backend| {
                if let Some(backing) = lent.as_ref().filter(|backing| backing.replica == replica) {
                    let looked = open.as_ref().map(OpenFileCheck::matching).unwrap_or_default();
                    return Ok(Some((backing.attr()?, looked)));
                }
                let attr = match see {
                    AttrSource::Path | AttrSource::PathOrTimeout => fs.stat_inode_revalidated(
                        ino,
                        ReplicaPath { replica, backend, path: &path },
                    )?,
                    AttrSource::Reopen => {
                        attr_by_reopen(&fs, (ino, &path), replica, backend, open.as_deref())?
                    }
                };
                Ok(Some((attr, fs.check_open_file(ino, replica, &attr))))
            }
        };
        let spot = self.call_target_of_inode(ino, &path).requested_at(since);
        let spot = first.map_or(spot, |first| spot.preferring(first));
        let mine = rights.clone();
        self.client.call_with_fallback(fallback, spot, mine, look, move |answer| {
            let same = |replica, attr: &Attr, looked: &OpenFileCheck| {
                fs.inodes.lock().is_same(ino, replica, attr)
                    && fs.attr_owner(ino, attr, looked) == AttrOwner::OpenFile
            };
            let open = fs.handles.find_inode(ino).map(|inode| inode.current());
            let found = match answer {
                Ok((_, None)) => return done(Err(BackendError::Late.into())),
                Ok((replica, Some(found))) => Ok((replica, found)),
                Err(error) => Err(error),
            };
            match (found, open) {
                (Ok((replica, _)), _) if fs.is_possibly_stale(replica, &at, ino) => {
                    fs.getattr_from((rights, see), ino, handle, since, done);
                }
                (Ok((replica, (attr, looked))), _) if same(replica, &attr, &looked) => {
                    done(Ok(fs.attr_reply(ino, attr, &looked, asked)));
                }
                // Its name is gone or stands for another file: ask the open one.
                (Ok(_), Some(open)) => fs.getattr_by_open_file(ino, open, since, done),
                (Ok(_), None) => done(Err(Errno::STALE)),
                (Err(BackendError::Os(E::NOENT | E::NOTDIR | E::LOOP | E::STALE)), Some(open)) => {
                    fs.getattr_by_open_file(ino, open, since, done);
                }
                (Err(error), _) => done(Err(error.into())),
            }
        });
    }

    /// The kernel is about to be told these attributes of an inode it knows.
    pub(super) fn attr_reply(
        &self,
        ino: Ino,
        attr: Attr,
        looked: &OpenFileCheck,
        asked: u64,
    ) -> InodeAttr {
        self.apply_attrs(ino, &attr, looked, asked);
        InodeAttr { ino, attr }
    }

    fn getattr_by_open_file(
        self: &Arc<Self>,
        ino: Ino,
        open: Arc<OpenFile>,
        since: Instant,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let (fs, asked, looked) =
            (Arc::clone(self), self.change_seq(), OpenFileCheck::matching(&open));
        let write =
            self.policy.write.filter(|_| self.is_recently_changed(ino)).map(|write| write.replica);
        let may_lag = move |replica| write.is_some_and(|write| write != replica);
        self.client.call_by_replica(
            self.call_target_of_open(ino, &open).requested_at(since),
            RunAs::Only(open.credentials()),
            move |replica, backend| {
                let attr = open.attr_on(replica, backend)?;
                match may_lag(replica) && open.is_newer_than(&attr) {
                    true => Err(BackendError::VersionMismatch),
                    false => Ok(attr),
                }
            },
            move |answer| {
                let seen = |(_, attr)| fs.attr_reply(ino, attr, &looked, asked);
                done(answer.map_err(Errno::from).map(seen))
            },
        );
    }

    /// Attributes of a file that is open for writing.
    fn getattr_by_writer(
        self: &Arc<Self>,
        ino: Ino,
        writer: Arc<Writer>,
        since: Instant,
        done: impl FnOnce(FsResult<InodeAttr>) + Send + 'static,
    ) {
        let Some(write) = self.policy.write else { return done(Err(Errno::ROFS)) };
        let once = SingleCall {
            replica: write.replica,
            lane: Lane::Metadata,
            deadline: RequestDeadline::new(since, self.policy.deadlines),
            run_as: RunAs::Only(writer.credentials.clone()),
        };
        let (fs, asked) = (Arc::clone(self), self.change_seq());
        self.client.call_once(
            once,
            move |_| writer.file.attr(),
            move |answer| {
                let seen = |attr| fs.attr_reply(ino, attr, &OpenFileCheck::default(), asked);
                done(answer.map_err(Errno::from).map(seen));
            },
        );
    }

    /// The kernel is about to be told `attr` of this inode: handles that have it
    /// open read that version from now on. Not so if it was changed here since they
    /// were asked for: then the kernel does not believe them either.
    pub(super) fn apply_attrs(&self, ino: Ino, attr: &Attr, looked: &OpenFileCheck, asked: u64) {
        if attr.kind != FileKind::Regular {
            return;
        }
        // Before the handles: an open that begins meanwhile sees this, or is seen below.
        self.inodes.lock().record_kernel_attrs(ino, attr.version());
        let Some(open) = self.handles.find_inode(ino) else { return };
        open.gate.appends.lock().raise_kernel_end(attr.size);
        let (mode, version) = (self.policy.mode, attr.version());
        let current = open.current();
        let (path, who) = (current.path().to_owned(), current.credentials());
        let retired = {
            // Held, so that opens and this are in one order for both tables.
            let mut inodes = self.inodes.lock();
            if !inodes.is_unchanged_since(ino, asked)
                || self.attr_owner(ino, attr, looked) != AttrOwner::OpenFile
            {
                return;
            }
            let retired = open.adopt_version(version, mode, || {
                self.reader.new_open_file(path, version, mode, who)
            });
            if retired.is_some() {
                inodes.mark_cache_mixed(ino);
            }
            open.current().set_last_attr(attr);
            retired
        };
        if let Some(old) = retired {
            self.reader.retire_file(&old);
        }
    }
}
