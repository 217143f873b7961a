//! Creates and opens a file, as one change.

use super::Mutations;
use super::entries::ALWAYS_CURRENT;
use crate::backend::{Backend, CreateOptions, Lane, RequestContext, WriteOpenOptions};
use crate::fs::entry_name::{EntryName, InodeAttr, ReplicaAttr};
use crate::fs::error::FsResult;
use crate::fs::open_files::{OpenedFile, OpenedWriter};
use crate::fs::recent_changes::ChangeScope;
use crate::fs::replica_calls::RetriedCall;
use crate::fs::tables::OpenFileCheck;
use crate::telemetry::counters::increment;

/// A file that was just created and opened.
pub struct CreatedFile {
    /// The inode and its attributes, for the kernel.
    pub entry: InodeAttr,
    /// Its first handle.
    pub opened: OpenedFile,
}

/// A name to create, and how to open the file.
pub struct CreateRequest<'a> {
    /// The name.
    pub at: EntryName<'a>,
    /// How the file is opened.
    pub open: WriteOpenOptions,
    /// How to create the file if it does not exist.
    pub create: CreateOptions,
}

impl Mutations {
    /// Creates a file, or opens the one that has the name by now.
    pub async fn create(
        &self,
        caller: RequestContext,
        request: CreateRequest<'_>,
    ) -> FsResult<CreatedFile> {
        let create = || self.try_create(caller, &request);
        self.calls.with_rename_retry(&[request.at.parent], RetriedCall::Mutation, create).await
    }

    async fn try_create(
        &self,
        caller: RequestContext,
        request: &CreateRequest<'_>,
    ) -> FsResult<CreatedFile> {
        let CreateRequest { at, open: options, create } = *request;
        let write = self.calls.change_policy()?;
        let entry = self.tables.entry_ref(at.parent, at.name)?;
        let path = entry.path();
        let credentials = caller.credentials();
        self.tables.record_name_change(&path, ChangeScope::Object);
        let once = self.calls.single_call(write, Lane::Metadata, &credentials);
        let target = entry.name_on(write.replica);
        let make = move |backend: &dyn Backend| backend.create(&target, &options, create);
        let answer = self.calls.client.call_once(once, make).await;
        self.tables.record_name_change(&path, ChangeScope::Object);
        increment(&self.counters.changes);
        let opened = answer?;
        let attr = opened.attr;
        self.wait_for_kernel_forget(at, write.replica, attr).await;
        let found = ReplicaAttr { replica: write.replica, attr: &attr };
        let check = OpenFileCheck::default();
        let entry =
            self.namespace.entry_reply(at, found, &check, ALWAYS_CURRENT, caller.request)?;
        let opened = OpenedWriter { ino: entry.ino, path, credentials, sync: options.sync, opened };
        match self.open_files.register_writer(opened, caller.request) {
            Ok(writer) => {
                self.calls.wait_for_page_drops(entry.ino).await;
                Ok(CreatedFile { entry, opened: self.open_files.opened_file_of(writer.handle) })
            }
            Err(errno) => {
                // The kernel will not learn of the inode.
                self.namespace.forget(entry.ino, 1);
                Err(errno)
            }
        }
    }
}
