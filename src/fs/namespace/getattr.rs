//! Attributes of inodes that the kernel knows.
//!
//! A replica is asked by path, or by an open file if the path is gone or leads to another file. To
//! follow a path takes a descriptor and a replica in service. If there is none, an open file that
//! still has its version shows its attributes, so that it stays readable.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno as E;

use super::Namespace;
use crate::backend::{Attr, Backend, BackendError, Lane, RequestContext};
use crate::fs::entry_name::InodeAttr;
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::OpenInode;
use crate::fs::ino::{Ino, ROOT};
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::{AttrOwner, OpenFileCheck, ReplicaPath, Tables};
use crate::fs::write_gate::Writer;
use crate::read::OpenFile;
use crate::replicas::metadata_client::{ChangeClass, Fallback, RunAs, SingleCall};
use crate::replicas::request_deadline::RequestDeadline;
use crate::volume::ReplicaId;

/// How attributes are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fs) enum AttrSource {
    /// By the path.
    Path,
    /// By an open. The attributes do not agree with the data, so a replica's mount may have older
    /// ones in its cache until it opens the file.
    Reopen,
    /// By the path, unless no replica answers soon. The file is open, and its reader does not wait
    /// for silent replicas, because the data may be in memory.
    PathOrTimeout,
}

/// A request for the attributes of an inode.
#[derive(Clone)]
pub(in crate::fs) struct AttrRequest {
    pub(in crate::fs) ino: Ino,
    pub(in crate::fs) run_as: RunAs,
    pub(in crate::fs) source: AttrSource,
    /// The deadline counts from this moment.
    pub(in crate::fs) since: Instant,
}

/// A replica's answer, and the state that it is compared with.
struct AttrAnswer {
    /// The replica, its attributes and how they agree with the open file.
    found: Result<(ReplicaId, (Attr, OpenFileCheck)), BackendError>,
    path: PathBuf,
    /// The number of changes before the replica was asked.
    asked: u64,
}

/// Attributes of the object at the path, as an open shows them: an NFS mount asks its server at an
/// open. If they are of the version of `open`, reads go to that replica again.
fn attr_by_reopen(
    tables: &Tables,
    ino: Ino,
    at: ReplicaPath<'_>,
    open: Option<&OpenFile>,
) -> Result<Attr, BackendError> {
    match tables.open_revalidated(ino, at) {
        Ok((file, attr)) => {
            if let Some(open) = open.filter(|open| open.is_version(&attr)) {
                open.record_verified_open(at.replica, file);
            }
            Ok(attr)
        }
        // The permissions may have changed since the file was opened.
        Err(BackendError::Os(E::ACCESS | E::PERM)) => at.backend.stat(at.path),
        Err(error) => Err(error),
    }
}

impl Namespace {
    /// An inode's attributes; through an open file if its name is gone.
    pub async fn getattr(
        &self,
        caller: RequestContext,
        ino: Ino,
        handle: Option<HandleId>,
    ) -> FsResult<InodeAttr> {
        let request = AttrRequest {
            ino,
            run_as: RunAs::DaemonThenCaller(caller),
            source: AttrSource::Path,
            since: Instant::now(),
        };
        let look_up = || self.getattr_with_handle(request.clone(), handle);
        match self.calls.with_rename_retry(&[ino], RetriedCall::Lookup, look_up).await {
            Err(errno) => {
                let removed_dir = self.tables.inodes.lock().removed_dir_attr(ino);
                removed_dir.map(|attr| InodeAttr { ino, attr }).ok_or(errno)
            }
            answer => self.calls.after_page_drops(answer).await,
        }
    }

    /// The same with the handle that the kernel has named. The kernel names none for an fstat(2),
    /// so any open handle serves.
    pub(in crate::fs) async fn getattr_with_handle(
        &self,
        request: AttrRequest,
        handle: Option<HandleId>,
    ) -> FsResult<InodeAttr> {
        if request.ino == ROOT {
            return self.getattr_root(request.run_as, request.since).await;
        }
        loop {
            if handle.is_some_and(|handle| self.tables.handles.file(handle).is_none()) {
                return Err(Errno::BADF);
            }
            if let Some(answer) = self.try_getattr(&request).await? {
                return Ok(answer);
            }
        }
    }

    /// The same without a handle.
    pub(in crate::fs) async fn getattr_as(&self, request: AttrRequest) -> FsResult<InodeAttr> {
        self.getattr_with_handle(request, None).await
    }

    /// The attributes; `None` if the answer is older than a change that was made here meanwhile.
    async fn try_getattr(&self, request: &AttrRequest) -> FsResult<Option<InodeAttr>> {
        let AttrRequest { ino, since, .. } = *request;
        let inode = self.tables.handles.find_inode(ino);
        if let Some(writer) = inode.as_ref().and_then(|inode| inode.any_writer()) {
            return self.getattr_by_writer(ino, writer, since).await.map(Some);
        }
        let open = inode.as_ref().map(|inode| inode.current());
        let path = match (self.tables.path(ino), open) {
            (Ok(path), _) => path,
            (Err(_), Some(open)) => {
                return self.getattr_by_open_file(ino, open, since).await.map(Some);
            }
            (Err(errno), None) => return Err(errno),
        };
        let answer = self.getattr_by_path(request, inode, path).await?;
        self.finish_getattr(request, answer).await
    }

    /// Asks a replica for the attributes of the object at the inode's path.
    async fn getattr_by_path(
        &self,
        request: &AttrRequest,
        inode: Option<Arc<OpenInode>>,
        path: PathBuf,
    ) -> FsResult<AttrAnswer> {
        let AttrRequest { ino, source, since, .. } = *request;
        let asked = self.tables.change_seq();
        // If the kernel reads the file by itself, the attributes must be those of that file.
        let backing = inode.as_ref().and_then(|inode| inode.backing().cloned());
        let mut target = self.calls.target_of_inode(ino, &path).requested_at(since);
        if let Some(backing) = &backing {
            target = target.preferring(backing.replica);
        }
        // With this answer fanfs learns nothing.
        let fallback =
            (source == AttrSource::PathOrTimeout).then(|| Fallback::Known(ReplicaId::new(0), None));
        let op = {
            let tables = Arc::clone(&self.tables);
            let path = path.clone();
            let open = inode.map(|inode| inode.current());
            move |replica: ReplicaId, backend: &dyn Backend| {
                if let Some(backing) = backing.as_ref().filter(|one| one.replica == replica) {
                    let check = open.as_ref().map(OpenFileCheck::matching).unwrap_or_default();
                    return Ok(Some((backing.attr()?, check)));
                }
                let at = ReplicaPath { replica, backend, path: &path };
                let attr = match source {
                    AttrSource::Path | AttrSource::PathOrTimeout => {
                        tables.stat_inode_revalidated(ino, at)?
                    }
                    AttrSource::Reopen => attr_by_reopen(&tables, ino, at, open.as_deref())?,
                };
                Ok(Some((attr, tables.check_open_file(ino, replica, &attr))))
            }
        };
        let run_as = request.run_as.clone();
        let found = match self.calls.client.call_with_fallback(fallback, target, run_as, op).await {
            Ok((_, None)) => return Err(BackendError::Late.into()),
            Ok((replica, Some(found))) => Ok((replica, found)),
            Err(error) => Err(error),
        };
        Ok(AttrAnswer { found, path, asked })
    }

    async fn finish_getattr(
        &self,
        request: &AttrRequest,
        answer: AttrAnswer,
    ) -> FsResult<Option<InodeAttr>> {
        let AttrRequest { ino, source, since, .. } = *request;
        let open = self.tables.handles.find_inode(ino).map(|inode| inode.current());
        let is_gone = match answer.found {
            Ok((replica, _)) if self.tables.is_possibly_stale(replica, &answer.path, ino) => {
                return Ok(None);
            }
            Ok((replica, (attr, check))) => {
                let is_same = self.tables.inodes.lock().is_same(ino, replica, &attr)
                    && self.tables.attr_owner(ino, &attr, &check) == AttrOwner::OpenFile;
                if is_same {
                    return Ok(Some(self.tables.attr_reply(ino, attr, &check, answer.asked)));
                }
                Errno::STALE
            }
            Err(error @ BackendError::Os(E::NOENT | E::NOTDIR | E::LOOP | E::STALE)) => {
                error.into()
            }
            Err(error) if error.prevents_lookups() && source != AttrSource::PathOrTimeout => {
                let attr = self.getattr_by_descriptor(ino, since).await;
                return attr.map(Some).ok_or(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        // The name is gone or leads to another file, so the open file is asked.
        match open {
            Some(open) => self.getattr_by_open_file(ino, open, since).await.map(Some),
            None => Err(is_gone),
        }
    }

    async fn getattr_by_open_file(
        &self,
        ino: Ino,
        open: Arc<OpenFile>,
        since: Instant,
    ) -> FsResult<InodeAttr> {
        let asked = self.tables.change_seq();
        let check = OpenFileCheck::matching(&open);
        let target = self.calls.target_of_open(ino, &open).requested_at(since);
        let run_as = RunAs::Only(open.credentials());
        let write = self.tables.policy.write.filter(|_| self.tables.is_recently_changed(ino));
        let may_lag = move |replica| write.is_some_and(|write| write.replica != replica);
        let stat = move |replica: ReplicaId, backend: &dyn Backend| {
            let attr = open.attr_on(replica, backend)?;
            match may_lag(replica) && open.is_newer_than(&attr) {
                true => Err(BackendError::VersionMismatch),
                false => Ok(attr),
            }
        };
        let (_, attr) = self.calls.client.call(target, run_as, stat).await?;
        Ok(self.tables.attr_reply(ino, attr, &check, asked))
    }

    /// Attributes of an open file that still has its version, from a replica that has it open: this
    /// takes no other descriptor. `None` if no replica shows them, or if this mount has changed the
    /// file recently: then replicas may differ.
    async fn getattr_by_descriptor(&self, ino: Ino, since: Instant) -> Option<InodeAttr> {
        let open = self.tables.handles.find_inode(ino)?.current();
        let asked = self.tables.change_seq();
        let holders = open.replicas_with_descriptor();
        if holders.is_empty() || self.tables.is_recently_changed(ino) {
            return None;
        }
        let usable = holders.and(self.calls.replicas.availability().usable);
        let order = usable.iter().chain(holders.minus(usable).iter()).collect();
        let check = OpenFileCheck::matching(&open);
        let target = self.calls.target(open.path()).requested_at(since);
        let run_as = RunAs::Only(open.credentials());
        let stat = move |replica: ReplicaId, _: &dyn Backend| {
            let attr = open.descriptor_on(replica).ok_or(E::BADF)?.attr()?;
            match open.is_version(&attr) {
                true => Ok(attr),
                false => Err(BackendError::VersionMismatch),
            }
        };
        let (_, attr) = self.calls.client.call_in_order(order, target, run_as, stat).await.ok()?;
        let is_unchanged = self.tables.inodes.lock().is_unchanged_since(ino, asked);
        is_unchanged.then(|| self.tables.attr_reply(ino, attr, &check, asked))
    }

    /// Attributes of a file that is open for writing.
    async fn getattr_by_writer(
        &self,
        ino: Ino,
        writer: Arc<Writer>,
        since: Instant,
    ) -> FsResult<InodeAttr> {
        let once = SingleCall {
            replica: self.tables.write_policy()?.replica,
            class: ChangeClass::Flush,
            lane: Lane::Metadata,
            deadline: RequestDeadline::new(since, self.tables.policy.deadlines),
            run_as: RunAs::Only(writer.credentials.clone()),
        };
        let asked = self.tables.change_seq();
        let attr = self.calls.client.call_once(once, move |_| writer.file.attr()).await?;
        Ok(self.tables.attr_reply(ino, attr, &OpenFileCheck::default(), asked))
    }
}
