//! Renames and exchanges of names. The write replica makes the change. Then the inodes' names and
//! the paths of open files follow.

use std::sync::Arc;

use super::Mutations;
use super::entries::{PendingRemoval, prepare_removal};
use crate::backend::{Backend, BackendError, Lane, RequestContext, TreeMutation};
use crate::fs::entry_name::EntryName;
use crate::fs::error::FsResult;
use crate::fs::handles::OpenInode;
use crate::fs::ino::Ino;
use crate::fs::inodes::LinkRemoval;
use crate::fs::recent_changes::ChangeScope;
use crate::fs::replica_calls::RetriedCall;
use crate::read::OpenFile;
use crate::telemetry::counters::increment;

/// `RENAME_EXCHANGE` of renameat2(2).
const RENAME_EXCHANGE: u32 = 2;

/// A rename of one name to another.
#[derive(Clone, Copy)]
pub struct RenameRequest<'a> {
    /// The old name.
    pub from: EntryName<'a>,
    /// The new name.
    pub to: EntryName<'a>,
    /// The flags of renameat2(2).
    pub flags: u32,
}

/// The inodes of both names before a rename.
#[derive(Clone, Copy)]
struct RenamedInodes {
    moved: Option<Ino>,
    replaced: Option<Ino>,
}

impl RenameRequest<'_> {
    fn is_exchange(&self) -> bool {
        self.flags & RENAME_EXCHANGE != 0
    }
}

impl RenamedInodes {
    fn iter(self) -> impl Iterator<Item = Ino> {
        [self.moved, self.replaced].into_iter().flatten()
    }
}

impl Mutations {
    /// Renames or exchanges names.
    pub async fn rename(&self, caller: RequestContext, request: RenameRequest<'_>) -> FsResult<()> {
        self.wait_for_pending_close(request.to).await;
        let parents = [request.from.parent, request.to.parent];
        let rename = || self.try_rename(caller, request);
        self.calls.with_rename_retry(&parents, RetriedCall::Mutation, rename).await
    }

    async fn try_rename(&self, caller: RequestContext, request: RenameRequest<'_>) -> FsResult<()> {
        let write = self.calls.change_policy()?;
        let from = self.tables.entry_ref(request.from.parent, request.from.name)?;
        let to = self.tables.entry_ref(request.to.parent, request.to.name)?;
        let renamed = {
            let inodes = self.tables.inodes.lock();
            RenamedInodes {
                moved: inodes.child(request.from.parent, request.from.name),
                replaced: inodes.child(request.to.parent, request.to.name),
            }
        };
        let from_path = from.path();
        let to_path = to.path();
        let record = || {
            self.tables.record_name_change(&from_path, ChangeScope::Subtree);
            self.tables.record_name_change(&to_path, ChangeScope::Subtree);
            renamed.iter().for_each(|ino| self.tables.record_inode_change(ino));
        };
        record();
        let mut guard = self.calls.renames.start(from_path.clone(), to_path.clone());
        let is_exchange = request.is_exchange();
        let open = match renamed.replaced {
            Some(replaced) if !is_exchange => self.tables.handles.find_inode(replaced),
            _ => None,
        };
        let once = self.calls.single_call(write, Lane::Metadata, &caller.credentials());
        let from = from.name_on(write.replica);
        let to = to.name_on(write.replica);
        let flags = request.flags;
        let rename = move |backend: &dyn Backend| {
            let replaced = match is_exchange {
                true => PendingRemoval {
                    replica: write.replica,
                    removal: LinkRemoval::OtherLinksLeft,
                    dir_attr: None,
                },
                false => prepare_removal(backend, write.replica, &to, open.as_deref())?,
            };
            backend.mutate(&TreeMutation::Rename { from: from.clone(), to: to.clone(), flags })?;
            Ok(replaced)
        };
        let answer = self.calls.client.call_once(once, rename).await;
        record();
        increment(&self.counters.changes);
        guard.is_refused = answer.is_err_and(|error| error != BackendError::Late);
        self.apply_rename(request, renamed, answer?);
        Ok(())
    }

    /// Updates the tables after the write replica has made the rename.
    fn apply_rename(
        &self,
        request: RenameRequest<'_>,
        renamed: RenamedInodes,
        removal: PendingRemoval,
    ) {
        let RenameRequest { from, to, .. } = request;
        let RenamedInodes { moved, replaced } = renamed;
        let change = self.tables.next_change_seq();
        let mut inodes = self.tables.inodes.lock();
        if request.is_exchange() {
            inodes.exchange(from, to, [moved, replaced], change);
        } else if moved.is_none() || moved != replaced {
            // rename(2) of one name to another of the same file leaves both.
            self.apply_removal(&mut inodes, to, replaced, removal, change);
            inodes.rename(from, to, moved, change);
        }
        drop(inodes);
        self.update_open_paths(renamed.iter());
    }

    /// Updates the paths of open files: of renamed files, and of files below renamed directories.
    fn update_open_paths(&self, renamed: impl Iterator<Item = Ino>) {
        for (ino, inode) in self.open_files_below(renamed) {
            let Some(path) = self.tables.inodes.lock().path(ino) else { continue };
            let current = inode.current();
            if *current.path() == *path {
                continue;
            }
            let mode = self.tables.policy.mode;
            let make = |old: &OpenFile| {
                let reader = &self.tables.reader;
                let renamed = reader.new_open_file(path, old.version(), mode, old.credentials());
                if old.must_reopen() { renamed.reopening() } else { renamed }
            };
            self.tables.reader.retire_file(&inode.adopt_rename(make));
        }
    }

    /// Open files among these inodes and below them; all open files, if these are fewer to check.
    fn open_files_below(&self, tops: impl Iterator<Item = Ino>) -> Vec<(Ino, Arc<OpenInode>)> {
        let most = self.tables.handles.open_file_count();
        let trees: Option<Vec<Vec<Ino>>> = {
            let inodes = self.tables.inodes.lock();
            tops.map(|top| inodes.subtree(top, most)).collect()
        };
        let Some(trees) = trees else { return self.tables.handles.open_inodes() };
        let open = |ino: Ino| Some((ino, self.tables.handles.find_inode(ino)?));
        trees.into_iter().flatten().filter_map(open).collect()
    }
}
