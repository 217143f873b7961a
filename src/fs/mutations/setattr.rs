//! Sets attributes: through a descriptor that may write, if there is one; else by path if the inode
//! has a name, else through any descriptor.

use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno as E;

use super::Mutations;
use super::entries::change_returning_attr;
use crate::backend::{
    Attr, Backend, BackendError, BackendFile, Credentials, FileMutation, Lane, ObjectRef,
    OpenAccess, RequestContext, SetAttr, SyncMode, TreeMutation, WriteOpenOptions,
};
use crate::fs::entry_name::InodeAttr;
use crate::fs::error::{Errno, FsResult};
use crate::fs::handle_id::HandleId;
use crate::fs::handles::OpenInode;
use crate::fs::ino::Ino;
use crate::fs::open_files::{OpenForWrite, WriteHandle};
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::OpenFileCheck;
use crate::fs::write_gate::{MutationGuard, Writer};
use crate::read::OpenFile;
use crate::replicas::metadata_client::ChangeClass;
use crate::telemetry::counters::increment;

/// A request to set attributes of an inode.
#[derive(Clone)]
struct SetAttrRequest {
    ino: Ino,
    credentials: Credentials,
    attributes: SetAttr,
    /// Whether the kernel sends the request again.
    is_resent: bool,
    /// The kernel's number of the request.
    request: u64,
}

/// Finds the descriptor to set attributes through, inside the call.
type FindFile =
    Box<dyn Fn(&dyn Backend) -> crate::backend::Result<Arc<dyn BackendFile>> + Send + Sync>;

impl SetAttrRequest {
    /// Whether nothing is set. A chown(2) that changes nothing looks like this, and so does the
    /// request that the kernel sends before a write that removes set-id bits. The writer may lack
    /// permission to change attributes; the write itself removes the bits.
    fn is_before_write(&self) -> bool {
        self.attributes == SetAttr::default()
    }
}

impl Mutations {
    /// Sets attributes; through `handle` if it may write.
    pub async fn setattr(
        &self,
        caller: RequestContext,
        ino: Ino,
        handle: Option<HandleId>,
        attributes: SetAttr,
    ) -> FsResult<InodeAttr> {
        let is_truncation = attributes.size.is_some();
        let set = || {
            let request = SetAttrRequest {
                ino,
                credentials: caller.credentials(),
                attributes,
                is_resent: caller.is_resent,
                request: caller.request,
            };
            self.try_setattr(request, handle)
        };
        let answer = self.calls.with_rename_retry(&[ino], RetriedCall::Mutation, set).await;
        match is_truncation {
            true => self.calls.after_page_drops_or_soon(answer).await,
            false => self.calls.after_page_drops(answer).await,
        }
    }

    async fn try_setattr(
        &self,
        request: SetAttrRequest,
        handle: Option<HandleId>,
    ) -> FsResult<InodeAttr> {
        self.calls.change_policy()?;
        let ino = request.ino;
        let is_truncation = request.attributes.size.is_some();
        self.tables.record_inode_change(ino);
        let open = self.tables.handles.find_inode(ino);
        if let (Some(size), Some(inode)) = (request.attributes.size, &open) {
            inode.gate.appends.lock().truncate_to(size);
        }
        let writer = match handle {
            Some(handle) => self.tables.handles.file(handle).ok_or(Errno::BADF)?.writer.clone(),
            None => None,
        };
        // A descriptor that must be opened first has no advantage over the path.
        let is_usable = |writer: &Arc<Writer>| is_truncation || !writer.file.is_deferred();
        let writer = writer.filter(is_usable);
        let other_writer = || match is_truncation {
            // When the kernel truncates a file that was just opened, it names no handle. Only the
            // opener's descriptor may be used: the kernel has checked the right to write at its
            // open.
            true => open.as_ref()?.writer_of(&request.credentials),
            // The right to change attributes does not depend on how the file was opened.
            false => open.as_ref()?.any_writer().filter(is_usable),
        };
        let writer = writer.or_else(other_writer);
        let path = self.tables.path(ino);
        match (open, writer, path) {
            (Some(inode), Some(writer), Ok(path)) if !is_truncation => {
                let answer = self.setattr_by_writer(request.clone(), inode, &writer).await;
                match answer {
                    // The server has lost this descriptor. The path may still lead to the file.
                    Err(Errno::STALE) => self.setattr_by_path(request, path).await,
                    answer => answer,
                }
            }
            (Some(inode), Some(writer), _) => self.setattr_by_writer(request, inode, &writer).await,
            (_, _, Ok(path)) => self.setattr_by_path(request, path).await,
            (Some(inode), _, Err(_)) => self.setattr_unlinked(request, inode).await,
            (None, _, Err(errno)) => Err(errno),
        }
    }

    /// Sets attributes of the object at the inode's last known path.
    async fn setattr_by_path(&self, request: SetAttrRequest, path: PathBuf) -> FsResult<InodeAttr> {
        let write = self.tables.write_policy()?;
        let SetAttrRequest { ino, attributes, .. } = request;
        let open = self.tables.handles.find_inode(ino);
        if attributes.size.is_some() && open.is_some() {
            return self.truncate_open_file(request, path).await;
        }
        let gate = self.tables.handles.gate(ino);
        let guard = gate.start_mutation(request.is_resent).ok_or(Errno::IO)?;
        let object = self.tables.inode_at(ino, path).target_on(write.replica);
        let is_before_write = request.is_before_write() && self.tables.is_open_for_write(ino);
        let set = set_attr_op(object, attributes, Arc::clone(&guard), is_before_write);
        let mut once = self.calls.single_call(write, Lane::Metadata, &request.credentials);
        once.class = guard.class(ChangeClass::Flush);
        let answer = self.calls.client.call_once(once, set).await;
        guard.finish(&answer);
        drop(guard);
        match (answer, open) {
            // The name leads to another file by now, or to none. The replica changed nothing.
            (
                Err(BackendError::WrongObject | BackendError::Os(E::STALE | E::NOENT)),
                Some(inode),
            ) => self.setattr_unlinked(request, inode).await,
            (answer, _) => self.finish_setattr(ino, attributes, answer),
        }
    }

    /// Sets attributes of an open file that has no name any more.
    async fn setattr_unlinked(
        &self,
        request: SetAttrRequest,
        inode: Arc<OpenInode>,
    ) -> FsResult<InodeAttr> {
        let write = self.tables.write_policy()?;
        if let Some(writer) = inode.any_writer() {
            return self.setattr_by_writer(request, inode, &writer).await;
        }
        let current = inode.current();
        let file = move |backend: &dyn Backend| current.open_unchecked(write.replica, backend);
        self.setattr_open_file(request, inode, Box::new(file)).await
    }

    /// Finishes a setattr: updates the tables, and makes the reply.
    fn finish_setattr(
        &self,
        ino: Ino,
        set: SetAttr,
        answer: crate::backend::Result<Attr>,
    ) -> FsResult<InodeAttr> {
        self.tables.record_inode_change(ino);
        increment(&self.counters.changes);
        let change = self.tables.next_change_seq();
        self.tables.inodes.lock().mark_changed(ino, change);
        let is_same_data = set.size.is_none() && set.mtime.is_none();
        if set.size.is_some()
            && answer.as_ref().is_err_and(|error| !error.is_refusal())
            && let Some(open) = self.tables.handles.find_inode(ino)
        {
            // It may still be made.
            open.mark_unconfirmed();
        }
        if let (Ok(attr), Some(open), true) =
            (&answer, self.tables.handles.find_inode(ino), is_same_data)
        {
            let version = attr.version();
            let mode = self.tables.policy.mode;
            let make = |old: &OpenFile| {
                self.tables.reader.new_open_file(
                    old.path().to_owned(),
                    version,
                    mode,
                    old.credentials(),
                )
            };
            if let Some(old) = open.adopt_metadata_change(version, make) {
                self.tables.reader.retire_file(&old);
            }
        }
        Ok(self.tables.attr_reply(ino, answer?, &OpenFileCheck::default(), change))
    }

    /// Sets attributes through a descriptor that may write.
    async fn setattr_by_writer(
        &self,
        request: SetAttrRequest,
        inode: Arc<OpenInode>,
        writer: &Writer,
    ) -> FsResult<InodeAttr> {
        let file = Arc::clone(&writer.file);
        let file = move |_: &dyn Backend| Ok(Arc::clone(&file));
        self.setattr_open_file(request, inode, Box::new(file)).await
    }

    /// Sets attributes of an open file.
    async fn setattr_open_file(
        &self,
        request: SetAttrRequest,
        inode: Arc<OpenInode>,
        file: FindFile,
    ) -> FsResult<InodeAttr> {
        let write = self.tables.write_policy()?;
        let guard = inode.gate.start_mutation(request.is_resent).ok_or(Errno::IO)?;
        let is_before_write = request.is_before_write() && inode.has_writers();
        let SetAttrRequest { ino, attributes, .. } = request;
        let own_guard = Arc::clone(&guard);
        let set = move |backend: &dyn Backend| {
            let file = file(backend)?;
            let _exclusive =
                if attributes.size.is_some() { Some(own_guard.lock_exclusive()?) } else { None };
            match file.mutate(&FileMutation::SetAttr(attributes)) {
                Err(BackendError::Os(E::PERM)) if is_before_write => {}
                set => drop(set?),
            }
            file.attr()
        };
        let mut once = self.calls.single_call(write, Lane::Metadata, &request.credentials);
        once.class = guard.class(ChangeClass::Flush);
        let answer = self.calls.client.call_once(once, set).await;
        guard.finish(&answer);
        self.finish_setattr(ino, attributes, answer)
    }

    /// truncate(2) of a file that is open: opens it for writing, truncates and closes it, so that
    /// concurrent readers do not get a mixture.
    async fn truncate_open_file(
        &self,
        request: SetAttrRequest,
        path: PathBuf,
    ) -> FsResult<InodeAttr> {
        let opened = OpenForWrite {
            ino: request.ino,
            credentials: request.credentials.clone(),
            options: WriteOpenOptions {
                access: OpenAccess::Write,
                truncate: false,
                sync: SyncMode::No,
                expected: None,
            },
            is_resent: request.is_resent,
            request: request.request,
        };
        let WriteHandle { handle, inode, writer } =
            self.open_files.open_writer(opened, path).await?;
        let answer = self.setattr_by_writer(request, inode, &writer).await;
        self.open_files.release(handle);
        answer
    }
}

/// The operation of the write replica that sets attributes of an object.
fn set_attr_op(
    object: ObjectRef,
    attributes: SetAttr,
    guard: Arc<MutationGuard>,
    is_before_write: bool,
) -> impl Fn(&dyn Backend) -> crate::backend::Result<Attr> + Send + Sync + 'static {
    let mutation = TreeMutation::SetAttr { object: object.clone(), attributes };
    move |backend| {
        let _exclusive =
            if attributes.size.is_some() { Some(guard.lock_exclusive()?) } else { None };
        match change_returning_attr(backend, &mutation) {
            Err(BackendError::Os(E::PERM)) if is_before_write => {
                let attr = backend.stat(object.path())?;
                object.check_identity(&attr)?;
                Ok(attr)
            }
            made => made,
        }
    }
}
