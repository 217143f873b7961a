//! Creates and removes names.
//!
//! *Invariant:* before a file that is open here loses a name, the write replica has it open too. On
//! NFS this keeps the file readable: until it is closed, the client renames it to `.nfs...` instead
//! of removing it.

use std::sync::Arc;

use super::Mutations;
use crate::backend::{
    Attr, Backend, BackendError, EntryRef, FileKind, Lane, ObjectRef, RequestContext, TreeMutation,
};
use crate::buffer::Reservation;
use crate::fs::entry_name::{EntryName, InodeAttr, ReplicaAttr};
use crate::fs::error::FsResult;
use crate::fs::handles::OpenInode;
use crate::fs::ino::Ino;
use crate::fs::inodes::{Inodes, LinkRemoval};
use crate::fs::payload_budget::Charge;
use crate::fs::recent_changes::ChangeScope;
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::{OpenFileCheck, Tables};
use crate::telemetry::counters::increment;
use crate::volume::ReplicaId;

/// As the change count of an object that was just made here: its answer never counts as out of
/// date. If the daemon rejected the answer, the kernel would repeat the request.
pub(super) const ALWAYS_CURRENT: u64 = u64::MAX;

impl Mutations {
    /// Makes an object with a name; `mutation` says which.
    pub async fn make_entry(
        &self,
        caller: RequestContext,
        at: EntryName<'_>,
        mutation: impl Fn(EntryRef) -> TreeMutation + Send + Sync,
    ) -> FsResult<InodeAttr> {
        let make = || self.try_make_entry(caller, at, &mutation);
        let answer = self.calls.with_rename_retry(&[at.parent], RetriedCall::Mutation, make).await;
        self.calls.after_page_drops(answer).await
    }

    async fn try_make_entry(
        &self,
        caller: RequestContext,
        at: EntryName<'_>,
        mutation: impl FnOnce(EntryRef) -> TreeMutation + Send,
    ) -> FsResult<InodeAttr> {
        let write = self.calls.change_policy()?;
        let entry = self.tables.entry_ref(at.parent, at.name)?;
        let path = entry.path();
        let mutation = mutation(entry.name_on(write.replica));
        let is_new = !matches!(mutation, TreeMutation::Link { .. });
        let scope = match mutation {
            TreeMutation::Mkdir { .. } => ChangeScope::Subtree,
            _ => ChangeScope::Object,
        };
        self.tables.record_name_change(&path, scope);
        let once = self.calls.single_call(write, Lane::Metadata, &caller.credentials());
        let make = move |backend: &dyn Backend| change_returning_attr(backend, &mutation);
        let answer = self.calls.client.call_once(once, make).await;
        self.tables.record_name_change(&path, scope);
        increment(&self.counters.changes);
        let attr = answer?;
        if is_new {
            self.wait_for_kernel_forget(at, write.replica, attr).await;
        }
        let found = ReplicaAttr { replica: write.replica, attr: &attr };
        let check = OpenFileCheck::default();
        self.namespace.entry_reply(at, found, &check, ALWAYS_CURRENT, caller.request)
    }

    /// Waits until the kernel has forgotten the object that had the number of `attr` before; `attr`
    /// belong to an object that was just made. The kernel is about to forget the old object. The
    /// replica has freed the number, so the reply to the removal is sent or about to be. If the
    /// kernel learned of the new object first, the removal would take a link from the new one.
    pub(super) async fn wait_for_kernel_forget(
        &self,
        at: EntryName<'_>,
        replica: ReplicaId,
        attr: Attr,
    ) {
        let parent = at.parent;
        let name = at.name.to_owned();
        let is_taken = move |tables: &Tables| {
            let at = EntryName { parent, name: &name };
            tables.inodes.lock().is_ino_in_use(at, ReplicaAttr { replica, attr: &attr })
        };
        self.calls.wait_while(is_taken).await;
    }

    /// Gives an inode one more name.
    pub async fn link(
        &self,
        caller: RequestContext,
        ino: Ino,
        at: EntryName<'_>,
    ) -> FsResult<InodeAttr> {
        let link = || self.try_link(caller, ino, at);
        let answer =
            self.calls.with_rename_retry(&[ino, at.parent], RetriedCall::Mutation, link).await;
        self.calls.after_page_drops(answer).await
    }

    async fn try_link(
        &self,
        caller: RequestContext,
        ino: Ino,
        at: EntryName<'_>,
    ) -> FsResult<InodeAttr> {
        let write = self.calls.change_policy()?;
        let from = self.tables.inode_ref(ino)?.target_on(write.replica);
        self.tables.record_inode_change(ino);
        let link = move |to| TreeMutation::Link { from, to };
        let answer = self.try_make_entry(caller, at, link).await;
        self.tables.record_inode_change(ino);
        answer
    }

    /// Waits until the file, which is about to lose a name, is closed, if that is likely to happen
    /// soon. The kernel reports the last close shortly after it. A file that is open when it is
    /// removed leaves a `.nfs...` file, and its directory is then not empty.
    pub(super) async fn wait_for_pending_close(&self, at: EntryName<'_>) {
        let Some(ino) = self.tables.inodes.lock().child(at.parent, at.name) else { return };
        self.calls.wait_while(move |tables| tables.handles.is_closing_soon(ino)).await;
    }

    /// Removes the name of a directory (`is_dir`), or of any other object.
    pub async fn unlink_or_rmdir(
        &self,
        caller: RequestContext,
        at: EntryName<'_>,
        is_dir: bool,
    ) -> FsResult<()> {
        self.wait_for_pending_close(at).await;
        let remove = || self.try_unlink_or_rmdir(caller, at, is_dir);
        self.calls.with_rename_retry(&[at.parent], RetriedCall::Mutation, remove).await
    }

    async fn try_unlink_or_rmdir(
        &self,
        caller: RequestContext,
        at: EntryName<'_>,
        is_dir: bool,
    ) -> FsResult<()> {
        let write = self.calls.change_policy()?;
        let entry = self.tables.entry_ref(at.parent, at.name)?;
        let path = entry.path();
        let target = entry.name_on(write.replica);
        let ino = self.tables.inodes.lock().child(at.parent, at.name);
        let scope = if is_dir { ChangeScope::Subtree } else { ChangeScope::Object };
        self.tables.record_name_change(&path, scope);
        let open = ino.and_then(|ino| self.tables.handles.find_inode(ino));
        let once = self.calls.single_call(write, Lane::Metadata, &caller.credentials());
        let remove = move |backend: &dyn Backend| {
            let removed = prepare_removal(backend, write.replica, &target, open.as_deref())?;
            backend.mutate(&match is_dir {
                true => TreeMutation::Rmdir { at: target.clone() },
                false => TreeMutation::Unlink { at: target.clone() },
            })?;
            Ok(removed)
        };
        // A call below the directory waits meanwhile, and then finds the directory's new state.
        let _rename = is_dir.then(|| self.calls.renames.start(path.clone(), path.clone()));
        let answer = self.calls.client.call_once(once, remove).await;
        self.tables.record_name_change(&path, scope);
        if let Some(ino) = ino {
            self.tables.record_inode_change(ino);
        }
        increment(&self.counters.changes);
        let removal = answer?;
        let change = self.tables.next_change_seq();
        let mut inodes = self.tables.inodes.lock();
        self.apply_removal(&mut inodes, at, ino, removal, change);
        Ok(())
    }

    /// Records in the tables that an inode has lost a name on the write replica, by change number
    /// `change`.
    pub(super) fn apply_removal(
        &self,
        inodes: &mut Inodes,
        at: EntryName<'_>,
        ino: Option<Ino>,
        pending: PendingRemoval,
        change: u64,
    ) {
        let is_open = || ino.is_some_and(|ino| self.tables.handles.find_inode(ino).is_some());
        let left = match pending.removal {
            // The last handle was closed meanwhile.
            LinkRemoval::StillOpen if !is_open() => LinkRemoval::ObjectRemoved,
            left => left,
        };
        let dir = pending.dir_attr.and_then(|attr| Some((ino?, attr)));
        let dir = dir.filter(|(ino, attr)| inodes.is_same(*ino, pending.replica, attr));
        inodes.remove_link(at, ino, left, change);
        if let Some((ino, attr)) = dir {
            inodes.set_removed_dir_attr(ino, attr);
        }
    }

    /// Changes an inode; `mutation` says how. `charge` is held until the change has ended.
    pub(super) async fn change_inode(
        &self,
        caller: RequestContext,
        ino: Ino,
        lane: Lane,
        charge: Option<(Charge, Reservation)>,
        mutation: impl Fn(ObjectRef) -> TreeMutation + Send + Sync,
    ) -> FsResult<()> {
        let charge = Arc::new(charge);
        let change = || async {
            let write = self.calls.change_policy()?;
            let mutation = mutation(self.tables.inode_ref(ino)?.target_on(write.replica));
            self.tables.record_inode_change(ino);
            let once = self.calls.single_call(write, lane, &caller.credentials());
            let charge = Arc::clone(&charge);
            let change = move |backend: &dyn Backend| {
                let answer = backend.mutate(&mutation).map(drop);
                if let Some((charge, _)) = &*charge {
                    charge.record_completion();
                }
                answer
            };
            let answer = self.calls.client.call_once(once, change).await;
            self.tables.record_inode_change(ino);
            increment(&self.counters.changes);
            self.payload_budget.serve_waiting_reads_after_reply();
            Ok(answer?)
        };
        self.calls.with_rename_retry(&[ino], RetriedCall::Mutation, change).await
    }
}

/// Makes a change that returns attributes.
pub(super) fn change_returning_attr(
    backend: &dyn Backend,
    change: &TreeMutation,
) -> crate::backend::Result<crate::backend::Attr> {
    backend.mutate(change)?.ok_or(BackendError::Os(rustix::io::Errno::IO))
}

#[derive(Clone, Copy)]
pub(super) struct PendingRemoval {
    /// The write replica, which removes the name.
    pub(super) replica: ReplicaId,
    /// The rest of the object: a file that is still open, or nothing.
    pub(super) removal: LinkRemoval,
    /// Its attributes, if it is a directory.
    pub(super) dir_attr: Option<Attr>,
}

/// Determines the rest of the object that loses `name`. A file that is open here is opened
/// on the write replica as well, so it stays readable.
pub(super) fn prepare_removal(
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
        // Another directory has the path: nothing must be removed there.
        Err(BackendError::WrongObject) => return Err(BackendError::WrongObject),
        Err(_) => false,
    };
    if let Some(inode) = open {
        // If this open fails, descriptors on other replicas have to suffice. A writer has the file
        // open too, but only until that handle is closed.
        let _ = inode.current().open_unchecked(replica, backend);
    }
    let left = match (is_last, open) {
        (false, _) => LinkRemoval::OtherLinksLeft,
        (true, Some(_)) => LinkRemoval::StillOpen,
        (true, None) => LinkRemoval::ObjectRemoved,
    };
    Ok(PendingRemoval { replica, removal: left, dir_attr: dir })
}
